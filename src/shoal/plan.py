"""A plan: how a task is trained, as six choices and their numbers. Pure values; knows no driver."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from shoal.compress.codec import Codec
from shoal.errors import Misuse

#: Batches one lease may name.
LEASE_BATCHES_MAX = 4096

#: Where examples live, how updates meet, when the model moves, how much for whom, who is believed. What crosses the
#: wire, the sixth, is written in a grammar of its own (``compress.codec``).
CHOICES: dict[str, tuple[str, ...]] = {
    "data": ("shared", "local"),
    "topology": ("star", "tree", "shard", "auto", "chain"),
    "pace": ("sync", "buffered", "async", "auto"),
    "work": ("leased", "fixed", "sized"),
    "trust": ("identity",),
}

#: What a late update counts for (``learning.staleness``). No choice of its own: without a pace that has late ones, it
#: says nothing.
STALENESS = ("none", "inverse", "root", "exponential", "parameter", "similar")

#: What only sized work heeds. Elsewhere they would be said in vain, and whoever set a budget would think it held.
SIZED_ONLY = ("budget_s", "budget_joules", "refuse_smallest", "refuse_alike", "requests_per_s")

#: Which version of a job is published by itself: one that is judged better than the one that is served, every one that
#: is judged, or none.
PUBLISH = ("better", "every", "asked")

#: How the examples of a shared set are mixed: over all of them, or over a few shards at a time, so that a device need
#: not hold them all.
SHUFFLES = ("full", "window")

#: Published versions are whole models on the manager's disk.
VERSIONS_KEPT_MAX = 100

#: How much of the last step is kept where a plan does not say: Dlib's default, where EDDL is silent. Asynchrony acts
#: like momentum of its own, the more so the more workers there are (see ``learning.pace``), and the two add up.
MOMENTUM = {"sync": 0.9, "buffered": 0.9, "async": 0.0, "auto": 0.9}

#: How many times as many places a version moves in as one update names, where a plan does not say.
DOWN_TIMES = 5

#: A number that was left out. Once a plan is made, it is there.
_UNSAID: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Until:
    """When a job ends: at an accuracy, after a number of epochs, or after a time; whichever comes first. Or never."""

    accuracy: float | None = None
    epochs: int | None = None
    seconds: float | None = None
    #: It goes on until it is stopped.
    endless: bool = False

    def __post_init__(self) -> None:
        if self.accuracy is not None and not 0 < self.accuracy <= 1:
            raise Misuse(f"accuracy is a share between 0 and 1, not {self.accuracy}: write 0.98 for 98 %")
        if self.epochs is not None and self.epochs < 1:
            raise Misuse(f"a job runs at least one epoch, not {self.epochs}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise Misuse(f"a job runs for a positive time, not {self.seconds} s")

    def __or__(self, other: Until) -> Until:
        """Combine two limits: the job ends when either is met."""
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return Until(**{name: mine[name] or theirs[name] for name in mine})

    @property
    def is_set(self) -> bool:
        return self.endless or any(value is not None for value in (self.accuracy, self.epochs, self.seconds))


def accuracy(share: float) -> Until:
    """Train until this share of held-out examples is right."""
    return Until(accuracy=share)


def epochs(count: int) -> Until:
    """Train until every example was used this many times."""
    return Until(epochs=count)


def seconds(limit_s: float) -> Until:
    """Train for this long."""
    return Until(seconds=limit_s)


def endless() -> Until:
    """Go on until someone stops it."""
    return Until(endless=True)


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

    data: str = "shared"
    topology: str = "star"
    pace: str = "sync"
    codec: str = "dense"
    #: ``leased`` lends the next batch to whoever is ready (EDDL §4.2). ``fixed`` gives every worker as many batches of
    #: an epoch, which nobody else trains; they are divided anew when someone comes or goes. It is what EDDL compares
    #: with (Figure 13): where devices differ, the others wait for the slowest at the end of each epoch.
    work: str = "leased"
    trust: str = "identity"

    batch_size: int = 64
    #: Batches a worker trains, one after the other, on one lease.
    lease_batches: int = 1
    learning_rate: float = 0.05
    #: Kept by the leader, so that workers stay stateless (EDDL §4.4). Left out: what suits the pace (``MOMENTUM``).
    momentum: float = _UNSAID
    weight_decay: float = 0.0

    workers_min: int = 1
    workers_max: int = 1024
    until: Until = dataclasses.field(default_factory=lambda: Until(epochs=3))
    #: Evaluate on held-out data after every so many epochs.
    evaluate_every_epochs: int = 1
    seed: int = 0

    #: Longest a lease may take; 0 lets the leader learn it from the leases that came back.
    lease_s: float = 0.0
    #: Longest time between two durable versions.
    checkpoint_every_s: float = 10.0

    #: Updates in one version of the buffered pace.
    buffer: int = 8
    #: What an update counts for that was made against an older version. The root is mild, needs no memory that a new
    #: leader would lack, and is what FedBuff found to do.
    staleness: str = "root"
    #: Aggregators of a tree; 0: about the square root of the workers.
    aggregators: int = 0

    #: What crosses the wire to the workers: how a version differs from the one before. Left out: what suits ``codec``.
    #: What is not sent of a change, the leader keeps and adds to the next, with or without ``+ef``.
    codec_down: str = ""
    #: How far the leader goes along the mean update, and whether it looks ahead (Nesterov). With many batches a lease,
    #: 0.7 and True with momentum 0.9 are DiLoCo's.
    outer_rate: float = 1.0
    nesterov: bool = False
    #: Leases lent for one version, to those who waited longest; 0: one to whoever is ready.
    cohort: int = 0

    #: How examples are mixed (``SHUFFLES``). With windows, devices fetch the shards that their leases name.
    shuffle: str = "full"
    #: With windows, the megabytes of training examples that a device keeps on its disk; 0: all that it fetched.
    cache_mb: int = 0

    #: With local data nobody knows how many examples there are: an epoch is so many leases.
    epoch_leases: int = 100
    #: What a lease of sized work may take of a device: seconds of training, and joules; 0: as much as it takes.
    budget_s: float = 0.0
    budget_joules: float = 0.0
    #: Of a hundred requests for sized work, so many of the smallest are refused, and of the most alike in their labels.
    refuse_smallest: float = 0.0
    refuse_alike: float = 0.0
    #: Requests a second that a leader of sized work aims at: who comes above that is told when to come again. 0: any.
    requests_per_s: float = 0.0
    #: Devices tell how many examples of each label they trained on. It helps to weigh rare labels (``similar``), and it
    #: tells something of whoever the examples are of, so it is off unless said. With an epsilon, the counts are told
    #: with noise that gives each example so much deniability a lease.
    share_labels: bool = False
    labels_epsilon: float = 0.0

    #: Which version is published by itself (``PUBLISH``), and how many of them are kept to go back to. Left out: of a
    #: job without an end those that are better; of one that has an end none, for it is trained for its last version.
    publish: str = ""
    versions_kept: int = 5

    def __post_init__(self) -> None:
        for choice, answers in CHOICES.items():
            _check_choice(choice, getattr(self, choice), answers)
        _check_choice("staleness", self.staleness, STALENESS)
        if self.publish:
            _check_choice("publish", self.publish, PUBLISH)
        if self.momentum is _UNSAID:
            object.__setattr__(self, "momentum", MOMENTUM[self.pace])
        if not 1 <= self.workers_min <= self.workers_max:
            raise Misuse(f"workers {self.workers_min}:{self.workers_max}: MIN is at least 1 and at most MAX")
        for name in ("batch_size", "lease_batches", "evaluate_every_epochs", "buffer"):
            if getattr(self, name) < 1:
                raise Misuse(f"{name} is at least 1, not {getattr(self, name)}")
        for name in ("aggregators", "cohort"):
            if getattr(self, name) < 0:
                raise Misuse(f"{name} is a number from 0, not {getattr(self, name)}")
        for name in (self.codec, self.down):
            Codec.parse(name)
        if self.topology == "shard" and self.pace not in ("sync", "auto"):
            raise Misuse(
                f"a shard moves in step: every share of a version is made of the same updates. With pace {self.pace!r}"
                " choose topology = 'tree', 'star' or 'auto'"
            )
        if self.topology == "chain" and (self.data, self.pace) != ("local", "sync"):
            raise Misuse(
                "a chain of pairs is for devices that train in step on examples of their own, without a manager:"
                " set data = 'local' and pace = 'sync', and run `shoal flock` on each of them"
            )
        if self.cohort and self.pace != "sync":
            raise Misuse(f"a cohort is of one version, for which others wait: with pace {self.pace!r} it is 0")
        if self.lease_batches > LEASE_BATCHES_MAX:
            raise Misuse(f"lease_batches is at most {LEASE_BATCHES_MAX}, not {self.lease_batches}")
        if not 0 < self.learning_rate < math.inf:
            raise Misuse(f"learning_rate is positive, not {self.learning_rate}")
        if not 0 < self.outer_rate < math.inf:
            raise Misuse(f"outer_rate is positive, not {self.outer_rate}")
        if not 0 <= self.momentum < 1:
            raise Misuse(f"momentum is in [0, 1), not {self.momentum}")
        for name in ("weight_decay", "lease_s", "checkpoint_every_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise Misuse(f"{name} is a number from 0, not {getattr(self, name)}")
        self._check_online()
        _check_choice("shuffle", self.shuffle, SHUFFLES)
        if self.cache_mb < 0 or (self.cache_mb and self.shuffle != "window"):
            raise Misuse(f"cache_mb is a number from 0, with shuffle = 'window' alone, not {self.cache_mb}")
        if self.shuffle == "window" and self.data != "shared":
            raise Misuse("shuffle = 'window' is for data = 'shared': a device's own examples are all on its disk")
        if not 1 <= self.versions_kept <= VERSIONS_KEPT_MAX:
            raise Misuse(f"versions_kept is from 1 to {VERSIONS_KEPT_MAX} whole models, not {self.versions_kept}")
        if not self.until.is_set:
            raise Misuse("a job needs an end: until an accuracy, a number of epochs or a time")

    def _check_online(self) -> None:
        if self.epoch_leases < 1:
            raise Misuse(f"epoch_leases is at least 1, not {self.epoch_leases}")
        for name in ("budget_s", "budget_joules", "requests_per_s", "labels_epsilon"):
            if not 0 <= getattr(self, name) < math.inf:
                raise Misuse(f"{name} is a number from 0, not {getattr(self, name)}")
        for name in ("refuse_smallest", "refuse_alike"):
            if not 0 <= getattr(self, name) < 100:
                raise Misuse(f"{name} is a part of a hundred requests, not {getattr(self, name)}")
        if self.work == "sized" and (self.data != "local" or not (self.budget_s or self.budget_joules)):
            raise Misuse("work = 'sized' is for data = 'local', and needs a budget: set budget_s or budget_joules")
        for name in SIZED_ONLY:
            if self.work != "sized" and getattr(self, name):
                raise Misuse(
                    f"{name} = {getattr(self, name):g} is heeded by sized work alone: set work = 'sized' and"
                    f" data = 'local' (`--work sized --plan data=local`), or leave {name} out"
                )
        if self.data == "local" and self.work == "fixed":
            raise Misuse("with data = 'local' every device has its own examples: work is 'leased' or 'sized'")
        if self.staleness == "similar" and not self.share_labels:
            raise Misuse("staleness = 'similar' weighs labels: it needs share_labels = True, or take 'exponential'")

    @property
    def down(self) -> str:
        """What crosses the wire to the workers. Where that is not said: a version is made of many updates, and momentum
        carries all of them on, so that it moves in more places than any one of them."""
        codec = Codec.parse(self.codec)
        if self.codec_down or codec.form != "top":
            return self.codec_down or self.codec
        percent = min(100, max(1, DOWN_TIMES * codec.share_ppm // 10_000))
        return f"top{percent}%" + (f"+{codec.bits}bit" if codec.bits < 32 else "")


def _check_choice(name: str, answer: str, answers: tuple[str, ...]) -> None:
    if answer not in answers:
        raise Misuse(f"{name} = {answer!r} is not a choice Shoal has; there is: {', '.join(answers)}")
