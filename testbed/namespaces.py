"""A network of devices on this machine: a namespace each, a bridge between them. Linux and root; knows no Shoal.

    with Network(["device-1", "device-2"]) as network:
        subprocess.Popen([*network.enter("device-1"), "python", ...])    # reaches this machine at network.address
        network.cut("device-1")                                        # its cable is pulled
        network.mend("device-1")
        network.split(["device-1"])                                    # it is up, and alone; nobody's cable is pulled
        network.rejoin()

Names carry the id of the process that made them. What such a process left behind when it was killed is removed by the
next one that makes a network.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from testbed import owners
from testbed.commands import NoNamespaces, ip, ip_path, listed
from testbed.rates import OWN_QUEUE_FRAMES, make_medium, shape, through_medium, unshape

__all__ = ["Network", "NoNamespaces", "left_of", "remove_stale", "why_no_namespaces"]

#: 198.18.0.0/15 is set aside for measurements of networks (RFC 2544): nobody's real network is there.
_NETWORKS = tuple(f"198.{second}.{third}" for second in (18, 19) for third in range(256))
_PREFIX_BITS = 24
#: The bridge has the first address of its network, devices those above.
_DEVICES_MAX = 250
#: What a link may take to carry frames after it was turned on.
_CARRIER_WITHIN_S = 5.0


class Network:
    """Devices that reach this machine, and one another, over a bridge."""

    def __init__(self, devices: Sequence[str], *, shared_mbps: float | None = None) -> None:
        """``shared_mbps``: all links together have this much, as on one radio channel."""
        if len(set(devices)) != len(devices) or not 1 <= len(devices) <= _DEVICES_MAX:
            raise NoNamespaces(f"a network has 1 to {_DEVICES_MAX} devices of different names, not {len(devices)}")
        self._pid = os.getpid()
        self._hosts = {device: host for host, device in enumerate(devices, start=2)}
        self._tags = {device: f"{self._pid}-{owners.next_number()}" for device in devices}
        tag = f"{self._pid}-{owners.next_number()}"
        self._bridge, self._medium = f"{owners.BRIDGE}{tag}", f"{owners.MEDIUM}{tag}"
        self._apart = f"{owners.BRIDGE}{self._pid}-{owners.next_number()}"
        self._split: list[str] = []
        self._shared_mbps = shared_mbps
        self._network = ""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self._hosts)

    @property
    def address(self) -> str:
        """This machine's, as the devices see it."""
        return f"{self._network}.1"

    def address_of(self, device: str) -> str:
        return f"{self._network}.{self._hosts[device]}"

    def namespace_of(self, device: str) -> str:
        return f"{owners.NAMESPACE}{self._tags[device]}"

    def enter(self, device: str) -> tuple[str, ...]:
        """What to put before a command that shall run on this device. The process keeps the id it was started with."""
        return (ip_path(), "netns", "exec", self.namespace_of(device))

    # Made and taken down -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        why_not = why_no_namespaces()
        if why_not:
            raise NoNamespaces(why_not)
        remove_stale()
        owners.record()
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
        if os.getpid() != self._pid:
            # A copy of the process that made it: the network is not ours to remove.
            return
        with owners.undisturbed():
            links = {self._bridge, self._apart, self._medium, *(self._link(device) for device in self._hosts)}
            _remove({self.namespace_of(device) for device in self._hosts}, links)
            if not left_of(self._pid):
                owners.forget(self._pid)

    def _make(self) -> None:
        with owners.alone():
            self._network = _free_network()
            ip("link", "add", self._bridge, "type", "bridge")
            ip("addr", "add", f"{self.address}/{_PREFIX_BITS}", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        if self._shared_mbps is not None:
            make_medium(self._medium, self._shared_mbps)
            # Every frame once: those of devices where they come in, those of this machine where they go out.
            through_medium(self._medium, self._bridge, arriving=False)
        for device in self._hosts:
            self._plug_in(device)

    def _plug_in(self, device: str) -> None:
        namespace, outside = self.namespace_of(device), self._link(device)
        ip("netns", "add", namespace)
        ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("link", "set", outside, "master", self._bridge, "up")
        inside = ("-n", namespace)
        ip(*inside, "link", "set", "lo", "up")
        ip(*inside, "addr", "add", f"{self.address_of(device)}/{_PREFIX_BITS}", "dev", "eth0")
        ip(*inside, "link", "set", "eth0", "up")
        if self._shared_mbps is not None:
            through_medium(self._medium, outside, arriving=True)

    def _link(self, device: str) -> str:
        return f"{owners.LINK}{self._tags[device]}"

    # What can be done to a device's link ---------------------------------------------------------------

    def cut(self, device: str) -> None:
        """Nothing passes in either direction, and nobody is told."""
        ip("link", "set", self._link(device), "down")

    def mend(self, device: str) -> None:
        """Plug the cable in again, and wait until both ends of it carry frames.

        A busy kernel takes a second and more to turn a link on. A program that connects before that may fail with "no
        route to host".
        """
        ip("link", "set", self._link(device), "up")
        ends: tuple[tuple[str, ...], ...] = ((self._link(device),), ("eth0", "-n", self.namespace_of(device)))
        ends_by = time.monotonic() + _CARRIER_WITHIN_S
        while not all(_carries(*end) for end in ends) and time.monotonic() < ends_by:
            time.sleep(0.02)

    def split(self, devices: Sequence[str]) -> None:
        """These reach one another and nobody else, this machine neither; nobody is told."""
        if self._apart not in _links():
            ip("link", "add", self._apart, "type", "bridge")
            ip("link", "set", self._apart, "up")
        for device in devices:
            self._split.append(device)
            ip("link", "set", self._link(device), "master", self._apart)

    def rejoin(self) -> None:
        """Everyone reaches everyone again."""
        while self._split:
            ip("link", "set", self._link(self._split.pop()), "master", self._bridge)

    def limit(self, device: str, *, down_mbps: float | None, up_mbps: float | None) -> None:
        """Let this much pass to the device and from it, None for no limit; called again, the new figures hold."""
        outside, inside = self._link(device), ("-n", self.namespace_of(device))
        if down_mbps is None:
            unshape(outside)
        else:
            shape(outside, down_mbps)
        if up_mbps is None:
            unshape("eth0", inside=inside)
        else:
            shape("eth0", up_mbps, inside=inside, queue_frames=OWN_QUEUE_FRAMES)

    def unlimit(self, device: str) -> None:
        self.limit(device, down_mbps=None, up_mbps=None)


def why_no_namespaces() -> str:
    """Why this process cannot make networks; empty if it can."""
    if sys.platform != "linux":
        return "network namespaces are a thing of Linux"
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "network namespaces take the commands ip and tc: install iproute2"
    trial = f"{owners.NAMESPACE}{os.getpid()}-0"
    try:
        with owners.undisturbed():
            ip("netns", "add", trial)
            ip("netns", "del", trial)
    except NoNamespaces as error:
        return str(error)
    return ""


def left_of(pid: int) -> list[str]:
    """Namespaces and links that a process made and that are still there."""
    return [name for name in (*_namespaces(), *_links()) if owners.owner_of(name) == pid]


def makers() -> list[int]:
    """The processes, alive or not, that own namespaces or links."""
    found = {owner for name in (*_namespaces(), *_links()) if (owner := owners.owner_of(name)) is not None}
    return sorted(found)


def remove_stale() -> None:
    """Remove what testbeds made whose process is gone. What no testbed wrote down is left alone, whatever its name."""
    for maker in makers():
        if owners.is_left_behind(maker):
            remove_of(maker)


def remove_of(pid: int) -> None:
    names = set(left_of(pid))
    with owners.undisturbed():
        _remove({name for name in names if name.startswith(owners.NAMESPACE)}, names)


# Below here: commands ----------------------------------------------------------------------------------


def _remove(namespaces: set[str], links: set[str]) -> None:
    """Each on its own: one that cannot be removed does not keep the others."""
    for name in [name for name in _namespaces() if name in namespaces]:
        with suppress(NoNamespaces):
            owners.end_all(partial(_processes_in, name))
        with suppress(NoNamespaces):
            ip("netns", "del", name)
    for name in [name for name in _links() if name in links]:
        # A link may have gone with the namespace its other end was in.
        with suppress(NoNamespaces):
            ip("link", "del", name)


def _processes_in(namespace: str) -> list[int]:
    return [int(pid) for pid in ip("netns", "pids", namespace).split()]


def _namespaces() -> list[str]:
    return sorted(line.split()[0] for line in ip("netns", "list").splitlines() if line.strip())


def _links() -> list[str]:
    return sorted(str(link["ifname"]) for link in listed("link"))


def _carries(link: str, *inside: str) -> bool:
    """Whether the kernel says of this link that it is up."""
    return bool(re.search(r"\bstate UP\b", ip(*inside, "link", "show", link)))


def _free_network() -> str:
    """One that no link has an address of. Two processes begin to look at different places."""
    taken = {address.rpartition(".")[0] for link in listed("addr") for address in _addresses(link)}
    first = os.getpid() % len(_NETWORKS)
    return next(network for network in (*_NETWORKS[first:], *_NETWORKS[:first]) if network not in taken)


def _addresses(link: dict[str, Any]) -> list[str]:
    return [str(entry["local"]) for entry in link.get("addr_info", []) if "local" in entry]
