"""The trainer of one job on a simulated device: fetches what it needs, takes the time the device takes, answers.

The twin of the runtime's worker driver: there a child process and PyTorch, here a modelled device and a function.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from shoal.compress.sparse import add_to
from shoal.errors import Misuse, ShoalError
from shoal.learning.own_values import OwnValues
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
    Event,
    ExamplesCounted,
    MasksSummed,
    Participated,
    Prepared,
    PrepareFailed,
    RosterChecked,
    SealKeyMade,
    Trained,
    TrainerFailed,
    UpdateSealed,
)
from shoal.roles.worker.staging import put
from shoal.sealing.request import NOT_THE_SIGNED_MODEL
from shoal.sim.devices import Device
from shoal.sim.driver.leases import compute_job, device_state, joules_of, learned_of, result_of
from shoal.sim.driver.role_host import Host
from shoal.sim.driver.seal_keys import SimSealKeys
from shoal.sim.jobs import (
    EXAMPLES_HELD,
    LearningResult,
    LocalDevices,
    SimulatedJob,
)
from shoal.sim.process import Process, SimMachine
from shoal.sim.rng import Stream
from shoal.wire.coded import sizes_of
from shoal.wire.messages import DeviceState

#: The time to end a trainer.
KILL_S = 0.1

#: The time in which a device's disk makes a participation durable, or its own examples are counted.
COUNT_S = 0.02

#: How often to check a device while it starts a trainer: it may be slowed down only for a while.
SLOW_LOOK_S = 1.0

#: The time to make a key, check signatures, or make masks.
SEAL_S = 0.01

RAISED = "the task's code raised"
#: The error of preparing if a file that the task opens is missing.
UNABLE = "FileNotFoundError: '/base/model.safetensors', at Toy.model (toy.py:9)"


class SimAgentApi(Protocol):
    """The interface of an agent to its worker drivers."""

    process: Process

    def fetch(self, job: str, size_bytes: int, fetched: Callable[[bool], object]) -> None:
        """Fetch a job's code and data, and call ``fetched`` with whether that worked."""
        ...

    def ended(self, job: str) -> None: ...

    def exhausted(self) -> None:
        """Note that the battery is empty."""
        ...


class SimOwnPart(OwnValues):
    """A device's own part of a model, on its disk."""

    def __init__(self, machine: SimMachine, job: str) -> None:
        super().__init__(machine.own.get(job))
        self._machine = machine
        self._job = job

    def _keep(self, values: np.ndarray) -> None:
        self._machine.own[self._job] = values


