"""Drives the worker of one job: fetches what it needs, runs its trainer, answers the role. Knows no decisions."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
import platform
import shutil
import time
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shoal.compress.sparse import add_to
from shoal.data.local import LOCAL_VARIABLE, PART_VARIABLE
from shoal.errors import Misuse, ShoalError
from shoal.identity.card_files import card_key_of, pinned_operator
from shoal.identity.cards import CardKey
from shoal.identity.identity import Identity
from shoal.identity.signatures import Checker, verdict_of
from shoal.identity.signing import check_on_device
from shoal.learning.layout import Layout
from shoal.learning.metrics import merge_all
from shoal.roles.actions import (
    Action,
    CheckRoster,
    CountExamples,
    End,
    Evaluate,
    Interrupt,
    MakeSealKey,
    Participate,
    Prepare,
    Record,
    Seal,
    SettleOwn,
    StageModel,
    SumMasks,
    Train,
    UndoOwn,
)
from shoal.roles.events import (
    EvaluationDone,
    ExamplesCounted,
    MasksSummed,
    NotParticipated,
    Participated,
    Prepared,
    PrepareFailed,
    RosterChecked,
    SealKeyMade,
    Trained,
    TrainerFailed,
    UpdateSealed,
)
from shoal.roles.leader.evaluation import chunk_ranges
from shoal.roles.worker.staging import put
from shoal.runtime import sensors
from shoal.runtime.agent_usage import AgentUsage
from shoal.runtime.energy import MEASURED, EnergyMeter, EnergySpent, battery_joules
from shoal.runtime.log_lines import log_event, numbers_in
from shoal.runtime.own_part import OwnPartFile
from shoal.runtime.privacy_ledger import PrivacyLedger
from shoal.runtime.role_host import RoleHost
from shoal.runtime.seen_examples import SeenExamples
from shoal.runtime.shard_cache import ShardCache
from shoal.runtime.verdict import checked_apart
from shoal.sealing.request import NOT_THE_SIGNED_MODEL
from shoal.store.blobs import BlobStore
from shoal.trainer.bundle import unpack
from shoal.trainer.host import TrainerError, TrainerHost, TrainerSettings
from shoal.trainer.prepared_job import first_model, own_layout
from shoal.trainer.processors import ENGINES, cores_of, device_of, engine_of, threads_of
from shoal.trainer.protocol import TrainResult
from shoal.trainer.shards import Manifest
from shoal.wire.coded import sizes_of
from shoal.wire.limits import NAME_MAX_CHARS
from shoal.wire.messages import Dataset, DeviceState, JobSpec, Tensors, clip

if TYPE_CHECKING:
    from shoal.runtime.seal_keys import SealKeys

log = logging.getLogger("shoal")

#: How often the time that a step of preparing has taken is shown anew: the manager sends on each change.
_STEP_SHOWN_S = 5.0


class AgentApi(Protocol):
    """What a worker's driver asks of the agent around it."""

    async def fetch(self, sha256: str) -> Path:
        """Bring a blob into the cache, verified; where it is."""
        ...

    def ended(self, job: str, reason: str) -> None: ...


