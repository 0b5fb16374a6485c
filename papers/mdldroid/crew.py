"""Members as processes and a round among them: the chain by the package's rules, or a master. Decides nothing itself.

The chain is scheduled here as by the paper's mobile agent: whenever a member is free, ``EarliestTwo`` is asked for the
next pair. The root then gives the model on, and whoever has it helps: ``binomial``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.chain_broadcast import binomial, richest_first
from shoal.errors import Misuse
from shoal.flock.pairing.pairs import EarliestTwo, Holder

_ROOT = Path(__file__).resolve().parents[2]
_ANSWER_TIMEOUT_S = 180.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Where a member runs: what stands before its command, and its address."""

    before: tuple[str, ...] = ()
    host: str = "127.0.0.1"


@dataclass(slots=True)
class _Process:
    name: str
    host: str
    running: asyncio.subprocess.Process
    port: int = 0
    spent: float = 0.0
    theta: float = 1.0

    @property
    def address(self) -> list[Any]:
        return [self.host, self.port]

    async def answer(self) -> dict[str, Any]:
        assert self.running.stdout is not None
        line = await asyncio.wait_for(self.running.stdout.readline(), _ANSWER_TIMEOUT_S)
        if not line:
            raise Misuse(f"{self.name} ended: see what it wrote above")
        told: dict[str, Any] = json.loads(line)
        return told

    async def do(self, what: str, **order: Any) -> dict[str, Any]:
        assert self.running.stdin is not None
        self.running.stdin.write(json.dumps({"do": what, **order}).encode() + b"\n")
        await self.running.stdin.drain()
        return await self.answer()


@dataclass(slots=True)
class Crew:
    """So many members, each with its own update and weight; gone when the context ends."""

    values: int
    seats: Sequence[Seat]
    members: list[_Process] = field(default_factory=list)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as made:
            for place, seat in enumerate(self.seats):
                member = await _start(place, seat, self.values)
                made.push_async_callback(_end, member.running)
                member.port = (await member.answer())["port"]
                self.members.append(member)
            self._stack = made.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def peaks_mb(self) -> list[float]:
        return [(await member.do("report"))["peak_mb"] for member in self.members]

    def expected(self) -> float:
        """The weighted mean of all updates."""
        weights = [theta_of(place) for place in range(len(self.members))]
        return sum(weight * own_of(place) for place, weight in enumerate(weights)) / sum(weights)

    async def check(self) -> None:
        """Everybody has the mean of all."""
        for member in self.members:
            told = await member.do("report")
            if abs(told["mean"] - self.expected()) > 1e-5 * abs(self.expected()):
                raise Misuse(f"{member.name} has {told['mean']}, not the mean {self.expected()}")

    async def chain_round(self, *, train_s: Sequence[float], whole: bool = False) -> float:
        """Train, merge in pairs, broadcast; the seconds until all have it."""
        began_s = time.monotonic()
        root = await self._merged(train_s, whole=whole)
        await self._broadcast(root)
        return time.monotonic() - began_s

    async def _merged(self, train_s: Sequence[float], *, whole: bool) -> _Process:
        named = {member.name: member for member in self.members}
        free: dict[str, float] = {}
        began_s = time.monotonic()
        tasks: dict[asyncio.Task[None], str] = {
            asyncio.create_task(_trained(member, seconds)): member.name
            for member, seconds in zip(self.members, train_s, strict=True)
        }
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                free[tasks.pop(task)] = time.monotonic() - began_s
            while pair := EarliestTwo().next_pair(
                [Holder(name=name, ready_s=at_s, spent_joules=named[name].spent) for name, at_s in free.items()]
            ):
                del free[pair.sender], free[pair.receiver]
                merge = _merge(named[pair.sender], named[pair.receiver], whole=whole)
                tasks[asyncio.create_task(merge)] = pair.receiver
        (root,) = free
        return named[root]

    async def _broadcast(self, root: _Process) -> None:
        """Who spent least has it first, and helps most."""
        named = {member.name: member for member in self.members}
        standings = [Holder(name=name, ready_s=0.0, spent_joules=member.spent) for name, member in named.items()]
        for pairs in binomial(root.name, richest_first(standings, root=root.name)):
            await asyncio.gather(*(_give(named[giver], named[taker]) for giver, taker in pairs))

    async def master_round(self, *, train_s: Sequence[float], hold: bool = True) -> float:
        """The same with the first member as master: all send to it, and it gives to all."""
        began_s = time.monotonic()
        master, *others = self.members
        trained = [
            asyncio.create_task(_trained(member, seconds))
            for member, seconds in zip(self.members, train_s, strict=True)
        ]
        await trained[0]
        collected = asyncio.create_task(master.do("collect", count=len(others), hold=hold))

        async def deliver(member: _Process, task: asyncio.Task[None]) -> None:
            await task
            await member.do("send", to=master.address)

        await asyncio.gather(*(deliver(*each) for each in zip(others, trained[1:], strict=True)))
        await collected
        takes = [asyncio.create_task(member.do("take")) for member in others]
        await master.do("give", to=[member.address for member in others])
        await asyncio.gather(*takes)
        return time.monotonic() - began_s


def own_of(place: int) -> float:
    return float(place + 1)


def theta_of(place: int) -> float:
    return float(100 + 7 * place)


async def _start(place: int, seat: Seat, values: int) -> _Process:
    command = [*seat.before, sys.executable, "-m", "papers.mdldroid.member", "--host", seat.host]
    command += ["--values", str(values), "--own", str(own_of(place)), "--theta", str(theta_of(place))]
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    running = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    return _Process(name=f"member-{place + 1}", host=seat.host, running=running, theta=theta_of(place))


async def _end(running: asyncio.subprocess.Process) -> None:
    assert running.stdin is not None
    running.stdin.close()
    try:
        await asyncio.wait_for(running.wait(), 5.0)
    except TimeoutError:
        running.kill()
        await running.wait()


async def _trained(member: _Process, seconds: float) -> None:
    await member.do("train", seconds=seconds)


async def _merge(sender: _Process, receiver: _Process, *, whole: bool) -> None:
    await asyncio.gather(receiver.do("get", whole=whole), sender.do("send", to=receiver.address))
    sender.spent += 1.0
    receiver.spent += 2.0


async def _give(giver: _Process, taker: _Process) -> None:
    await asyncio.gather(taker.do("take"), giver.do("send", to=taker.address))
    giver.spent += 1.0
    taker.spent += 1.0
