"""A cluster on this machine for a while: a real manager and real agents, as processes, in a throw-away home."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from shoal.errors import Unreachable
from shoal.runtime import own_share
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.paths import Paths
from shoal.trainer.confine import ROOT_VARIABLE
from shoal.trainer.processors import THREADS_VARIABLE, share_of_cores
from shoal.trainer.spawn import end_process, spawn

START_TIMEOUT_S = 60.0
#: What runs an agent.
AGENT_MODULE = "shoal.runtime.agent_main"


class LocalCluster:
    """``async with LocalCluster(workers=4) as cluster:`` then operate it from ``cluster.home``.

    Everything is what a real cluster does: a fresh authority, join lines, mutual TLS; only loopback and short-lived.
    """

    def __init__(
        self,
        *,
        workers: int,
        home: Path | None = None,
        agent_options: Sequence[str] = (),
        cache: Path | None = None,
        manager_options: Sequence[str] = (),
    ) -> None:
        self._workers = workers
        self._temporary = tempfile.TemporaryDirectory(prefix="shoal-local-") if home is None else None
        self.home = Path(self._temporary.name) if self._temporary else Path(home or ".")
        self._agent_options = tuple(agent_options)
        self._cache = cache
        self._manager_options = tuple(manager_options)
        #: Each of the workers has its part of a divided set, as the simulator's devices do.
        self._parts = {f"device-{number}": f"{number}/{workers}" for number in range(1, workers + 1)}
        self._port = 0
        self.join_line = ""
        self.endpoint = ""
        self.manager: Process | None = None
        self.agents: dict[str, Process] = {}

    async def __aenter__(self) -> Self:
        try:
            await self.start_manager()
            await asyncio.gather(*(self.start_agent(f"device-{i + 1}") for i in range(self._workers)))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start_manager(self) -> None:
        """Start the manager, or start it again on the same port after it was killed."""
        from shoal.runtime.manager_options import ManagerOptions

        own = ManagerOptions(home=self.home, port=self._port).to_argv()
        arguments = (*own, *self._manager_options)
        self.manager = await self._spawn("shoal.runtime.manager_main", *arguments, log="manager.log", capture=True)
        assert self.manager.stdout is not None
        try:
            line = await asyncio.wait_for(self.manager.stdout.readline(), START_TIMEOUT_S)
            ready = json.loads(line)
        except (TimeoutError, ValueError):
            raise Unreachable(f"the manager did not start: {self.log_tail('manager.log')}") from None
        self._port, self.join_line, self.endpoint = ready["port"], ready["join_line"], ready["endpoint"]

    async def start_agent(self, name: str, *options: str) -> Process:
        """Enrol a device if it is new, and start its agent, with options of its own besides those of all."""
        home = self.agent_home(name)
        if not (home / "node").exists():
            await self._enrol(name, home)
        arguments = (*AgentOptions(home=home).to_argv(), *self._agent_options, *options)
        process = await self._spawn(AGENT_MODULE, *arguments, log=f"{name}.log")
        self.agents[name] = process
        return process

    async def _enrol(self, name: str, home: Path) -> None:
        from shoal.identity.enrolment import enrol
        from shoal.identity.join_code import JoinCode

        enrolled = await enrol(JoinCode.parse(self.join_line), wanted=name)
        enrolled.save(home / "node")
        if name in self._parts:
            own_share.remember(Paths(home), self._parts[name])
        if self._cache is not None:
            self._cache.mkdir(parents=True, exist_ok=True)
            (home / "cache").symlink_to(self._cache)

    def agent_home(self, name: str) -> Path:
        return self.home / "devices" / name

    async def _spawn(self, module: str, *arguments: str, log: str, capture: bool = False) -> Process:
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / log).open("ab") as file:
            return await spawn(
                module,
                *arguments,
                "--leash",
                # Held open while this program lives: even if it is killed, its cluster does not stay behind.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if capture else file,
                stderr=file,
                # The task is the caller's own, and was run as the caller to prepare it: where Python cannot be read by
                # another user, that is no reason to refuse it.
                changes={
                    ROOT_VARIABLE: os.environ.get(ROOT_VARIABLE, "yes"),
                    # Its agents share this machine.
                    THREADS_VARIABLE: os.environ.get(THREADS_VARIABLE, "") or str(share_of_cores(self._workers)),
                    "PYTHONUNBUFFERED": "1",
                },
                # Ctrl-C reaches every process of a terminal; the cluster stays, and saves the job's last version.
                own_session=True,
            )

    def log_tail(self, name: str, lines: int = 5) -> str:
        with contextlib.suppress(OSError):
            text = (self.home / name).read_text(errors="replace")
            return " / ".join(text.strip().splitlines()[-lines:])
        return "no log"

    async def close(self) -> None:
        """End every process, politely first."""
        await asyncio.gather(*(end_process(process) for process in self.agents.values()))
        self.agents.clear()
        if self.manager is not None:
            await end_process(self.manager)
            self.manager = None
        if self._temporary is not None:
            self._temporary.cleanup()
