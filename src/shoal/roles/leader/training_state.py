"""The course of a training: the model, how far it is, and what survives a crash. Pure state.

Model, outer state, version and ledger change here and nowhere else, so that they cannot disagree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.sparse import Sparse, add_to
from shoal.errors import Corrupt
from shoal.learning.algorithm import AlgorithmState
from shoal.learning.algorithm_call import AlgorithmAnswer, Question
from shoal.learning.algorithm_name import AlgorithmName
from shoal.learning.clipping import clipped_mean
from shoal.learning.decay_skips import DecaySkips, within
from shoal.learning.layout import Layout
from shoal.learning.metrics import MetricSum, add_logged, lower_is_better, name_in_training
from shoal.learning.outer import OuterState, outer_step
from shoal.learning.paired_sum import PairedSum
from shoal.learning.parameter_staleness import ENTRIES_PER_PLACE, ParameterStaleness, scale_of
from shoal.learning.partial import Partial
from shoal.learning.privacy import SharedPrivacy
from shoal.learning.similarity import LabelMemory
from shoal.learning.staleness import PER_PARAMETER, Lateness
from shoal.learning.version_mean import VersionMean
from shoal.roles.evaluation_rows import latest_within, row_of, view_of
from shoal.roles.leader.asking import AskedAlgorithm
from shoal.roles.leader.changes import Changes
from shoal.roles.leader.gathering.formation import ArrivedUpdate
from shoal.roles.leader.gathering.private_sum import Normals, PrivateSum, no_chance
from shoal.roles.leader.local_data import padded
from shoal.roles.leader.memory import IN_MEMORY, GetBack, Memory, keep
from shoal.roles.leader.weighing import (
    ClippedWeighing,
    Reputations,
    Weighing,
    WeightsGiven,
    weighing_of,
)
from shoal.roles.machine import Machine
from shoal.scheduling.batches import examples_in
from shoal.scheduling.ledger import Applied, Lease, Ledger
from shoal.trust import Rule
from shoal.wire.coded import code_with, sizes_of
from shoal.wire.limits import LABELS_MAX, VALUE_BYTES
from shoal.wire.messages import EvaluationView, JobSpec, MetricView, Tensors, Update, views_of

#: Evaluations that are carried along; the registry has them all. A checkpoint's header is bounded.
EVALUATIONS_KEPT = 1000

#: The labels of an update count this much less with each that follows: half after some 700. FLeet's eq. 4 forgets
#: nothing, which is right for a run that ends; a job without end would take last year's labels for known
#: (docs/online.md).
LABELS_DECAY = 0.999

#: Places that are remembered of a model's recent versions, however small it is.
ENTRIES_LEAST = 1 << 14

#: Values that the outer step takes at a time: a few megabytes of scratch, however large the model is.
STEP_VALUES = 1 << 18

#: Tensors of a checkpoint besides the model have names that begin so.
OURS = "shoal."
VELOCITY = f"{OURS}velocity"
SECOND = f"{OURS}second"
RESIDUAL = f"{OURS}residual"
#: The model that training continues from, where a plan has ``ema``. The tensors under the model's own names are then
#: the mean: whoever reads a checkpoint for its model gets what was evaluated.
TRAINED = f"{OURS}trained"
#: What a researcher's algorithm keeps.
ASKED = f"{OURS}algorithm."


@dataclass(frozen=True, slots=True)
class _Good:
    """A version that was found good, and how far the training was then."""

    version: int
    #: Its model, velocity and squares of gradients, and where there are, the residual and the mean of versions.
    arrays: GetBack
    outer_steps: int
    #: The sum of the weights of that mean; None if the plan has none.
    mean_weight: float | None
    ledger: dict[str, Any]
    #: What the researcher's algorithm kept.
    asked: AlgorithmState


class TrainingState:
    def __init__(
        self,
        machine: Machine,
        spec: JobSpec,
        layout: Layout,
        model: np.ndarray,
        *,
        memory: Memory = IN_MEMORY,
        normals: Normals = no_chance,
    ) -> None:
        self._machine = machine
        self._memory = memory
        self._spec = spec
        self._layout = layout
        self.model = model
        self._rule = spec.plan.outer_rule
        #: Parts of the vector that decay. Where some tensors do not, the leader takes the whole step, never a part's.
        self._decayed = DecaySkips.parse(spec.plan.decay_skips).decayed(layout)
        #: What the leader's step keeps (``learning.outer``): as every array here, replaced and never written to.
        self.velocity, self.second, self.outer_steps = _kept(OuterState.zeros(self._rule, layout.parameters_size))
        #: The exponential mean of the versions, or None if the plan has none. Training never reads it.
        self._mean = VersionMean(model) if spec.plan.ema else None
        self._down = Codec.parse(spec.plan.down)
        self._sizes = sizes_of(layout)
        #: The part of past steps that was not sent yet, by which the model did not move; None: all is sent.
        self.residual = None if self._down.form == "dense" else np.zeros(layout.size, dtype=np.float32)
        #: Not part of a snapshot: a worker that holds an older version gets the whole model from a new leader.
        self.changes = Changes(whole_bytes=model.nbytes)
        #: How the model moved by the merged updates, where aggregators took the step.
        self._moved: np.ndarray | None = None
        self._touches = _touches(layout.size) if spec.plan.staleness == PER_PARAMETER else None
        self.version = 0
        self.ledger = Ledger(batches=spec.batches)
        self._partial = _sum_for(spec, layout, memory)
        #: Where updates meet instead, if the plan does not believe each of them; and who was weighed down of late.
        privacy = spec.plan.privacy
        is_shared = isinstance(privacy, SharedPrivacy)
        self._private = PrivateSum(layout.size, privacy, normals) if privacy is not None and not is_shared else None
        #: Where devices add noise themselves: groups that were asked to, under this leader.
        self.groups = 0
        self._compares = weighing_of(spec.plan.believes, layout.size, memory.room)
        #: The researcher's algorithm, if the job has one.
        hooks = AlgorithmName.parse(spec.plan.algorithm).hooks if spec.plan.algorithm else frozenset()
        self.asked = AskedAlgorithm(machine, hooks, layout, room=memory.room) if hooks else None
        rows = self.asked.rows if self.asked is not None else None
        self._weighing: Weighing | None = self._private or self._compares or rows
        self._reputations = Reputations()
        #: Not part of a snapshot: see there.
        self.lateness = Lateness()
        self._labels = LabelMemory(classes=LABELS_MAX, decay=LABELS_DECAY) if spec.plan.share_labels else None
        self.evaluations: list[EvaluationView] = []
        #: Mean loss of the batches of the last version.
        self.train_loss: float | None = None
        self._loss_sum = 0.0
        #: Examples of the updates that the next version has.
        self._examples = 0
        #: The devices whose updates are in a version.
        self.took_part: set[str] = set()
        #: Other figures that training code logged since the last evaluation, by name. Not part of a snapshot.
        self._logged: dict[str, MetricSum] = {}
        self._started_s = 0.0
        self._stopped_s: float | None = None
        self._elapsed_before_s = 0.0
        #: When recent versions were made, and of how many examples.
        self._steps: deque[tuple[float, int]] = deque(maxlen=64)
        self._good = self._remembered()
        #: The good version is the present one, and its arrays are where they were.
        self._good_is_here = True
        #: Each time the training went back, until that is durable: to which version, and the one that has its model
        #: again. Nothing in between is in the history.
        self.went_back: tuple[tuple[int, int], ...] = ()

    def start(self) -> None:
        self._started_s = self._machine.now_s

    def stop(self) -> None:
        """The job is over, though its last version may wait for long to be made durable."""
        self._stopped_s = self._machine.now_s if self._stopped_s is None else self._stopped_s

    @property
    def elapsed_s(self) -> float:
        """Time spent on this job, over all of its leaders."""
        until_s = self._machine.now_s if self._stopped_s is None else self._stopped_s
        return self._elapsed_before_s + until_s - self._started_s

    # The model moves -----------------------------------------------------------------------------------

    def examples_in(self, lease: Lease) -> int:
        """How many examples a lease holds: the last batch of an epoch may be short."""
        spec = self._spec
        return examples_in(lease.batches, examples=spec.train.examples, batch_size=spec.plan.batch_size)

    def merge(self, lease: Lease, update: Update, delta: np.ndarray | Sparse) -> None:
        """Take a checked update into the next version. A late update counts less."""
        scale = self.scale_of(lease, update)
        damped, weight = self._damped(delta, lease.version), self._spec.plan.weight_of(update.examples)
        if self._weighing is not None:
            self._weighing.add(lease.worker, damped, weight=weight, scale=scale)
        else:
            self._add(damped, weight=weight, scale=scale)
        self.lateness.seen(self.version - lease.version)
        self._note_merged(lease, update)
        self.ledger.merge(lease)

    def _note_merged(self, lease: Lease, update: Update) -> None:
        """Count an update of the next version, and add up the figures that its training code logged."""
        self.took_part.add(lease.worker)
        if self.asked is not None:
            self.asked.note(lease.worker, update, version=lease.version)
        self._examples += update.examples
        self._loss_sum += update.loss_sum
        add_logged(self._logged, update.logged)

    def take_logged(self) -> tuple[MetricView, ...]:
        """The means of the figures that training code logged since this was last asked."""
        logged, self._logged = self._logged, {}
        return views_of(
            replace(metric, name=name_in_training(name), lower=lower_is_better(name)) for name, metric in logged.items()
        )

    def scale_of(self, lease: Lease, update: Update) -> float:
        """Return the weight of an update of this lease, by its staleness and, only under ``similar``, its labels."""
        similarity = 1.0
        if self._labels is not None and update.labels:
            counts = padded(update.labels)
            similarity = self._labels.similarity(counts)
            self._labels.seen(counts)
        staleness = self.version - lease.version
        return self.lateness.weight(self._spec.plan.staleness, staleness, similarity=similarity)

    def similarity(self, counts: np.ndarray | None) -> float | None:
        """How much labels are like those learned from so far; None: not known."""
        return None if self._labels is None or counts is None else self._labels.similarity(counts)

    def _damped(self, delta: np.ndarray | Sparse, version: int) -> np.ndarray | Sparse:
        """Each value by how often its place moved since that version, where the plan says so (AdaComp)."""
        if self._touches is None or version >= self.version:
            return delta
        if isinstance(delta, Sparse):
            scales = scale_of(self._touches.since(version, delta.places))
            return Sparse(delta.size, delta.places, delta.values * scales)
        damped: np.ndarray = delta * scale_of(self._touches.since(version, None))
        return damped

    @property
    def rule(self) -> Rule | None:
        """The rule by which updates are weighed against each other; None: they are not."""
        return self._spec.plan.believes.rule if self._compares is not None else None

    @property
    def centre(self) -> np.ndarray | None:
        """Where updates are cut back to; None: they are not."""
        return self._compares.centre if isinstance(self._compares, ClippedWeighing) else None

    def weigh(self, reports: Sequence[ArrivedUpdate], products: np.ndarray) -> WeightsGiven:
        """How much each of these updates counts, which lie in parts with aggregators, by what those told of them."""
        assert self._compares is not None
        nodes, weight_of = [each.lease.worker for each in reports], self._spec.plan.weight_of
        return self._compares.weigh(nodes, [weight_of(each.update.examples) for each in reports], products)

    def merge_sum(
        self,
        reports: Sequence[ArrivedUpdate],
        mean: np.ndarray,
        weight: float,
        *,
        moved: np.ndarray | None = None,
        verdict: WeightsGiven | None = None,
    ) -> None:
        """Take a sum of aggregators into the next version: its updates as one. ``moved``: how the model moved, where
        the aggregators have taken the step. ``verdict``: by what its updates were weighed."""
        oldest = min(report.lease.version for report in reports)
        damped = self._damped(mean, oldest)
        if self._private is not None:
            assert isinstance(damped, np.ndarray)
            examples = float(sum(report.update.examples for report in reports))
            self._private.take(damped, [report.lease.worker for report in reports], weight=examples)
        elif self._compares is not None and verdict is not None:
            assert isinstance(damped, np.ndarray)
            self._compares.take(damped, weight=weight, verdict=verdict)
        else:
            assert isinstance(damped, np.ndarray)
            # A copy: the memory of a sum may not be the leader's.
            self._add(damped.copy() if isinstance(self._partial, PairedSum) else damped, weight=weight)
        self._moved = moved
        for report in reports:
            self.lateness.seen(self.version - report.lease.version)
            self._note_merged(report.lease, report.update)
            # Its deadline may be another by now.
            lease = self.ledger.get(report.lease.id)
            assert lease is not None, f"lease {report.lease.id} was summed up and is not lent"
            self.ledger.merge(lease)

    def question(self) -> Question | None:
        """Return what the algorithm has to answer before the next version, or None if nothing."""
        if self.asked is None or not self.asked.makes_versions:
            return None
        return self.asked.question(lambda: self._taken()[0])

    def advance(self, answer: AlgorithmAnswer | None = None) -> list[Applied]:
        """Turn the merged updates into the next version; returns their rows in the history. ``answer`` is the
        algorithm's, if it was asked."""
        self._put_good_away()
        if answer is None:
            mean, spare = self._taken()
        else:
            assert self.asked is not None
            assert answer.change is not None
            mean, spare, self.asked.state = answer.change, None, answer.state
        examples, self._examples = self._examples, 0
        if clip := self._spec.plan.clip_mean:
            rate = self._spec.plan.rate_at(self.version) or self._spec.plan.learning_rate
            mean = clipped_mean(mean, clip=clip, rate=rate, parameters_size=self._layout.parameters_size)
        if self.residual is None:
            # A weighing may keep its mean.
            self._step_in_parts(mean, spare, into=mean if self._weighing is None else np.empty_like(mean))
        else:
            change, outer = self.step_of(mean, slice(0, self._layout.size))
            self.velocity, self.second, self.outer_steps = _kept(outer)
            self._move(change, self.residual)
        self.model.flags.writeable = False
        if self._mean is not None:
            self._mean = self._mean.after(self.model, decay=self._spec.plan.ema)
        self.version += 1
        self._steps.append((self._machine.now_s, examples))
        # Devices of a private job do not tell their loss.
        is_private = self._spec.plan.privacy is not None
        self.train_loss, self._loss_sum = None if is_private else self._loss_sum / examples, 0.0
        self._drop_merged()
        return self.ledger.apply(self.version)

    def _add(self, update: np.ndarray | Sparse, *, weight: float, scale: float = 1.0) -> None:
        if isinstance(self._partial, Partial):
            self._partial.add(update, weight=weight, scale=scale)
        else:
            assert isinstance(update, np.ndarray), "updates that are summed in their own memory are dense"
            self._partial.add(update, weight=weight, scale=scale)

    def _taken(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the mean that the next version is made of, and an array of its size to write to if there is one."""
        if self._weighing is None:
            return self._partial.take_mean() if isinstance(self._partial, PairedSum) else (self._partial.mean(), None)
        mean, down = self._weighing.mean()
        for told in self._reputations.on_version(self.version + 1, down):
            self._machine.record("update.down-weighted", told)
        return mean, None

    @property
    def noised(self) -> int:
        """Versions of a private job that have this leader's noise, or sums that devices were asked for theirs."""
        return self._private.versions if self._private is not None else self.groups

    @property
    def has_no_noise_left(self) -> bool:
        """A private job has as many versions under this leader as its noise is for."""
        return self._private is not None and self._private.is_over

    @property
    def weighed_down(self) -> dict[str, str]:
        """Devices that counted for little in the last version, and why."""
        return self._reputations.now

    def _drop_merged(self) -> None:
        self._partial.clear()
        if self._weighing is not None:
            self._weighing.clear()

    def voices(self, *, able: int) -> int:
        """How many updates the pace may count. Where devices are compared, each of them counts once, as long as others
        that are able to train have not been heard."""
        if self._weighing is None:
            return self.ledger.merged
        nearest = self._weighing if self._spec.plan.believes.rule == "nearest" else None
        return self.ledger.merged if nearest is None or nearest.devices >= able else nearest.devices

    def step_of(self, mean: np.ndarray, part: slice) -> tuple[np.ndarray, OuterState]:
        """The change that this mean of a part makes, and the outer state after it. Nothing moves by it yet."""
        parameters = slice(part.start, min(part.stop, self._layout.parameters_size))
        weights = None
        if self._rule.decays:
            weights = self.model[parameters]
            # What is still to be sent of past steps belongs to them.
            weights = weights if self.residual is None else weights + self.residual[parameters]
        state = OuterState(self.velocity[part], self.second[part], self.outer_steps)
        rate = self._spec.plan.outer_rate_at(self.version)
        decayed = within(self._decayed, part)
        return outer_step(self._rule, state, mean, rate=rate, weights=weights, decayed=decayed)

    def _step_in_parts(self, mean: np.ndarray, spare: np.ndarray | None, *, into: np.ndarray) -> None:
        """Take the outer step part by part, so that nothing else of the model's size is allocated: the next model
        replaces the mean, and the next velocity the spare array. A rule works on each value by itself."""
        size, rule = self._layout.size, self._rule
        velocity, second, steps = self.velocity, self.second, self.outer_steps
        if rule.momentum:
            velocity = np.empty_like(velocity) if spare is None else spare[: velocity.size]
        if rule.is_adaptive:
            second = np.empty_like(second)
        moved: list[np.ndarray] = []
        for start in range(0, size, STEP_VALUES):
            part = slice(start, min(start + STEP_VALUES, size))
            change, outer = self.step_of(mean[part], part)
            if rule.momentum:
                velocity[part] = outer.velocity
            if rule.is_adaptive:
                second[part] = outer.second
            steps = outer.steps
            before = self.model[part]
            np.add(before, change, out=into[part])
            if self._touches is not None:
                # Only where it did move: no update is late for a change that is too small to change a value.
                moved.append(np.flatnonzero(into[part] != before) + start)
        self.model, self.velocity, self.second, self.outer_steps = into, velocity, second, steps
        if self._touches is not None:
            self._touches.note(np.concatenate(moved))

    def _move(self, change: np.ndarray, residual: np.ndarray) -> None:
        """All workers hold the same version, bit for bit: the model moves by the coded change, and the rest is kept."""
        moved = self._sent_of(residual, change)
        before, model = self.model, self.model.copy()
        add_to(model, moved)
        self.model = model
        if self._touches is not None:
            places = moved.places if isinstance(moved, Sparse) else np.flatnonzero(moved)
            self._touches.note(places[model[places] != before[places]])

    def _sent_of(self, residual: np.ndarray, change: np.ndarray) -> np.ndarray | Sparse:
        if self._moved is not None:
            # Cut and coded by each aggregator: a worker that lacks a part of it is sent the whole model.
            sent, self._moved = self._moved, None
            self.changes.clear()
            self.residual = residual + change - sent
            return sent
        coded, self.residual = code_with(self._down, residual, change, self._sizes)
        self.changes.add(self.version + 1, coded.tensors()["delta"])
        return coded.values

    def brings(self, base: int) -> tuple[int, Tensors]:
        """``base``, and the changes from it to the present version; or -1, and the whole model."""
        if base >= 0 and (changes := self.changes.since(base, self.version)) is not None:
            return base, changes
        return -1, {"model": self.model}

    @property
    def mean(self) -> np.ndarray | None:
        """The exponential mean of the versions, or None if the plan has none."""
        return self._mean.values if self._mean is not None else None

    # Back to what was good ------------------------------------------------------------------------------

    def _remembered(self) -> _Good:
        residual = () if self.residual is None else (self.residual,)
        mean = () if self._mean is None else (self._mean.values,)
        arrays = keep((self.model, self.velocity, self.second, *residual, *mean))
        weight = None if self._mean is None else self._mean.weight
        asked = {} if self.asked is None else self.asked.state
        return _Good(self.version, arrays, self.outer_steps, weight, self.ledger.snapshot(), asked)

    def on_found_good(self) -> None:
        """The present version is one to go back to."""
        self._good, self._good_is_here = self._remembered(), True

    def _put_good_away(self) -> None:
        """The present version is about to be replaced. If it is the one to go back to, the driver keeps it."""
        if self._good_is_here:
            self._good = replace(self._good, arrays=self._memory.put_away(self._good.arrays()))
            self._good_is_here = False

    @property
    def good_version(self) -> int:
        return self._good.version

    def go_back(self) -> None:
        """Make the version that was found good last the next one, its ledger with it. Numbers of versions only grow:
        a worker that holds a dropped version is never taken for up to date."""
        good = self._good
        self.version += 1
        self.went_back = (*self.went_back, (good.version, self.version))
        self.model, self.velocity, self.second, *others = good.arrays()
        if good.mean_weight is not None:
            self._mean = VersionMean(others.pop(), good.mean_weight)
        self.residual = others[0] if others else None
        self.outer_steps = good.outer_steps
        self.ledger = Ledger.restore(good.ledger)
        if self.asked is not None:
            self.asked.restore(good.asked)
        self._drop_merged()
        if self._private is not None:
            self._private.skip()
        self._moved, self._loss_sum, self._examples, self._logged = None, 0.0, 0, {}
        self.changes.clear()
        if self._touches is not None:
            self._touches = _touches(self._layout.size, version=self.version)
        self.evaluations = [view for view in self.evaluations if view.version <= good.version]
        self.on_found_good()

    def stand_still(self) -> None:
        """The next version is this one again, with another number: nobody may take part in a private job's next one."""
        self.version += 1
        self.went_back = (*self.went_back, (self.version - 1, self.version))
        self.changes.clear()
        if self._touches is not None:
            self._touches = _touches(self._layout.size, version=self.version)
        if self._private is not None:
            self._private.skip()

    # How good it is ------------------------------------------------------------------------------------

    def add_evaluation(self, view: EvaluationView) -> None:
        self.evaluations.append(view)
        del self.evaluations[: len(self.evaluations) - latest_within(self.evaluations, most=EVALUATIONS_KEPT)]

    @property
    def latest(self) -> EvaluationView | None:
        return self.evaluations[-1] if self.evaluations else None

    @property
    def is_evaluated(self) -> bool:
        """The present version is."""
        return self.latest is not None and self.latest.version == self.version

    def rates(self) -> tuple[float, float]:
        """Rounds and examples a second, lately."""
        if len(self._steps) < 2:
            return 0.0, 0.0
        span_s = max(self._machine.now_s - self._steps[0][0], 1e-9)
        examples = sum(count for _, count in self._steps) - self._steps[0][1]
        return (len(self._steps) - 1) / span_s, examples / span_s

    # What survives -------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything a successor needs, as tensors and JSON values. No array of it changes later."""
        given = self.model if self._mean is None else self._mean.values
        tensors = {**self._layout.views(given), VELOCITY: self.velocity}
        if self._rule.is_adaptive:
            tensors[SECOND] = self.second
        if self.residual is not None:
            tensors[RESIDUAL] = self.residual
        if self.asked is not None:
            tensors |= {f"{ASKED}{name}": array for name, array in self.asked.state.items()}
        rows = [row_of(view) for view in self.evaluations]
        state = {
            "version": self.version,
            "ledger": self.ledger.snapshot(),
            "elapsed_s": self.elapsed_s,
            "evaluations": rows,
            "went_back": [list(pair) for pair in self.went_back],
            "took_part": sorted(self.took_part),
        }
        if self._rule.is_adaptive:
            state["outer_steps"] = self.outer_steps
        if self._mean is not None:
            tensors[TRAINED] = self.model
            state["mean_weight"] = self._mean.weight
        return tensors, state

    def restore(self, *, tensors: Tensors, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        model = np.empty(self._layout.size, dtype=np.float32)
        for name, view in self._layout.views(model).items():
            view[...] = tensors[name]
        model.flags.writeable = False
        if self._mean is not None:
            if TRAINED not in tensors or "mean_weight" not in state:
                # Training would go on from the mean, and nobody would see it.
                raise Corrupt("the checkpoint lacks the model that the exponential mean of versions is made of")
            self._mean = VersionMean(model, float(state["mean_weight"]))
            model = np.array(tensors[TRAINED], dtype=np.float32)
            model.flags.writeable = False
        self.model = model
        self.velocity = np.array(tensors[VELOCITY], dtype=np.float32)
        if self._rule.is_adaptive:
            if SECOND not in tensors or "outer_steps" not in state:
                # With zeros in their place the next step would be many times too long.
                raise Corrupt(f"the checkpoint lacks the squares of gradients that {self._rule.kind!r} divides by")
            self.second = np.array(tensors[SECOND], dtype=np.float32)
            self.outer_steps = int(state["outer_steps"])
        if self.residual is not None and RESIDUAL in tensors:
            self.residual = np.array(tensors[RESIDUAL], dtype=np.float32)
        if self.asked is not None:
            self.asked.restore({name[len(ASKED) :]: each for name, each in tensors.items() if name.startswith(ASKED)})
        self.version = int(state["version"])
        if self._touches is not None:
            self._touches = _touches(self._layout.size, version=self.version)
        self.ledger = Ledger.restore(state["ledger"])
        self._elapsed_before_s = float(state["elapsed_s"])
        # Releases before did not count them.
        self.took_part = set(state.get("took_part", ()))
        self.evaluations = [view_of(row) for row in state["evaluations"]]
        self.on_found_good()


def _sum_for(spec: JobSpec, layout: Layout, memory: Memory) -> Partial | PairedSum:
    """Return where updates are summed: in their own memory, if they are dense, large, and the leader's to write to."""
    is_dense = Codec.parse(spec.plan.codec).form == "dense"
    is_owned = memory.owned_from_bytes is not None and layout.size * VALUE_BYTES >= memory.owned_from_bytes
    return PairedSum(layout.size) if is_dense and is_owned else Partial(layout.size)


def _kept(outer: OuterState) -> tuple[np.ndarray, np.ndarray, int]:
    return outer.velocity, outer.second, outer.steps


def _touches(size: int, *, version: int = 0) -> ParameterStaleness:
    """Of a small model more is remembered: it costs next to nothing."""
    return ParameterStaleness(size, version=version, entries_per_place=max(ENTRIES_PER_PLACE, ENTRIES_LEAST // size))
