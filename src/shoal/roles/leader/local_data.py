"""Jobs whose examples are the devices' own: how many each trains on, which device waits, how new examples were
evaluated.

A part of the leader, and pure. There is no ledger of examples: only a device knows its own. The leader lends leases of
an epoch, as always; it names a number of examples when it lends (FLeet §2.1), and the update names how many were used.
``sized`` work goes by the time and energy that a device is predicted to need. With shared examples this part only says
how many examples a lease may have, and the lease names as many complete batches, at least one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.learning.metrics import METRICS_MAX, MetricSum, difference, merge, values_problem, weight_problem
from shoal.plan import LEASE_BATCHES_MAX, Plan
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.scheduling.batches import MASK, mix
from shoal.scheduling.ledger import Lease
from shoal.scheduling.profile.conformal import WithMargin
from shoal.scheduling.profile.features import LIMITS, Features
from shoal.scheduling.profile.logrls import LogRls
from shoal.scheduling.requests import Accepted, Budget, Intake, Rules, WorkRequest
from shoal.scheduling.steering import Steering
from shoal.trust import EXAMPLES_APART
from shoal.wire.limits import LABELS_MAX
from shoal.wire.messages import DeviceState, EvaluationView, Tensors, Update, views_of

#: The tensors of profilers in a checkpoint have names that begin so.
PROFILE = "shoal.profile."

#: A device that has no examples yet is asked again so much later.
EMPTY_S = 30.0

#: Leases whose number of examples is remembered: more than may be out.
LENT_KEPT = 1 << 17

#: What a device's full battery can hold, in joules: from a watch's to a car's. Anything else counts as not known.
BATTERY_JOULES = (100.0, 1e9)

#: The budget of energy, by name; and the other budgets that may hold where a share of the battery does not.
ENERGY = "energy"
_OTHERS = ("budget_s", "budget_joules")

#: Without a pace to steer at, as many may come as can.
_ANY_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class NotNow:
    """A device gets no lease, for this reason, and may ask again so much later."""

    reason: str
    retry_after_s: float


class Online:
    def __init__(self, machine: Machine, plan: Plan) -> None:
        self._machine = machine
        self._plan = plan
        self._is_local = plan.data == "local"
        self._intake = _intake(plan) if plan.work == "sized" else None
        self._draws = 0
        #: Lease -> how many examples it was lent for, and why so many.
        self._lent: dict[int, int] = {}
        #: Devices of which it was recorded that a share of their battery is no budget for them.
        self._no_battery: set[str] = set()
        #: Node -> the labels of its last update.
        self._labels: dict[str, np.ndarray] = {}
        self._fresh = 0
        #: Metric -> its sums over the new examples of this epoch.
        self._fresh_sums: dict[str, MetricSum] = {}

    # Lending ---------------------------------------------------------------------------------------------

    def wants(self, worker: WorkerRecord, similarity: float | None) -> tuple[int, str | None] | NotNow:
        """How many of its examples a device trains on now, and why so many; or that it does not."""
        now_s, device = self._machine.now_s, worker.device
        if (why := self.why_empty(worker)) is not None:
            return NotNow(why, EMPTY_S)
        if self._intake is None:
            return self._plan.lease_batches * self._plan.batch_size, None
        if now_s < worker.not_before_s:
            return NotNow(worker.told or "it was told when to come again", worker.not_before_s - now_s)
        request = WorkRequest(
            features=features_of(worker.node, device),
            examples_held=self._held_by(device),
            similarity=similarity,
            budgets={ENERGY: self._joules_for(worker)} if self._plan.has_energy_budget else {},
        )
        answer = self._intake.decide(request, now_s=now_s, draw=self._draw())
        if isinstance(answer, Accepted):
            return self._within_plan(answer.examples), answer.reason
        worker.not_before_s = now_s + answer.retry_after_s
        return NotNow(answer.reason, answer.retry_after_s)

    def why_empty(self, worker: WorkerRecord) -> str | None:
        """Return why a device has too few examples of its own for any lease now, or None if it has enough."""
        if not self._is_local or worker.device is None:
            return None
        if not worker.device.examples:
            return "it has no examples of its own yet"
        return self._drowns(worker.device.examples)

    def _held_by(self, device: DeviceState | None) -> int:
        """Return how many examples a lease of this device may have at most."""
        if not self._is_local:
            return LEASE_BATCHES_MAX * self._plan.batch_size
        return device.examples if device is not None else 0

    def _joules_for(self, worker: WorkerRecord) -> float | None:
        """Return what a lease may take of a device, or None if no budget of energy applies to it. Records why, once."""
        percent, battery_j = self._plan.budget_battery_percent, battery_joules_of(worker.device)
        if percent and battery_j is None and worker.node not in self._no_battery:
            self._no_battery.add(worker.node)
            instead = [f"{name} = {value:g}" for name in _OTHERS if (value := getattr(self._plan, name))]
            self._machine.record(
                "budget.ignored",
                f"{worker.node} reports no battery, so that budget_battery_percent = {percent:g} does not apply to it;"
                f" {' and '.join(instead) if instead else 'its leases have lease_batches batches'}",
            )
        return joules_allowed(self._plan, battery_j)

    def _drowns(self, examples: int) -> str | None:
        """Return why a device with so few examples does not take part in a sealed sum: beside the others its update
        would hide nobody, and it refuses to be in it."""
        trust, most = self._plan.believes, self._plan.sealed_examples[1]
        if trust.sealed is None or trust.private is not None or EXAMPLES_APART * examples >= most:
            return None
        return (
            f"it has {examples} examples of its own, and others of a sealed sum have up to {most}: at least one in"
            f" {EXAMPLES_APART} of that is needed"
        )

    def _within_plan(self, examples: int) -> int:
        """The size of a lease that its device takes: under a sealed plan, within what the operator signed."""
        if self._plan.believes.sealed is None:
            return examples
        least, most = self._plan.sealed_examples
        return min(max(examples, least), most)

    def _draw(self) -> float:
        """The leader's own chance: the same numbers under the same seed."""
        self._draws += 1
        return mix(self._plan.seed, self._draws) / (MASK + 1)

    def on_lent(self, lease: int, examples: int) -> None:
        self._lent[lease] = examples
        if len(self._lent) > LENT_KEPT:
            # Leases that were taken back are not removed here. The oldest are the least likely to be asked for.
            del self._lent[next(iter(self._lent))]

    def examples_max(self, lease: int) -> int:
        """The most that an update of this lease may be over."""
        return self._lent.get(lease, self._plan.lease_batches * self._plan.batch_size)

    def labels_of(self, node: str) -> np.ndarray | None:
        """Return the counts of labels that a device trained on last, or None if it never reported any."""
        return self._labels.get(node)

    # What survives a leader ------------------------------------------------------------------------

    def snapshot(self) -> dict[str, np.ndarray]:
        """What profilers learned of devices, as arrays."""
        return {} if self._intake is None else {f"{PROFILE}{name}": a for name, a in self._intake.snapshot().items()}

    def restore(self, tensors: Tensors) -> str | None:
        """Continue from a snapshot. Returns why that failed; then every device is measured from the beginning."""
        learned = {name.removeprefix(PROFILE): array for name, array in tensors.items() if name.startswith(PROFILE)}
        if self._intake is not None:
            try:
                self._intake.restore(learned)
            except Misuse as error:
                return str(error)
        return None

    # Results -------------------------------------------------------------------------------------

    def check(self, update: Update, *, examples_max: int) -> None:
        """An update's figures about examples that only its device has seen must at least add up."""
        if not 0 <= update.fresh <= examples_max:
            raise PeerViolation(f"{update.fresh} new examples in a lease of {examples_max}")
        why = values_problem(update.fresh_metrics) or weight_problem(update.fresh_metrics, examples=update.fresh)
        if why is not None:
            raise PeerViolation(f"new examples: {why}")
        for metric in update.fresh_metrics:
            mine = self._fresh_sums.get(metric.name, metric)
            if (why := difference(mine, metric)) is not None:
                raise PeerViolation(f"new examples: {why}")
        if len({*self._fresh_sums, *(metric.name for metric in update.fresh_metrics)}) > METRICS_MAX:
            raise PeerViolation(f"new examples: more than {METRICS_MAX} metrics in one epoch")
        if update.labels and not self._plan.share_labels:
            raise PeerViolation("labels are counted where the plan does not allow it")

    def learn(self, worker: WorkerRecord, update: Update) -> None:
        """A device has done its part, wherever its update is: learn the time, the energy and its present state."""
        before, worker.device = worker.device, update.state or worker.device
        if self._intake is not None:
            spent: dict[str, float] = {}
            if self._plan.budget_s and update.train_s > 0:
                spent["time"] = update.train_s
            if self._plan.has_energy_budget and update.joules > 0:
                spent[ENERGY] = update.joules
            self._intake.done(features_of(worker.node, before), update.examples, spent)
        if update.labels and self._is_local:
            self._labels[worker.node] = padded(update.labels)

    def on_late(self, worker: WorkerRecord, lease: Lease) -> None:
        """A device gave up a lease that had no time left. Its task takes at least so long, so that the next one is
        smaller: a slow device would be given the same for ever. A time within the budget says nothing: learned from, it
        would make the next one larger."""
        examples, took_s = self._lent.get(lease.id), self._machine.now_s - lease.issued_s
        if self._intake is not None and examples and 0 < _time_budget(self._plan) <= took_s:
            self._intake.done(features_of(worker.node, worker.device), examples, {"time": took_s})

    def count_merged(self, lease: int, update: Update) -> None:
        """An update is in the next version. Until then it may have to be sent again, and its lease is remembered."""
        self._lent.pop(lease, None)
        if not self._is_local:
            return
        self._fresh += update.fresh
        for metric in update.fresh_metrics:
            mine = self._fresh_sums.get(metric.name)
            if mine is None:
                self._fresh_sums[metric.name] = metric
            elif difference(mine, metric) is None:
                # Two updates that disagree may both have been checked before either was merged: the first one counts.
                self._fresh_sums[metric.name] = merge(mine, metric)

    def view(self, *, version: int, epoch: int, seconds: float) -> EvaluationView | None:
        """Return how the model did on the new examples of this epoch before training on them, or None without any."""
        if not self._fresh:
            return None
        view = EvaluationView(
            version=version,
            epoch=epoch,
            examples=self._fresh,
            seconds=seconds,
            metrics=views_of(self._fresh_sums.values()),
        )
        self._fresh = 0
        self._fresh_sums = {}
        return view