class WorkerDriver:
    def __init__(
        self,
        spec: JobSpec,
        surroundings: AgentApi,
        *,
        member: Identity,
        cache: Path,
        child_module: str,
        pace_s: float = 0.0,
        own: Path | None = None,
        usage: AgentUsage | None = None,
        card: bytes = b"",
    ) -> None:
        """``own``: a folder of this device alone, where it keeps how many of its examples it has seen. ``usage``: what
        the device did, over all its jobs. ``card``: the device's card, for a job with signed members."""
        self._usage = usage or AgentUsage()
        self._spec = spec
        self._member = member
        self._around = surroundings
        self._cache = cache
        self._blobs = BlobStore(cache / "blobs")
        #: What trains here: PyTorch, or the job's graphs.
        self._engine = engine_of(os.environ)
        if child_module == ENGINES["torch"]:
            child_module = ENGINES[self._engine]
        self._trainer = TrainerHost(child_module=child_module, rooms=cache / "rooms")
        self._pace_s = pace_s
        self._busy = asyncio.Lock()
        self._sealing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        #: The next model, as far as its parts have come, beside the one the trainer has.
        self._staged: np.ndarray | None = None
        #: Where versions come as changes: the model that was last given to the trainer, for the next to be made of. The
        #: trainer's own memory will not do: it may still be at an older one.
        self._given: np.ndarray | None = None
        self._takes_changes = spec.plan.down != "dense"
        self._is_local = spec.plan.data == "local"
        #: The leader sizes leases by the time and energy that this device needs.
        self._is_measured = self._is_local or spec.plan.work == "sized"
        self._local_folder = os.environ.get(LOCAL_VARIABLE, "") if self._is_local else ""
        self._local_part = os.environ.get(PART_VARIABLE, "") if self._is_local else ""
        # Another part of a set has other examples, as another folder has.
        where = " ".join(filter(None, (self._local_folder, self._local_part)))
        self._seen = SeenExamples(own, of=where) if self._is_local and own is not None else None
        #: The training set of a plan that mixes it in windows; None: all of it is here before the first batch.
        self._windows: ShardCache | None = None
        #: Where the device keeps what is its own, and its own part of the model, if the model has one.
        self._own_folder = own
        self._own: OwnPartFile | None = None
        #: Where the plan is private: what of this device has left it.
        self._privacy: PrivacyLedger | None = None
        self._meter = EnergyMeter(machine=platform.machine())
        #: Where updates are sealed: this device's keys, and the digest of the model that a lease was trained on.
        self._seal_keys: SealKeys | None = None
        self._card = card
        self._is_sealed = spec.plan.believes.sealed is not None
        #: Where updates are sealed: the digest of the first model, which the operator signed.
        self._first_digest = b""
        #: Why the trainer is being ended on purpose.
        self._interrupted = ""
        #: The present step of preparing the job, and when it began. Empty while the device prepares nothing.
        self._step = ""
        self._step_s = 0.0

    async def perform(self, host: RoleHost, action: Action) -> None:
        if self.act(host, action):
            return
        if isinstance(action, SettleOwn) and self._own is not None:
            # Before the next lease begins: it goes on from there.
            await asyncio.to_thread(self._own.settle, action.lease, taken=action.taken, undoable=action.undoable)
        elif isinstance(action, UndoOwn) and self._own is not None:
            await asyncio.to_thread(self._own.undo, action.leases)
        elif isinstance(action, Participate):
            await self._count(host, action)

    async def _count(self, host: RoleHost, action: Participate) -> None:
        try:
            if self._privacy is None:
                raise Misuse("this device keeps no account of what leaves it")
            await asyncio.to_thread(self._privacy.note, action.term, action.version)
        except (ShoalError, OSError) as error:
            reason = f"its participation could not be written down: {error}"
            host.post(NotParticipated(term=action.term, lease=action.lease, reason=reason))
            return
        counted = Participated(term=action.term, version=action.version, lease=action.lease, group=action.group)
        host.post(counted)

    def act(self, host: RoleHost, action: Action) -> bool:
        """Begin what the worker asks for; False: it has to be waited for."""
        match action:
            case Record():
                log_event(log, action.kind, action.reason, job=action.job, **numbers_in(action.reason))
            case Prepare():
                self._begin(self._prepare(host))
            case StageModel():
                # At once: the memory that a part lies in is used again for the next.
                self._stage(action)
            case Train():
                self._begin(self._train(host, action, self._model_for(action)))
            case Evaluate():
                self._begin(self._evaluate(host, action, self._model_for(action)))
            case CountExamples():
                self._begin(self._count_examples(host))
            case SettleOwn() | UndoOwn():
                return self._own is None
            case Participate():
                return False
            case MakeSealKey() | CheckRoster() | Seal() | SumMasks():
                self._begin(self._seal(host, action))
            case Interrupt():
                self._begin(self._interrupt(action))
            case End():
                self._around.ended(self._spec.job, action.reason)
            case _:
                raise Misuse(f"a worker does not ask for {type(action).__name__}")
        return True

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        if self._windows is not None:
            log.info("[%s] shards: %s", self._spec.job, self._windows.told())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._trainer.kill()
        await self._trainer.stop()

    @property
    def job(self) -> str:
        return self._spec.job

    def cpu_s(self) -> float:
        """What its trainer has taken of the processor so far; 0 while there is none."""
        return sensors.process_cpu_s(self._trainer.pid) if self._trainer.pid is not None else 0.0

    # Code and data ------------------------------------------------------------------------------------

    @property
    def preparing(self) -> str:
        """What the device does to prepare the job, and for how long, as text for people. Empty if it prepares none."""
        spent_s = (time.monotonic() - self._step_s) // _STEP_SHOWN_S * _STEP_SHOWN_S
        return f"{self._step} ({spent_s:.0f} s)" if self._step and spent_s else self._step

    def _begin_step(self, step: str) -> None:
        self._step, self._step_s = step, time.monotonic()

    async def _prepare(self, host: RoleHost) -> None:
        async with self._busy:
            self._interrupted = ""
            try:
                # Before anything of the job is fetched.
                self._begin_step("fetching the code and the model")
                signer = await checked_apart(self._check_signature)
                self._privacy = self._privacy or self._privacy_ledger()
                settings, first = await self._settings()
                await self._trainer.kill()
                if self._windows is not None:
                    self._windows.trainer_ended()
                self._begin_step(f"starting {'PyTorch' if self._engine == 'torch' else self._engine} and the task")
                loaded = await self._trainer.start(settings)
                if settings.own is not None:
                    self._own = self._own or self._own_part(settings.own)
                    self._own.begin_with(self._trainer.shared.own)
                self._given = first if self._takes_changes else None
                state = self._sense(loaded.train_examples)
                epsilon_left = self._privacy.epsilon_left() if self._privacy is not None else math.inf
            except (ShoalError, OSError, ValueError, KeyError) as error:
                host.post(PrepareFailed(reason=str(error), traceback=_traceback_of(error)))
                return
            finally:
                self._begin_step("")
        ready = f"{loaded.engine}, {loaded.train_examples} examples, signed by {signer}"
        log.info("[%s] sandbox: %s", self._spec.job, ", ".join(self._trainer.confined))
        if settings.cores:
            log.info("[%s] trainer: on the big cores %s", self._spec.job, ", ".join(map(str, settings.cores)))
        log.info("[%s] ready: %s", self._spec.job, ready)
        # Only where no model is received in the trainer's memory, over the first one.
        sizes, has_own = sizes_of(settings.layout), settings.own is not None
        prepared = Prepared(
            sizes=sizes,
            holds_first=self._takes_changes,
            state=state,
            has_own=has_own,
            parameters=settings.layout.parameters_size,
            participations=self._privacy.taken if self._privacy is not None else (),
            epsilon_left=epsilon_left,
        )
        host.post(prepared)

    def _privacy_ledger(self) -> PrivacyLedger | None:
        privacy = self._spec.plan.privacy
        if privacy is None:
            return None
        if self._own_folder is None:
            raise Misuse("this job is private, and this device has no place to keep account of what leaves it")
        return PrivacyLedger(self._own_folder, self._spec.job, privacy)

    def _own_part(self, layout: Layout) -> OwnPartFile:
        if self._own_folder is None:
            raise Misuse("a part of this model is each device's own, and this device keeps none")
        return OwnPartFile(self._own_folder, self._spec.job, layout)

    def _sense(self, examples: int) -> DeviceState | None:
        """Return the state of the device and its number of own examples, or None if the plan does not ask for it."""
        if not self._is_measured:
            return None
        found = sensors.features(self._member.node, joules_per_cpu_s=self._usage.energy.joules_per_cpu_s)
        fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        del fields["device"]
        # Nothing leaves the device that the plan does not need.
        battery_j = battery_joules() if self._spec.plan.budget_battery_percent else None
        kind = clip(found.kind, NAME_MAX_CHARS)
        return DeviceState(
            **fields | {"kind": kind}, examples=examples if self._is_local else 0, battery_joules=battery_j
        )

    def _check_signature(self, find: Checker = verdict_of) -> str:
        """Return which operator of our cluster signed this job. Raises PeerViolation if none did, or not the one whose
        key this device pinned."""
        member = self._member
        return check_on_device(
            self._spec, ca_pem=member.ca_pem, cluster=member.cluster, pinned=self._pinned(), find=find
        )

    def _pinned(self) -> bytes:
        return pinned_operator(self._own_folder) if self._own_folder is not None else b""

    async def _settings(self) -> tuple[TrainerSettings, np.ndarray]:
        """What a trainer needs to know, and the model that the job begins with."""
        spec = self._spec
        await self._around.fetch(spec.bundle)
        await self._around.fetch(spec.initial)
        for number, part in enumerate(spec.base, start=1):
            self._begin_step(f"fetching the frozen base, part {number} of {len(spec.base)}")
            await self._around.fetch(part)
        graphs = spec.graphs if self._engine == "onnx" else ""
        if graphs:
            await self._around.fetch(graphs)
        test = await self._shards(spec.test)
        if spec.plan.shuffle == "window":
            self._windows = self._windows or await self._window_cache()
        train = await self._shards(spec.train) if self._windows is None else ()
        bundle_dir = await asyncio.to_thread(self._unpack, spec.bundle)
        layout, first = first_model(self._blobs.path(spec.initial))
        if self._is_sealed:
            self._first_digest = await asyncio.to_thread(lambda: hashlib.sha256(first.data).digest())
        settings = TrainerSettings.of_plan(
            spec.plan,
            bundle_dir=str(bundle_dir),
            entry=spec.entry,
            arguments=json.loads(spec.kwargs_json),
            train=train,
            test=test,
            base=tuple(str(self._blobs.path(part)) for part in spec.base),
            layout=layout,
            graphs=str(self._blobs.path(graphs)) if graphs else "",
            initial=str(self._blobs.path(spec.initial)) if graphs else "",
            window=self._windows.window if self._windows is not None else 0,
            train_rows=self._windows.rows if self._windows is not None else (),
            own=own_layout(self._blobs.path(spec.initial)),
            device=device_of(os.environ),
            torch_threads=threads_of(os.environ),
            cores=cores_of(os.environ),
            is_local=self._is_local,
            local_folder=self._local_folder,
            local_part=self._local_part,
            local_seen=self._seen.count(spec.job) if self._seen is not None else 0,
            pace_s=self._pace_s,
        )
        return settings, first

    async def _shards(self, dataset: Dataset) -> tuple[str, ...]:
        manifest = await self._manifest(dataset)
        whole_mb, done_mb = sum(shard.bytes for shard in manifest.shards) / 1e6, 0.0
        for shard in manifest.shards:
            self._begin_step(f"fetching examples, {done_mb:,.1f} of {whole_mb:,.1f} MB")
            await self._around.fetch(shard.sha256)
            done_mb += shard.bytes / 1e6
        return tuple(str(self._blobs.path(shard.sha256)) for shard in manifest.shards)

    async def _manifest(self, dataset: Dataset) -> Manifest:
        if not dataset.examples:
            return Manifest(examples=0, shards=())
        await self._around.fetch(dataset.manifest)
        return Manifest.from_json(self._blobs.read(dataset.manifest))

    async def _window_cache(self) -> ShardCache:
        plan, held_out = self._spec.plan, await self._manifest(self._spec.test)
        return ShardCache(
            await self._manifest(self._spec.train),
            self._blobs,
            self._around.fetch,
            seed=plan.seed,
            batch_size=plan.batch_size,
            cache_bytes=plan.cache_mb * 1_000_000,
            pinned=[shard.sha256 for shard in held_out.shards],
        )

    def _unpack(self, sha256: str) -> Path:
        """Unpack a bundle once; a half-unpacked one is never seen under its name."""
        target = self._cache / "bundles" / sha256
        if target.is_dir():
            return target
        draft = target.with_name(f".{sha256}-{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        unpack(self._blobs.read(sha256), draft)
        try:
            draft.rename(target)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
        return target

    # Sealing --------------------------------------------------------------------------------------------

    async def _seal(self, host: RoleHost, action: MakeSealKey | CheckRoster | Seal | SumMasks) -> None:
        """In a thread: keys, signatures and masks take milliseconds each."""
        async with self._sealing:
            host.post(await asyncio.to_thread(self._sealed, action))

    def _sealed(
        self, action: MakeSealKey | CheckRoster | Seal | SumMasks
    ) -> SealKeyMade | RosterChecked | UpdateSealed | MasksSummed:
        keys = self._seal_keys = self._seal_keys or self._new_seal_keys()
        match action:
            case MakeSealKey():
                return SealKeyMade(term=action.term, key=keys.make(action.term), chance=os.urandom(16))
            case CheckRoster():
                bad = keys.check(action.roster, now_s=time.time())
                return RosterChecked(roster=action.roster.roster, term=action.roster.term, bad=bad)
            case Seal():
                lease, group = action.lease, action.request.label.group
                if action.request.version == 0 and action.request.model != self._first_digest:
                    return UpdateSealed(lease=lease, group=group, reason=NOT_THE_SIGNED_MODEL)
                try:
                    words, seals, kept = keys.seal(action.request)
                except ShoalError as error:
                    return UpdateSealed(lease=lease, group=group, reason=str(error))
                tensors = {"words": words, "seals": np.frombuffer(seals, dtype=np.uint8)}
                return UpdateSealed(lease=lease, group=group, tensors=tensors, kept=kept)
            case SumMasks():
                label = action.request.label
                try:
                    # A helper prepares nothing, and how many devices a sum needs stands in what the operator signed.
                    # `cryptography` is loaded by now, for the keys.
                    self._check_signature()
                    summed = {"words": keys.sum_masks(action.request)}
                except ShoalError as error:
                    return MasksSummed(term=label.term, group=label.group, reason=str(error))
                return MasksSummed(term=label.term, group=label.group, tensors=summed)

    def _new_seal_keys(self) -> SealKeys:
        from shoal.runtime.seal_keys import SealKeys, SignedMembers

        signed = None
        if self._spec.plan.believes.has_signed_members:
            card_key = card_key_of(self._own_folder) if self._own_folder is not None else None
            # A job with signed members was refused before if no key is pinned (``_check_signature``). Without a card,
            # the other members refuse this device.
            signed = SignedMembers(card=self._card, card_key=card_key or CardKey.new(), pinned=self._pinned())
        return SealKeys(self._member, self._spec.job, signed=signed)

    # Training -------------------------------------------------------------------------------------------

    def _stage(self, part: StageModel) -> None:
        present = self._trainer.shared.model if self._given is None else self._given
        if self._staged is None:
            self._staged = present.copy()
        put(part, self._staged, present)

    def _model_for(self, action: Train | Evaluate) -> Tensors:
        """The model to start from. What was staged is given away: parts of the next may come while this one waits."""
        model = action.tensors
        if action.staged:
            staged, self._staged = self._staged, None
            if staged is None:
                raise Misuse("nothing was staged to start from")
            model = {"model": staged}
        if self._given is None:
            return model
        if model:
            # Its own: what it came in is used again for the next.
            self._given = model["model"].copy()
        for change in action.changes:
            add_to(self._given, change)
        return {"model": self._given}

    async def _train(self, host: RoleHost, action: Train, model: Tensors) -> None:
        async with self._busy:
            try:
                self._load_model(model)
                if self._own is not None and self._own.values is not None:
                    self._trainer.shared.own[:] = self._own.values
                digest = b""
                if self._is_sealed:
                    hashed = await asyncio.to_thread(hashlib.sha256, self._trainer.shared.model.data)
                    digest = hashed.digest()
                spent: EnergySpent | None
                if self._is_local:
                    result, spent = await self._learn(action)
                else:
                    await self._bring_shards(action)
                    result, spent = await self._trained(action)
            except (ShoalError, OSError) as error:
                host.post(await self._failure(action.lease, error))
                return
            self._usage.trained_s += result.seconds
            self._usage.leases += 1
            if self._own is not None:
                self._own.made(action.lease, self._trainer.shared.own_after)
            trained = Trained(
                lease=action.lease,
                examples=result.examples,
                # A model that is not finite any more has no loss that means anything: the worker says that it diverged.
                loss_sum=result.loss_sum if result.finite else math.nan,
                seconds=result.seconds,
                tensors={"delta": self._trainer.shared.update},
                logged=result.logged,
                model=digest,
            )
            if spent is not None:
                trained = dataclasses.replace(
                    trained,
                    fresh=result.fresh,
                    fresh_metrics=result.fresh_metrics,
                    labels=result.labels,
                    joules=max(0.0, spent.joules),
                    joules_measured=spent.kind == MEASURED,
                    state=self._sense(result.held),
                )
        await host.deliver(trained)

    async def _trained(self, action: Train) -> tuple[TrainResult, EnergySpent | None]:
        """Train on shared examples. Measure the energy if leases are sized by it."""
        training = self._trainer.train(action.epoch, action.batches, rate=action.rate, version=action.version)
        return await self._measured(training) if self._is_measured else (await training, None)

    async def _measured(self, training: Awaitable[TrainResult]) -> tuple[TrainResult, EnergySpent]:
        """Wait for a training that begins now. Return its result and the energy that the device used meanwhile."""
        before = self._meter.read(now_s=time.monotonic(), cpu_s=0.0)
        result = await training
        spent = self._meter.spent(before, self._meter.read(now_s=time.monotonic(), cpu_s=result.cpu_s))
        self._usage.energy.note(spent, cpu_s=result.cpu_s)
        return result, spent

    async def _bring_shards(self, action: Train) -> None:
        """Of a set that is mixed in windows, have the shards of this lease. The next ones come while it is trained."""
        if self._windows is None:
            return
        await self._windows.bring(self._trainer, action.epoch, action.batches)
        self._begin(self._fetch_ahead(action.epoch, max(action.batches)))

    async def _fetch_ahead(self, epoch: int, batch: int) -> None:
        assert self._windows is not None
        # Only ahead of time: the lease that needs them tries again, and says why if it cannot.
        with contextlib.suppress(ShoalError, OSError):
            await self._windows.fetch_ahead(epoch, batch)

    async def _learn(self, action: Train) -> tuple[TrainResult, EnergySpent]:
        """Train on the device's own examples, and measure the energy."""
        result, spent = await self._measured(
            self._trainer.learn(
                action.epoch,
                action.batches[0],
                action.examples,
                rate=action.rate,
                version=action.version,
                deadline_s=action.deadline_s,
            )
        )
        if self._seen is not None:
            # Before anyone hears of it: what was trained on is never judged again, whatever happens next.
            await asyncio.to_thread(self._seen.note, self._spec.job, result.held)
        return result, spent

    async def _count_examples(self, host: RoleHost) -> None:
        async with self._busy:
            try:
                examples = await self._trainer.count()
            except (ShoalError, OSError) as error:
                host.post(await self._failure(0, error))
                return
            host.post(ExamplesCounted(state=self._sense(examples)))

    async def _evaluate(self, host: RoleHost, action: Evaluate, model: Tensors) -> None:
        parts = []
        async with self._busy:
            try:
                self._load_model(model)
                for start, stop in chunk_ranges(action.chunks, examples=self._spec.test.examples, size=action.size):
                    parts.append(await self._trainer.evaluate(start, stop))
                metrics = merge_all(part.metrics for part in parts)
            except (ShoalError, OSError) as error:
                host.post(await self._failure(action.lease, error))
                return
        examples = sum(part.examples for part in parts)
        host.post(EvaluationDone(lease=action.lease, examples=examples, metrics=metrics))

    def model_buffer(self, size_bytes: int) -> memoryview | None:
        """The memory the trainer reads the model from.

        A new model may arrive while the trainer is still at an older lease: that lease is void by then, and so is
        whatever comes of it. Of a sealed job it is received elsewhere: an update is the difference to the model in that
        memory, and a leader that wrote there could choose what devices seal.
        """
        if self._is_sealed:
            return None
        if self._takes_changes:
            # It would be torn where a connection breaks, and then there is nothing for changes to change.
            return None
        model = self._trainer.shared.model if self._trainer.alive else None
        return model.data.cast("B") if model is not None and model.nbytes == size_bytes else None

    def _load_model(self, tensors: Tensors) -> None:
        """Put the model where the trainer reads it, unless it was received there."""
        if not tensors:
            return
        model, shared = tensors["model"], self._trainer.shared.model
        if not np.shares_memory(model, shared):
            shared[:] = model

    async def _interrupt(self, action: Interrupt) -> None:
        """Find out where the task's code is, then end it. The task that waits for the trainer reports."""
        where = await self._trainer.where_is_it()
        self._interrupted = f"{action.reason}: stuck in {where}; the trainer was ended and starts again"
        await self._trainer.kill()

    async def _failure(self, lease: int, error: Exception) -> TrainerFailed:
        if self._interrupted:
            return TrainerFailed(lease=lease, reason=self._interrupted)
        return TrainerFailed(lease=lease, reason=str(error), traceback=_traceback_of(error))


def _traceback_of(error: Exception) -> str:
    return error.traceback if isinstance(error, TrainerError) else ""
