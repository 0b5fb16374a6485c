"""How much processor a device has: a group of processes with a quota (cgroup v1, ``cpu``). Knows no network.

In every ``PERIOD_US`` a group may run for its share of it on all cores together, and waits for the rest: half a core is
50 ms of work and 50 ms of standing still. So what takes a millisecond on the machine takes a millisecond here too, as
long as the quota lasts, and long work takes twice as long. A slower processor is not this; for that there is the pace
of a trainer (``testbed.paced``).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from testbed import owners
from testbed.commands import NoNamespaces

PERIOD_US = 100_000
#: The kernel gives a group at least a millisecond.
CORES_LEAST = 0.01
#: An ordinary process has 1,024. A quota is only a ceiling: with more weight than whatever else this machine does, a
#: device also gets what it is allowed, as long as the quotas of all together do not ask for more than there is.
SHARES = 16_384

#: Moves itself into the group named first, then becomes the command: the process keeps its id.
_JOIN = 'echo $$ > "$0" && exec "$@"'


class Quota:
    """A group of processes that together have so many cores' worth of time."""

    def __init__(self, cores: float) -> None:
        if cores < CORES_LEAST:
            raise NoNamespaces(f"a device has at least {CORES_LEAST:g} of a core, not {cores:g}")
        self._cores = cores
        self._group = groups() / f"{owners.NAMESPACE}{os.getpid()}-{owners.next_number()}"

    @property
    def name(self) -> str:
        return self._group.name

    def make(self) -> None:
        try:
            self._group.mkdir()
            (self._group / "cpu.shares").write_text(str(SHARES))
            (self._group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._group / "cpu.cfs_quota_us").write_text(str(round(self._cores * PERIOD_US)))
        except OSError as error:
            raise NoNamespaces(f"cannot limit processor time: {error}") from None

    def enter(self) -> tuple[str, ...]:
        """What to put before a command that shall have this quota."""
        return ("/bin/sh", "-c", _JOIN, str(self._group / "cgroup.procs"))

    def remove(self) -> None:
        """End what still runs in it, and remove it."""
        with owners.undisturbed():
            _remove(self._group)


def groups() -> Path:
    """Where groups are made: below the one that this process is in, whose limits hold for them too."""
    for line in _lines("/proc/mounts"):
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            below = Path(place) / _own_group().lstrip("/")
            # In a container its own group may be shown as the top.
            return below if below.is_dir() else Path(place)
    raise NoNamespaces("a quota of processor time takes the cpu controller of cgroup v1, which is not mounted here")


def quotas_of(pid: int) -> list[str]:
    """Groups that a process made and that are still there."""
    return [group.name for group in _ours() if owners.owner_of(group.name) == pid]


def makers() -> list[int]:
    """The processes, alive or not, that own groups."""
    return sorted({owner for group in _ours() if (owner := owners.owner_of(group.name)) is not None})


def remove_of(pid: int) -> None:
    with owners.undisturbed():
        for group in _ours():
            if owners.owner_of(group.name) == pid:
                _remove(group)


def _ours() -> list[Path]:
    with suppress(NoNamespaces, OSError):
        return sorted(path for path in groups().iterdir() if path.is_dir() and owners.owner_of(path.name) is not None)
    return []


def _own_group() -> str:
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return path
    return "/"


def _remove(group: Path) -> None:
    def processes() -> list[int]:
        with suppress(OSError):
            return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
        return []

    owners.end_all(processes)
    # One whose processes cannot be ended stays, and does not keep the others.
    with suppress(OSError):
        group.rmdir()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
