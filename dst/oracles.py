"""Works out on paper what a toy job must come to, from what the disk made durable, and compares. No leader here.

The model of every save, the result of every evaluation, and the reason for which a job is called finished.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from dst.algorithms import wrong_count
from dst.privacy_oracle import noise_at
from dst.seal_oracle import sent_values
from dst.sum_oracle import LeaderAt, SumOracle
from dst.toy_task import FIRST_MODEL, LAYOUT, judge, toy_update
from dst.trust_oracle import Clip, nearest_to, outvoted
from shoal.compress.codec import Codec
from shoal.compress.sparse import Sparse
from shoal.learning.layout import Entry
from shoal.learning.outer import OuterState, outer_step
from shoal.learning.outer_rule import ADAPTIVE
from shoal.learning.privacy import SharedPrivacy
from shoal.learning.schedule import Schedule
from shoal.learning.version_mean import VersionMean
from shoal.plan import Plan
from shoal.roles.actions import Seal, Send, Train
from shoal.roles.events import UpdateSealed
from shoal.roles.leader.training_state import RESIDUAL, TRAINED
from shoal.scheduling.ledger import Applied
from shoal.sim.invariants import Violation
from shoal.sim.jobs import examples_to_train
from shoal.sim.observe import Mark, Step
from shoal.wire.coded import code, sizes_of
from shoal.wire.messages import EvaluationView, Go, JobSpec, Reduce, SetUpAggregator, Update, Work

#: A job whose time is over may still evaluate, and a lease of that may fail; longer where leases have no fixed time, or
#: where devices were told to come again in a minute.
OVERTIME_S = 45.0
LONG_OVERTIME_S = 150.0

#: Updates that are merged between the time at which one is counted and the time at which its sum comes.
SUMMED_MAX = 64


#: Versions between two saves that a leader beyond a cut may bring at once: seldom more.
UNSEEN_MANY = 32


@dataclass(slots=True)
class _Paper:
    """A job as it is worked out."""

    spec: JobSpec
    model: np.ndarray = field(default_factory=lambda: FIRST_MODEL)
    outer: OuterState = field(init=False)
    version: int = 0
    #: The version of the last save whose model was taken over (``drift``).
    anchored: int = 0
    #: Versions whose evaluation is durable.
    evaluated: dict[int, float] = field(default_factory=dict)
    #: The model of each version so far, and what it and the state of the outer step were worked out to be.
    models: dict[int, np.ndarray] = field(default_factory=dict)
    worked_out: dict[int, tuple[np.ndarray, OuterState]] = field(default_factory=dict)
    #: Version -> the number it had before it was given this one.
    numbers: dict[int, int] = field(default_factory=dict)
    #: (term, lease) -> the version that was lent, which is what its update was made against.
    lent: dict[tuple[int, int], int] = field(default_factory=dict)
    #: (term, lease) -> of how many of its own examples a device was to make it.
    owned: dict[tuple[int, int], int] = field(default_factory=dict)
    #: Term -> the version of each update that its leader took in, and how late it was. The next one does not know.
    late: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    #: (term, version) -> the leader's model, where it moves by what is sent alone.
    moved: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    #: (term, lease) -> what its leader had an aggregator count it for, and at which version.
    counted: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)
    #: (term, lease) -> how much an aggregator of a tree kept of its way from which centre, and at which version.
    cut: dict[tuple[int, int], tuple[float, np.ndarray, int]] = field(default_factory=dict)
    #: (term, version) -> what its leader knew of usual distances then.
    clips: dict[tuple[int, int], Clip] = field(default_factory=dict)
    #: Term -> the version that its leader began from, and the normals that it drew, one after the other.
    began: dict[int, int] = field(default_factory=dict)
    normals: dict[int, list[np.ndarray]] = field(default_factory=dict)
    #: (term, lease) -> what its device masked last, in steps, and the noise in it.
    shares: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    #: (term, lease) -> what its device masked last, where it holds the rest back.
    parts: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    #: (term, lease) -> the batches that its device trained, where it chooses them itself.
    turns: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    #: The mean of the versions up to each, where the plan has one.
    means: dict[int, VersionMean] = field(default_factory=dict)
    #: How many versions the history up to each version made of updates, and up to the last.
    made_until: dict[int, int] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        self.outer = OuterState.zeros(self.spec.plan.outer_rule, LAYOUT.parameters_size)

    @property
    def is_coded(self) -> bool:
        """A version is what was sent. What is worked out here is that and what is still to be sent, together."""
        return self.spec.plan.down != "dense"

    @property
    def has_sealed_words(self) -> bool:
        """Whether values are rounded at random to words of 16 bits, under a bound that their group shares."""
        return self.spec.plan.codec == "int16" and self.spec.plan.believes.sealed is not None

    @property
    def knows_models(self) -> bool:
        """Whether updates and evaluations are worked out from the leader's own models: where they are what was sent, or
        where weights and noise are rounded so that models drift apart, which the toy's evaluation shows at once."""
        return self.is_coded or self.spec.plan.trust != "identity"

    def model_of(self, term: int, version: int) -> np.ndarray:
        """What was trained on, or judged."""
        return self.moved.get((term, version), self.models[version]) if self.knows_models else self.models[version]

    @property
    def tolerance(self) -> float:
        """Aggregators of a tree round what they sum up to the numbers of a model; what was not sent is summed apart."""
        if self.has_sealed_words:
            # Each version is rounded to steps, and momentum carries that on. A mask that stays, or a sum that wraps, is
            # as far off as the bound.
            return 2e-2
        if self.spec.plan.trust != "identity":
            # Products of updates are rounded, and so is what follows from them: weights of updates that are all but
            # equally far differ by a share of ``robust``'s resolution.
            return 5e-4
        return 1e-5 if "tree" in self.spec.plan.topologies or self.is_coded else 1e-6

    @property
    def drift(self) -> float:
        """How far an adaptive step may lead apart since the last save, where what it is made of is rounded. It makes as
        much of the rounding of a value that hardly moves as of an update, so only the length of its steps is known."""
        plan = self.spec.plan
        is_weighed = plan.believes.rule is not None and plan.believes.sealed is None
        is_rounded = self.has_sealed_words or Codec.parse(plan.codec).form == "led"
        unseen = self.version - self.anchored
        if plan.outer in ADAPTIVE and (is_weighed or is_rounded):
            return 4 * plan.outer_rate * max(1, unseen)
        if plan.outer in ADAPTIVE and (self.is_coded or "tree" in plan.topologies):
            # What half precision and sums of aggregators round shows once a leader brings very many versions at once.
            return plan.outer_rate * max(0, unseen - UNSEEN_MANY)
        return 0.0

    def anchor(self, model: np.ndarray) -> None:
        """Go on from the model that was saved: the next save is held against its own steps."""
        self.model, self.anchored = model.astype(np.float64), self.version
        self.worked_out[self.version] = (self.model, self.outer)

    def anchor_mean(self, values: np.ndarray) -> None:
        self.means[self.version] = VersionMean(values.astype(np.float64), self.mean.weight)

    @property
    def mean(self) -> VersionMean:
        """The mean of all versions so far."""
        return self.means.get(self.version, VersionMean(FIRST_MODEL))

    def judged(self, version: int) -> np.ndarray:
        """Return what an evaluation of this version is of."""
        return self.means[version].values if self.spec.plan.ema else self.models[version]

    def stand_again(self, kept: int, again: int) -> None:
        """The training went back: this version is an earlier one again, and what came in between never was."""
        if again not in self.models:
            self.go_back(kept)
            self.renumber(again)

    def go_on(self, rows: Sequence[Applied], *, term: int) -> None:
        """What these rows of history make of the model."""
        for version, group in itertools.groupby(rows, key=lambda row: row.version):
            before = self.mean
            self._step(list(group), term)
            self.version = version
            self.made += 1
            self.made_until[version] = self.made
            self.models[version] = self._moved_to(term, version) if self.knows_models else self.model
            self.means[version] = before.after(self.models[version].astype(np.float64), decay=self.spec.plan.ema)
            self.worked_out[version] = (self.model, self.outer)

    def _moved_to(self, term: int, version: int) -> np.ndarray:
        """The leader's model of this version. It was not seen if the next ones were passed over in the same step: those
        have the same model."""
        return self.moved[term, min(seen for of, seen in self.moved if of == term and seen >= version)]

    def go_back(self, version: int) -> None:
        """Versions after this one are another leader's, and were discarded."""
        self.version = max((known for known in self.worked_out if known <= version), default=0)
        first = (FIRST_MODEL, OuterState.zeros(self.spec.plan.outer_rule, LAYOUT.parameters_size))
        self.model, self.outer = self.worked_out.get(self.version, first)
        self.made = self.made_until.get(self.version, 0)
        self.evaluated = {known: score for known, score in self.evaluated.items() if known <= version}

    def take_again(self, after: int, *, term: int) -> None:
        """This leader brings its history from here once more: some of it was durable, which it had not heard."""
        self.late[term] = [each for each in self.late.get(term, ()) if each[0] <= after]

    def renumber(self, version: int) -> None:
        """The last version goes by another number from here on."""
        self.models[version] = self.models[self.version]
        self.means[version] = self.mean
        self.numbers[version] = self.version
        self.worked_out[version] = (self.model, self.outer)
        self.made_until[version] = self.made
        self.version = version

    def _step(self, rows: list[Applied], term: int) -> None:
        leases: dict[int, list[Applied]] = {}
        for row in rows:
            leases.setdefault(row.lease, []).append(row)
        plan, schedule = self.spec.plan, Schedule.parse(self.spec.plan.schedule)
        total, weight = np.zeros(LAYOUT.size), 0.0
        voices: list[tuple[str, float, np.ndarray]] = []
        came = self.late.setdefault(term, [])
        for lease, lent in leases.items():
            batches = tuple(row.batch for row in lent)
            examples = self.owned[term, lease] or examples_to_train(self.spec, batches)
            version = self.lent[term, lease]
            late = lent[0].version - 1 - version
            factor = 1.0 if plan.outer in ADAPTIVE else schedule.factor(version)
            past = [each for _, each in came]
            if plan.codec.startswith("led"):
                # What a device holds back is its own to know (``seal_oracle`` watches it).
                update = self.parts[term, lease]
            else:
                turn = self.turns.get((term, lease), batches)
                trained = toy_update(self.model_of(term, version), lent[0].epoch, turn, factor=factor)
                update = self._cut(self._sent(self._short_enough(trained)))
            counts = self._worth(term, lease, late, past) * update * self._damped(term, version, late)
            # In a sealed sum devices count alike.
            weighs = 1 if plan.believes.sealed is not None else plan.weight_of(examples)
            total += weighs * counts
            weight += weighs
            came.append((lent[0].version, late))
            voices.append((lent[0].node, plan.weight_of(examples), counts))
        if isinstance(plan.privacy, SharedPrivacy):
            means = [self._noisy(plan.privacy, [(term, lease) for lease in leases], voices)]
        else:
            means = self._believed(term, rows[0].version, list(leases), voices, total / weight)
        rate = plan.outer_rate * (schedule.factor(rows[0].version - 1) if plan.outer in ADAPTIVE else 1.0)
        weights, before = self.model[: LAYOUT.parameters_size], self.outer
        lease_rate = plan.learning_rate * (1.0 if plan.outer in ADAPTIVE else schedule.factor(rows[0].version - 1))
        decayed = [slice(entry.offset, entry.stop) for entry in LAYOUT.entries if _decays(plan, entry)]
        steps = [
            outer_step(
                plan.outer_rule,
                before,
                _clipped(mean, plan.clip_mean * lease_rate).astype(np.float32),
                rate=rate,
                weights=weights,
                decayed=decayed,
            )
            for mean in means
        ]
        models = [self.model + change for change, _ in steps]
        # Where rounding decides between several, the one that the leader came to. Of a coded model that does not show:
        # a part of the change is still to be sent.
        is_one = len(models) == 1 or self.is_coded
        self.model = models[0] if is_one else nearest_to(self._moved_to(term, rows[0].version), models)
        self.outer = next(outer for (_, outer), model in zip(steps, models, strict=True) if model is self.model)

    def _noisy(
        self,
        privacy: SharedPrivacy,
        leases: Sequence[tuple[int, int]],
        voices: Sequence[tuple[str, float, np.ndarray]],
    ) -> np.ndarray:
        """What a version is made of whose devices added the noise: what each masked last for its lease."""
        total, steps = np.zeros(LAYOUT.size), privacy.point.steps
        for lease, (node, _, update) in zip(leases, voices, strict=True):
            said, noise = self.shares[lease]
            if not np.allclose((said - noise) / steps, update, atol=2 / steps + 0.01 * privacy.clip):
                raise Violation(f"{node} sealed {(said - noise) / steps} for lease {lease}, whose update is {update}")
            total += said
        return total / steps / privacy.devices

    def _believed(
        self,
        term: int,
        version: int,
        leases: Sequence[int],
        voices: list[tuple[str, float, np.ndarray]],
        mean: np.ndarray,
    ) -> list[np.ndarray]:
        """What a version is made of, given its updates and their mean. Several, where rounding decides."""
        trust, privacy = self.spec.plan.believes, self.spec.plan.privacy
        if privacy is not None:
            if len({node for node, _, _ in voices}) < len(voices):
                raise Violation(f"a device is in version {version} of term {term} twice")
            noise = noise_at(privacy, self.normals[term], version - self.began[term] - 1)
            return [np.asarray((sum(update for _, _, update in voices) + noise) / privacy.devices)]
        if trust.rule == "nearest":
            of: dict[str, list[tuple[float, np.ndarray]]] = {}
            for node, examples, update in voices:
                of.setdefault(node, []).append((examples, update))
            return outvoted(of, share=trust.share)
        if trust.rule == "clip" and trust.sealed is None:
            # A leader knows what it saw under its own term.
            before = self.clips.get((term, version - 1), Clip(np.zeros(LAYOUT.size)))
            cuts = [self._told_cut(term, lease, update) for lease, (_, _, update) in zip(leases, voices, strict=True)]
            mean, self.clips[term, version] = before.next(voices, cuts)
        return [mean]

    def _told_cut(self, term: int, lease: int, update: np.ndarray) -> tuple[float, np.ndarray] | None:
        """How much an aggregator of a tree was told to keep of an update, from which centre; None: it came another way.
        It is what was usual at that version, where that was known."""
        if (told := self.cut.get((term, lease))) is None:
            return None
        kept, centre, version = told
        radius = self.clips[term, version].radius if (term, version) in self.clips else None
        far = float(np.linalg.norm(update - centre))
        expected = kept if radius is None or not far else min(1.0, radius / far)
        if not math.isclose(kept, expected, rel_tol=1e-2, abs_tol=1e-4):
            raise Violation(f"lease {lease} of term {term} keeps {kept} of its way, {far} where {radius} is usual")
        return kept, centre

    def _sent(self, update: np.ndarray) -> np.ndarray:
        """What a codec without feedback leaves of it. Words of a sealed sum are rounded by chance."""
        if self.has_sealed_words:
            return update.astype(np.float64)
        values = code(Codec.parse(self.spec.plan.codec), update, sizes_of(LAYOUT)).values
        return (values.dense() if isinstance(values, Sparse) else values).astype(np.float64)

    def _short_enough(self, update: np.ndarray) -> np.ndarray:
        """A private device shortens an update until what arrives of it is short enough: rounding lengthens it."""
        clip, codec = self.spec.plan.clip_update, Codec.parse(self.spec.plan.codec)
        if not clip or codec.form in ("dense", "led") or self.has_sealed_words:
            return update
        if codec.form == "top" and codec.bits == 32:
            return update
        for tried in range(8):
            length = float(np.linalg.norm(self._sent(update)))
            if length <= clip:
                break
            update = update * np.float32(clip / length * (1 - 1e-6 * 10**tried))
        return update

    def _cut(self, update: np.ndarray) -> np.ndarray:
        """What may leave a device of it."""
        clip = self.spec.plan.clip_update
        return update * min(1.0, clip / float(np.linalg.norm(update))) if clip and update.any() else update

    def _damped(self, term: int, version: int, late: int) -> np.ndarray:
        """One over how many versions moved each place since this one, where the plan counts that."""
        moves = np.zeros(LAYOUT.size)
        if self.spec.plan.staleness == "parameter":
            for number in range(version + 1, version + late + 1):
                moves += self.model_of(term, number) != self.model_of(term, number - 1)
        return 1 / np.maximum(moves, 1)

    def _worth(self, term: int, lease: int, late: int, past: Sequence[int]) -> float:
        """What came by an aggregator is worth what it was when that counted it, which may be some versions ago."""
        rule = self.spec.plan.staleness
        told = self.counted.get((term, lease))
        if told is None:
            return worth(rule, late, past)
        scale, version = told
        then = version - self.lent[term, lease]
        # Nor is it known from here how many others had been merged by then.
        known = {worth(rule, then, past[:count]) for count in range(max(0, len(past) - SUMMED_MAX), len(past) + 1)}
        if not any(math.isclose(scale, each, rel_tol=1e-6) for each in known):
            raise Violation(f"lease {lease} of term {term}, {then} versions late, was counted for {scale}")
        return scale


