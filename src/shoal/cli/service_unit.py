"""The systemd unit of a manager or an agent, as text made from settings. Reads no file and runs no program.

The manager needs no rights: its unit takes all of them away. The agent starts trainers, and a trainer gives up its
user, its network and its view of the file system by itself (decision 12), which takes root. So the agent's unit keeps
root with the few capabilities that this needs, and names the user that trainers become. Without root (``rootless``)
the agent and its trainers are one user: a task can then read the device's keys and use its network.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import PurePosixPath

from shoal.errors import Misuse
from shoal.trainer.confine import USER_VARIABLE


class Part(enum.StrEnum):
    """What a unit runs."""

    MANAGER = "manager"
    AGENT = "agent"


#: Where systemd keeps the state of services.
STATE_ROOT = PurePosixPath("/var/lib")

#: In the home of an agent's service: the line it joins with, until it has joined.
LINE_FILE = "join-line"

#: What a root agent needs of root: to make a trainer another user (SETUID, SETGID, SETPCAP), with a network and mounts
#: of its own (SYS_ADMIN), in a folder given to that user (CHOWN, FOWNER, DAC_OVERRIDE), and to end it (KILL).
AGENT_CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
)

#: The cluster refused this device for good, for example because it was revoked: the same again would be refused too.
REFUSED_FOR_GOOD = 4

#: How long the event loop of a service may stand still. A small board may wait long for its card.
WATCHDOG_S = {Part.MANAGER: 60, Part.AGENT: 120}

#: Homes of people, which ``ProtectHome`` hides.
_HOMES = tuple(map(PurePosixPath, ("/home", "/root", "/run/user")))

_HARDENING = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectHostname=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallArchitectures=native",
    "UMask=0077",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceSettings:
    """What the owner of a machine chose for a service."""

    part: Part
    #: The user of the service; for an agent that is not rootless, the user of its trainers.
    user: str
    home: PurePosixPath
    #: The words that start Shoal: a program, and what makes it ``shoal``.
    program: tuple[str, ...]
    #: What else the command is given.
    options: tuple[str, ...] = ()
    #: For an agent: run all of it as ``user``.
    rootless: bool = False

    def __post_init__(self) -> None:
        if not self.program or not PurePosixPath(self.program[0]).is_absolute():
            raise Misuse("a service starts a program by its whole path")
        if not self.home.is_absolute():
            raise Misuse(f"{self.home} is relative: give --home an absolute path")
        if self.rootless and self.part is Part.MANAGER:
            raise Misuse("a manager's service never is root: leave out --rootless")
        for word in (*self.program, *self.options, str(self.home), self.user):
            if not word.isprintable():
                raise Misuse(f"{word!r} has characters that a unit cannot hold")

    @property
    def is_root(self) -> bool:
        return self.part is Part.AGENT and not self.rootless

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command of the service."""
        if self.part is Part.MANAGER:
            # A line that is made at every start and read by nobody is a secret too many.
            return (*self.program, "up", "--home", str(self.home), "--no-token", *self.options)
        line = ("--line-file", str(self.home / LINE_FILE), "--remove-line")
        return (*self.program, "join", "--home", str(self.home), *line, *self.options)

    @property
    def state_directory(self) -> str:
        """The home below systemd's own folder of state; empty: it lies elsewhere."""
        return str(self.home.relative_to(STATE_ROOT)) if STATE_ROOT in self.home.parents else ""


def unit_name(part: Part) -> str:
    return f"shoal-{part}.service"


