"""What members that lie can do to a manager: a million frames that no honest node sends.

Most go through the manager's read path in memory: real sessions over a real ``ManagerNode`` that leads a job, in
a process of their own, and with the limits on how fast one peer may misbehave lifted (else nearly all would be refused
at the door). A tenth of these come to the door of a device that leads, from workers that it was told to admit. The
others come over real sockets from enrolled nodes with certificates of their own, against a real
manager process with every limit in force, while an honest worker trains and an honest node's heartbeats are timed.

    crashes        the manager died, or an error that is a bug was logged
    rss_growth_mb  resident memory after the first tenth of the frames against the most ever after; the worse of both
    slowest_ms     from a frame to its refusal (or to the next being read), by the clock on the wall; and, of those in
                   memory, by processor time, which other programs on the machine do not add to
    senders_named  refusals that the journal names the sender of, as a share of those that were given

    python -m benchmarks.hostile_frames --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import math
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

from shoal.compress.codec import Codec
from shoal.errors import PeerViolation
from shoal.identity.enrolment import enrol
from shoal.identity.identity import Authority, Identity, channel_credentials, channel_options
from shoal.identity.join_code import JoinCode
from shoal.identity.names import RemoteIdentity
from shoal.identity.signing import sign
from shoal.net.access import Access
from shoal.net.base import BROKE_CONTRACT, Listener
from shoal.net.conduct import Conduct, Rate
from shoal.net.grpc import SERVICE, _Outcome
from shoal.net.session import FrameSession
from shoal.net.shared_budget import SharedBudget
from shoal.runtime.leader_host import LeaderHost
from shoal.runtime.local import LocalCluster
from shoal.runtime.malloc import keep_freed_memory
from shoal.runtime.manager_node import ManagerNode
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.store.blobs import BlobStore
from shoal.trainer.package import listing_of, plan_from, spec_of
from shoal.wire.coded import decode, encode
from shoal.wire.frames import envelope_frame, frames, read_opening
from shoal.wire.limits import MESSAGE_MAX_BYTES, OFFENCES_MAX
from shoal.wire.messages import (
    Admit,
    AskStatus,
    Assign,
    Checkpoint,
    CheckpointKept,
    Facts,
    Heartbeat,
    Hello,
    JobSpec,
    Lane,
    Leads,
    Message,
    Ready,
    Submit,
    Update,
    UpdateRefused,
    Work,
)
from testbed.attacks.malice import CODECS, VALUES, Attack, Malice, spoilt
from testbed.echo_job import ECHO, echo_job
from testbed.light_workers import Client, Pulse
from testbed.processes import memory_mb
from testbed.results import finish, say

#: Nodes that lie: in memory, and over sockets for so many frames each.
LIARS = 64
FRAMES_A_LIAR = 100

#: One in so many of the frames in memory comes to a leader's door rather than to the manager's.
DOOR_SHARE = 10

#: A stream that ended for this reason was not refused: it is played again, so often at most.
LET_GO = "no reconnect within"
TRIES = 3

#: Liars that call at the same time.
AT_ONCE = 2

#: Every wait ends.
WAIT_S = 60.0

_BUG = re.compile(r"Traceback|failed to handle an event|could not be handled")
_NAMED = re.compile(r"(?:(?:refused|rejected): |^(?=\S+ broke))(liar-[0-9]+)")


@dataclass(slots=True)
class Tally:
    """What was sent and what came of it."""

    frames: int = 0
    streams: int = 0
    #: Refusals that each sender was given: a stream that was ended for it, or an update not merged.
    refused: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    slowest_ms: float = 0.0
    slowest_kind: str = ""
    slowest_cpu_ms: float = 0.0
    #: Frames by the tenths of a millisecond they took: a list of all of them would be the largest thing in memory.
    took: Counter[int] = field(default_factory=Counter)
    warm_mb: float = 0.0
    most_mb: float = 0.0

    def timed(self, kind: str, span_s: float, *, cpu_s: float = 0.0) -> None:
        ms = span_s * 1000
        self.slowest_cpu_ms = max(self.slowest_cpu_ms, cpu_s * 1000)
        self.took[int(ms * 10)] += 1
        if ms > self.slowest_ms:
            self.slowest_ms, self.slowest_kind = ms, kind

    def weigh(self, pid: int, *, share: float) -> None:
        """The memory of the one under attack, once a tenth of the frames is over."""
        now_mb = memory_mb(pid)
        if share >= 0.1:
            self.warm_mb = self.warm_mb or now_mb
            self.most_mb = max(self.most_mb, now_mb)

    @property
    def growth_mb(self) -> float:
        return self.most_mb - self.warm_mb

    def named_share(self) -> float:
        refused = self.refused.total()
        return sum(min(count, self.named[node]) for node, count in self.refused.items()) / refused if refused else 1.0

    def slower_than_ms(self, limit_ms: float) -> int:
        return sum(count for tenths, count in self.took.items() if tenths >= limit_ms * 10)

    def told(self) -> dict[str, Any]:
        return {
            "frames": self.frames,
            "streams": self.streams,
            "refused": self.refused.total(),
            "senders_named": self.named_share(),
            "crashes": self.crashes,
            "slowest_ms": self.slowest_ms,
            "slowest_kind": self.slowest_kind,
            "slowest_cpu_ms": self.slowest_cpu_ms,
            "over_10_ms": self.slower_than_ms(10),
            "over_50_ms": self.slower_than_ms(50),
            "rss_growth_mb": self.growth_mb,
            "rss_mb": self.most_mb,
        }


# In memory ------------------------------------------------------------------------------------------------


class Ear(logging.Handler):
    """Hears what a manager would write to its log."""

    def __init__(self, metrics: Tally) -> None:
        super().__init__()
        self._tally = metrics

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info or _BUG.search(text):
            self._tally.crashes += 1
            say(f"a bug: {self.format(record)[-2000:]}")
        if named := _NAMED.search(text):
            self._tally.named[named[1]] += 1


class Stream:
    """One stream in memory: hands out frames, times what becomes of each, and takes what is written."""

    def __init__(self, attack: Attack, metrics: Tally, node: str) -> None:
        self._left = iter(attack.frames)
        self._kind = attack.kind
        self._tally = metrics
        self._node = node
        self._given_s = math.nan
        self._cpu_s = 0.0

    async def read(self) -> Any:
        self.handled()
        frame = next(self._left, None)
        if frame is not None:
            self._tally.frames += 1
            self._given_s, self._cpu_s = time.perf_counter(), time.thread_time()
        return frame

    def handled(self) -> None:
        if not math.isnan(self._given_s):
            cpu_s = time.thread_time() - self._cpu_s
            self._tally.timed(self._kind, time.perf_counter() - self._given_s, cpu_s=cpu_s)
            self._given_s = math.nan

    async def write(self, frame: bytes) -> None:
        if isinstance(read_opening(frame).message, UpdateRefused):
            self._tally.refused[self._node] += 1


def unlimited() -> SharedBudget:
    rate = Rate(burst=1e15, per_s=1e15)
    return SharedBudget(conduct=Conduct(messages=dict.fromkeys(Lane, rate), openings=rate, offences=rate))


async def led_job(home: ManagerNode, places: Paths, folder: Path, operator: Identity, *, codec: str) -> JobSpec:
    ready = echo_job(folder, values=VALUES, batches=1_000_000)
    prepared, blobs = ready.prepared, BlobStore(places.blobs)
    for data in (ready.bundle, listing_of(prepared.train), listing_of(prepared.test)):
        blobs.put(data)
    for file in (prepared.model, *prepared.paths(prepared.train), *prepared.paths(prepared.test)):
        blobs.put(Path(file))
    spec = spec_of(ready, plan_from({**prepared.plan, "until": {"epochs": 1}, "codec": codec}), job="echo")
    home.register.reserve(operator.node, operator.role, now_s=time.time())
    peer = RemoteIdentity(node=operator.node, role=operator.role, cluster=operator.cluster)
    await home.operate(peer, Submit(spec=sign(spec, operator)))
    return spec


class Around:
    """What a device that leads asks of its agent: here a manager that keeps whatever it is sent."""

    def __init__(self, identity: Identity, model: Path) -> None:
        self.identity = identity
        self._model = model
        self.leader_host: LeaderHost | None = None
        self.leads = asyncio.Event()

    def send(self, to: str, message: Message) -> None:
        if isinstance(message, Leads):
            self.leads.set()
        if isinstance(message, Checkpoint) and self.leader_host is not None:
            kept = CheckpointKept(job=message.job, term=message.term, version=message.version)
            asyncio.get_running_loop().call_soon(self.leader_host.tell, kept)

    async def fetch(self, sha256: str) -> Path:
        return self._model

    def check_job(self, spec: JobSpec) -> None:
        """Its plan names no algorithm."""


@contextlib.asynccontextmanager
async def leading(identity: Identity, spec: JobSpec, model: Path) -> AsyncIterator[LeaderHost]:
    """A device that leads this job, and admits the honest and the liars alike."""
    around = Around(identity, model)
    leader_host = around.leader_host = LeaderHost(around, manager="manager", manager_endpoint="127.0.0.1:9")
    try:
        leader_host.tell(Assign(job=spec.job, role="leader", term=1, leader=identity.node, spec=spec))
        leader_host.tell(Checkpoint(job=spec.job, term=1, version=-1))
        await asyncio.wait_for(around.leads.wait(), WAIT_S)
        workers = ("device-1", *(f"liar-{number}" for number in range(LIARS)))
        leader_host.tell(Admit(job=spec.job, term=1, nodes=workers))
        yield leader_host
    finally:
        await leader_host.stop()


@contextlib.asynccontextmanager
async def working(service: Listener, job: str, codec: str) -> AsyncIterator[Honest]:
    honest = Honest(service, job, codec)
    running = asyncio.create_task(honest.run())
    try:
        await asyncio.sleep(0.5)
        yield honest
        honest.is_alive = not running.done() and honest.updates > 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Honest:
    """A worker in memory that does what it is lent, so that the job goes on and leases are out when lies come."""

    def __init__(self, service: Listener, job: str, codec: str) -> None:
        self._service = service
        self._job = job
        self._tensors = encode(Codec.parse(codec), np.ones(VALUES, np.float32), (VALUES,))
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.updates = 0
        #: Whether it was still at work when it was told to stop.
        self.is_alive = False

    async def run(self) -> None:
        peer = RemoteIdentity(node="device-1", role="node", cluster="shoal")
        shared: dict[str, Any] = {"peer": peer, "end": None, "commons": unlimited()}
        hello = asyncio.Queue[bytes]()
        hello.put_nowait(envelope_frame(Hello(node=peer.node, incarnation="1", facts=Facts(torch="none"))))
        control = FrameSession(lane=Lane.CONTROL, read=hello.get, write=self._ignore, **shared)
        work = FrameSession(lane=Lane.WORK, read=self._inbox.get, write=self._work, **shared)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(control.run(self._service))
            tasks.create_task(work.run(self._service))
            # Once it has its role: what comes from one that is not known yet is not heard.
            await asyncio.sleep(0.2)
            self._inbox.put_nowait(envelope_frame(Ready(job=self._job)))
            for seq in itertools.count(1):
                await asyncio.sleep(1.0)
                hello.put_nowait(envelope_frame(Heartbeat(seq=seq)))

    async def _ignore(self, frame: bytes) -> None: ...

    async def _work(self, frame: bytes) -> None:
        message = read_opening(frame).message
        if isinstance(message, Work):
            self.updates += 1
            asyncio.get_running_loop().call_later(0.01, self._answer, message)

    def _answer(self, work: Work) -> None:
        update = Update(
            job=work.job,
            term=work.term,
            lease=work.lease,
            version=work.version,
            examples=len(work.batches),
            tensors=self._tensors,
        )
        for frame in frames(update):
            self._inbox.put_nowait(frame)


async def attack_inside(count: int, seed: int, codec: str) -> dict[str, Any]:
    """Frames through sessions and a ``ManagerNode`` of this process, then an ``LeaderHost``."""
    metrics = Tally()
    ear = Ear(metrics)
    for name in ("shoal", "asyncio", "grpc"):
        logging.getLogger(name).addHandler(ear)
        logging.getLogger(name).propagate = False
    logging.getLogger("shoal").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        places = Paths(Path(folder) / "home")
        authority = Authority.create(places.authority, "shoal")
        home = ManagerNode(authority.identity(node="manager", role="manager"), ManagerOptions(home=places.home))
        await home.start()
        operator = authority.identity(node="operator", role="operator")
        spec = await led_job(home, places, Path(folder), operator, codec=codec)
        model = BlobStore(places.blobs).path(spec.initial)
        device = authority.identity(node="lead", role="node")
        at_home = Attacked(home.listener, Access(cluster="shoal"), at="manager")
        try:
            async with working(home.listener, spec.job, codec) as honest:
                await _attack_inside(
                    at_home, spec.job, metrics, until=count - count // DOOR_SHARE, count=count, seed=seed
                )
            async with (
                leading(device, spec, model) as leader_host,
                working(leader_host.listener, spec.job, codec) as worker,
            ):
                door = Attacked(leader_host.listener, Access(cluster="shoal", members=leader_host), at="leader")
                before = metrics.frames
                await _attack_inside(door, spec.job, metrics, until=count, count=count, seed=seed)
        finally:
            await home.stop()
    return {
        **metrics.told(),
        "door_frames": metrics.frames - before,
        "honest_alive": honest.is_alive and worker.is_alive,
        "honest_updates": honest.updates + worker.updates,
    }


@dataclass(frozen=True, slots=True)
class Attacked:
    """Who is attacked, and who may say what there."""

    service: Listener
    access: Access
    at: str


async def _attack_inside(attacked: Attacked, job: str, metrics: Tally, *, until: int, count: int, seed: int) -> None:
    """Until so many frames of the whole count have been sent."""
    commons = unlimited()
    liars = [RemoteIdentity(node=f"liar-{number}", role="node", cluster="shoal") for number in range(LIARS)]
    plots = [
        Malice(seed + number, node=liar.node, job=job, at=attacked.at).attacks() for number, liar in enumerate(liars)
    ]
    told_s = time.monotonic()
    for number in itertools.count():
        if metrics.frames >= until:
            return
        liar, attack = liars[number % LIARS], next(plots[number % LIARS])
        for _ in range(TRIES):
            reason = await _one_stream(attacked, liar, attack, metrics, commons)
            # On a machine that is too busy, a liar whose last stream is over may be given up in the midst of the next.
            if LET_GO not in reason:
                break
        if reason.startswith(BROKE_CONTRACT):
            metrics.refused[liar.node] += 1
        elif attack.ends:
            say(f"not refused: {attack.kind} ({reason})")
            metrics.crashes += 1
        if number % 500 == 0:
            metrics.weigh(os.getpid(), share=metrics.frames / count)
            # Sessions in memory never wait for a network: let the rest of the home have its turn.
            await asyncio.sleep(0.001)
        if time.monotonic() - told_s > 10:
            told_s = time.monotonic()
            say(f"in memory: {metrics.frames:,} frames, slowest {metrics.slowest_ms:.1f} ms ({metrics.slowest_kind})")


async def _one_stream(
    attacked: Attacked, liar: RemoteIdentity, attack: Attack, metrics: Tally, commons: SharedBudget
) -> str:
    """Why it ended."""
    stream = Stream(attack, metrics, liar.node)
    session = FrameSession(
        peer=liar,
        lane=attack.lane,
        read=stream.read,
        write=stream.write,
        end=None,
        commons=commons,
        hears=attacked.access.heard(liar, attack.lane),
    )
    reason = await session.run(attacked.service)
    stream.handled()
    metrics.streams += 1
    return reason


async def inside_in_processes(count: int, seed: int, codec: str) -> dict[str, Any]:
    """The frames in memory shared between two processes, each with a manager and liars of its own."""
    halves = (count - count // 2, seed), (count // 2, seed + LIARS)
    first, second = await asyncio.gather(*(inside_in_a_process(part, first, codec) for part, first in halves))
    refused = first["refused"] + second["refused"]
    named = sum(told["senders_named"] * told["refused"] for told in (first, second))
    slower = max(first, second, key=lambda told: float(told["slowest_ms"]))
    sums = ("frames", "streams", "crashes", "over_10_ms", "over_50_ms", "door_frames", "honest_updates")
    return {
        **slower,
        **{name: first.get(name, 0) + second.get(name, 0) for name in sums},
        **{name: max(first[name], second[name]) for name in ("slowest_cpu_ms", "rss_growth_mb", "rss_mb")},
        "refused": refused,
        "senders_named": named / refused if refused else 1.0,
        "honest_alive": first["honest_alive"] and second["honest_alive"],
    }


async def inside_in_a_process(count: int, seed: int, codec: str) -> dict[str, Any]:
    command = ("-m", "testbed.attacks.hostile_frames", "--inside", str(count), "--seed", str(seed), "--codec", codec)
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode != 0:
        return {**Tally(crashes=1).told(), "honest_alive": False}
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


# Over sockets -----------------------------------------------------------------------------------------------


class Liar:
    """An enrolled node over gRPC, with a few streams to misbehave on before it is turned away."""

    def __init__(self, identity: Identity, job: str, endpoint: str, seed: int, metrics: Tally) -> None:
        self._node = identity.node
        self._tally = metrics
        self._sent = 0
        self._plots = Malice(seed, node=identity.node, job=job).attacks()
        options = [
            ("grpc.max_send_message_length", 2 * MESSAGE_MAX_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
            *channel_options("manager"),
        ]
        self._channel = grpc.aio.secure_channel(endpoint, channel_credentials(identity), options=options)

    async def misbehave(self, count: int) -> None:
        """This many frames, a little less than what has one turned away; then a call that no node may make."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._channel.channel_ready()
                # The rest: each offence below takes a frame at least.
                await self._flood(max(0, count - OFFENCES_MAX))
                while self._tally.refused[self._node] < OFFENCES_MAX - 1:
                    await self._stream(next(self._plots))
                await self._command()
        finally:
            await self._channel.close()

    async def turned_away(self) -> str:
        """Go on until the door is closed; what it said."""
        try:
            async with asyncio.timeout(WAIT_S):
                for _ in range(10 * OFFENCES_MAX):
                    said = await self._command(counted=False)
                    if "turned away" in said:
                        return said
        finally:
            await self._channel.close()
        return ""

    def _count(self, frames_sent: int) -> None:
        self._sent += frames_sent
        self._tally.frames += frames_sent

    async def _flood(self, count: int) -> None:
        """Sound heartbeats, faster than anyone needs them, each answered."""
        call = self._channel.stream_stream(f"/{SERVICE}/{Lane.CONTROL}")()
        hearing = asyncio.create_task(_drain(call))
        await call.write(envelope_frame(Hello(node=self._node, incarnation="1")))
        for seq in range(count):
            await call.write(envelope_frame(Heartbeat(seq=seq)))
        self._count(count + 1)
        self._tally.streams += 1
        await call.done_writing()
        await hearing

    async def _stream(self, attack: Attack) -> None:
        call = self._channel.stream_stream(f"/{SERVICE}/{attack.lane}")()
        outcome = _Outcome(call)
        hearing = asyncio.create_task(_drain(call))
        self._tally.streams += 1
        began_s = time.perf_counter()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for frame in attack.frames:
                self._count(1)
                began_s = time.perf_counter()
                await outcome.write(frame)
            await call.done_writing()
        updates_refused = await hearing
        self._tally.refused[self._node] += updates_refused
        took_s = time.perf_counter() - began_s
        await outcome.known()
        # None: cut off, and our own gRPC lost the word why (see ``_Outcome``). The manager's log has it.
        if outcome.code in (None, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED):
            self._tally.timed(attack.kind, took_s)
            self._tally.refused[self._node] += 1
        elif attack.ends:
            say(f"not refused: {attack.kind} ({outcome.code}, {outcome.details})")
            self._tally.crashes += 1

    async def _command(self, *, counted: bool = True) -> str:
        call = self._channel.unary_unary(f"/{SERVICE}/Operate")(envelope_frame(AskStatus()), timeout=WAIT_S)
        began_s = time.perf_counter()
        code, said = await call.code(), str(await call.details())
        if counted:
            self._count(1)
            self._tally.timed("command", time.perf_counter() - began_s)
            # One that is turned away was named when that began, and is not named again for every knock.
            self._tally.refused[self._node] += "turned away" not in said
        if code is not grpc.StatusCode.PERMISSION_DENIED:
            self._tally.crashes += 1
        return said


