"""Attacks of a member: someone who holds a node's certificate, by having joined or by having stolen it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

from shoal.errors import ShoalError
from shoal.identity import certificates
from shoal.identity.enrolment import Enrolled, return_lapsed
from shoal.identity.identity import Identity
from shoal.learning.metrics import merge_all
from shoal.net.grpc import SERVICE
from shoal.net.renewal import renewed
from shoal.roles.leader.evaluation import chunk_range
from shoal.trainer.package import ReadyTask
from shoal.trainer.shared import SharedVectors
from shoal.wire.frames import chunk_frames, envelope_frame, read_opening
from shoal.wire.messages import (
    AskStatus,
    Blob,
    Checkpoint,
    Denied,
    Evaluated,
    Facts,
    Hello,
    JobView,
    Lane,
    Renew,
    Renewed,
    Update,
    Welcome,
    Work,
)
from testbed.attacks.kit import (
    ROOT,
    BadWorker,
    NotTried,
    Outcome,
    Site,
    asked,
    channel_of,
    end,
    in_ms,
    relay,
    status_ms,
    update_for,
    watched,
    with_endpoint,
)
from testbed.attacks.trainer import (
    BATCH_SIZE,
    LAYOUT,
    MODULE,
    TEST_EXAMPLES,
    PointsTrainer,
    into_the_void,
    over_the_edge,
    points_job,
    settings_of,
)
from testbed.light_workers import Client
from testbed.processes import memory_mb

# 1: updates that destroy a model -----------------------------------------------------------------------------

HUGE_NORM = 9e5

LEARNERS = ("--child-module", MODULE, "--pace-s", "0.02")
EPOCHS = 6
#: What the job reaches undisturbed is 1.0: a model that was destroyed is far below.
ACCURACY_LEAST = 0.9


def huge() -> np.ndarray[Any, Any]:
    return np.full(LAYOUT.size, HUGE_NORM / math.sqrt(LAYOUT.size), np.float32)


async def huge_update_async(folder: Path, scale: float) -> Outcome:
    """One of three workers sends one update of norm 9e5 in the asynchronous pace, once the model is good.

    Harm: the model is destroyed, the job fails, or honest devices are refused for what the update did to them.
    """
    return await _one_lie(folder, huge, pace="async")


async def huge_update_sync(folder: Path, scale: float) -> Outcome:
    """The same in the synchronous pace, where the mean divides it by the workers of the round."""
    return await _one_lie(folder, huge, pace="sync")


async def huge_update_buffered(folder: Path, scale: float) -> Outcome:
    """The same in the buffered pace."""
    return await _one_lie(folder, huge, pace="buffered", buffer=4)


async def huge_first_update(folder: Path, scale: float) -> Outcome:
    """The same as the first update of a job, when nobody knows yet what is usual."""
    return await _one_lie(folder, huge, pace="async", from_the_start=True, workers_min=2)


async def over_a_cliff(folder: Path, scale: float) -> Outcome:
    """A worker sends updates of the usual size, after which the updates of all honest devices are infinite.

    Harm: the job fails because all workers seem bad at once, instead of the model being suspected and gone back from. A
    third honest device is slow with its first lease meanwhile: one that had no part in it is there to go on.
    """
    return await _one_lie(folder, over_the_edge, pace="async", lies=3, apart_s=0.5)


async def into_a_void(folder: Path, scale: float) -> Outcome:
    """A worker sends an update of a few times the usual size, after which no honest device can train the model.

    Harm: as above.
    """
    return await _one_lie(folder, into_the_void, pace="async", lies=2, apart_s=0.5)


async def _one_lie(
    folder: Path,
    lie: Callable[[], np.ndarray[Any, Any]],
    *,
    lies: int = 1,
    apart_s: float = 0.0,
    from_the_start: bool = False,
    **plan: Any,
) -> Outcome:
    """Let two honest devices learn, tell so many lies, leave, and see how the job ends."""

    def answer(lease: Work, number: int) -> Update | None:
        return update_for(lease, lie(), examples=BATCH_SIZE * len(lease.batches)) if number <= lies else None

    spare: Spare | None = None
    async with Site(folder, workers=2, agent_options=LEARNERS) as site:
        evil = BadWorker((await site.member("evil")).identity, site.port, answer, pace_s=apart_s or 0.02)

        async def lied() -> bool:
            return evil.leases > lies or bool(evil.ends)

        async def suspected() -> bool:
            return re.search(r"back to version|is suspected", site.log()) is not None

        ready = points_job(folder / "points")
        chosen = {"until": {"epochs": EPOCHS}, "momentum": 0.0, **plan}
        async with contextlib.AsyncExitStack() as stack, contextlib.AsyncExitStack() as lying:
            if from_the_start:
                await lying.enter_async_context(evil.working())
            job = await site.operator.submit(ready, plan=chosen)
            if not from_the_start:
                await site.until("an evaluation", lambda: site.accuracy(job))
                if lie is not huge:
                    spare = Spare((await site.member("device-3")).identity, site.port, ready)
                    await stack.enter_async_context(spare.worker.working())
                    await site.until("device-3 has a lease", spare.has_lease)
                await lying.enter_async_context(evil.working())
            with contextlib.suppress(TimeoutError):
                await site.until("the lies were told", lied, limit_s=60.0 if from_the_start else 20.0)
            await lying.aclose()
            if spare is not None:
                with contextlib.suppress(TimeoutError):
                    await site.until("the model is suspected", suspected, limit_s=8.0)
                await spare.hurry()
            view = await _end_of(site, job)
        events = await site.events(job)
        log = site.log()
    progress = view.progress
    version, reached = (progress.version, progress.accuracy or 0.0) if progress is not None else (0, 0.0)
    blamed = len(re.findall(r"update\.rejected: device-[0-9]", log))
    # Where all honest updates are infinite until the model is gone back to, some are refused on the way.
    fair = blamed == 0 or lie is not huge
    if not evil.sent:
        raise NotTried(f"no lie was told: {evil.leases} leases, {'; '.join(evil.ends) or 'nothing'} was heard")
    held = view.state == "finished" and reached >= ACCURACY_LEAST and fair
    refused = f" ({evil.refusals[0]})" if evil.refusals else ""
    why = f": {view.reason}" if view.state != "finished" else ""
    said = next((text for text in reversed(events) if re.search(r"back to version|set aside|is suspected", text)), "")
    told = (
        f"the job {view.state} at version {version}, accuracy {reached:.2f}{why}; {evil.sent} lies, "
        f"{len(evil.refusals)} of them refused{refused}; {blamed} updates of honest devices refused"
    )
    return Outcome(held, f"{told}; {said}" if said else told)


async def _end_of(site: Site, job: str) -> JobView:
    """How the job ended, or stands when it was waited for long enough."""
    with contextlib.suppress(TimeoutError):
        return await site.ended(job, limit_s=50.0)
    return await site.view(job)


class Spare:
    """An honest worker by hand, that keeps its first lease until it is told to hurry. Then it trains like any other."""

    def __init__(self, identity: Identity, port: int, ready: ReadyTask) -> None:
        self._shared = SharedVectors.create(LAYOUT.size)
        self._trainer = PointsTrainer(settings_of(ready), self._shared)
        self._is_slow = True
        self.worker = BadWorker(identity, port, self._train, judge=self._evaluate)

    async def has_lease(self) -> bool:
        return self.worker.leases > 0

    async def hurry(self) -> None:
        self._is_slow = False
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.worker.ask()

    def _train(self, lease: Work, number: int) -> Update | None:
        if self._is_slow or self.worker.model is None:
            return None
        self._shared.model[:] = self.worker.model
        done = self._trainer.train(lease.epoch, list(lease.batches), rate=lease.rate)
        said = {"loss_sum": done.loss_sum, "train_s": done.seconds}
        return update_for(lease, self._shared.update.copy(), examples=done.examples, **said) if done.finite else None

    def _evaluate(self, lease: Work) -> Evaluated | None:
        if self._is_slow or self.worker.model is None:
            return None
        self._shared.model[:] = self.worker.model
        parts = [self._trainer.evaluate(*chunk_range(chunk, examples=TEST_EXAMPLES)) for chunk in lease.batches]
        return Evaluated(
            job=lease.job,
            term=lease.term,
            lease=lease.lease,
            version=lease.version,
            examples=sum(part.examples for part in parts),
            metrics=merge_all(part.metrics for part in parts),
        )


# 2: memory that others wait for --------------------------------------------------------------------------------

PROMISE_BYTES = 64 << 20
WATCH_S = 10.0

#: Two such updates are more than all memory for what arrives.
LARGE_VALUES = 5_000_000

#: The longest that merging may stand still.
STANDSTILL_MAX_S = 6.0
#: Where the lease of who trickles has to run out first, it may last longer.
TRICKLE_STANDSTILL_MAX_S = 20.0
TRICKLE_EVERY_S = 4.0
TRICKLE_S = 45.0


async def promised_checkpoint(folder: Path, scale: float) -> Outcome:
    """A node that leads nothing and never said hello announces a checkpoint of 64 MB, and sends none of it.

    Harm: the memory for updates is lent to it, and merging stands still in every job.
    """

    async def promise(site: Site, job: str) -> None:
        client = Client((await site.member("evil")).identity, Lane.WORK, port=site.port)
        file = np.empty(PROMISE_BYTES, np.uint8)
        await _held_open(client, Checkpoint(job=job, term=1, version=1, tensors={"file": file}))

    return await _merging_meanwhile(folder, promise, values=1000, scale=scale)


async def promised_update(folder: Path, scale: float) -> Outcome:
    """A node without a lease announces an update as large as a model of 20 MB, and sends none of it.

    Harm: as above.
    """

    async def promise(site: Site, job: str) -> None:
        client = Client((await site.member("evil")).identity, Lane.WORK, port=site.port)
        delta = np.empty(LARGE_VALUES, np.float32)
        update = Update(job=job, term=1, lease=999_999, version=1, examples=1, tensors={"delta": delta})
        await _held_open(client, update)

    return await _merging_meanwhile(folder, promise, values=LARGE_VALUES, scale=scale)


async def _held_open(client: Client, message: Checkpoint | Update) -> None:
    """Announce it, and promise it anew as soon as that was refused."""
    try:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await client.connected()
            await client.write(envelope_frame(message))
            async for _ in client.messages():
                pass
    finally:
        await client.close()


async def _merging_meanwhile(
    folder: Path, promise: Callable[[Site, str], Any], *, values: int, scale: float
) -> Outcome:
    async with Site(folder, workers=2) as site:
        job = await site.start_echo_job(values=values)
        await site.goes_on(job)
        before = await watched(site, job, for_s=3.0)
        promising = asyncio.create_task(promise(site, job))
        try:
            await asyncio.sleep(0.5)
            during = await watched(site, job, for_s=WATCH_S * scale)
        finally:
            promising.cancel()
            await asyncio.gather(promising, return_exceptions=True)
        refused = re.findall(r"evil[^\n]*(?:broke|bytes)[^\n]*", site.log())
    usual = (before.last - before.first) / 3.0
    held = during.longest_s < STANDSTILL_MAX_S and during.last > during.first
    word = f"; the log: {refused[-1][:120]}" if refused else "; nothing was logged of it"
    return Outcome(held, f"{during.told} while it promised ({usual:.0f}/s before){word}")


async def trickled_update(folder: Path, scale: float) -> Outcome:
    """A worker with a lease sends its update of 20 MB a megabyte at a time, just before each time-out.

    Harm: it holds memory that others wait for as long as it likes: merging stands still for minutes.
    """
    leases: asyncio.Queue[Work] = asyncio.Queue()

    def keep(lease: Work, number: int) -> Update | None:
        leases.put_nowait(lease)
        return None

    async with Site(folder, workers=2) as site:
        job = await site.start_echo_job(values=LARGE_VALUES)
        await site.goes_on(job)
        identity = (await site.member("evil")).identity
        evil = BadWorker(identity, site.port, keep)
        async with evil.working(), asyncio.timeout(120.0):
            lease = await leases.get()
            update = update_for(lease, np.zeros(LARGE_VALUES, np.float32), examples=1)
            began_s = time.monotonic()
            trickling = asyncio.create_task(_trickle(identity, site.port, update))
            during = await watched(site, job, for_s=TRICKLE_S)
            ended = trickling.done()
            chunks, why = trickling.result() if ended else (0, "")
            trickling.cancel()
            await asyncio.gather(trickling, return_exceptions=True)
    told = f"ended after {chunks} chunks ({why})" if ended else f"not ended after {time.monotonic() - began_s:.0f} s"
    held = during.last > during.first and during.longest_s < TRICKLE_STANDSTILL_MAX_S
    return Outcome(held, f"{during.told} while it trickled; the message was {told}")


async def _trickle(identity: Any, port: int, update: Update) -> tuple[int, str]:
    """One chunk now and then, on a stream of its own; how many were taken, and how it ended."""
    client = Client(identity, Lane.WORK, port=port)
    sent, why = 0, ""
    hearing: asyncio.Task[None] | None = None
    try:
        await client.connected()
        hearing = asyncio.create_task(_heard_out(client))
        await client.write(envelope_frame(update))
        for frame in chunk_frames(update.tensors):
            await asyncio.sleep(TRICKLE_EVERY_S)
            if hearing.done():
                break
            await client.write(frame)
            sent += 1
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        why = str(error.details() if isinstance(error, grpc.aio.AioRpcError) else error)
    finally:
        if hearing is not None:
            hearing.cancel()
            (end_,) = await asyncio.gather(hearing, return_exceptions=True)
            if isinstance(end_, grpc.aio.AioRpcError):
                why = str(end_.details()) or why
        await client.close()
    return sent, why[:160]


async def _heard_out(client: Client) -> None:
    async for _ in client.messages():
        pass


# 7: keys that were replaced -----------------------------------------------------------------------------------

_ALARM = re.compile(r"^.*\bfield\b.*(?:alarm|replaced|retired|superseded|stolen|copied|old key).*$", re.I | re.M)


async def replaced_key(folder: Path, scale: float) -> Outcome:
    """Someone finds the first key of a device that has replaced it three times since, in a backup or on a sold card.

    Harm: it is let in at the work port, or given a certificate at either door; or nobody is told that it was tried.
    """
    async with Site(folder) as site:
        first = await site.member("field")
        newest = first
        for _ in range(3):
            newest = await renewed(newest)
            assert await _welcome(newest), "a renewed device is welcome"
        tries: dict[str, str] = {}
        try:
            await return_lapsed(first)
            tries["a certificate at the enrolment port"] = "given"
        except ShoalError as error:
            tries["a certificate at the enrolment port"] = f"refused ({_brief(error)})"
        try:
            await renewed(first)
            tries["a certificate at the work port"] = "given"
        except ShoalError as error:
            tries["a certificate at the work port"] = f"refused ({_brief(error)})"
        tries["work"] = "let in" if await _welcome(first) else "refused"
        await asyncio.sleep(1.0)
        alarms = _ALARM.findall(site.log())
        alarms = [line for line in alarms if "has a new certificate" not in line]
        owner = "the device itself is still welcome" if await _welcome(newest) else "the device itself is shut out"
    refused = all(what.startswith("refused") for what in tries.values())
    words = ", ".join(f"{what}: {came}" for what, came in tries.items())
    alarm = f"alarm in the log: {alarms[-1].strip()[:120]}" if alarms else "no alarm in the log"
    return Outcome(refused and bool(alarms), f"with the replaced key {words}; {alarm}; {owner}")


async def _welcome(member: Enrolled) -> bool:
    """Whether this certificate is let in and greeted, on a connection of its own."""
    with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
        async with asyncio.timeout(8.0), channel_of(member.identity, member.manager_endpoint) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{Lane.CONTROL}")()
            await call.write(envelope_frame(Hello(node=member.identity.node, incarnation="1", facts=Facts())))
            frame = await call.read()
            return frame is not grpc.aio.EOF and isinstance(read_opening(frame).message, Welcome)
    return False


def _brief(error: BaseException) -> str:
    return str(error).splitlines()[0][:100] if str(error) else type(error).__name__


# 8: a lie about labels ----------------------------------------------------------------------------------------

LABELS_LIE = 1 << 40


async def label_lie(folder: Path, scale: float) -> Outcome:
    """A worker says that its 32 examples held 2^40 of one label, in a job that weighs rare labels.

    Harm: it is counted, and late updates of others are no longer damped, for 16,000 updates.
    """
    async with Site(folder, workers=1) as site:
        plan = {
            "data": "local",
            "staleness": "similar",
            "share_labels": True,
            "batch_size": 32,
            "epoch_leases": 100_000,
        }
        job = await site.start_echo_job(values=100, **plan)

        def answer(lease: Work, number: int) -> Update | None:
            if not lease.batches:
                return None
            examples = max(1, min(lease.examples, 32))
            update = update_for(lease, np.zeros(100, np.float32), examples=examples)
            # Past the checks of its own code: what arrives is what counts.
            object.__setattr__(update, "labels", (1, LABELS_LIE))
            return update

        evil = BadWorker((await site.member("evil")).identity, site.port, answer)
        async with evil.working():

            async def lied() -> bool:
                return bool(evil.refusals or evil.ends) or evil.sent >= 5

            await site.until("the lie was told", lied)
            await asyncio.sleep(2.0)
            view = await site.view(job)
    merged = next((w.batches for w in (view.progress.workers if view.progress else ()) if w.node == "evil"), 0)
    said = (evil.refusals or evil.ends or ["nothing"])[0]
    if not evil.sent:
        raise NotTried(f"no lie was told; it was told: {said[:160]}")
    return Outcome(merged == 0, f"{merged} of {evil.sent} lying updates were merged; it was told: {said[:160]}")


# 9: a compressed bomb -----------------------------------------------------------------------------------------

BOMB_BYTES = 64 << 20
GROWTH_MAX_MB = 32.0


async def gzip_bomb(folder: Path, scale: float) -> Outcome:
    """A member sends 64 MB of zeros, which are 64 kB when compressed, to every unary and stream verb.

    Harm: the manager unpacks them before it looks at their size, so that a few messages take all its memory.
    """
    async with Site(folder) as site:
        return await bombed(site)


async def bombed(site: Site) -> Outcome:
    """Bomb this manager; what it took of its memory."""
    member = (await site.member("evil")).identity
    await site.operator.status()
    before = memory_mb(site.manager_pid)
    bomb = bytes(BOMB_BYTES)
    ends: dict[str, str] = {}
    options = (("grpc.max_send_message_length", -1), ("grpc.default_compression_algorithm", 2))
    for verb in ("Operate", "Renew", "Fetch", "Control", "Work", "Store"):
        async with channel_of(member, site.endpoint, *options) as channel:
            ends[verb] = await _bomb(channel, verb, bomb)
    peak = memory_mb(site.manager_pid, "VmHWM")
    alive = site.manager is not None and site.manager.returncode is None
    try:
        async with asyncio.timeout(10.0):
            await site.operator.status()
        answers = "it answers"
    except (ShoalError, TimeoutError):
        answers = "it does not answer"
    sent = ", ".join(f"{verb} {end_}" for verb, end_ in ends.items())
    held = alive and peak - before <= GROWTH_MAX_MB and answers == "it answers"
    return Outcome(held, f"the manager went from {before:.0f} to {peak:.0f} MB at most, {answers} ({sent})")


async def _bomb(channel: grpc.aio.Channel, verb: str, bomb: bytes) -> str:
    path, gzip = f"/{SERVICE}/{verb}", grpc.Compression.Gzip
    try:
        async with asyncio.timeout(20.0):
            await channel.channel_ready()
            if verb in ("Control", "Work", "Store"):
                kind = channel.stream_unary if verb == "Store" else channel.stream_stream
                call = kind(path)(compression=gzip)
                await call.write(bomb)
                await call.done_writing()
            elif verb == "Fetch":
                call = channel.unary_stream(path)(bomb, compression=gzip)
            else:
                call = channel.unary_unary(path)(bomb, compression=gzip)
            return str((await call.code()).name).lower()
    except grpc.aio.AioRpcError as error:
        return str(error.code().name).lower()
    except (TimeoutError, asyncio.InvalidStateError) as error:
        return type(error).__name__


# 11: floods of small calls -------------------------------------------------------------------------------------

FLOOD_S = 6.0
FLOOD_AT_ONCE = 8
USABLE_MS = 300.0
RENEWALS_MAX = 10


async def renew_flood(folder: Path, scale: float) -> Outcome:
    """A member asks for a new certificate as fast as it can: a signature and a durable write each.

    Harm: the manager does little else; an operator's status takes a second, and its disk fills with certificates.
    """
    return await _flooded(folder, "Renew", scale)


async def fetch_flood(folder: Path, scale: float) -> Outcome:
    """A member fetches a blob as fast as it can.

    Harm: an operator's status takes long.
    """
    return await _flooded(folder, "Fetch", scale)


async def operate_flood(folder: Path, scale: float) -> Outcome:
    """A member calls what only operators may call, as fast as it can.

    Harm: an operator's status takes long.
    """
    return await _flooded(folder, "Operate", scale)


async def _flooded(folder: Path, verb: str, scale: float) -> Outcome:
    async with Site(folder, workers=1) as site:
        job = await site.start_echo_job()
        await site.goes_on(job)
        member = await site.member("evil")
        member.save(folder / "evil")
        before = await status_ms(site, for_s=2.0)
        spec = points_job(folder / "points")
        command = ["-m", "testbed.attacks.member", "--flood", verb, "--home", str(folder / "evil")]
        command += ["--blob", spec.prepared.model_sha256, "--seconds", str(FLOOD_S * scale)]
        await site.operator.submit(spec, plan={"workers_min": 50})
        # Another process: what the flooder does with its own processor time is not the manager's doing.
        flooder = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, cwd=ROOT
        )
        # It works in the job whose blob it fetches: what it asks for is its own.
        worker = BadWorker(member.identity, site.port, lambda lease, number: None)
        try:
            async with worker.working() if verb == "Fetch" else contextlib.nullcontext():
                await asyncio.sleep(1.0)
                during = await status_ms(site, for_s=FLOOD_S * scale - 1.0)
                out, _ = await asyncio.wait_for(flooder.communicate(), 60.0)
        finally:
            await end(flooder)
    said = out.decode().strip().splitlines()[-1] if out.strip() else "the flooder failed"
    numbers = [int(number) for number in re.findall(r"[0-9]+", said)]
    if len(numbers) < 2:
        raise NotTried(said)
    usable = statistics.median(during) <= USABLE_MS
    held = usable and (verb != "Renew" or numbers[1] <= RENEWALS_MAX)
    return Outcome(held, f"{said}; a status took {in_ms(during)} meanwhile (before: {in_ms(before)})")


async def flood(member: Enrolled, verb: str, blob: str, *, for_s: float) -> str:
    """Call a verb as fast as it can; how often, and how often that was granted."""
    calls = granted = 0
    ends: dict[str, int] = {}
    csr = certificates.new_request(member.identity.node).pem.decode()
    message = {"Renew": Renew(csr_pem=csr), "Operate": AskStatus(), "Fetch": Blob(sha256=blob)}[verb]
    end_s = time.monotonic() + for_s

    async def one(channel: grpc.aio.Channel) -> None:
        nonlocal calls, granted
        while time.monotonic() < end_s:
            calls += 1
            if verb == "Fetch":
                came, word = await _fetched(channel, blob)
                granted += came > 0
            else:
                code, frame = await asked(channel, verb, message)
                answer = read_opening(frame, max_bytes=8 << 20).message if code is grpc.StatusCode.OK else None
                granted += isinstance(answer, Renewed) or (answer is not None and not isinstance(answer, Denied))
                word = answer.reason if isinstance(answer, Denied) else code.name.lower()
            ends[word[:40]] = ends.get(word[:40], 0) + 1
            if calls > 100_000:
                return

    async with channel_of(member.identity, member.manager_endpoint) as channel:
        await asyncio.gather(*(one(channel) for _ in range(FLOOD_AT_ONCE)))
    most = ", ".join(f"{word}" for word, _ in sorted(ends.items(), key=lambda each: -each[1])[:2])
    return f"{calls} calls, {granted} granted in {for_s:g} s ({most})"


# 14: blobs of other jobs ---------------------------------------------------------------------------------------


async def foreign_blobs(folder: Path, scale: float) -> Outcome:
    """A node that works in no job fetches the code, the model and the data of one, whose hashes it knows.

    Harm: it gets them: to know a hash is enough to read other people's data.
    """
    async with Site(folder, workers=1, agent_options=LEARNERS) as site:
        ready = points_job(folder / "points")
        job = await site.operator.submit(ready, plan={"until": {"epochs": 100}, "pace": "async"})
        await site.goes_on(job, versions=3)
        blobs = {"the model": ready.prepared.model_sha256, "the data": ready.prepared.train.shards[0].sha256}
        got: dict[str, str] = {}
        member = await site.member("evil")
        async with channel_of(member.identity, member.manager_endpoint) as channel:
            for what, sha256 in blobs.items():
                size, why = await _fetched(channel, sha256)
                got[what] = f"{size:,} bytes came" if size else f"refused ({why[:80]})"
        version = await site.version(job)
    held = all(what.startswith("refused") for what in got.values())
    words = ", ".join(f"{what}: {came}" for what, came in got.items())
    return Outcome(held, f"{words}; its own worker had all of it and is at version {version}")


async def _fetched(channel: grpc.aio.Channel, sha256: str) -> tuple[int, str]:
    """How many bytes came of a blob, and what was said instead."""
    call = channel.unary_stream(f"/{SERVICE}/Fetch")(envelope_frame(Blob(sha256=sha256)), timeout=10.0)
    size = 0
    try:
        while (frame := await call.read()) is not grpc.aio.EOF:
            size += len(frame)
    except grpc.aio.AioRpcError as error:
        return size, str(error.details()) or error.code().name.lower()
    return size, "ok"


# One certificate, two devices ----------------------------------------------------------------------------------


async def one_certificate_twice(folder: Path, scale: float) -> Outcome:
    """A device's home is copied, and an agent started on the copy, from another address.

    Harm: the two take each other's place again and again, and the first one's work is lost.
    """
    async with Site(folder, workers=1) as site:
        job = await site.start_echo_job()
        await site.goes_on(job)
        copy = site.agent_home("copy")
        shutil.copytree(site.agent_home("device-1") / "node", copy / "node")
        async with relay(site.port, source="127.0.0.2") as port:
            with_endpoint(Enrolled.load(copy / "node"), port).save(copy / "node")
            before = site.log("device-1").count("trying again")
            mark = len(site.log())
            await site.start_agent("copy")
            during = await watched(site, job, for_s=12.0 * scale)
            cut = site.log("device-1").count("trying again") - before
            log = site.log()[mark:]
    lines = [line for line in log.splitlines() if "127.0.0.1" in line and "127.0.0.2" in line]
    named = f"the log names both: {lines[-1][:160]}" if lines else "the log does not name both addresses"
    held = cut == 0 and during.last > during.first and during.longest_s < STANDSTILL_MAX_S
    return Outcome(held, f"the first was cut off {cut} times, {during.told}; {named}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A member's process. Started by benchmarks.attacks.")
    parser.add_argument("--flood", choices=("Renew", "Operate", "Fetch"), required=True)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--blob", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    print(asyncio.run(flood(Enrolled.load(given.home), given.flood, given.blob, for_s=given.seconds)), flush=True)


if __name__ == "__main__":
    main()
