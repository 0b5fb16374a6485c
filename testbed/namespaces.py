"""A network of devices on this machine: a namespace each, a bridge between them. Linux and root; knows no Shoal.

    with Network(["device-1", "device-2"]) as network:
        subprocess.Popen([*network.enter("device-1"), "python", ...])    # reaches this machine at network.address
        network.cut("device-1")                                        # its cable is pulled
        network.mend("device-1")

Names carry the id of the process that made them. What such a process left behind when it was killed is removed by the
next one that makes a network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

#: What one command may take. All of them only talk to the kernel.
COMMAND_TIMEOUT_S = 10.0

#: 198.18.0.0/15 is set aside for measurements of networks (RFC 2544): nobody's real network is there.
_NETWORKS = tuple(f"198.{second}.{third}" for second in (18, 19) for third in range(256))
_PREFIX_BITS = 24
#: The bridge has the first address of its network, devices those above.
_DEVICES_MAX = 250

#: Enough for one frame of the largest size a virtual link passes on at once.
_BURST_BYTES = 65_536
_QUEUE_MS = 100

#: A link's name has at most 15 characters, and a process id may have seven digits.
_NAME = re.compile(r"(?:shoal-|shb|shv)(\d+)(?:-\d+)?")


class NoNamespaces(Exception):
    """This machine, or this user, cannot make networks. The text says why."""


class Network:
    """Devices that reach this machine, and one another, over a bridge."""

    def __init__(self, devices: Sequence[str]) -> None:
        if len(set(devices)) != len(devices) or not 1 <= len(devices) <= _DEVICES_MAX:
            raise NoNamespaces(f"a network has 1 to {_DEVICES_MAX} devices of different names, not {len(devices)}")
        self._numbers = {device: number for number, device in enumerate(devices, start=1)}
        self._bridge = f"shb{os.getpid()}"
        self._network = ""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self._numbers)

    @property
    def address(self) -> str:
        """This machine's, as the devices see it."""
        return f"{self._network}.1"

    def address_of(self, device: str) -> str:
        return f"{self._network}.{self._numbers[device] + 1}"

    def enter(self, device: str) -> tuple[str, ...]:
        """What to put before a command that shall run on this device. The process keeps the id it was started with."""
        return (_ip(), "netns", "exec", self._namespace(device))

    # Made and taken down -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        why_not = why_no_namespaces()
        if why_not:
            raise NoNamespaces(why_not)
        remove_stale()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take everything down. Processes that still run on a device are ended: they would reach nothing."""
        _remove_of(os.getpid())

    def _make(self) -> None:
        self._network = _free_network()
        _run("link", "add", self._bridge, "type", "bridge")
        _run("addr", "add", f"{self.address}/{_PREFIX_BITS}", "dev", self._bridge)
        _run("link", "set", self._bridge, "up")
        for device in self._numbers:
            self._plug_in(device)

    def _plug_in(self, device: str) -> None:
        namespace, outside = self._namespace(device), self._link(device)
        _run("netns", "add", namespace)
        _run("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("link", "set", outside, "master", self._bridge)
        _run("link", "set", outside, "up")
        inside = ("-n", namespace)
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "addr", "add", f"{self.address_of(device)}/{_PREFIX_BITS}", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")

    def _namespace(self, device: str) -> str:
        return f"shoal-{os.getpid()}-{self._numbers[device]}"

    def _link(self, device: str) -> str:
        return f"shv{os.getpid()}-{self._numbers[device]}"

    # What can be done to a device's link ---------------------------------------------------------------

    def cut(self, device: str) -> None:
        """Nothing passes in either direction, and nobody is told."""
        _run("link", "set", self._link(device), "down")

    def mend(self, device: str) -> None:
        _run("link", "set", self._link(device), "up")

    def limit(self, device: str, *, down_mbps: float, up_mbps: float) -> None:
        """Let this much pass to the device and from it; called again, the new figures hold."""
        _shape((), self._link(device), down_mbps)
        _shape(("-n", self._namespace(device)), "eth0", up_mbps)

    def unlimit(self, device: str) -> None:
        for inside, link in (((), self._link(device)), (("-n", self._namespace(device)), "eth0")):
            # There may be no limit to take away.
            with suppress(NoNamespaces):
                _tc(*inside, "qdisc", "del", "dev", link, "root")


def why_no_namespaces() -> str:
    """Why this process cannot make networks; empty if it can."""
    if sys.platform != "linux":
        return "network namespaces are a thing of Linux"
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "network namespaces take the commands ip and tc: install iproute2"
    trial = f"shoal-{os.getpid()}-0"
    try:
        _run("netns", "add", trial)
        _run("netns", "del", trial)
    except NoNamespaces as error:
        return str(error)
    return ""


def left_of(pid: int) -> list[str]:
    """Namespaces and links that a process made and that are still there."""
    return [name for name in (*_namespaces(), *_links()) if _maker(name) == pid]


def remove_stale() -> None:
    """Remove what processes made that are gone."""
    makers = {maker for name in (*_namespaces(), *_links()) if (maker := _maker(name)) is not None}
    for maker in sorted(makers):
        if not Path(f"/proc/{maker}").exists():
            _remove_of(maker)


# Below here: commands ----------------------------------------------------------------------------------


def _remove_of(pid: int) -> None:
    """Each on its own: one that cannot be removed does not keep the others."""
    for name in [name for name in _namespaces() if _maker(name) == pid]:
        with suppress(NoNamespaces):
            for process in _run("netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        with suppress(NoNamespaces):
            _run("netns", "del", name)
    for name in [name for name in _links() if _maker(name) == pid]:
        # A link may have gone with the namespace its other end was in.
        with suppress(NoNamespaces):
            _run("link", "del", name)


def _maker(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def _namespaces() -> list[str]:
    return sorted(line.split()[0] for line in _run("netns", "list").splitlines() if line.strip())


def _links() -> list[str]:
    return sorted(str(link["ifname"]) for link in _listed("link"))


def _free_network() -> str:
    """One that no link has an address of. Two processes begin to look at different places."""
    taken = {address.rpartition(".")[0] for link in _listed("addr") for address in _addresses(link)}
    first = os.getpid() % len(_NETWORKS)
    return next(network for network in (*_NETWORKS[first:], *_NETWORKS[:first]) if network not in taken)


def _addresses(link: dict[str, Any]) -> list[str]:
    return [str(entry["local"]) for entry in link.get("addr_info", []) if "local" in entry]


def _listed(what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_run("-j", what, "show") or "[]")
    # Older versions of ip list an empty entry for what a filter leaves out.
    return [entry for entry in found if entry]


def _shape(inside: tuple[str, ...], link: str, mbps: float) -> None:
    limit = ("tbf", "rate", f"{round(mbps * 1e6)}bit", "burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms")
    _tc(*inside, "qdisc", "replace", "dev", link, "root", *limit)


def _ip() -> str:
    return shutil.which("ip") or "ip"


def _run(*arguments: str) -> str:
    return _command(_ip(), *arguments)


def _tc(*arguments: str) -> str:
    return _command(shutil.which("tc") or "tc", *arguments)


def _command(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNamespaces(f"{' '.join(words)}: {error}") from None
    if done.returncode:
        raise NoNamespaces(f"{' '.join(words)}: {done.stderr.strip() or f'ended with code {done.returncode}'}")
    return done.stdout
