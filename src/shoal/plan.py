"""A plan: how a task is trained, as six choices and their numbers. Pure values; knows no driver."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from shoal.compress.codec import Codec
from shoal.deprecated import NESTEROV, warn_of
from shoal.errors import Misuse
from shoal.learning.algorithm_name import AlgorithmName
from shoal.learning.decay_skips import DecaySkips
from shoal.learning.outer_rule import ADAPTIVE, BETA2, EPSILON, OUTER_KINDS, RATES, OuterRule
from shoal.learning.privacy import Privacy, SharedPrivacy
from shoal.learning.schedule import Schedule
from shoal.plan_rules.rule import PlanRefused, told
from shoal.plan_rules.table import broken_rules
from shoal.sealing.graph import GROUP_MAX
from shoal.trust import DEVICE_MOMENTUM, DEVICES_LEAST, DEVICES_MAX, Trust
from shoal.until import Until as Until
from shoal.until import accuracy as accuracy
from shoal.until import check_metric_name
from shoal.until import endless as endless
from shoal.until import epochs as epochs
from shoal.until import seconds as seconds
from shoal.where import parse_where

#: Batches one lease may name, and the most often that it may go over its examples.
LEASE_BATCHES_MAX = 4096
LOCAL_EPOCHS_MAX = 10_000

#: Four of a plan's six choices, each with its answers: where examples are, where updates are summed, when the model
#: moves, and how much work a device gets. The other two are texts: ``compress.codec`` reads the codec, and ``trust``
#: which updates count.
CHOICES: dict[str, tuple[str, ...]] = {
    "data": ("shared", "local"),
    "topology": ("star", "tree", "shard", "auto", "chain"),
    "pace": ("sync", "buffered", "async", "auto"),
    "work": ("leased", "fixed", "sized"),
}

#: Answers that plans no longer have, and the answer to set instead.
RETIRED: dict[tuple[str, str], str] = {("work", "blocks"): "leased"}

#: The weight of a late update (``learning.staleness``). It has no effect at a pace without late updates.
STALENESS = ("none", "inverse", "root", "exponential", "parameter", "similar")

#: Which version of a job is published automatically: one that is better than the published one, each one that is
#: evaluated, or none.
PUBLISH = ("better", "every", "asked")

#: How the examples of a shared set are mixed: over all of them, or over a few shards at a time, so that a device need
#: not hold them all.
SHUFFLES = ("full", "window")

#: Published versions are whole models on the manager's disk.
VERSIONS_KEPT_MAX = 100

#: The default share of the last step that the leader keeps: Dlib's, since EDDL names none. Asynchrony acts like
#: momentum, more so with more workers (see ``learning.pace``), and the two add up.
MOMENTUM = {"sync": 0.9, "buffered": 0.9, "async": 0.0, "auto": 0.9}

#: The number format of forward passes, and whether an inner optimiser's state lasts for a lease or for the trainer's
#: life.
PRECISIONS = ("float32", "bfloat16")
INNER_STATES = ("fresh", "kept")

#: Which of the devices that wait train for a version, and what an update counts for in the mean: as many times as it
#: has examples, or once for its device. An empty text is the first of them.
SAMPLING = ("waited", "uniform", "by_examples")
WEIGHTS = ("examples", "device")

#: The default ratio of values that a version sends down to the values that one update sends up.
DOWN_TIMES = 5

#: Keys by their allowed values. 0 switches a norm, a budget or a time off.
ANSWERS = {"staleness": STALENESS, "precision": PRECISIONS, "inner_state": INNER_STATES, "shuffle": SHUFFLES}
_FROM_ONE = ("workers_min", "batch_size", "accumulate", "evaluate_every_epochs", "buffer", "epoch_leases")
_FROM_ZERO = (
    *("aggregators", "cohort", "weight_decay", "lease_s", "checkpoint_every_s", "clip_mean", "clip_gradient"),
    *("cache_mb", "budget_s", "budget_joules", "requests_per_s", "labels_epsilon", "participations", "apart"),
)
_BETWEEN = {
    "lease_batches": (1, LEASE_BATCHES_MAX, ""),
    "budget_battery_percent": (0, 100, " percent"),
    "local_epochs": (0, LOCAL_EPOCHS_MAX, " passes"),
    "versions_kept": (1, VERSIONS_KEPT_MAX, " complete models"),
}

#: A number that the plan's author left out. A plan that was made has a number in its place.
_UNSAID: Any = None


def parse_workers(text: str) -> tuple[int, int]:
    """Read ``MIN:MAX`` (or one number for both)."""
    low, _, high = text.partition(":")
    try:
        pair = (int(low), int(high or low))
    except ValueError:
        raise Misuse(f"workers are written MIN:MAX, such as 2:8; {text!r} is not") from None
    return pair


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How to train. Every number has a default that works; the six choices come first."""

    #: Where examples are: ``shared`` with the cluster, or ``local`` on the devices, which they never leave.
    data: str = "shared"
    #: Where updates are summed: ``star``, ``tree``, ``shard`` or ``auto``; ``chain`` sums in pairs, without a manager.
    topology: str = "star"
    #: When the model moves: ``sync``, ``buffered``, ``async`` or ``auto``.
    pace: str = "sync"
    #: How an update is encoded: ``dense``, ``bf16``, ``fp16``, ``int16``, or a text like ``top1%+ef+4bit``. A sealed
    #: plan takes ``dense``, ``int16`` or a text like ``led5%+ef`` (docs/codecs.md).
    codec: str = "dense"
    #: ``leased`` gives the next batches to a worker that is ready (EDDL §4.2). ``sized`` fits a lease to a budget.
    #: ``fixed`` divides the batches of an epoch equally, and again when a worker comes or goes; at the end of an epoch
    #: all wait for the slowest device. It is the comparison of EDDL's Figure 13.
    work: str = "leased"
    #: Which updates count: ``identity``, those of devices with a certificate; ``robust`` and ``robust(clip)``, none by
    #: itself. ``sealed`` hides single updates, ``private(8, 1e-5)`` bounds what the model leaks about a person
    #: (docs/trust.md).
    trust: str = "identity"

    #: Examples of one batch.
    batch_size: int = 64
    #: Batches a worker trains, one after the other, on one lease.
    lease_batches: int = 1
    #: How far a step of the inner optimiser goes.
    learning_rate: float = 0.05
    #: Momentum of the leader's step; workers stay stateless (EDDL §4.4). An adaptive ``outer`` uses it as beta1. The
    #: default fits the pace (``MOMENTUM``) and is 0 for Adagrad, which has no momentum (Reddi et al. 2021).
    momentum: float = _UNSAID
    #: Weight decay of each step of a worker; with ``outer = "adamw"`` of the leader's step instead.
    weight_decay: float = 0.0

    #: The optimiser of a lease on a device: a class of ``torch.optim`` in small letters. A task may define its own
    #: ``optimizer``. With ``fresh`` its state begins again with each lease, so another device gets the same result for
    #: that lease; with ``kept`` the state stays on the device and is lost with it.
    inner: str = "sgd"
    inner_state: str = "fresh"
    #: Each device scales its gradient down to this norm before a step. 0 switches this off. ``clip_mean`` is the
    #: equivalent of ``clip_grad_norm_`` after DistributedDataParallel.
    clip_gradient: float = 0.0
    #: Batches per step, which uses the mean gradient over their examples. The last step of a lease may have fewer.
    accumulate: int = 1
    #: ``bfloat16`` computes forward passes in that format where that is safe (autocast). Parameters stay float32.
    precision: str = "float32"
    #: Compile the model on each device (``torch.compile``); its first lease takes minutes longer.
    compile: bool = False

    #: The number of workers that the job waits for, and the most that it takes.
    workers_min: int = 1
    workers_max: int = 1024
    #: When the job ends: ``shoal.epochs(n)``, ``shoal.accuracy(share)``, ``shoal.seconds(s)``, joined by ``|``.
    until: Until = dataclasses.field(default_factory=lambda: Until(epochs=3))
    #: Epochs between two evaluations on held-out data.
    evaluate_every_epochs: int = 1
    #: Seed of the first model, of the order of examples and of all randomness in a lease.
    seed: int = 0

    #: The longest time of a lease. 0 lets the leader derive it from finished leases.
    lease_s: float = 0.0
    #: Longest time between two durable versions.
    checkpoint_every_s: float = 10.0

    #: Updates in one version of the buffered pace.
    buffer: int = 8
    #: The weight of an update that was made against an older version. ``root`` is mild, needs no memory that a new
    #: leader would lack, and is FedBuff's choice.
    staleness: str = "root"
    #: Aggregators of a tree. 0 means about the square root of the number of workers.
    aggregators: int = 0

    #: How a version's difference from the previous one is encoded for the workers. The default fits ``codec``. The
    #: leader adds the rest of a change to the next one, with or without ``+ef``.
    codec_down: str = ""
    #: The size of the leader's step: along the mean update, or in every value if ``outer`` is adaptive. The default
    #: fits ``outer`` (``RATES``). DiLoCo takes many batches per lease, nesterov, 0.7 and momentum 0.9.
    outer_rate: float = _UNSAID
    #: Deprecated: write ``outer = "nesterov"``.
    nesterov: bool = False
    #: Leases per version, which go to the workers that waited longest. 0 means one for each worker that is ready.
    cohort: int = 0

    #: How examples are mixed (``SHUFFLES``). With ``window``, devices fetch only the shards that their leases name.
    shuffle: str = "full"
    #: Megabytes of fetched training examples that a device keeps on its disk with ``window``. 0 keeps all of them.
    cache_mb: int = 0

    #: Leases per epoch with local data, where nobody knows the number of examples.
    epoch_leases: int = 100
    #: The budget of a lease of sized work on a device, in seconds of training and in joules. 0 sets no budget.
    budget_s: float = 0.0
    budget_joules: float = 0.0
    #: Percent of the requests for sized work that are refused: the smallest, and those with the most similar labels.
    refuse_smallest: float = 0.0
    refuse_alike: float = 0.0
    #: Requests per second that a leader of sized work aims at. Devices beyond that get a time to come again. 0 sets no
    #: limit.
    requests_per_s: float = 0.0
    #: Devices report how many examples of each label they trained on. It helps to weigh rare labels (``similar``), and
    #: it reveals something about the people behind the examples, so it is off by default. With an epsilon, the counts
    #: have noise that gives each example this much deniability per lease.
    share_labels: bool = False
    labels_epsilon: float = 0.0

    #: Which version is published automatically (``PUBLISH``), and how many published ones are kept for a rollback. By
    #: default a job without an end publishes better versions, and a job with an end publishes none.
    publish: str = ""
    versions_kept: int = 5
    #: The metric that compares versions. The default is accuracy if the job has it, else loss.
    judged_by: str = ""

    #: The leader's step (``learning.outer``). The default is ``sgd``.
    outer: str = ""
    outer_beta2: float = BETA2
    outer_epsilon: float = EPSILON
    #: How the rate changes from version to version (``learning.schedule``): the ``learning_rate`` of leases, or the
    #: ``outer_rate`` if ``outer`` is adaptive. Empty means that it stays.
    schedule: str = ""
    #: The share of its last updates that a device keeps and adds to the next one. Applies only under ``robust``, in
    #: place of the leader's ``momentum``. The default is 0.9.
    worker_momentum: float | None = None
    #: The largest norm of a device's update, which the device clips before it sends it. Applies only under ``private``
    #: and ``robust(clip) + sealed``.
    clip_update: float = 0.0
    #: The most versions that a device takes part in, and the versions between two of them. 0 derives them:
    #: ``participations`` from the plan's versions, ``apart`` from the versions that ``workers_min`` devices can fill in
    #: turn.
    participations: int = 0
    apart: int = 0
    #: The leader scales the mean gradient of a version down to this norm before its step: ``clip_grad_norm_`` after
    #: DistributedDataParallel. The gradient is the mean update divided by ``learning_rate``. 0 switches this off.
    clip_mean: float = 0.0
    #: Tensors that ``outer = "adamw"`` does not decay, separated by commas: ``vectors``, all of at most one dimension
    #: (biases and norms), or patterns of names such as ``*.bias``. Empty decays all.
    decay_skips: str = ""
    #: Weight that the exponential mean of all versions keeps with each new one, such as 0.999. The mean is what is
    #: evaluated, published and pulled; training continues from the newest version. 0 means no mean.
    ema: float = 0.0
    #: Percent of a device's full battery that a lease of sized work may take, such as FLeet's 0.075. It does not apply
    #: to devices without a battery. 0 sets no such budget.
    budget_battery_percent: float = 0.0
    #: Which devices may work for the job, by their labels and facts, such as ``room in (3, 4) and memory_mb > 900``
    #: (``shoal.where``). Empty means all.
    where: str = ""
    #: How the cohort of a version is chosen: ``waited``, the devices that waited longest, which takes them in turn;
    #: ``uniform``, by chance, as papers do; or ``by_examples``, by chance in proportion to the examples that devices
    #: have. Devices that are away or busy are not drawn.
    sampling: str = ""
    #: What an update counts for in the mean of a version: ``examples``, as many times as it has examples; or
    #: ``device``, each device once.
    weights: str = ""
    #: Merge updates whatever their length. By default a leader refuses an update that is many times as long as is
    #: usual, which most often comes of an error, and refuses honest updates of algorithms that scale theirs.
    accept_unusual: bool = False
    #: How often a lease goes over its examples: E of FedAvg (McMahan et al. 2017). 0 is the same as 1.
    local_epochs: int = 0
    #: A class of yours that makes versions from updates or chooses who trains: ``rules:Median`` is ``class
    #: Median(shoal.Algorithm)`` in rules.py, which lies beside the task (docs/algorithms.md).
    algorithm: str = ""

    def __post_init__(self) -> None:
        self._settle_outer()
        for name, usual in (("sampling", SAMPLING[0]), ("weights", WEIGHTS[0])):
            # Older releases lack the key, so a plan with its default value must encode as theirs does.
            if getattr(self, name) == usual:
                object.__setattr__(self, name, "")
        self._check_values()
        if broken := broken_rules(self):
            raise PlanRefused(self, broken)

    def _check_values(self) -> None:
        """Refuse what is wrong with one key by itself."""
        for choice, answers in CHOICES.items():
            _check_choice(choice, getattr(self, choice), answers)
        for name, answers in ANSWERS.items():
            _check_choice(name, getattr(self, name), answers)
        for name, answers in {"publish": PUBLISH, "sampling": SAMPLING, "weights": WEIGHTS}.items():
            if getattr(self, name):
                _check_choice(name, getattr(self, name), answers)
        for name in _FROM_ONE:
            if getattr(self, name) < 1:
                raise Misuse(f"{name} is at least 1, not {getattr(self, name)}")
        for name in _FROM_ZERO:
            if not 0 <= getattr(self, name) < math.inf:
                raise Misuse(f"{name} is a number from 0, not {getattr(self, name)}")
        for name, (low, high, unit) in _BETWEEN.items():
            if not low <= getattr(self, name) <= high:
                raise Misuse(f"{name} is from {low} to {high}{unit}, not {getattr(self, name)}")
        for name in ("cohort", "local_epochs"):
            if getattr(self, name) != int(getattr(self, name)):
                raise Misuse(f"{name} is a whole number, not {getattr(self, name)}")
        for name in ("refuse_smallest", "refuse_alike"):
            if not 0 <= getattr(self, name) < 100:
                raise Misuse(f"{name} is a part of a hundred requests, not {getattr(self, name)}")
        if not 0 <= self.ema < 1:
            raise Misuse(f"ema = {self.ema:g}: set it to a number between 0 and 1, such as 0.999, or leave it out")
        if self.worker_momentum is not None and not 0 <= self.worker_momentum < 1:
            raise Misuse(f"worker_momentum is a number from 0 to below 1, not {self.worker_momentum}")
        if not (self.inner.isalnum() and self.inner == self.inner.lower()):
            raise Misuse(f"inner = {self.inner!r}: write a class of torch.optim in small letters, such as adamw")
        if self.judged_by:
            check_metric_name(self.judged_by)
        if not self.until.is_set:
            raise Misuse("a job needs an end: until an accuracy or another metric, a number of epochs or a time")
        self._check_texts()

    def _check_texts(self) -> None:
        """Read every text of a grammar once, and build the leader's step, to be told now what is wrong with it."""
        Trust.parse(self.trust)
        parse_where(self.where)
        for name in (self.codec, self.down):
            Codec.parse(name)
        Schedule.parse(self.schedule)
        if self.algorithm:
            AlgorithmName.parse(self.algorithm)
        DecaySkips.parse(self.decay_skips)
        _ = self.outer_rule

    @property
    def why_not_new(self) -> str | None:
        """Return why a new job must not have this plan, or None if it may. Releases before accepted such plans, so one
        that is stored, or comes from such a release, is read all the same."""
        broken = broken_rules(self, new_jobs_only=True)
        return told(self, broken) if broken else None

    @property
    def privacy(self) -> Privacy | None:
        """Return the promise of a private plan, or None if the plan is not private."""
        private = self.believes.private
        if private is None or self.until.epochs is None:
            return None
        devices = {"sync": self.cohort, "buffered": self.buffer}.get(self.paces[0], 1)
        versions = self.until.epochs * math.ceil(self.epoch_leases / max(1, devices))
        apart = self.apart or max(1, self.workers_min // max(1, devices))
        most = math.ceil(versions / apart)
        sealed = self.believes.sealed
        if sealed is not None:
            return SharedPrivacy(
                epsilon=private.epsilon,
                delta=private.delta,
                clip=self.clip_update,
                devices=devices,
                # A sum that comes to nothing counts too, so that more of them than versions may be of use.
                participations=self.participations or most,
                apart=0,
                versions=versions,
                certain=self.opened_least - sealed.liars_of(devices),
            )
        return Privacy(
            epsilon=private.epsilon,
            delta=private.delta,
            clip=self.clip_update,
            devices=devices,
            participations=min(self.participations, most) if self.participations else most,
            apart=apart,
            versions=versions,
        )

    @property
    def is_cut_unseen(self) -> bool:
        """Devices cut their updates to ``clip_update`` before they seal them, and nobody sees whether they did."""
        return self.believes.rule == "clip" and self.believes.sealed is not None

    @property
    def has_leaders_noise(self) -> bool:
        """The leader adds the noise of a private plan. Where updates are sealed too, devices do."""
        return self.believes.private is not None and self.believes.sealed is None

    @property
    def is_stepped_by_leader(self) -> bool:
        """Aggregators of a shard take no step: the leader has to open their sums first, to add noise to them, to clip
        the mean of all parts, or to decay some tensors only."""
        is_open = self.believes.sealed is None and not self.has_leaders_noise
        return not is_open or self.clip_mean > 0 or bool(self.decay_skips)

    @property
    def opened_least(self) -> int:
        """Return the fewest devices whose sealed sum is opened. If the plan is private too, each device adds noise for
        the smallest sum: the one that is left of a version after the most losses that the plan allows."""
        sealed = self.believes.sealed
        if sealed is None:
            return 1
        # Where members are signed, all that may collude can be in one group, and three more make a sum of two at least.
        least = sealed.least if sealed.members is None else max(sealed.least, sealed.liars_of(sealed.members) + 3)
        if self.believes.private is None:
            return least
        return max(least, self.cohort - int(round(self.cohort * sealed.lost, 9)))

    @property
    def sealed_examples(self) -> tuple[int, int]:
        """The fewest and the most examples of a lease, in a sealed plan with the devices' own data. A leader that sizes
        leases keeps within half and twice the plan's own, so no lease has more than four times another's examples."""
        asked = self.lease_batches * self.batch_size
        return (-(-asked // 2), 2 * asked) if self.work == "sized" else (asked, asked)

    @property
    def group_least(self) -> int:
        """The fewest devices of one sealed sum that ``trust`` asks for."""
        return self.believes.sealed.least if self.believes.sealed is not None else 1

    @property
    def group_most(self) -> int:
        """Devices of one sealed sum: they are told of all others in one message, and of the helper."""
        return GROUP_MAX - (self.believes.helper is not None)

    @property
    def lease_steps(self) -> int:
        """Return the steps of the inner optimiser in a lease."""
        return -(-self.lease_batches * self.passes // self.accumulate)

    @property
    def passes(self) -> int:
        """Return the number of times that a lease goes over its examples."""
        return max(1, self.local_epochs)

    def weight_of(self, examples: int) -> float:
        """Return the weight in the mean of an update of this many examples."""
        return 1.0 if self.weights == "device" else float(examples)

    @property
    def needs_new_agents(self) -> bool:
        """Whether agents of the protocol before would train or lead otherwise: they do not know these keys."""
        return bool(self.sampling or self.weights or self.accept_unusual or self.local_epochs or self.algorithm)

    @property
    def has_energy_budget(self) -> bool:
        return bool(self.budget_joules or self.budget_battery_percent)

    @property
    def believes(self) -> Trust:
        """Return ``trust``, parsed."""
        return Trust.parse(self.trust)

    @property
    def workers_least(self) -> int:
        """Return how many workers the job needs to train: the plan's number, and enough for its trust to compare."""
        least = DEVICES_LEAST if self.believes.rule == "nearest" else 1
        return max(self.workers_min, least)

    @property
    def topologies(self) -> tuple[str, ...]:
        """The topologies that the job may have, the simplest first. Where devices are compared, ``auto`` chooses no
        tree: an aggregator would sum its group before the comparison."""
        if self.topology != "auto":
            return (self.topology,)
        is_compared = self.believes.rule == "nearest" and self.believes.sealed is None
        return ("star", "shard") if is_compared else ("star", "tree", "shard")

    @property
    def paces(self) -> tuple[str, ...]:
        """The paces that the job may have, the one that it begins with first. ``auto`` stays in step where updates are
        sealed, since members of a sum agree on one version before they seal, and where they are private, since noise is
        for a number of devices per version that stays."""
        if self.pace != "auto":
            return (self.pace,)
        is_in_step = self.believes.sealed is not None or self.believes.private is not None
        return ("sync",) if is_in_step else ("sync", "buffered")

    @property
    def hubs_max(self) -> int:
        """Return how many hubs the job may get: at most one for two workers, and none without a tree."""
        return max(1, self.workers_max // 2) if "tree" in self.topologies else 0

    @property
    def lent_most(self) -> int:
        """Return the most leases of one version at a pace that waits for them, or 0 if there is no limit."""
        is_bounded = self.believes.rule == "nearest" or self.believes.sealed is not None
        most = min(DEVICES_MAX, self.group_most) if self.believes.sealed is not None else DEVICES_MAX
        return self.cohort or (most if is_bounded and self.paces[0] == "sync" else 0)

    @property
    def device_momentum(self) -> float:
        """Return the share of its last updates that a device keeps. It is 0 under a sealed plan: an update would be in
        the sums of many versions, and sums over different devices would reveal it."""
        if self.believes.sealed is not None:
            return 0.0
        if self.worker_momentum is not None:
            return self.worker_momentum
        return DEVICE_MOMENTUM if self.believes.rule is not None else 0.0

    @property
    def device_gain(self) -> float:
        """Return the share of its accumulated updates that a device sends. In the long run the model moves as far as it
        would with the leader's usual momentum at this pace."""
        if not self.device_momentum:
            return 1.0
        kept = 0.0 if self.outer in ADAPTIVE else usual_momentum(self.outer, self.pace)
        return (1.0 - self.device_momentum) / (1.0 - kept)

    def _settle_outer(self) -> None:
        """Fill in what was left out about the leader's step."""
        outer = self.outer or "sgd"
        if self.nesterov and outer == "sgd":
            # A plan that was settled before has "nesterov" in both. The callers: __post_init__, __init__, a person.
            warn_of(NESTEROV, callers=3)
            outer = "nesterov"
        _check_choice("outer", outer, OUTER_KINDS)
        object.__setattr__(self, "outer", outer)
        object.__setattr__(self, "nesterov", outer == "nesterov" or self.nesterov)
        if self.momentum is _UNSAID:
            kept = 0.0 if self.device_momentum else usual_momentum(outer, self.pace)
            object.__setattr__(self, "momentum", kept)
        if self.outer_rate is _UNSAID:
            object.__setattr__(self, "outer_rate", RATES[outer])

    @property
    def outer_rule(self) -> OuterRule:
        """The leader's step, as aggregators take it too."""
        return OuterRule(
            kind=self.outer,
            rate=self.outer_rate,
            momentum=self.momentum,
            beta2=self.outer_beta2,
            epsilon=self.outer_epsilon,
            weight_decay=self.weight_decay if self.outer == "adamw" else 0.0,
            inner_rate=self.learning_rate,
        )

    @property
    def worker_weight_decay(self) -> float:
        """Return the weight decay of a worker's step, or 0 if the leader's step decays."""
        return 0.0 if self.outer == "adamw" else self.weight_decay

    def rate_at(self, version: int) -> float:
        """Return the learning rate of a version's leases, or 0 for ``learning_rate`` if no schedule changes it."""
        if not self.schedule or self.outer in ADAPTIVE:
            return 0.0
        return self.learning_rate * Schedule.parse(self.schedule).factor(version)

    def outer_rate_at(self, version: int) -> float:
        """Return the rate of the leader's step from this version to the next, or 0 for ``outer_rate``."""
        if not self.schedule or self.outer not in ADAPTIVE:
            return 0.0
        return self.outer_rate * Schedule.parse(self.schedule).factor(version)

    @property
    def down(self) -> str:
        """Return the codec of versions for workers. By default it sends more values than an update has: a version is
        made of many updates, and momentum carries all of them on."""
        codec = Codec.parse(self.codec)
        if self.codec_down or codec.form != "top":
            # Words of a sealed sum have a bound of their own, which a version has not.
            is_sealed = codec.is_sealed_only or (codec.form == "int16" and self.believes.sealed is not None)
            return self.codec_down or ("dense" if is_sealed else self.codec)
        percent = min(100, max(1, DOWN_TIMES * codec.share_ppm // 10_000))
        return f"top{percent}%" + (f"+{codec.bits}bit" if codec.bits < 32 else "")


def usual_momentum(outer: str, pace: str) -> float:
    """Return the default share of the last step that the leader keeps."""
    return 0.0 if outer == "adagrad" else MOMENTUM.get(pace, 0.0)


def unknown_key(name: str) -> str:
    """Return what to tell a person who named a key that a plan does not have."""
    import difflib

    known = sorted(field.name for field in dataclasses.fields(Plan) if field.name != "until")
    if near := difflib.get_close_matches(name.lower(), known, 1):
        return f"a plan has no {name!r}: did you mean {near[0]}? docs/reference.md lists every key"
    return f"a plan has no {name!r}; it has {', '.join(known)}"


def why_retired(name: str, answer: str) -> str:
    """Return the reason to refuse an answer that plans no longer have."""
    return f"Shoal no longer has {name} = {answer!r}: set {name} = {RETIRED[name, answer]!r}"


def _check_choice(name: str, answer: str, answers: tuple[str, ...]) -> None:
    if (name, answer) in RETIRED:
        raise Misuse(why_retired(name, answer))
    if answer not in answers:
        raise Misuse(f"{name} = {answer!r} is not a choice Shoal has; there is: {', '.join(answers)}")
