"""The kit of all attacks: a real cluster to attack, members driven by hand, and the verdict on an attack.

Only what anyone can reach is used: sockets, certificates, the messages of ``shoal.wire``, commands, logs. Every process
that is started here is ended here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np

from shoal.errors import ShoalError
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.identity import Identity, channel_credentials, channel_options
from shoal.identity.join_code import JoinCode
from shoal.net.grpc import SERVICE
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.wire.frames import chunk_frames, envelope_frame
from shoal.wire.messages import (
    Assign,
    Evaluated,
    Facts,
    Finished,
    Heartbeat,
    Hello,
    JobView,
    Lane,
    Leave,
    Message,
    Ready,
    Update,
    UpdateRefused,
    Work,
)
from testbed.echo_job import ECHO, echo_job
from testbed.light_workers import Client

ROOT = Path(__file__).resolve().parents[2]

#: The longest that any one thing is waited for.
WAIT_S = 60.0
POLL_S = 0.1

#: Strangers come from an address of their own, so that a limit for each address is a defence as it would be on a LAN.
STRANGER = "127.0.0.9"

T = TypeVar("T")


class NotTried(Exception):
    """The attack could not be tried, or it did not come to where harm shows: it says nothing about Shoal."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the harm stayed away, and what happened, in words."""

    held: bool
    told: str
    #: False: neither harm nor its absence was seen, and it is not held.
    tried: bool = True

    @property
    def word(self) -> str:
        if not self.tried:
            return "not tried"
        return "held" if self.held else "harmed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    name: str
    #: Of the audit.
    finding: int
    run: Callable[[Path, float], Coroutine[Any, Any, Outcome]]
    #: It measures times, or takes much memory: nothing else runs beside it.
    alone: bool = False

    @property
    def about(self) -> str:
        return (self.run.__doc__ or "").strip().splitlines()[0]


# A cluster to attack ---------------------------------------------------------------------------------------


