"""Shoal on the machines: a manager, four agents that keep their examples, one job."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.peers.bed import Machine, wait_until
from benchmarks.peers.deployment import COMMAND_S, HERE, START_S, Deployment, Setting
from benchmarks.peers.shares import CLIENTS
from shoal.errors import ShoalError
from shoal.runtime.operator import Operator
from shoal.wire.messages import JobView, Status

_ASK_S = 5.0
BATCH = 32


class ShoalDeployment(Deployment):
    setup = "shoal up, shoal join on each client, mutual TLS; the manager leads"
    install = ("pip", "install", ".[torch]")

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._operator: Operator | None = None
        self._line = ""
        self._jobs = 0
        self._seen: list[int] = []
        self._version = 0

    @property
    def app(self) -> Path:
        return HERE / "shoal_app"

    def start_server(self) -> None:
        said = len(self.server.said())
        command = ("shoal", "up", "--host", self.server.address)
        self.typed.note(command)
        self.server.start(*command, environment=self._environment(self.server))
        if not self._line:
            wait_until(lambda: "shoal://" in self.server.said()[said:], limit_s=START_S, what="the manager's line")
            found = re.search(r"shoal://\S+", self.server.said()[said:])
            assert found is not None
            self._line = found[0]

    def start_client(self, client: Machine) -> None:
        named = ("--data", str(self.share_of(client)), "--name", client.name)
        # One, as the others have by their environment: four clients share the cores of this machine.
        command = ("shoal", "join", self._line, *named, "--threads", "1")
        self.typed.note(command)
        client.start(*command, environment=self._environment(client))

    def wait_for_clients(self) -> None:
        def all_alive() -> bool:
            status = self._asked()
            return status is not None and sum(node.state == "alive" for node in status.nodes) >= CLIENTS

        wait_until(all_alive, limit_s=START_S, what="four agents of Shoal")

    def submit(self, rounds: int) -> None:
        self._jobs += 1
        self._seen, self._version = [], 0
        batches = self.setting.examples // BATCH
        command = ("shoal", "train", str(self.app / "digits.py"), "--workers", f"{CLIENTS - 1}:{CLIENTS}")
        options = ("--epochs", str(rounds), "--plan", f"lease_batches={batches}", "--name", self._name, "--detach")
        self._type(*command, *options)

    def models(self) -> list[int]:
        job = self._job()
        if job is not None and job.progress is not None:
            version = job.progress.version
            if version > self._version:
                self._seen.append(version)
            # A lower one is what was durable when the manager died: the next above it is a new model.
            self._version = version
        return self._seen

    def state(self) -> str:
        job = self._job()
        return "the manager does not answer" if job is None else f"{job.state} {job.reason}".strip()

    def fetch_model(self) -> Path:
        wait_until(lambda: self.state().startswith("finished"), limit_s=COMMAND_S, what="the end of Shoal's job")
        path = self.server.home / "model.safetensors"
        self._type("shoal", "model", "pull", self._name, "-o", str(path))
        return path

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    @property
    def _name(self) -> str:
        return f"digits-{self._jobs}"

    def _type(self, *command: str) -> None:
        self.typed.note(command)
        environment = self._environment(self.server)
        self.server.run(*command, environment=environment, cwd=self.server.home, limit_s=COMMAND_S)

    def _environment(self, machine: Machine) -> dict[str, str]:
        # The task is this benchmark's own; its Python may lie where only root can read.
        return self.environment(machine, {"SHOAL_TRAINER_ROOT": "yes"})

    # Looking, as shoal status does, without a new process each time --------------------------------------

    def _job(self) -> JobView | None:
        asked = self._asked()
        named = [job for job in asked.jobs if job.name == self._name] if asked else []
        return named[-1] if named else None

    def _asked(self) -> Status | None:
        try:
            return self._runner.run(self._ask())
        except (ShoalError, OSError, TimeoutError):
            return None

    async def _ask(self) -> Status:
        async with asyncio.timeout(_ASK_S):
            if self._operator is None:
                self._operator = await self._stack.enter_async_context(Operator.open(self.server.home / ".shoal"))
            return await self._operator.status()
