"""Pools and analysts on a testbed: each manager, executor and analyst a process on a device of its own.

    async with Bed(folder, pools=2, executors=8, analysts=[Board(name="slow", cores=0.1)]) as bed:
        told = await bed.analyse("slow", {"do": "product", ...})

All are on one bridge, so that an analyst reaches every pool; its link is its own. Everything that is started here is
ended here, by its id.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoal.errors import ShoalError, Unreachable
from shoal.identity.enrolment import enrol
from shoal.identity.join_code import JoinCode
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.operator import Operator
from shoal.trainer.spawn import end_process
from testbed.devices import Board, Device, Testbed
from testbed.one_core import one_thread

ROOT = Path(__file__).resolve().parent.parent
PORT = 7070
#: As much as anyone could use: not a limit, but a group of one's own, which comes before what else the machine does.
CORES = float(os.cpu_count() or 1)
START_S, ANALYSE_S = 60.0, 900.0
_POLL_S = 0.1


class Bed:
    def __init__(
        self,
        folder: Path,
        *,
        pools: int,
        executors: int,
        analysts: Sequence[Board],
        liars: Sequence[str] = (),
        liar_module: str = "",
    ) -> None:
        """``executors``: of all pools together, shared out in turn. ``liars``: those that run another agent."""
        self.pools = [f"pool-{number + 1}" for number in range(pools)]
        self.executors = {f"executor-{n + 1}": self.pools[n % pools] for n in range(executors)}
        names = [*self.pools, *self.executors]
        self.bed = Testbed([*(Board(name=name, cores=CORES) for name in names), *analysts])
        self._folder = folder
        self._liars, self._liar_module = tuple(liars), liar_module
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._stack = AsyncExitStack()

    def home_of(self, name: str) -> Path:
        return self._folder / name

    @property
    def homes(self) -> list[str]:
        """What an analyst names its pools by."""
        return [str(self.home_of(pool)) for pool in self.pools]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as made:
            made.enter_context(self.bed)
            made.push_async_callback(self._end)
            lines = dict(zip(self.pools, await asyncio.gather(*map(self._start_manager, self.pools)), strict=True))
            await asyncio.gather(*(self._start_executor(name, lines[pool]) for name, pool in self.executors.items()))
            await asyncio.gather(*map(self._lent, self.pools))
            self._stack = made.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _end(self) -> None:
        managers = [self._processes.pop(name) for name in self.pools if name in self._processes]
        await asyncio.gather(*(end_process(process) for process in self._processes.values()))
        await asyncio.gather(*(end_process(process) for process in managers))
        self._processes.clear()

    # Who is there ----------------------------------------------------------------------------------------

    async def _start_manager(self, name: str) -> str:
        device = self.bed[name]
        options = ManagerOptions(home=self.home_of(name), host=device.address, port=PORT, leash=True)
        process = await self._spawn(device, "shoal.runtime.manager_main", *options.to_argv())
        self._processes[name] = process
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), START_S)
        if not line:
            raise Unreachable(f"{name} did not start: {self.log_tail(name)}")
        return str(json.loads(line)["join_line"])

    async def _start_executor(self, name: str, join_line: str) -> None:
        home = self.home_of(name)
        (await enrol(JoinCode.parse(join_line), wanted=name)).save(home / "node")
        options = AgentOptions(home=home, lend=True, leash=True)
        module = self._liar_module if name in self._liars else "shoal.runtime.agent_main"
        self._processes[name] = await self._spawn(self.bed[name], module, *options.to_argv())

    async def _lent(self, pool: str) -> None:
        """Wait until all of a pool's executors are measured and ready."""
        wanted = sum(of == pool for of in self.executors.values())
        deadline_s = time.monotonic() + START_S
        async with Operator.open(self.home_of(pool)) as operator:
            while True:
                lenders = (await operator.status()).executors
                if sum(lender.state == "ready" for lender in lenders) >= wanted:
                    return
                if time.monotonic() > deadline_s:
                    raise Unreachable(f"{pool} has {lenders}, not {wanted} that are ready: {self.log_tail(pool)}")
                await asyncio.sleep(_POLL_S)

    async def excluded(self) -> dict[str, str]:
        """Executors that their schedulers exclude, and why."""
        found: dict[str, str] = {}
        for pool in self.pools:
            async with Operator.open(self.home_of(pool)) as operator:
                for lender in (await operator.status()).executors:
                    if lender.state == "excluded":
                        found[lender.node] = lender.reason
        return found

    # What an analyst does --------------------------------------------------------------------------------

    async def analyse(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Run ``benchmarks.offload_analyst`` on this device, and give what it tells."""
        process = await self._spawn(self.bed[name], "benchmarks.offload_analyst", json.dumps(settings), log=name)
        self._processes[name] = process
        assert process.stdout is not None
        try:
            said = await asyncio.wait_for(process.stdout.read(), ANALYSE_S)
            await process.wait()
        finally:
            await end_process(process)
            self._processes.pop(name, None)
        if process.returncode or not said:
            raise ShoalError(f"{name} ended with {process.returncode}: {self.log_tail(name)}")
        told: dict[str, Any] = json.loads(said.splitlines()[-1])
        return told

    async def _spawn(self, device: Device, module: str, *options: str, log: str = "") -> asyncio.subprocess.Process:
        self._folder.mkdir(parents=True, exist_ok=True)
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        with (self._folder / f"{log or device.name}.log").open("ab") as file:
            return await asyncio.create_subprocess_exec(
                *device.exec(sys.executable, "-m", module, *options),
                # Held open while this program lives: even if it is killed, what it started does not stay behind.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                start_new_session=True,
                env=one_thread({**os.environ, "PYTHONPATH": search, "PYTHONUNBUFFERED": "1"}),
            )

    def log_tail(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2_000:]