class HistoryOracle:
    """An observer that raises where the disk holds what cannot be."""

    def __init__(self, specs: Sequence[JobSpec], leader_at: LeaderAt, sums: SumOracle) -> None:
        self._leader_at = leader_at
        self._sums = sums
        self._papers = {spec.job: _Paper(spec, models={0: FIRST_MODEL}) for spec in specs}
        #: (node, job, lease) -> the batches that it trained last under this number.
        self._turns: dict[tuple[str, str, int], tuple[int, ...]] = {}
        #: (job, term, formation) -> whether it is a tree or a shard.
        self._kinds: dict[tuple[str, int, int], str] = {}
        #: (node, job) -> what the words say that it sealed last, where they are of some places.
        self._sent: dict[tuple[str, str], np.ndarray] = {}

    def step(self, step: Step) -> None:
        if step.role == "worker":
            self._know_part(step)
        if step.role != "leader":
            return
        self._know_model(step)
        for action in step.actions:
            if not isinstance(action, Send):
                continue
            match action.message:
                case Work(kind="train") as work:
                    self._papers[step.job].lent[work.term, work.lease] = work.version
                    self._papers[step.job].owned[work.term, work.lease] = work.examples
                case Reduce() if self._papers[step.job].spec.plan.believes.rule == "nearest":
                    # A scale is what an update counts for among others, which ``_believed`` works out.
                    pass
                case SetUpAggregator() as form:
                    self._kinds[step.job, form.term, form.formation] = form.kind
                case Reduce(kept=(_, *_)) as count:
                    # What it is worth was said when it was measured.
                    if self._kinds[step.job, count.term, count.formation] == "tree":
                        self._cut(self._papers[step.job], count)
                case Reduce() as count:
                    told = {(count.term, lease): scale for lease, scale in zip(count.leases, count.scales, strict=True)}
                    self._papers[step.job].counted |= {key: (told[key], count.version - 1) for key in told}
                case Go(formation=0) as go:
                    self._papers[step.job].counted.pop((go.term, go.lease), None)
                    self._papers[step.job].cut.pop((go.term, go.lease), None)
                case _:
                    pass

    def _know_part(self, step: Step) -> None:
        """What a device chooses itself: the turn of its examples, and of an update whose rest it holds back what it
        sends."""
        kept = step.event.kept if isinstance(step.event, UpdateSealed) else None
        for action in step.actions:
            if isinstance(action, Train):
                self._turns[step.node, step.job, action.lease] = action.batches
            elif isinstance(action, Seal):
                turn = self._turns[step.node, step.job, action.lease]
                self._papers[step.job].turns[action.request.label.term, action.lease] = turn
            if kept is not None and kept.places is not None and isinstance(action, Send):
                assert isinstance(action.message, Update)
                part = np.zeros(LAYOUT.size)
                part[kept.places] = self._sent[step.node, step.job]
                self._papers[step.job].parts[action.message.term, action.message.lease] = part

    def _cut(self, paper: _Paper, count: Reduce) -> None:
        for lease, kept in zip(count.leases, count.kept, strict=True):
            centre = self._sums.measured(count.job, count.term, count.formation, lease)
            paper.cut[count.term, lease] = (kept, centre, count.version - 1)

    def _know_model(self, step: Step) -> None:
        paper, leader = self._papers[step.job], self._leader_at(step.node, step.job)
        if paper.knows_models and leader is not None:
            of = (int(getattr(leader, "term", 0)), int(getattr(leader, "version", 0)))
            paper.moved.setdefault(of, np.array(getattr(leader, "model", FIRST_MODEL)))

    def mark(self, mark: Mark) -> None:
        if mark.kind == "entropy" and mark.facts["request"].places is not None:
            self._sent[mark.node, mark.facts["job"]] = sent_values(mark.facts["request"], mark.facts["entropy"])
        elif mark.kind == "led":
            self._papers[mark.facts["job"]].began[mark.facts["term"]] = max(0, mark.facts["version"])
        elif mark.kind == "noise":
            self._papers[mark.facts["job"]].normals.setdefault(mark.facts["term"], []).append(mark.facts["normals"])
        elif mark.kind == "share":
            facts = mark.facts
            self._papers[facts["job"]].shares[facts["term"], facts["lease"]] = (facts["steps"], facts["noise"])
        if mark.kind != "durable":
            return
        paper, save = self._papers[mark.facts["job"]], mark.facts["save"]
        gaps = gaps_in(save.state)
        if mark.facts.get("gone") and not gaps:
            paper.go_back(save.after)
            paper.take_again(save.after, term=int(save.state["term"]))
        left = sorted(gaps, key=lambda gap: gap[1])
        for version, rows in itertools.groupby(save.applied, key=lambda row: row.version):
            while left and left[0][1] <= version:
                paper.stand_again(*left.pop(0))
            paper.go_on(list(rows), term=int(save.state["term"]))
        for kept, again in left:
            paper.stand_again(kept, again)
        given = np.concatenate([save.tensors[entry.name].ravel() for entry in LAYOUT.entries])
        model = save.tensors[TRAINED] if paper.spec.plan.ema else given
        if paper.spec.plan.ema and not np.allclose(given, paper.mean.values, atol=paper.tolerance + paper.drift):
            raise Violation(
                f"at {mark.at_s:.3f} s: the saved mean is not that of its history: {given}, {paper.mean.values}"
            )
        if paper.is_coded:
            model = model + save.tensors[RESIDUAL]
        if not np.allclose(model, paper.model, atol=paper.tolerance + paper.drift):
            raise Violation(
                f"at {mark.at_s:.3f} s: the saved model is not what its history says: {model}, {paper.model}"
            )
        if (problem := wrong_count(save, paper.spec.plan, made=paper.made)) is not None:
            raise Violation(f"at {mark.at_s:.3f} s: {problem}")
        if paper.drift:
            paper.anchor(model)
            paper.anchor_mean(given)
        for view in save.evaluations:
            self._evaluated(paper, view, mark.at_s)
        if paper.version < save.version:
            paper.renumber(save.version)

    def _evaluated(self, paper: _Paper, view: EvaluationView, at_s: float) -> None:
        what = f"at {at_s:.3f} s: the evaluation of version {view.version}"
        examples = paper.spec.test.examples
        if view.version in paper.evaluated:
            raise Violation(f"{what} is in the history twice")
        if paper.spec.plan.data == "local" and not examples:
            # Each update judges one new example, and finds it right.
            if not 0 < view.examples <= paper.spec.batches or view.accuracy != 1.0:
                raise Violation(f"{what} found {view.accuracy} of {view.examples} new ones")
            paper.evaluated[view.version] = view.accuracy
            return
        if view.examples != examples:
            raise Violation(f"{what} counts {view.examples} examples; there are {examples}")
        expected = judge(paper.spec, paper.judged(view.version)) / examples
        # The two models may differ in their last bit, and a few examples lie on the edge.
        if view.accuracy is None or abs(view.accuracy - expected) > 0.01:
            raise Violation(f"{what} found {view.accuracy}; its model gets {expected}")
        paper.evaluated[view.version] = view.accuracy

    def ended(self, job: str, reason: str, state: dict[str, object], *, skew_s: float) -> None:
        """A job is called finished: its history must bear that out. Its leader's clock may have jumped ahead."""
        paper = self._papers[job]
        until, epochs = paper.spec.plan.until, int(state["ledger"]["epoch"])  # type: ignore[index]
        elapsed_s = float(str(state["elapsed_s"]))
        latest = paper.evaluated.get(paper.version, paper.evaluated.get(paper.numbers.get(paper.version, -1)))
        if reason == f"{until.epochs} of {until.epochs} epochs":
            _hold(epochs == until.epochs, job, f"it has {epochs} of {until.epochs} epochs")
            _hold(not paper.spec.test.examples or latest is not None, job, "its last version was not evaluated")
        elif reason.startswith("reached"):
            _hold(until.accuracy is not None and latest is not None and latest >= until.accuracy, job, f"at {latest}")
        elif reason.startswith("the time limit"):
            _hold(until.seconds is not None and elapsed_s >= until.seconds, job, f"after {elapsed_s:.1f} s")
        elif reason.startswith(("each of the ", "the plan's noise ", "the accounts of too many ")):
            _hold(paper.spec.plan.privacy is not None, job, "no device keeps account of what leaves it")
        else:
            raise Violation(f"{job} finished, for a reason nobody knows: {reason}")
        if until.seconds is not None:
            late_s = elapsed_s - skew_s - until.seconds
            plan = paper.spec.plan
            overtime_s = OVERTIME_S if plan.lease_s and not plan.requests_per_s else LONG_OVERTIME_S
            _hold(late_s <= overtime_s, job, f"its time was over {late_s:.0f} s ago")
        if until.epochs is not None:
            _hold(epochs <= until.epochs, job, f"it trained {epochs} epochs")