def padded(labels: tuple[int, ...]) -> np.ndarray:
    """Counts of as many labels as there may be: the number of a task's labels is not known beforehand."""
    counts = np.zeros(LABELS_MAX, dtype=np.int64)
    counts[: len(labels)] = labels
    return counts


def features_of(node: str, device: DeviceState | None) -> Features:
    """The features that a profiler goes by. A figure that no device can have counts as unknown."""
    told: dict[str, float | None] = {}
    for field in fields(DeviceState):
        value = getattr(device, field.name, None)
        if field.name in LIMITS:
            least, most = LIMITS[field.name]
            told[field.name] = value if value is not None and least <= value <= most else None
    return Features(device=node, kind=device.kind if device is not None else "", **told)


def battery_joules_of(device: DeviceState | None) -> float | None:
    """Return what a device's full battery holds, or None if it has none or reports what no battery can hold."""
    told = device.battery_joules if device is not None else None
    least, most = BATTERY_JOULES
    return told if told is not None and least <= told <= most else None


def joules_allowed(plan: Plan, battery_joules: float | None) -> float | None:
    """Return the joules that a lease may take of a device with this battery, or None if no such budget applies to it.

    The smaller one of ``budget_joules`` and the share of the battery (FLeet §3.3 has 0.075 % of it) holds.
    """
    share = plan.budget_battery_percent / 100 * (battery_joules or 0.0)
    return min((joules for joules in (plan.budget_joules, share) if joules), default=None)


def _time_budget(plan: Plan) -> float:
    """Return the seconds that leases are fitted to, or 0 if they are not. None may take longer than it has."""
    return min(plan.budget_s, plan.lease_s) if plan.lease_s else plan.budget_s


def _intake(plan: Plan) -> Intake:
    budgets: dict[str, Budget] = {}
    if budget_s := _time_budget(plan):
        budgets["time"] = Budget(profiler=WithMargin(LogRls(unit="s")), budget=budget_s)
    if plan.has_energy_budget:
        budgets[ENERGY] = Budget(profiler=WithMargin(LogRls(unit="J", energy=True)), budget=plan.budget_joules or None)
    if not budgets:
        raise Misuse("sized work needs a budget")
    rules = Rules(size_percentile=plan.refuse_smallest, similarity_percentile=plan.refuse_alike)
    unsized = plan.lease_batches * plan.batch_size
    return Intake(budgets, steering=Steering(per_s=plan.requests_per_s or _ANY_PER_S), rules=rules, unsized=unsized)