async def _drain(call: Any) -> int:
    """Read to the end; how many updates were refused on the way."""
    refused = 0
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        while (frame := await call.read()) is not grpc.aio.EOF:
            refused += isinstance(read_opening(frame).message, UpdateRefused)
    return refused


@contextlib.asynccontextmanager
async def pulse(identity: Identity, port: int) -> AsyncIterator[Pulse]:
    client = Client(identity, Lane.CONTROL, port=port)
    beating = Pulse([client], every_s=0.2)
    running = asyncio.create_task(beating.run())
    try:
        # It tells whoever leads it, which is nobody here.
        with contextlib.redirect_stdout(sys.stderr):
            yield beating
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()


async def attack_sockets(count: int, seed: int, codec: str) -> dict[str, Any]:
    """Frames over mutual TLS to a manager process that an honest worker works for meanwhile."""
    metrics = Tally()
    with tempfile.TemporaryDirectory() as folder:
        ready = echo_job(Path(folder), values=VALUES, batches=1_000_000)
        options = (*ECHO, "--pace-s", "0.05")
        async with LocalCluster(workers=1, agent_options=options) as cluster, Operator.open(cluster.home) as operator:
            assert cluster.manager is not None
            code = JoinCode.parse(cluster.join_line)
            honest = (await enrol(code, wanted="honest")).identity
            number = max(1, count // FRAMES_A_LIAR)
            liars = [(await enrol(code, wanted=f"liar-{i}")).identity for i in range(number + 1)]
            job = await operator.submit(ready, plan={"until": {"epochs": 1}, "codec": codec})
            await works(operator, job)
            say(f"{number} liars have joined")
            port = int(cluster.endpoint.rpartition(":")[2])
            async with pulse(honest, port) as beating:
                await _attack_sockets(cluster, liars[:-1], job, metrics, count=count, seed=seed)
                last = Liar(liars[-1], job, cluster.endpoint, seed, Tally())
                said = await last.turned_away()
                await asyncio.sleep(1.5)
                beats_ms = beating.took_ms()
            status = await operator.status(job)
            alive = {view.node for view in status.nodes if view.state == "alive"} >= {"device-1"}
            progress = status.jobs[0].progress
            metrics.crashes += cluster.manager.returncode is not None
            log = (cluster.home / "manager.log").read_text(errors="replace")
        metrics.crashes += len(_BUG.findall(log))
        metrics.named.update(match[1] for match in _NAMED.finditer(log))
        if _BUG.search(log):
            say(log[-4000:])
    return {
        **metrics.told(),
        "turned_away": said,
        "honest_alive": alive and "device-1 is suspect" not in log and "device-1 is lost" not in log,
        "honest_updates": progress.batches_applied if progress else 0,
        "heartbeats": len(beats_ms),
        "heartbeat_max_ms": max(beats_ms, default=math.inf),
    }


async def works(operator: Operator, job: str) -> None:
    """The honest worker has begun: what it costs to start is not what is measured."""
    async with asyncio.timeout(WAIT_S):
        while True:
            progress = (await operator.status(job)).jobs[0].progress
            if progress is not None and progress.batches_applied:
                return
            await asyncio.sleep(0.1)


async def _attack_sockets(
    cluster: LocalCluster, liars: list[Identity], job: str, metrics: Tally, *, count: int, seed: int
) -> None:
    assert cluster.manager is not None
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, identity: Identity) -> None:
        async with room:
            await Liar(identity, job, cluster.endpoint, seed + number, metrics).misbehave(count // len(liars))
            metrics.weigh(manager, share=metrics.frames / count)

    manager = cluster.manager.pid
    await asyncio.gather(*(one(number, identity) for number, identity in enumerate(liars)))


# All ----------------------------------------------------------------------------------------------------------


def attack_decoders(count: int, seed: int) -> dict[str, Any]:
    """So many updates in codecs, spoilt, straight to what reads them: most frames are refused long before that."""
    chance = np.random.default_rng(seed)
    refused = crashes = 0
    slowest_s, before_mb, most_mb = 0.0, memory_mb(os.getpid()), 0.0
    models = [(20,), (300, 7, 1), (64, 3, 3000, 10)]
    for number in range(count):
        codec, sizes = Codec.parse(CODECS[number % len(CODECS)]), models[number // len(CODECS) % len(models)]
        if number % 100 < len(CODECS) * len(models):
            update = chance.normal(size=sum(sizes)).astype(np.float32)
            sound = encode(codec, update, sizes)["delta"]
        else:
            sound = encode(codec, np.ones(sum(sizes), np.float32), sizes)["delta"]
        delta = spoilt(sound.view(np.uint8), chance)
        if codec.form != "top" and delta.size % 2 == 0:
            delta = delta.view(sound.dtype)
        began_s = time.process_time()
        try:
            decode(codec, {"delta": delta}, sizes)
        except PeerViolation:
            refused += 1
        except Exception as error:
            crashes += 1
            say(f"{codec} {sizes}: {type(error).__name__}: {error}")
        slowest_s = max(slowest_s, time.process_time() - began_s)
        if number % 1000 == 0:
            most_mb = max(most_mb, memory_mb(os.getpid()))
    return {
        "coded": count,
        "coded_refused": refused,
        "coded_crashes": crashes,
        "coded_slowest_cpu_ms": 1e3 * slowest_s,
        "coded_rss_growth_mb": max(0.0, most_mb - before_mb),
    }


def attack_decoders_in_processes(count: int, seed: int) -> dict[str, Any]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, second = pool.map(attack_decoders, (count - count // 2, count // 2), (seed, seed + 1))
    sums = ("coded", "coded_refused", "coded_crashes")
    return {name: (first[name] + second[name] if name in sums else max(first[name], second[name])) for name in first}


async def measure(*, count: int, over_sockets: int, seed: int, codec: str) -> dict[str, Any]:
    """One after the other, so that none is measured beside another; each but the sockets in two processes."""
    began_s = time.monotonic()
    decoders = attack_decoders_in_processes(count // 2, seed)
    say(f"decoders: {json.dumps(decoders)}")
    sockets = await attack_sockets(over_sockets, seed, codec)
    say(f"over sockets: {json.dumps(sockets)}")
    inside = await inside_in_processes(max(2, count - sockets["frames"]), seed, codec)
    say(f"in memory: {json.dumps(inside)}")
    refused = sockets["refused"] + inside["refused"]
    named = sockets["senders_named"] * sockets["refused"] + inside["senders_named"] * inside["refused"]
    return {
        "frames": sockets["frames"] + inside["frames"],
        "codec": codec,
        **decoders,
        "crashes": sockets["crashes"] + inside["crashes"] + decoders["coded_crashes"],
        "rss_growth_mb": max(sockets["rss_growth_mb"], inside["rss_growth_mb"]),
        "slowest_ms": max(sockets["slowest_ms"], inside["slowest_ms"]),
        "sockets_frames": sockets["frames"],
        "door_frames": inside.get("door_frames", 0),
        "senders_named": named / refused if refused else 1.0,
        "refused": refused,
        "honest_alive": sockets["honest_alive"] and inside["honest_alive"],
        "heartbeat_max_ms": sockets["heartbeat_max_ms"],
        "sockets_slowest_ms": sockets["slowest_ms"],
        "memory_slowest_ms": inside["slowest_ms"],
        "memory_slowest_cpu_ms": inside["slowest_cpu_ms"],
        "over_50_ms": sockets["over_50_ms"] + inside["over_50_ms"],
        "sockets_rss_growth_mb": sockets["rss_growth_mb"],
        "memory_rss_growth_mb": inside["rss_growth_mb"],
        "is_turned_away": bool(sockets["turned_away"]),
        "seed": seed,
        "seconds": time.monotonic() - began_s,
        "load_1m": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=0, help="frames in all (default 1,000,000)")
    parser.add_argument("--quick", action="store_true", help="20,000 frames, within a minute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--codec", default="top50%+4bit", help="of the job that is attacked")
    parser.add_argument("--inside", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    if given.inside:
        keep_freed_memory()
        finish(asyncio.run(attack_inside(given.inside, given.seed, given.codec)))
        return
    count = given.count or (20_000 if given.quick else 1_000_000)
    over_sockets = min(20_000, max(500, count // 10))
    finish(asyncio.run(measure(count=count, over_sockets=over_sockets, seed=given.seed, codec=given.codec)))


if __name__ == "__main__":
    main()