def worth(rule: str, late: int, past: Sequence[int]) -> float:
    """What an update so many versions late counts for. Written down once more: it is what is being checked."""
    if rule in ("none", "parameter"):
        return 1.0
    if rule == "root":
        return float((1 + late) ** -0.5)
    recent = past[-1000:]
    if rule == "inverse" or len(recent) < 50:
        return 1 / (1 + late)
    # Of one label, as all updates are here, none is rare: then ``similar`` is the exponential.
    middle = median(recent)
    threshold = middle + 3 * max(1.0, 1.4826 * median(abs(each - middle) for each in recent))
    return float((1 + threshold / 2) ** (-2 * min(late, threshold) / threshold))


def _hold(holds: bool, job: str, what: str) -> None:
    if not holds:
        raise Violation(f"{job} is called finished: {what}")


def _clipped(mean: np.ndarray, longest: float) -> np.ndarray:
    """A mean update whose parameters are at most this long together; 0: however long."""
    length = float(np.linalg.norm(mean[: LAYOUT.parameters_size]))
    if not longest or length <= longest:
        return mean
    shares = np.ones(LAYOUT.size)
    shares[: LAYOUT.parameters_size] = longest / length
    return mean * shares


def _decays(plan: Plan, entry: Entry) -> bool:
    """Whether a tensor of the toy decays, for the few texts that ``dst.plans.clipped`` draws."""
    skipped = {"": (), "vectors": ("bias",), "weight": ("weight",)}[plan.decay_skips]
    return entry.kind == "parameter" and entry.name not in skipped


def gaps_in(state: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return pairs of versions with no history between them: the training went back from the second to the first."""
    return tuple((int(kept), int(again)) for kept, again in state.get("went_back", ()))
