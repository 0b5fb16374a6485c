"""A whole Shoal cluster on a testbed: a manager and agents, each a process on a device of its own.

    async with Cluster(home, boards(4, up_mbps=100, down_mbps=100, pace_s=1.0)) as cluster:
        await cluster.connected()
        async with Operator.open(home) as operator:
            job = await operator.submit(...)

Everything is what a real cluster does: an authority, join lines, mutual TLS. Devices are enrolled from this machine and
then work in their own networks. Every process that is started here is ended here, by its id.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.errors import Unreachable
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.join_code import JoinCode
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.operator import Operator
from shoal.trainer.spawn import end_process
from testbed.devices import Board, Device, Testbed
from testbed.paced import DEVICE_VARIABLE, set_pace
from testbed.proxy import Line

ROOT = Path(__file__).resolve().parent.parent

MANAGER = "manager"
#: Nobody else is on the manager's device: the same port always. The one above it lets devices join.
PORT = 7070

START_TIMEOUT_S = 60.0
_POLL_S = 0.1
_LOG_TAIL_CHARS = 2_000


class Cluster:
    def __init__(
        self,
        home: Path,
        wanted: Sequence[Board],
        *,
        manager: Board | None = None,
        shared_mbps: float | None = None,
        child_module: str = "testbed.paced",
        manager_module: str = "shoal.runtime.manager_main",
        manager_options: Sequence[str] = (),
        agent_module: str = "shoal.runtime.agent_main",
        cache: Path | None = None,
    ) -> None:
        """``manager``: its rates and share of the processor. ``cache``: one for all devices, so that what a job's data
        takes to arrive is paid once and not measured with the rest."""
        self.home = home
        self.manager: asyncio.subprocess.Process | None = None
        self.agents: dict[str, asyncio.subprocess.Process] = {}
        self.join_line = ""
        chosen = dataclasses.replace(manager, name=MANAGER) if manager else Board(name=MANAGER)
        self.bed = Testbed([chosen, *wanted], shared_mbps=shared_mbps)
        self._names = [board.name for board in wanted]
        self._child_module = child_module
        self._manager_module = manager_module
        self._manager_options = tuple(manager_options)
        self._agent_module = agent_module
        self._cache = cache
        self._proxies: list[asyncio.subprocess.Process] = []
        self._stack = AsyncExitStack()

    @property
    def devices(self) -> list[Device]:
        return [self.bed[name] for name in self._names]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as made:
            made.enter_context(self.bed)
            made.push_async_callback(self._end_processes)
            await self.start_manager()
            await asyncio.gather(*(self.start_agent(name) for name in self._names))
            self._stack = made.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every process, politely first, and take the devices down."""
        await self._stack.aclose()

    async def _end_processes(self) -> None:
        await asyncio.gather(*(end_process(process) for process in (*self.agents.values(), *self._proxies)))
        self.agents.clear()
        self._proxies.clear()
        if self.manager is not None:
            await end_process(self.manager)
            self.manager = None

    # Processes -----------------------------------------------------------------------------------------

    async def start_manager(self) -> None:
        """Start the manager, or start it again after it was killed."""
        device = self.bed[MANAGER]
        own = ManagerOptions(home=self.home, host=device.address, port=PORT).to_argv()
        self.manager = await self._spawn(device, self._manager_module, *own, *self._manager_options, capture=True)
        line = await self._first_line(device, self.manager)
        self.join_line = json.loads(line)["join_line"]

    async def start_agent(self, name: str) -> asyncio.subprocess.Process:
        """Enrol a device if it is new, and start its agent, or start it again after it was killed."""
        device = self.bed[name]
        home = self.device_home(name)
        if not (home / "node").exists():
            await self._enrol(device)
        options = AgentOptions(home=home, child_module=self._child_module, pace_s=device.board.pace_s)
        self.agents[name] = await self._spawn(device, self._agent_module, *options.to_argv())
        return self.agents[name]

    async def _enrol(self, device: Device) -> None:
        home = self.device_home(device.name)
        enrolled = await enrol(JoinCode.parse(self.join_line), wanted=device.name)
        if device.board.line is not None:
            enrolled = await self._over(device, device.board.line, enrolled)
        enrolled.save(home / "node")
        set_pace(home, device.board.pace_s)
        if self._cache is not None:
            self._cache.mkdir(parents=True, exist_ok=True)
            (home / "cache").symlink_to(self._cache)

    async def _over(self, device: Device, line: Line, enrolled: Enrolled) -> Enrolled:
        """The same member, which reaches its manager over a bad line from now on."""
        settings = [(f"--{name.replace('_', '-')}", str(value)) for name, value in dataclasses.asdict(line).items()]
        options = ("--to", enrolled.manager_endpoint, *itertools.chain.from_iterable(settings))
        process = await self._spawn(device, "testbed.proxy", *options, log=f"{device.name}.line", capture=True)
        self._proxies.append(process)
        port = int(await self._first_line(device, process))
        return dataclasses.replace(enrolled, manager_endpoint=f"127.0.0.1:{port}")

    async def _spawn(
        self, device: Device, module: str, *options: str, log: str = "", capture: bool = False
    ) -> asyncio.subprocess.Process:
        self.home.mkdir(parents=True, exist_ok=True)
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        with (self.home / f"{log or device.name}.log").open("ab") as file:
            return await asyncio.create_subprocess_exec(
                *device.exec(sys.executable, "-m", module, *options, "--leash"),
                # Held open while this program lives: even if it is killed, its cluster does not stay behind.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if capture else file,
                stderr=file,
                # A signal typed at the terminal is for us alone: we end the others in order.
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": search,
                    "PYTHONUNBUFFERED": "1",
                    DEVICE_VARIABLE: str(self.device_home(device.name)),
                },
            )

    async def _first_line(self, device: Device, process: asyncio.subprocess.Process) -> str:
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError:
            line = b""
        if not line:
            await end_process(process)
            raise Unreachable(f"nothing started on {device.name}: {self.log_tail(device.name)}")
        return line.decode()

    # What can be asked and told --------------------------------------------------------------------------

    def device_home(self, name: str) -> Path:
        return self.home / "devices" / name

    def set_pace(self, name: str, pace_s: float) -> None:
        """From its next lease on, this device takes so long a batch."""
        set_pace(self.device_home(name), pace_s)

    def log_tail(self, name: str) -> str:
        logs = sorted(self.home.glob(f"{name}*.log"))
        return "\n".join(log.read_text(errors="replace")[-_LOG_TAIL_CHARS:] for log in logs)

    async def connected(self, *, limit_s: float = START_TIMEOUT_S) -> None:
        """Wait until the manager hears every device."""
        deadline_s = time.monotonic() + limit_s
        async with Operator.open(self.home) as operator:
            while True:
                nodes = (await operator.status()).nodes
                alive = {node.node for node in nodes if node.state == "alive"}
                missing = [name for name in self._names if name not in alive]
                if not missing:
                    return
                if time.monotonic() > deadline_s:
                    raise Unreachable(f"not connected: {', '.join(missing)}: {self.log_tail(missing[0])}")
                await asyncio.sleep(_POLL_S)
