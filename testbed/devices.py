"""Devices made of this machine: each with its own network, rates, and share of the processor. Knows no cluster.

    with Testbed(boards(4, up_mbps=10, down_mbps=50, cores=0.5)) as bed:
        device = bed["device-1"]
        subprocess.run(device.exec("python", "-c", "..."))       # runs there, reaches bed.address and the others

What it makes is gone when the context ends, also after Ctrl-C. After ``kill -9`` of its process, ``clean`` removes it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from testbed import homes, namespaces, owners, quota
from testbed.namespaces import Network, NoNamespaces, why_no_namespaces
from testbed.proxy import Line
from testbed.quota import Quota
from testbed.sockets import listener_in


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """What a device shall be. None: as much as this machine has."""

    name: str
    up_mbps: float | None = None
    down_mbps: float | None = None
    #: Of a processor's time, over all cores.
    cores: float | None = None
    #: What its trainer takes for a batch, at least.
    pace_s: float = 0.0
    #: How bad its line to the manager is, beside its rates.
    line: Line | None = None


def boards(
    count: int,
    *,
    up_mbps: float | None = None,
    down_mbps: float | None = None,
    cores: float | None = None,
    pace_s: float = 0.0,
    line: Line | None = None,
) -> list[Board]:
    """Devices that are all alike: device-1, device-2 and so on."""
    one = Board(name="", up_mbps=up_mbps, down_mbps=down_mbps, cores=cores, pace_s=pace_s, line=line)
    return [replace(one, name=f"device-{number}") for number in range(1, count + 1)]


class Device:
    """One of a testbed's."""

    def __init__(self, board: Board, network: Network, share: Quota | None) -> None:
        self.board = board
        self._network = network
        self._share = share

    @property
    def name(self) -> str:
        return self.board.name

    @property
    def address(self) -> str:
        return self._network.address_of(self.name)

    @property
    def namespace(self) -> str:
        return self._network.namespace_of(self.name)

    def exec(self, *command: str) -> tuple[str, ...]:
        """The words that run a command on this device. The process keeps the id it was started with."""
        return (*(self._share.enter() if self._share else ()), *self._network.enter(self.name), *command)

    def listener(self, port: int = 0) -> socket.socket:
        """A socket of this process that others reach at the device's address."""
        return listener_in(self.namespace, self.address, port)

    def cut(self) -> None:
        self._network.cut(self.name)

    def mend(self) -> None:
        self._network.mend(self.name)

    def limit(self, *, up_mbps: float | None, down_mbps: float | None) -> None:
        """Other rates than it was made with; None for no limit."""
        self._network.limit(self.name, up_mbps=up_mbps, down_mbps=down_mbps)


class Testbed:
    """Devices on a bridge. Each sends at its up rate and receives at its down rate, with every peer."""

    #: pytest takes names that begin like this for tests.
    __test__ = False

    def __init__(self, wanted: Sequence[Board], *, shared_mbps: float | None = None) -> None:
        """``shared_mbps``: what all devices together may send, as on one radio channel, beside their own rates."""
        self.network = Network([board.name for board in wanted], shared_mbps=shared_mbps)
        self._shares = {board.name: Quota(board.cores) for board in wanted if board.cores is not None}
        self._devices = {board.name: Device(board, self.network, self._shares.get(board.name)) for board in wanted}
        self._stack = ExitStack()

    @property
    def address(self) -> str:
        """This machine's, as the devices see it."""
        return self.network.address

    def __getitem__(self, name: str) -> Device:
        return self._devices[name]

    def __iter__(self) -> Iterator[Device]:
        return iter(self._devices.values())

    def __len__(self) -> int:
        return len(self._devices)

    def __enter__(self) -> Self:
        if why_not := why_no_namespaces():
            raise NoNamespaces(why_not)
        clean()
        owners.record()
        with ExitStack() as made:
            # First, so that it is taken down last: a group goes when the processes in it have gone with the network.
            for share in self._shares.values():
                made.callback(share.remove)
                share.make()
            made.enter_context(self.network)
            for device in self:
                if device.board.up_mbps is not None or device.board.down_mbps is not None:
                    device.limit(up_mbps=device.board.up_mbps, down_mbps=device.board.down_mbps)
            self._stack = made.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process that runs on a device, and take everything down."""
        with owners.undisturbed():
            self._stack.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaned:
    #: Namespaces, links, groups and directories that were left behind, and are gone.
    removed: tuple[str, ...]
    #: Those of processes that still run: they were not touched.
    kept: tuple[str, ...]


def left_of(pid: int) -> list[str]:
    """All that a process made and that is still there."""
    return [*namespaces.left_of(pid), *quota.quotas_of(pid), *homes.homes_of(pid)]


def clean() -> Cleaned:
    """Remove what testbeds left behind whose process is gone. Leaves those of living processes alone."""
    removed, kept = [], []
    for pid in sorted({*namespaces.makers(), *quota.makers(), *homes.makers(), *owners.recorded()}):
        before = left_of(pid)
        if owners.is_alive(pid):
            kept += before
            continue
        # Directories are this user's own and outlast a start of the machine, which records do not.
        homes.remove_of(pid)
        if owners.is_left_behind(pid):
            namespaces.remove_of(pid)
            quota.remove_of(pid)
        after = left_of(pid)
        removed += [name for name in before if name not in after]
        if not after:
            owners.forget(pid)
    return Cleaned(removed=tuple(removed), kept=tuple(kept))
