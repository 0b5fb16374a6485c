"""Shoal on aarch64: an agent in an arm64 root folder, under emulation, joins this machine's manager and trains.

The manager and the leader are this machine's, the only worker is the emulated device, in a network of its own. Every
process that is started here is ended here, by its id.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from shoal.errors import ShoalError, Unreachable
from shoal.runtime.operator import Operator
from shoal.trainer.spawn import end_process
from shoal.wire.messages import JobView, NodeView
from testbed.arm64_root import HOME, MIRROR, REPOSITORY, TORCH, Tell, environment, inside, made_root, size_mb
from testbed.devices import Board, Testbed
from testbed.emulator import Emulator
from testbed.homes import temporary_home

DEVICE = "arm64"
TASK = Path(__file__).with_name("arm64_task.py")

#: A manager starts in seconds, on a busy machine in a minute. The emulated device has the caller's limit.
MANAGER_WITHIN_S = 120.0
_POLL_S = 1.0
_TAIL_LINES = 15

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What came of it, as the manager tells it."""

    joined: bool
    trained_versions: int
    #: By the device's own facts: aarch64, or this was no proof.
    machine: str
    torch: str
    join_s: float
    first_version_s: float
    job_s: float
    state: str
    root_mb: int
    emulator: str

    def as_json(self) -> dict[str, object]:
        return dataclasses.asdict(self)


async def show(folder: Path, *, torch: str = TORCH, mirror: str = MIRROR, within_s: float, tell: Tell) -> Shown:
    """Make the root folder if need be, then join and train in it. ``within_s`` bounds joining, and then training."""
    async with AsyncExitStack() as stack:
        emulator = stack.enter_context(Emulator())
        root = await asyncio.to_thread(made_root, folder, torch=torch, mirror=mirror, tell=tell)
        bed = stack.enter_context(Testbed([Board(name=DEVICE)]))
        home = stack.enter_context(temporary_home())
        return await _Story(stack, bed, home, root, within_s, tell).told(emulator.name)


class _Story:
    def __init__(
        self, stack: AsyncExitStack, bed: Testbed, home: Path, root: Path, within_s: float, tell: Tell
    ) -> None:
        self._stack = stack
        self._bed = bed
        self._home = home
        self._root = root
        self._within_s = within_s
        self._tell = tell
        self._agent: Process | None = None

    async def told(self, emulator: str) -> Shown:
        self._tell("starting a manager on this machine")
        line = await self._start_manager()
        operator = await self._stack.enter_async_context(Operator.open(self._home))
        started_s = time.monotonic()
        self._tell(f"starting an agent in {self._root.name}, under {emulator}")
        await self._start_agent(line)
        node = await self._until("the device joins", lambda: self._joined(operator))
        join_s = time.monotonic() - started_s
        self._tell(f"{node.node} joined after {join_s:.0f} s: {node.facts.arch}, torch {node.facts.torch}")
        submitted_s = time.monotonic()
        job = await operator.prepare_and_submit(str(TASK))
        self._tell(f"submitted {job}")
        await self._until("a version is trained", lambda: self._at_version(operator, job))
        first_s = time.monotonic() - submitted_s
        self._tell(f"version 1 after {first_s:.0f} s")
        view = await self._until("the job ends", lambda: self._ended(operator, job))
        self._tell(f"the job {view.state}" + (f": {view.reason}" if view.reason else ""))
        return Shown(
            joined=True,
            trained_versions=view.progress.version if view.progress else 0,
            machine=node.facts.arch,
            torch=node.facts.torch,
            join_s=round(join_s, 1),
            first_version_s=round(first_s, 1),
            job_s=round(time.monotonic() - submitted_s, 1),
            state=view.state,
            root_mb=await asyncio.to_thread(size_mb, self._root),
            emulator=emulator,
        )

    # Processes -----------------------------------------------------------------------------------------

    async def _start_manager(self) -> str:
        """The line to join with."""
        words = (sys.executable, "-P", "-m", "shoal.cli.main", "up", "--home", str(self._home), "--json")
        address = ("--host", self._bed.address, "--port", "0")
        search = os.pathsep.join(filter(None, (str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", ""))))
        manager = await self._start("manager", (*words, *address), {**os.environ, "PYTHONPATH": search}, capture=True)
        assert manager.stdout is not None
        try:
            told = await asyncio.wait_for(manager.stdout.readline(), MANAGER_WITHIN_S)
            return str(json.loads(told)["join_line"])
        except (TimeoutError, ValueError, KeyError):
            raise Unreachable(f"the manager did not start: {self._log_tail('manager')}") from None

    async def _start_agent(self, line: str) -> None:
        words = ("python3", "-P", "-m", "shoal.cli.main", "join", line, "--name", DEVICE, "--home", f"{HOME}/home")
        # One thread: the emulator's threads wait for each other more than they work.
        command = self._bed[DEVICE].exec(*inside(self._root, *words, "--threads", "1"))
        self._agent = await self._start(DEVICE, command, environment())

    async def _start(
        self, name: str, command: Sequence[str], variables: Mapping[str, str], *, capture: bool = False
    ) -> Process:
        log: IO[bytes] = (self._home / f"{name}.log").open("ab")
        with log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if capture else log,
                stderr=log,
                env=dict(variables),
                # Ctrl-C is for us alone: we end the others in order.
                start_new_session=True,
            )
        self._stack.push_async_callback(end_process, process)
        return process

    # What is asked ---------------------------------------------------------------------------------------

    async def _joined(self, operator: Operator) -> NodeView | None:
        nodes = (await operator.status()).nodes
        return next((node for node in nodes if node.node == DEVICE and node.state == "alive"), None)

    async def _at_version(self, operator: Operator, job: str) -> JobView | None:
        view = await self._view(operator, job)
        return view if (view.progress and view.progress.version) or view.state in _OVER else None

    async def _ended(self, operator: Operator, job: str) -> JobView | None:
        view = await self._view(operator, job)
        return view if view.state in _OVER else None

    async def _view(self, operator: Operator, job: str) -> JobView:
        view = (await operator.status(job)).jobs[0]
        if view.state == "failed":
            raise Unreachable(f"the job failed: {view.reason}; the device says:\n{self._log_tail(DEVICE)}")
        return view

    async def _until(self, what: str, condition: Callable[[], Awaitable[T | None]]) -> T:
        ends_by = time.monotonic() + self._within_s
        while True:
            try:
                if (answer := await condition()) is not None:
                    return answer
                why = ""
            except Unreachable:
                raise
            except ShoalError as error:
                why = str(error)
            if self._agent is not None and self._agent.returncode is not None:
                raise Unreachable(f"the agent ended with code {self._agent.returncode}:\n{self._log_tail(DEVICE)}")
            if time.monotonic() > ends_by:
                advice = f"not within {self._within_s:g} s: {what}; give it longer with --within-s. {why}"
                raise Unreachable(f"{advice}\nThe device says:\n{self._log_tail(DEVICE)}")
            await asyncio.sleep(_POLL_S)

    def _log_tail(self, name: str) -> str:
        lines = (self._home / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:]) or "nothing"


_OVER = ("finished", "failed", "stopped")