class SimWorkerDriver:
    """Simulates one child process at a time: it answers in order, or fails or hangs and must be prepared again."""

    __slots__ = (
        "_around",
        "_at",
        "_device",
        "_flaws",
        "_free_s",
        "_job",
        "_model",
        "_own",
        "_seal_keys",
        "_staged",
        "generation",
        "is_told",
    )

    def __init__(self, job: SimulatedJob, around: SimAgentApi, device: Device, flaws: Stream | None = None) -> None:
        self._job = job
        self._around = around
        self._device = device
        #: Randomness for failures that happen by themselves, or `None` if none do.
        self._flaws = flaws
        self._model: np.ndarray | None = None
        #: The device's own part of the model, if the model has one.
        self._own: SimOwnPart | None = None
        #: The next model, as far as aggregators have sent it.
        self._staged: np.ndarray | None = None
        #: The number of the child process.
        self.generation = 0
        #: When it is free for the next lease.
        self._free_s = 0.0
        #: Its current lease.
        self._at: Train | Evaluate | None = None
        #: If updates are sealed: its keys, and the digest of the model that a lease was trained on.
        self._seal_keys: SimSealKeys | None = None
        #: Whether the role replays its past: what it asks for is done already, or in progress.
        self.is_told = False

    def perform(self, host: Host, action: Action) -> float:
        if self.is_told and isinstance(action, Prepare | Train | Evaluate):
            # It is done already, or under way.
            return 0.0
        match action:
            case Prepare():
                self._prepare(host)
            case Train() | Evaluate():
                self._work(host, action)
            case CountExamples():
                self._post(host, COUNT_S, ExamplesCounted(state=self._state()))
            case StageModel():
                self._stage(action)
            case SettleOwn():
                if self._own is not None:
                    self._own.settle(action.lease, taken=action.taken, undoable=action.undoable)
            case UndoOwn():
                if self._own is not None:
                    self._own.undo(action.leases)
            case Participate():
                self._around.process.later(COUNT_S, self._count, host, action)
            case MakeSealKey() | CheckRoster() | Seal() | SumMasks():
                self._around.process.later(SEAL_S * self._device.slow_factor, self._sealed, host, action)
            case Interrupt():
                self._interrupt(host, action)
            case End():
                host.ended = True
                self.generation += 1
                if self._job.local is not None:
                    self._job.local.end(self._around.process.node)
                self._around.ended(self._job.spec.job)
            case Record():
                pass
            case _:
                raise Misuse(f"a worker does not ask for {type(action).__name__}")
        return 0.0

    # A trainer that another driver had ---------------------------------------------------------------------

    def was_prepared(self, host: Host, generation: int) -> None:
        """Finish the start of a trainer."""
        self._around.process.machine.cached.add(self._job.spec.job)
        self._free_s = self._around.process.kernel.now_s
        self._arrive(host, generation, self._prepared())

    def is_at(self, action: Train | Evaluate, model: np.ndarray, *, free_s: float) -> None:
        """Set the lease that the trainer works on until ``free_s``; ``was_done`` follows."""
        self._at, self._model, self._free_s = action, model, free_s

    def was_done(self, host: Host, generation: int, answer: Trained | EvaluationDone | TrainerFailed) -> None:
        """Report the answer to that lease, unless the child process was ended meanwhile."""
        self._arrive(host, generation, answer)

    # Sealing -------------------------------------------------------------------------------------------

    def _sealed(self, host: Host, action: MakeSealKey | CheckRoster | Seal | SumMasks) -> None:
        process = self._around.process
        if host.ended:
            return
        if self._seal_keys is None:
            # A process may have several workers of one job, one after the other, and none draws what another drew.
            born = f"{process.incarnation} {process.kernel.now_s!r}"
            self._seal_keys = SimSealKeys(process.node, born, self._job.spec.job)
        keys = self._seal_keys
        match action:
            case MakeSealKey():
                host.post(SealKeyMade(term=action.term, key=keys.make(action.term), chance=keys.chance()))
            case CheckRoster():
                roster = action.roster
                host.post(RosterChecked(roster=roster.roster, term=roster.term, bad=keys.check(roster)))
            case Seal():
                host.post(self._seal(keys, action))
            case SumMasks():
                label = action.request.label
                try:
                    summed = {"words": keys.sum_masks(action.request)}
                except ShoalError as error:
                    host.post(MasksSummed(term=label.term, group=label.group, reason=str(error)))
                else:
                    host.post(MasksSummed(term=label.term, group=label.group, tensors=summed))

    def _seal(self, keys: SimSealKeys, action: Seal) -> UpdateSealed:
        lease, group = action.lease, action.request.label.group
        if action.request.version == 0 and action.request.model != hashlib.sha256(self._job.model.data).digest():
            return UpdateSealed(lease=lease, group=group, reason=NOT_THE_SIGNED_MODEL)
        self._mark_share(keys, action)
        try:
            words, seals, kept = keys.seal(action.request)
        except ShoalError as error:
            return UpdateSealed(lease=lease, group=group, reason=str(error))
        tensors = {"words": words, "seals": np.frombuffer(seals, dtype=np.uint8)}
        return UpdateSealed(lease=lease, group=group, tensors=tensors, kept=kept)

    def _mark_share(self, keys: SimSealKeys, action: Seal) -> None:
        """Show observers the unmasked update and the noise in it, which nobody else can see."""
        request, label = action.request, action.request.label
        entropy = keys.next_entropy()
        self._around.process.mark(
            "entropy", job=self._job.spec.job, lease=action.lease, request=request, entropy=entropy
        )
        if request.helper is not None:
            told = {"job": self._job.spec.job, "term": label.term, "group": label.group}
            self._around.process.mark("seed", seed=keys.next_seed(), **told)
        if request.noise is None:
            return
        chance = keys.next_rounding()
        words = request.noise.encode(request.update, factor=1.0, chance=chance)
        self._around.process.mark(
            "share",
            job=self._job.spec.job,
            term=label.term,
            lease=action.lease,
            group=label.group,
            point=request.noise,
            steps=words.view("<i4").astype(np.int64),
            noise=request.noise.noise(words.size, chance=chance),
        )

    # Code and data -------------------------------------------------------------------------------------

    def _prepare(self, host: Host) -> None:
        self.generation += 1
        self._model, self._at = None, None
        model_bytes = self._job.model.nbytes
        if not self._device.can_hold(model_bytes):
            reason = f"a trainer of this model ({model_bytes / 1e6:.0f} MB) does not fit into its memory"
            self._post(host, KILL_S, PrepareFailed(reason=reason))
            return
        machine = self._around.process.machine
        if self._job.spec.job in machine.cached:
            self._fetched(host, self.generation, True)
        else:
            job, size_bytes = self._job.spec.job, self._job.fetch_bytes
            self._around.fetch(job, size_bytes, lambda ok, g=self.generation: self._fetched(host, g, ok))  # type: ignore[misc]

    def _fetched(self, host: Host, generation: int, ok: bool) -> None:
        if generation != self.generation:
            return
        if not ok or self._goes_wrong(0.05):
            self._post(host, KILL_S, PrepareFailed(reason="the data could not be fetched"))
            return
        self._around.process.machine.cached.add(self._job.spec.job)
        if self._around.process.node in self._job.unable:
            self._post(host, KILL_S, PrepareFailed(reason=UNABLE, traceback=UNABLE))
            return
        self._start(host, generation, self._job.start_s)

    def _start(self, host: Host, generation: int, left_s: float) -> None:
        """Start the child process, which takes ``left_s`` on a device at full speed."""
        if generation != self.generation:
            return
        process, slow_factor = self._around.process, self._device.slow_factor
        start_s = left_s * slow_factor
        if slow_factor > 1.0 and start_s > SLOW_LOOK_S:
            process.later(SLOW_LOOK_S, self._start, host, generation, left_s - SLOW_LOOK_S / slow_factor)
            return
        self._free_s = process.kernel.now_s + start_s
        self._post(host, start_s, self._prepared())

    def _prepared(self) -> Prepared:
        takes_changes = self._job.spec.plan.down != "dense"
        self._model = self._job.model if takes_changes else None
        layout, local = self._job.layout, self._job.local
        if local is not None:
            self._begin_own(local)
        return Prepared(
            sizes=sizes_of(layout),
            holds_first=takes_changes,
            state=self._state(),
            has_own=self._own is not None,
            parameters=layout.parameters_size,
            participations=self._around.process.machine.participations.get(self._job.spec.job, ()),
        )

    def _state(self) -> DeviceState | None:
        local = self._job.local
        held = local.held(self._around.process.node) if local is not None else EXAMPLES_HELD
        return device_state(self._job, self._device.build, held)

    def _begin_own(self, local: LocalDevices) -> None:
        """Start a trainer on the device's own examples, from the count and the own part on its disk."""
        process, job = self._around.process, self._job.spec.job
        if not self.is_told:
            # Another driver's trainer goes on where it is.
            local.begin(process.node, seen=process.machine.seen.get(job, 0))
        if local.first_own is not None:
            self._own = self._own or SimOwnPart(process.machine, job)
            self._own.begin_with(local.first_own)

    # Privacy -------------------------------------------------------------------------------------------

    def _count(self, host: Host, action: Participate) -> None:
        """Record a participation on the disk, whatever happened to the worker meanwhile, and then report it."""
        process, job = self._around.process, self._job.spec.job
        kept = process.machine.participations
        kept[job] = (*kept.get(job, ()), (action.term, action.version))
        counted = Participated(term=action.term, version=action.version, lease=action.lease, group=action.group)
        facts = {"term": action.term, "version": action.version, "lease": action.lease, "group": action.group}
        process.mark("counted", job=job, **facts)
        if not host.ended:
            host.post(counted)

    # Training ------------------------------------------------------------------------------------------

    def _stage(self, stage: StageModel) -> None:
        if self._staged is None:
            # NaN unless the part consists of changes, so that a missing part shows in every result.
            present = self._model if stage.changes else None
            self._staged = np.full(self._job.model.size, np.nan, np.float32) if present is None else present.copy()
        put(stage, self._staged, self._staged if self._model is None else self._model)

    def _work(self, host: Host, action: Train | Evaluate) -> None:
        now_s = self._around.process.kernel.now_s
        begin_s = max(now_s, self._free_s)
        seconds = self._seconds_for(action, begin_s)
        self._free_s = begin_s + seconds
        self._at = action
        if self._device.is_empty(self._free_s):
            # Its battery does not last to the end of this lease.
            self._around.exhausted()
            return
        if action.tensors:
            self._model = action.tensors["model"]
        elif action.staged:
            # The staged model is now the trainer's. Parts that come later go into another array.
            self._model, self._staged = self._staged, None
        elif action.changes and self._model is not None:
            self._model = self._model.copy()
            for change in action.changes:
                add_to(self._model, change)
        given = {"lease": action.lease, "staged": action.staged, "model": self._model}
        self._around.process.mark("trains", job=self._job.spec.job, **given)
        trouble = self._trouble()
        if trouble == "hang":
            return
        if trouble == "fail" or self._model is None:
            self._model = None
            self._post(host, self._free_s - now_s, TrainerFailed(lease=action.lease, reason=RAISED))
            return
        answer = functools.partial(self._answer, action, self._model, seconds)
        promised = self._promised(action, self._model)
        due = answer() if promised is None else functools.partial(answer, learned=promised)
        self._post(host, self._free_s - now_s, due)

    def _promised(self, action: Train | Evaluate, model: np.ndarray) -> Callable[[], LearningResult] | None:
        """Return what gives a lease's result later, if it need not be trained at once."""
        local = self._job.local
        if local is None or self._own is not None or not isinstance(action, Train):
            return None
        return local.promise(model, self._around.process.node, action)

    def _seconds_for(self, action: Train | Evaluate, begin_s: float) -> float:
        process = self._around.process
        seen = process.machine.seen.get(self._job.spec.job, 0)
        return self._device.seconds_for(compute_job(self._job, action, node=process.node, seen=seen), begin_s)

    def _answer(
        self,
        action: Train | Evaluate,
        model: np.ndarray,
        seconds: float,
        *,
        learned: Callable[[], LearningResult] | None = None,
    ) -> Event:
        try:
            return self._result(action, model, seconds, learned)
        except ShoalError as error:
            # The task's code failed, as it would on a device. The roles decide what that means for the job.
            self._model = None
            return TrainerFailed(lease=action.lease, reason=str(error))

    def _result(
        self,
        action: Train | Evaluate,
        model: np.ndarray,
        seconds: float,
        learned: Callable[[], LearningResult] | None,
    ) -> Trained | EvaluationDone:
        plan = self._job.spec.plan
        if isinstance(action, Train) and plan.data == "local":
            found = self._learn(action, model) if learned is None else learned()
            answer: Trained | EvaluationDone = learned_of(
                self._job, action, found, seconds=seconds, build=self._device.build
            )
        else:
            answer = result_of(self._job, action, model, seconds)
            if isinstance(answer, Trained) and plan.work == "sized":
                build = self._device.build
                joules = joules_of(self._job, build, seconds)
                answer = replace(answer, joules=joules, state=device_state(self._job, build, 0))
        if isinstance(answer, Trained) and plan.believes.sealed is not None:
            answer = replace(answer, model=hashlib.sha256(model.data).digest())
        return answer

    def _learn(self, action: Train, model: np.ndarray) -> LearningResult:
        node, local = self._around.process.node, self._job.local
        if local is None:
            return self._job.training.learn(self._job.spec, model, node, action)
        learned = local.learn_own(model, node, action, self._own.values if self._own is not None else None)
        if self._own is not None and learned.own is not None:
            # Before its time has come: the role settles a lease only after it was told that it is trained.
            self._own.made(action.lease, learned.own)
        return learned

    def _interrupt(self, host: Host, action: Interrupt) -> None:
        """End the child process, and report its failure to the role."""
        at, self._at = self._at, None
        if at is None:
            return
        self.generation += 1
        self._model = None
        self._device.interrupt(self._around.process.kernel.now_s)
        self._free_s = self._around.process.kernel.now_s + KILL_S
        self._post(host, KILL_S, TrainerFailed(lease=at.lease, reason=action.reason))

    def disturbed(self) -> None:
        """Note that the connection broke: a model may be in the trainer's memory only in part."""
        if self._model is not None and self._at is None and self._job.spec.plan.down == "dense":
            self._model = np.full_like(self._model, np.nan)

    # What goes wrong -----------------------------------------------------------------------------------

    def strike(self, host: Host, trouble: str) -> bool:
        """Make the task's code fail or hang in its current lease. Return False if it has none."""
        at = self._at
        if at is None:
            return False
        self.generation += 1
        self._model = None
        if trouble == "fail":
            self._at = None
            self._post(host, KILL_S, TrainerFailed(lease=at.lease, reason=RAISED))
        return True

    def _trouble(self) -> str:
        troubles = self._around.process.machine.troubles
        if troubles:
            return troubles.pop(0)
        if self._goes_wrong(0.02):
            return "fail"
        return "hang" if self._goes_wrong(0.01) else ""

    def _goes_wrong(self, probability: float) -> bool:
        return self._flaws is not None and self._flaws.happens(probability)

    def _post(self, host: Host, delay_s: float, event: Event | Callable[[], Event]) -> None:
        self._around.process.later(delay_s, self._arrive, host, self.generation, event)

    def _arrive(self, host: Host, generation: int, due: Event | Callable[[], Event]) -> None:
        if generation != self.generation or host.ended:
            return
        event = due() if callable(due) else due
        if isinstance(event, Trained | EvaluationDone | TrainerFailed) and self._at is not None:
            # A lease that came meanwhile waits behind this one, and may hang: it can still be interrupted.
            self._at = None if self._at.lease == event.lease else self._at
        if isinstance(event, Trained) and self._job.local is not None:
            process = self._around.process
            process.machine.seen[self._job.spec.job] = self._job.local.held(process.node)
        host.post(event)