def unit_text(settings: ServiceSettings) -> str:
    """The unit file."""
    service = _manager_lines(settings) if settings.part is Part.MANAGER else _agent_lines(settings)
    sections = {
        "Unit": _unit_lines(settings),
        "Service": [
            # Started once it serves, and started again if its event loop stands still.
            "Type=notify",
            f"WatchdogSec={WATCHDOG_S[settings.part]}s",
            f"ExecStart={' '.join(map(quoted, settings.command))}",
            "Restart=on-failure",
            "RestartSec=5s",
            # The agent and the manager end their children themselves; what is left after that is killed.
            "KillMode=mixed",
            "TimeoutStopSec=30s",
            *_place_lines(settings),
            *service,
            *_HARDENING,
            f"ProtectHome={_protect_home(settings)}",
        ],
        "Install": ["WantedBy=multi-user.target"],
    }
    text = "# Written by `shoal service install`; `systemctl edit` keeps changes apart from this file.\n"
    for name, lines in sections.items():
        text += f"\n[{name}]\n" if name != "Unit" else f"[{name}]\n"
        text += "".join(f"{line}\n" for line in lines)
    return text


def quoted(word: str) -> str:
    """A word of a command as systemd reads it: specifiers, variables and quotes mean themselves."""
    return _quoted(word.replace("$", "$$"))


def _quoted(word: str) -> str:
    """A word of another setting: systemd replaces variables only in commands."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    is_simple = bool(word) and all(each.isalnum() or each in "-_./:=@,+%$" for each in word)
    return plain if is_simple else f'"{plain}"'


def _unit_lines(settings: ServiceSettings) -> list[str]:
    what = "manager of a cluster" if settings.part is Part.MANAGER else "agent of this device"
    return [
        f"Description=Shoal: {what}",
        "Wants=network-online.target",
        "After=network-online.target",
    ]


def _place_lines(settings: ServiceSettings) -> list[str]:
    if state := settings.state_directory:
        return [f"StateDirectory={_quoted(state)}", "StateDirectoryMode=0700"]
    return [f"ReadWritePaths={_quoted(str(settings.home))}"]


def _manager_lines(settings: ServiceSettings) -> list[str]:
    return [
        f"User={settings.user}",
        # A session for each device, and files besides.
        "LimitNOFILE=65536",
        "CapabilityBoundingSet=",
        "PrivateDevices=yes",
        "ProtectControlGroups=yes",
        "ProtectClock=yes",
        "ProtectProc=invisible",
        "RestrictNamespaces=yes",
        "SystemCallFilter=@system-service",
        "SystemCallErrorNumber=EPERM",
    ]


def _agent_lines(settings: ServiceSettings) -> list[str]:
    shared = [
        f"RestartPreventExitStatus={REFUSED_FOR_GOOD}",
        # A trainer that fills its memory is ended alone: its agent says so, and goes on.
        "OOMPolicy=continue",
        # The device's other work comes first.
        "CPUWeight=50",
        "IOWeight=50",
        # A slice of its own: a limit on it, such as MemoryMax, holds for the agent and its trainers together.
        "Slice=shoal.slice",
        # Not PrivateDevices or ProtectClock: either hides graphics processors from trainers.
        "SystemCallFilter=~@clock @cpu-emulation @module @obsolete @raw-io @reboot @swap",
        "SystemCallErrorNumber=EPERM",
    ]
    if settings.rootless:
        return [
            f"User={settings.user}",
            "CapabilityBoundingSet=",
            "ProtectControlGroups=yes",
            "RestrictNamespaces=yes",
            *shared,
        ]
    return [
        f"Environment={_quoted(f'{USER_VARIABLE}={settings.user}')}",
        f"CapabilityBoundingSet={' '.join(AGENT_CAPABILITIES)}",
        # A trainer has a control group, a network and mounts of its own, so the agent may make them.
        "Delegate=yes",
        "RestrictNamespaces=mnt net",
        *shared,
    ]


def _protect_home(settings: ServiceSettings) -> str:
    """Homes of people are hidden, unless Python, Shoal's files or a folder that was named lie in one."""
    # An option and its value may be one word: ``--data=/home/ann/readings``.
    values = [word.partition("=")[2] if word.startswith("-") else word for word in settings.options]
    used = [PurePosixPath(word) for word in (*settings.program, *values) if word.startswith("/")]
    is_needed = any(home in path.parents for path in (*used, settings.home) for home in _HOMES)
    return "read-only" if is_needed else "yes"