class Site(LocalCluster):
    """``async with Site(folder) as site``: a manager and its agents as processes, and an operator of them."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 0,
        agent_options: Sequence[str] = (*ECHO, "--pace-s", "0.05"),
        manager_command: Sequence[str] = (sys.executable,),
        agent_command: Sequence[str] = (sys.executable,),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """The commands are what Python is started by, for example under a limit."""
        super().__init__(workers=workers, home=folder / "site", agent_options=agent_options)
        self.folder = folder
        self._manager_command = tuple(manager_command)
        self._agent_command = tuple(agent_command)
        self._environment = dict(environment or {})
        self._stack = contextlib.AsyncExitStack()
        self._operator: Operator | None = None
        self._jobs = 0

    @property
    def operator(self) -> Operator:
        assert self._operator is not None
        return self._operator

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    @property
    def enrol_port(self) -> int:
        return JoinCode.parse(self.join_line).port

    @property
    def manager_pid(self) -> int:
        assert self.manager is not None
        return self.manager.pid

    async def start_manager(self) -> None:
        await super().start_manager()
        if self._operator is None:
            self._operator = await self._stack.enter_async_context(Operator.open(self.home))

    async def close(self) -> None:
        await self._stack.aclose()
        await super().close()

    async def _spawn(self, module: str, *arguments: str, log: str, capture: bool = False) -> asyncio.subprocess.Process:
        self.home.mkdir(parents=True, exist_ok=True)
        is_manager = module == "shoal.runtime.manager_main"
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "PYTHONPATH": search, "PYTHONUNBUFFERED": "1"}
        with (self.home / log).open("ab") as file:
            return await asyncio.create_subprocess_exec(
                *(self._manager_command if is_manager else self._agent_command),
                *("-m", module, *arguments),
                "--leash",
                # Held open while this program lives: even if it is killed, its cluster does not stay behind.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if capture else file,
                stderr=file,
                env=environment if is_manager else environment | self._environment,
            )

    def log(self, name: str = "manager") -> str:
        path = self.home / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # Members ------------------------------------------------------------------------------------------------

    async def member(self, name: str) -> Enrolled:
        """One more device, enrolled; no agent runs for it."""
        return await enrol(JoinCode.parse(self.join_line), wanted=name)

    # Jobs ---------------------------------------------------------------------------------------------------

    async def start_echo_job(self, *, values: int = 1000, **plan: Any) -> str:
        """A job whose trainers answer at once, without an end in sight."""
        self._jobs += 1
        folder = self.folder / f"job-{self._jobs}"
        folder.mkdir()
        ready = echo_job(folder, values=values, batches=1_000_000)
        return await self.operator.submit(ready, plan={"until": {"epochs": 1}, "pace": "async", **plan})

    async def view(self, job: str) -> JobView:
        return (await self.operator.status(job)).jobs[0]

    async def version(self, job: str) -> int:
        progress = (await self.view(job)).progress
        return progress.version if progress is not None else 0

    async def accuracy(self, job: str) -> float | None:
        progress = (await self.view(job)).progress
        return progress.accuracy if progress is not None else None

    async def events(self, job: str) -> list[str]:
        """The latest, oldest first, as ``kind: reason``."""
        return [f"{event.kind}: {event.reason}" for event in (await self.operator.status(job)).events]

    async def until(self, what: str, asks: Callable[[], Awaitable[T]], *, limit_s: float = WAIT_S) -> T:
        """Ask until the answer is true; it is returned."""
        deadline_s = time.monotonic() + limit_s
        while not (answer := await asks()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not within {limit_s:g} s: {what}; the manager said {self.log_tail('manager.log')}")
            await asyncio.sleep(POLL_S)
        return answer

    async def goes_on(self, job: str, *, versions: int = 10) -> None:
        """So many versions are made: all that it takes to start is over."""

        async def made() -> bool:
            return await self.version(job) >= versions

        await self.until(f"{versions} versions of {job}", made)

    async def ended(self, job: str, *, limit_s: float = WAIT_S) -> JobView:
        async def over() -> JobView | None:
            view = await self.view(job)
            return view if view.state in ("finished", "failed", "stopped") else None

        view = await self.until(f"{job} ends", over, limit_s=limit_s)
        assert view is not None
        return view


@dataclass(slots=True)
class Standstill:
    """How a job went on while it was watched."""

    first: int = 0
    last: int = 0
    longest_s: float = 0.0

    @property
    def told(self) -> str:
        return f"{self.first} -> {self.last} versions, none for at most {self.longest_s:.1f} s"


async def watched(site: Site, job: str, *, for_s: float) -> Standstill:
    """The versions of a job over this time, and the longest time without a new one."""
    seen = Standstill(first=await site.version(job))
    seen.last, moved_s, end_s = seen.first, time.monotonic(), time.monotonic() + for_s
    while time.monotonic() < end_s:
        await asyncio.sleep(POLL_S)
        now = await site.version(job)
        if now != seen.last:
            seen.last, moved_s = now, time.monotonic()
        seen.longest_s = max(seen.longest_s, time.monotonic() - moved_s)
    return seen


async def status_ms(site: Site, *, for_s: float) -> list[float]:
    """How long an operator waits for a status, asked again and again over this time."""
    took: list[float] = []
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s or not took:
        began_s = time.monotonic()
        try:
            await site.operator.status()
        except ShoalError:
            # Nobody answered at all: as long as it took to give up, or worse.
            took.append(1e6)
        else:
            took.append(1000 * (time.monotonic() - began_s))
        await asyncio.sleep(0.05)
    return took


def in_ms(took: Sequence[float]) -> str:
    return f"median {statistics.median(took):.0f} ms, at most {max(took):.0f} ms"


# Members by hand ---------------------------------------------------------------------------------------------


def channel_of(identity: Identity, endpoint: str, *options: tuple[str, Any]) -> grpc.aio.Channel:
    """A connection of its own, as this member."""
    chosen = [*channel_options("manager"), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), *options]
    return grpc.aio.secure_channel(endpoint, channel_credentials(identity), options=chosen)


async def asked(
    channel: grpc.aio.Channel, verb: str, message: Message, *, timeout_s: float = 10.0
) -> tuple[grpc.StatusCode, Any]:
    """One unary call: how it ended, and the frame that came, or what was said instead."""
    call = channel.unary_unary(f"/{SERVICE}/{verb}")(envelope_frame(message), timeout=timeout_s)
    try:
        return grpc.StatusCode.OK, await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()


class BadWorker:
    """An enrolled node that works by hand: says hello, takes leases, and answers them as ``lie`` says.

    ``lie`` gets the lease and what number it is, from 1, and gives an update to send, or nothing. Without ``judge`` it
    does not evaluate.
    """

    def __init__(
        self,
        identity: Identity,
        port: int,
        lie: Callable[[Work, int], Update | None],
        *,
        judge: Callable[[Work], Evaluated | None] | None = None,
        pace_s: float = 0.02,
    ) -> None:
        self._identity = identity
        self._port = port
        self._lie = lie
        self._judge = judge
        self._pace_s = pace_s
        self._work_lane: Client | None = None
        self._job = ""
        #: The model that it was last given, where that is small enough to come with its lease.
        self.model: np.ndarray[Any, Any] | None = None
        self.leases = 0
        self.sent = 0
        #: What it was told when an update was not taken.
        self.refusals: list[str] = []
        #: How its streams ended, should they have.
        self.ends: list[str] = []

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[BadWorker]:
        control, work = (Client(self._identity, lane, port=self._port) for lane in (Lane.CONTROL, Lane.WORK))
        self._work_lane = work
        tasks = [
            asyncio.create_task(self._noted(self._control(control, work))),
            asyncio.create_task(self._noted(self._work(work))),
            asyncio.create_task(self._noted(_beat(control))),
        ]
        try:
            yield self
        finally:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                # So that nobody waits for what it was lent.
                async with asyncio.timeout(2.0):
                    await control.send(Leave(reason="it has done what it came for"))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(control.close(), work.close(), return_exceptions=True)

    async def ask(self) -> None:
        """Say once more that it is ready, whatever became of the lease it had."""
        assert self._work_lane is not None
        await self._work_lane.send(Ready(job=self._job))

    async def _noted(self, doing: Coroutine[Any, Any, None]) -> None:
        try:
            await doing
        except grpc.aio.AioRpcError as error:
            self.ends.append(str(error.details()))
        except Exception as error:
            # Ours or gRPC's: an attack that broke off is seen in what it says it sent.
            self.ends.append(f"{type(error).__name__}: {error}")

    async def _control(self, control: Client, work: Client) -> None:
        await control.connected()
        facts = Facts(torch="none needed")
        await control.send(Hello(node=self._identity.node, incarnation="1", facts=facts))
        async for opening in control.messages():
            if isinstance(opening.message, Assign):
                self._job = opening.message.job
                await work.connected()
                # Its leader may not know it yet: until then it is not heard.
                for _ in range(20):
                    await asyncio.sleep(0.2)
                    if self.leases:
                        break
                    await work.send(Ready(job=opening.message.job))
                    await asyncio.sleep(1.0)

    async def _work(self, work: Client) -> None:
        async for opening in work.messages():
            if isinstance(opening.message, Work) and opening.chunk is not None:
                self.model = np.frombuffer(bytes(opening.chunk), np.float32)
            match opening.message:
                case Work(kind="evaluate") as lease if self._judge is not None:
                    if (judged := self._judge(lease)) is not None:
                        await work.send(judged)
                case Work(kind="train") as lease:
                    self.leases += 1
                    await asyncio.sleep(self._pace_s)
                    if (update := self._lie(lease, self.leases)) is not None:
                        await work.send(update, tuple(chunk_frames(update.tensors)))
                        self.sent += 1
                case UpdateRefused(reason=reason):
                    self.refusals.append(reason)
                case Finished():
                    return


async def _beat(control: Client) -> None:
    await control.connected()
    await asyncio.sleep(0.5)
    for seq in range(1, 1 << 30):
        await control.send(Heartbeat(seq=seq))
        await asyncio.sleep(1.0)


def update_for(lease: Work, delta: np.ndarray[Any, Any], *, examples: int, **said: Any) -> Update:
    return Update(
        job=lease.job,
        term=lease.term,
        lease=lease.lease,
        version=lease.version,
        examples=examples,
        tensors={"delta": delta},
        **said,
    )


# Other sockets -----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def crowd(host: str, port: int, *, count: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A stranger's process that keeps so many silent connections open, and opens each anew that is cut."""
    command = (sys.executable, "-m", "testbed.attacks.stranger", "--crowd", f"{host}:{port}", "--count", str(count))
    stranger = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        assert stranger.stdout is not None
        # It says so once all of them were begun.
        await asyncio.wait_for(stranger.stdout.readline(), WAIT_S)
        yield stranger
    finally:
        await end(stranger)


async def end(process: asyncio.subprocess.Process) -> None:
    """A helper of ours: there is nothing that it would have to save."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def relay(to_port: int, *, source: str) -> AsyncIterator[int]:
    """A port whose connections go on to another, from this address."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward = await asyncio.open_connection("127.0.0.1", to_port, local_addr=(source, 0))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, onward[1]), pump(onward[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


def with_endpoint(member: Enrolled, port: int) -> Enrolled:
    return dataclasses.replace(member, manager_endpoint=f"127.0.0.1:{port}")
