"""A plan: how a task is trained, as six choices and their numbers. Pure values; knows no driver."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from shoal.compress.codec import Codec
from shoal.errors import Misuse
from shoal.learning.blt_table import VERSIONS_MAX
from shoal.learning.decay_skips import DecaySkips
from shoal.learning.outer_rule import ADAPTIVE, BETA2, EPSILON, OUTER_KINDS, RATES, OuterRule
from shoal.learning.privacy import PARTICIPATIONS_MAX, Privacy, SharedPrivacy
from shoal.learning.schedule import Schedule
from shoal.sealing.graph import GROUP_MAX, shape_of
from shoal.trust import DEVICE_MOMENTUM, DEVICES_LEAST, DEVICES_MAX, Sealed, Trust
from shoal.until import Until as Until
from shoal.until import accuracy as accuracy
from shoal.until import check_metric_name
from shoal.until import endless as endless
from shoal.until import epochs as epochs
from shoal.until import seconds as seconds
from shoal.where import parse_where

#: Batches one lease may name.
LEASE_BATCHES_MAX = 4096

#: Four of a plan's six choices, each with its answers: where examples live, how updates meet, when the model moves, and
#: how much work a device gets. The other two are texts: ``compress.codec`` reads what crosses the wire, and ``trust``
#: reads which devices are believed.
CHOICES: dict[str, tuple[str, ...]] = {
    "data": ("shared", "local"),
    "topology": ("star", "tree", "shard", "auto", "chain"),
    "pace": ("sync", "buffered", "async", "auto"),
    "work": ("leased", "fixed", "sized"),
}

#: Answers that plans no longer have, and the answer to set instead.
RETIRED: dict[tuple[str, str], str] = {("work", "blocks"): "leased"}

#: What a late update counts for (``learning.staleness``). No choice of its own: without a pace that has late ones, it
#: says nothing.
STALENESS = ("none", "inverse", "root", "exponential", "parameter", "similar")

#: What only sized work heeds. Elsewhere they would be said in vain, and a person who set a budget would think it held.
SIZED_ONLY = (
    "budget_s",
    "budget_joules",
    "budget_battery_percent",
    "refuse_smallest",
    "refuse_alike",
    "requests_per_s",
)

#: What only a private plan heeds.
PRIVATE_ONLY = ("clip_update", "participations", "apart")

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

#: What an inner optimiser computes in, and whether its state lasts for a lease or as long as the trainer.
PRECISIONS = ("float32", "bfloat16")
INNER_STATES = ("fresh", "kept")

#: Optimisers of ``torch.optim`` that divide by an average of squared gradients: with few steps a lease that average is
#: mostly its own bias correction.
INNER_ADAPTIVE = ("adam", "adamw", "adamax", "nadam", "radam", "rmsprop", "adadelta", "adagrad", "adafactor")
FRESH_STEPS_LEAST = 8

#: How many times as many places a version moves in as one update names, where a plan does not say.
DOWN_TIMES = 5

#: A number that was left out. Once a plan is made, it is there.
_UNSAID: Any = None


def too_fresh(optimiser: str, steps: int) -> str:
    """Why an adaptive optimiser that begins again with each lease is refused."""
    return (
        f"{optimiser} begins again with every lease, and a lease has {steps} step{'' if steps == 1 else 's'}: that is"
        f" mostly its bias correction. Set lease_batches to {FRESH_STEPS_LEAST} or more, or inner_state = 'kept', or"
        " let the leader do it: outer = 'adamw'"
    )


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

    #: Where examples live: ``shared`` with the cluster, or ``local``, on the devices, which they never leave.
    data: str = "shared"
    #: Where updates meet: ``star``, ``tree``, ``shard``, ``auto``; ``chain``: in pairs, without a manager.
    topology: str = "star"
    #: When the model moves: ``sync``, ``buffered``, ``async`` or ``auto``.
    pace: str = "sync"
    #: What crosses the wire: ``dense``, ``bf16``, ``fp16``, or such as ``top1%+ef+4bit``; where sealed ``int16`` or
    #: such as ``led5%+ef`` (docs/codecs.md).
    codec: str = "dense"
    #: ``leased`` lends the next batch to a worker that is ready (EDDL §4.2). ``sized`` fits a lease to a budget.
    #: ``fixed`` gives every worker as many batches of an epoch, divided again when a worker comes or goes: EDDL's
    #: comparison (Figure 13), in which the others wait for the slowest device at the end of each epoch.
    work: str = "leased"
    #: Who is believed: ``identity``, every device with a certificate; ``robust`` and ``robust(clip)``, none alone. And
    #: what the model may tell of one person: ``private(8, 1e-5)`` (docs/trust.md).
    trust: str = "identity"

    #: Examples of one batch.
    batch_size: int = 64
    #: Batches a worker trains, one after the other, on one lease.
    lease_batches: int = 1
    #: How far a step of the inner optimiser goes.
    learning_rate: float = 0.05
    #: Kept by the leader, so that workers stay stateless (EDDL §4.4). Of an adaptive ``outer`` it is beta1. Left out:
    #: what suits the pace (``MOMENTUM``); none for Adagrad, which has none (Reddi et al. 2021).
    momentum: float = _UNSAID
    #: Taken off by each step of a worker; with ``outer = "adamw"`` by the leader's step instead.
    weight_decay: float = 0.0

    #: What steps through a lease on a device: any of ``torch.optim`` by its name in small letters.
    #: A task may have an ``optimizer`` of its own. ``fresh`` begins again with each lease, so that any device can train
    #: it again and get the same; ``kept`` keeps its state on the device, where it dies with it.
    inner: str = "sgd"
    inner_state: str = "fresh"
    #: Each device scales its gradient down to this norm before a step. 0 does not. What ``clip_grad_norm_`` after
    #: DistributedDataParallel does is ``clip_mean``.
    clip_gradient: float = 0.0
    #: Batches whose gradients make one step: that of the mean over their examples. The last step of a lease may have
    #: fewer.
    accumulate: int = 1
    #: ``bfloat16`` computes forward passes in it where that is safe (autocast); values stay what they are.
    precision: str = "float32"
    #: Compile the model on each device (``torch.compile``); its first lease takes minutes longer.
    compile: bool = False

    #: The job waits for so many workers, and takes at most so many.
    workers_min: int = 1
    workers_max: int = 1024
    #: When the job ends: ``shoal.epochs(n)``, ``shoal.accuracy(share)``, ``shoal.seconds(s)``, joined by ``|``.
    until: Until = dataclasses.field(default_factory=lambda: Until(epochs=3))
    #: Evaluate on held-out data after every so many epochs.
    evaluate_every_epochs: int = 1
    #: Decides the first model, the order of examples and every draw of a lease.
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
    #: How far the leader goes: along the mean update, or, where ``outer`` is adaptive, in every value. Left out: what
    #: suits ``outer`` (``RATES``). With many batches a lease, nesterov with 0.7 and momentum 0.9 is DiLoCo's.
    outer_rate: float = _UNSAID
    #: Another way to say ``outer = "nesterov"``, and true for it.
    nesterov: bool = False
    #: Leases lent for one version, to the workers that waited longest; 0: one to each worker that is ready.
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
    #: Requests a second that a leader of sized work aims at: a device above that is told when to come again. 0: any.
    requests_per_s: float = 0.0
    #: Devices tell how many examples of each label they trained on. It helps to weigh rare labels (``similar``), and it
    #: tells something of the people behind the examples, so it is off unless said. With an epsilon, the counts are told
    #: with noise that gives each example so much deniability a lease.
    share_labels: bool = False
    labels_epsilon: float = 0.0

    #: Which version is published by itself (``PUBLISH``), and how many of them are kept to go back to. Left out: of a
    #: job without an end those that are better; of one that has an end none, for it is trained for its last version.
    publish: str = ""
    versions_kept: int = 5
    #: The metric by which versions are compared. Left out: accuracy where a job has it, else loss.
    judged_by: str = ""

    #: The leader's step (``learning.outer``). Left out: ``sgd``, or ``nesterov`` where that is said.
    outer: str = ""
    outer_beta2: float = BETA2
    outer_epsilon: float = EPSILON
    #: How the rate changes from version to version (``learning.schedule``): the ``learning_rate`` of leases, or, where
    #: ``outer`` is adaptive, the ``outer_rate``. Empty: not at all.
    schedule: str = ""
    #: What a device keeps of its last updates and adds to the next, under ``robust`` alone, in the place of the
    #: leader's ``momentum``. Left out: 0.9 under ``robust``.
    worker_momentum: float | None = None
    #: Under ``private`` and ``robust(clip) + sealed`` alone. An update of a device is at most so long: the rest is cut
    #: off before it leaves.
    clip_update: float = 0.0
    #: A device takes part so often at most; 0: as often as its turn comes in the plan's versions, ``apart`` from each
    #: other. That is in versions; 0: as many as ``workers_min`` devices can fill one after the other.
    participations: int = 0
    apart: int = 0
    #: The leader scales the mean gradient of a version down to this norm before its step: ``clip_grad_norm_`` after
    #: DistributedDataParallel. The gradient is the mean update divided by ``learning_rate``. 0 does not.
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
    #: Which devices may work for it, by their labels and facts, such as ``room in (3, 4) and memory_mb > 900``. Empty:
    #: all (``shoal.where``).
    where: str = ""

    def __post_init__(self) -> None:
        for choice, answers in CHOICES.items():
            _check_choice(choice, getattr(self, choice), answers)
        _check_choice("staleness", self.staleness, STALENESS)
        if self.publish:
            _check_choice("publish", self.publish, PUBLISH)
        self._settle_outer()
        self._check_trust()
        if not 1 <= self.workers_min <= self.workers_max:
            raise Misuse(f"workers {self.workers_min}:{self.workers_max}: MIN is at least 1 and at most MAX")
        parse_where(self.where)
        if self.where and self.topology == "chain":
            raise Misuse("a chain of pairs has no manager that could choose devices: leave where out")
        for name in ("batch_size", "lease_batches", "accumulate", "evaluate_every_epochs", "buffer"):
            if getattr(self, name) < 1:
                raise Misuse(f"{name} is at least 1, not {getattr(self, name)}")
        for name in ("aggregators", "cohort"):
            if getattr(self, name) < 0:
                raise Misuse(f"{name} is a number from 0, not {getattr(self, name)}")
        for name in (self.codec, self.down):
            Codec.parse(name)
        self._check_words()
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
        # Built once to be told now what is wrong with a number of it.
        rule = self.outer_rule
        if rule.is_adaptive and self.outer_rate >= 1:
            raise Misuse(
                f"outer = {self.outer!r} with outer_rate = {self.outer_rate:g} moves every value by about as much in"
                " each version: set outer_rate to what the learning rate of that optimiser would be, such as 0.001"
            )
        if rule.is_adaptive and self.topology == "chain":
            raise Misuse(f"a chain of pairs has no leader that could take a step by {self.outer!r}: leave outer out")
        self._check_outer()
        Schedule.parse(self.schedule)
        for name in ("weight_decay", "lease_s", "checkpoint_every_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise Misuse(f"{name} is a number from 0, not {getattr(self, name)}")
        self._check_ema()
        self._check_inner()
        self._check_online()
        _check_choice("shuffle", self.shuffle, SHUFFLES)
        if self.cache_mb < 0 or (self.cache_mb and self.shuffle != "window"):
            raise Misuse(f"cache_mb is a number from 0, with shuffle = 'window' alone, not {self.cache_mb}")
        if self.shuffle == "window" and self.data != "shared":
            raise Misuse("shuffle = 'window' is for data = 'shared': a device's own examples are all on its disk")
        if not 1 <= self.versions_kept <= VERSIONS_KEPT_MAX:
            raise Misuse(f"versions_kept is from 1 to {VERSIONS_KEPT_MAX} whole models, not {self.versions_kept}")
        if self.judged_by:
            check_metric_name(self.judged_by)
        if not self.until.is_set:
            raise Misuse("a job needs an end: until an accuracy or another metric, a number of epochs or a time")

    def _check_outer(self) -> None:
        """What the leader cannot clip, or skip in its decay."""
        if not 0 <= self.clip_mean < math.inf:
            raise Misuse(f"clip_mean is {self.clip_mean}; it must be a norm from 0")
        skips = DecaySkips.parse(self.decay_skips)
        if skips.patterns and not self.outer_rule.decays:
            raise Misuse(
                f"decay_skips = {self.decay_skips!r} has no effect unless outer = 'adamw' and weight_decay is above 0."
                " Set both, or remove decay_skips; groups of an optimiser on devices are made in Task.optimizer"
            )
        said = f"clip_mean = {self.clip_mean:g}" if self.clip_mean else f"decay_skips = {self.decay_skips!r}"
        if not (self.clip_mean or skips.patterns):
            return
        if self.topology == "chain":
            raise Misuse(f"{said} with topology = 'chain': nobody has the mean of all devices. Remove clip_mean")
        if (coded := self._coded_shard()) is not None:
            raise Misuse(f"{said} {coded}")
        if self.believes.rule is not None and self.topology in ("shard", "auto") and self.believes.sealed is None:
            raise Misuse(
                f"{said} with trust = {self.trust!r} and topology = {self.topology!r}: aggregators of such a shard"
                " compare updates and take the step of their part. Set topology = 'star'"
                + (" or 'tree'" if self.believes.rule == "clip" else "")
            )

    def _check_ema(self) -> None:
        if not 0 <= self.ema < 1:
            raise Misuse(f"ema = {self.ema:g}: set it to a number between 0 and 1, such as 0.999, or leave it out")
        if self.ema and self.topology == "chain":
            raise Misuse("ema with topology = 'chain': a chain has no leader that could keep the mean. Leave ema out")

    def _check_inner(self) -> None:
        _check_choice("precision", self.precision, PRECISIONS)
        _check_choice("inner_state", self.inner_state, INNER_STATES)
        if not (self.inner.isalnum() and self.inner == self.inner.lower()):
            raise Misuse(f"inner = {self.inner!r}: write a class of torch.optim in small letters, such as adamw")
        if not 0 <= self.clip_gradient < math.inf:
            raise Misuse(f"clip_gradient is a norm from 0, not {self.clip_gradient}")
        if self.accumulate > self.lease_batches:
            raise Misuse(f"accumulate = {self.accumulate} batches a step: a lease has {self.lease_batches}")
        steps = -(-self.lease_batches // self.accumulate)
        is_fresh = self.inner_state == "fresh" and self.work != "sized"
        if self.inner in INNER_ADAPTIVE and is_fresh and steps < FRESH_STEPS_LEAST:
            raise Misuse(too_fresh(self.inner, steps))

    def _check_online(self) -> None:
        if self.epoch_leases < 1:
            raise Misuse(f"epoch_leases is at least 1, not {self.epoch_leases}")
        for name in ("budget_s", "budget_joules", "requests_per_s", "labels_epsilon"):
            if not 0 <= getattr(self, name) < math.inf:
                raise Misuse(f"{name} is a number from 0, not {getattr(self, name)}")
        if not 0 <= self.budget_battery_percent <= 100:
            raise Misuse(f"budget_battery_percent is from 0 to 100 percent, not {self.budget_battery_percent}")
        for name in ("refuse_smallest", "refuse_alike"):
            if not 0 <= getattr(self, name) < 100:
                raise Misuse(f"{name} is a part of a hundred requests, not {getattr(self, name)}")
        if self.work == "sized" and (self.data != "local" or not (self.budget_s or self.has_energy_budget)):
            raise Misuse(
                "work = 'sized' is for data = 'local', and needs a budget: set budget_s, budget_joules or"
                " budget_battery_percent"
            )
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

    def _check_trust(self) -> None:
        trust = Trust.parse(self.trust)
        if self.worker_momentum is not None and not 0 <= self.worker_momentum < 1:
            raise Misuse(f"worker_momentum is a number from 0 to below 1, not {self.worker_momentum}")
        if trust.sealed is not None:
            self._check_sealed(trust, trust.sealed)
        self._check_private(trust)
        if trust.rule is None:
            if self.worker_momentum:
                raise Misuse(
                    f"worker_momentum = {self.worker_momentum:g} is heeded under trust = 'robust' alone: set that, or"
                    " leave worker_momentum out and say momentum, which the leader keeps"
                )
            return
        if self.device_momentum and self.momentum:
            raise Misuse(
                f"momentum = {self.momentum:g} at the leader and worker_momentum = {self.device_momentum:g} on devices"
                f" would add up under trust = {self.trust!r}: leave momentum out, or set worker_momentum = 0"
            )
        if self.topology == "chain" or (trust.rule == "nearest" and self.topology not in ("star", "shard")):
            self._refuse_topology(trust)
        if trust.rule == "nearest":
            self._check_nearest()

    def _check_sealed(self, trust: Trust, sealed: Sealed) -> None:
        """What a sealed sum cannot be made of, and what Shoal does not make one of yet."""
        said, least = f"trust = {trust.text!r}", self.opened_least
        if trust.rule == "nearest":
            raise Misuse(
                f"{said}: where updates are sealed nobody can compare them. Set trust = 'robust(clip) + sealed', in"
                " which devices cut themselves, or 'sealed' or 'robust' alone"
            )
        if trust.rule is not None and trust.private is not None:
            raise Misuse(
                f"{said}: set trust = 'sealed + private(...)'. Devices of a private plan cut themselves to clip_update"
                " already"
            )
        if trust.rule is not None and not 0 < self.clip_update < math.inf:
            raise Misuse(
                f"{said} needs a clip: nobody sees how long updates are, so that nobody can say what is usual. Set"
                " clip_update to the length of a usual update, such as 0.5 (a job without sealed shows it)"
            )
        if self.data != "local":
            raise Misuse(
                f"{said} with data = {self.data!r}: every member has those examples anyway, so there is nothing to"
                " hide. Set data = 'local', or trust = 'identity'"
            )
        if self.topology == "chain":
            raise Misuse(
                f"{said} with topology = 'chain': nobody leads, so that nobody could ask devices to open a sum. Set"
                " topology = 'star', 'tree' or 'shard'"
            )
        if (coded := self._coded_shard()) is not None:
            raise Misuse(f"{said} {coded}")
        if self.pace != "sync":
            why = {
                "async": "the difference of two versions is the update, whatever is masked",
                "buffered": "groups of updates of several versions do not exist yet",
                "auto": "it may choose a pace in which a version is one update",
            }[self.pace]
            raise Misuse(f"{said} with pace = {self.pace!r}: {why}. Set pace = 'sync'")
        if not Codec.parse(self.codec).word_bits:
            why = "masks need whole numbers of one size"
            if Codec.parse(self.codec).form == "top":
                why = "the places that a device sends tell what moved, and nobody hides a device that is alone at one"
            raise Misuse(
                f"{said} with codec = {self.codec!r}: {why}. Set codec = 'dense', or 'int16' for half the bytes, or"
                " 'led10%+ef' for a twentieth"
            )
        if Codec.parse(self.codec).form == "led" and self.topology != "star":
            raise Misuse(
                f"{said} with codec = {self.codec!r} and topology = {self.topology!r}: aggregators lead parts of the"
                " model, and words of some places do not lie in them yet. Set topology = 'star', or codec = 'int16'"
            )
        if self.share_labels:
            raise Misuse(f"{said} with share_labels: a device would tell its labels. Leave share_labels out")
        if self.cohort and not sealed.least <= self.cohort <= self._group_most:
            leave = "" if trust.private else ", or leave it out"
            raise Misuse(f"{said} with cohort = {self.cohort}: set it to {sealed.least} to {self._group_most}{leave}")
        for name, number in (("workers_min", self.workers_min), ("epoch_leases", self.epoch_leases)):
            if number < least:
                fewer = f"write sealed({max(DEVICES_LEAST, number)}) if so few hide each other enough"
                raise Misuse(
                    f"{said} with {name} = {number}: a sum of fewer than {least} devices is not opened. Set {name} to"
                    f" {least} or more, or {fewer if trust.private is None else 'set cohort to less'}"
                )
        if sealed.helper is None:
            shape_of(least, sealed.liars_of(least), sealed.lost)
        else:
            self._check_helped(said, least)

    def _check_helped(self, said: str, least: int) -> None:
        """What a helper does not open sums of yet."""
        if self.topology != "star":
            raise Misuse(
                f"{said} with topology = {self.topology!r}: a helper is asked once, by a leader that has the words of"
                " all devices, and sums of aggregators are not asked about yet. Set topology = 'star', or leave helper"
                " out"
            )
        if least > self._group_most:
            raise Misuse(f"{said}: a sum that a helper opens is of at most {self._group_most} devices. Name fewer")

    @property
    def _group_most(self) -> int:
        """Devices of one sealed sum: they are told of all others in one message, and of the helper."""
        return GROUP_MAX - (self.believes.helper is not None)

    def _coded_shard(self) -> str | None:
        """Why a shard in which the leader takes the step cannot be had with this codec; None: it can, or is none."""
        if self.topology not in ("shard", "auto") or self.down == "dense":
            return None
        return (
            f"with topology = {self.topology!r} and codec_down = {self.down!r}: the leader takes the step of such a"
            " shard, and its aggregators give out whole values. Set codec_down = 'dense', or topology = 'star' or"
            " 'tree'"
        )

    def _check_words(self) -> None:
        """Whole numbers of 16 bits are rounded by the sealing, to a bound that the leader takes from the last sum."""
        codec, down = Codec.parse(self.codec), Codec.parse(self.down)
        if codec.is_sealed_only and self.believes.sealed is None:
            other = "'bf16', which has as few bytes"
            if codec.form == "led":
                other = "'top1%+ef+4bit', whose places each device chooses for itself, in fewer bytes"
            raise Misuse(
                f"codec = {self.codec!r} with trust = {self.trust!r}: whole numbers of 16 bits are what masks are added"
                f" to. Set trust = 'sealed', or codec = {other}"
            )
        if down.is_sealed_only:
            raise Misuse(
                f"codec_down = {self.down!r}: a version is not sealed on its way to the devices. Set codec_down ="
                " 'dense' or 'bf16', or leave it out"
            )

    def _refuse_topology(self, trust: Trust) -> None:
        why = {
            "chain": "pairs see two updates at a time: there is no majority to compare with",
            "tree": "an aggregator sums a group before the leader could compare the devices, and a group may have a"
            " majority of liars",
            "auto": "it may choose a tree, in which devices are not compared",
        }[self.topology]
        others = "'star' or 'shard'" if trust.rule == "nearest" else "'star', 'tree' or 'shard'"
        raise Misuse(f"trust = {trust.text!r} with topology = {self.topology!r}: {why}. Set topology = {others}")

    def _check_nearest(self) -> None:
        said = f"trust = {self.trust!r}"
        if self.pace in ("async", "auto"):
            why = {
                "async": "a version of one update has no neighbours to compare it with",
                "auto": "how many devices are compared in a version has to be known",
            }[self.pace]
            raise Misuse(
                f"{said} with pace = {self.pace!r}: {why}. Set pace = 'sync' or 'buffered', or trust = 'robust(clip)'"
            )
        if self.pace == "buffered" and not DEVICES_LEAST <= self.buffer <= DEVICES_MAX:
            raise Misuse(
                f"{said} with buffer = {self.buffer}: a version is of {DEVICES_LEAST} to {DEVICES_MAX} devices that are"
                f" compared with each other. Set buffer to such a number, or trust = 'robust(clip)'"
            )
        if self.cohort and not DEVICES_LEAST <= self.cohort <= DEVICES_MAX:
            raise Misuse(
                f"{said} with cohort = {self.cohort}: a version is of {DEVICES_LEAST} to {DEVICES_MAX} devices that are"
                " compared with each other. Set cohort to such a number, or leave it out"
            )
        if self.workers_max < DEVICES_LEAST:
            raise Misuse(
                f"{said} with at most {self.workers_max} workers: of two devices nobody can tell which one lies. Allow"
                f" {DEVICES_LEAST} workers or more"
            )

    def _check_private(self, trust: Trust) -> None:
        said = f"trust = {self.trust!r}"
        if trust.private is None:
            for name in PRIVATE_ONLY:
                if getattr(self, name) and not (name == "clip_update" and self.is_cut_unseen):
                    raise Misuse(
                        f"{name} = {getattr(self, name):g} is heeded under trust = 'private(...)' alone: set that, or"
                        f" leave {name} out"
                    )
            return
        if (why := self._not_private(trust)) is not None:
            raise Misuse(f"{said} {why}")
        privacy = self.privacy
        assert privacy is not None
        if isinstance(privacy, SharedPrivacy):
            self._check_shares(privacy)
        elif not 1 <= privacy.versions <= VERSIONS_MAX:
            raise Misuse(
                f"{said}: {privacy.versions} versions, and noise is known for {VERSIONS_MAX}. Set fewer epochs or"
                " epoch_leases, or more devices a version (cohort, or buffer)"
            )
        if privacy.participations > PARTICIPATIONS_MAX:
            raise Misuse(
                f"{said}: {privacy.participations} participations of one device, of {PARTICIPATIONS_MAX} that it keeps"
                " account of. Set participations to less, or apart to more"
            )
        if privacy.apart > 1 and privacy.apart * privacy.devices > self.workers_min:
            raise Misuse(
                f"{said}: {privacy.devices} devices make a version, and a device rests for {privacy.apart} versions, so"
                f" {privacy.apart * privacy.devices} workers are needed. Set workers_min to that, or apart to less"
            )

    def _check_shares(self, privacy: SharedPrivacy) -> None:
        said = f"trust = {self.trust!r}"
        if self.apart:
            raise Misuse(
                f"{said} with apart = {self.apart}: devices draw noise afresh for each sum, so that nothing is gained"
                " by it. Leave apart out; participations says how often a device takes part"
            )
        if self.codec != "dense":
            raise Misuse(f"{said} with codec = {self.codec!r}: there is no room for noise. Set codec = 'dense'")
        if privacy.certain < 1:
            raise Misuse(
                f"{said}: of the {self.opened_least} devices of the smallest sum that is opened all may tell what noise"
                " they added. Set cohort to more, or name a smaller share that may collude"
            )
        if privacy.participations <= PARTICIPATIONS_MAX:
            # Worked out once to be told now that it cannot be.
            try:
                _ = privacy.shares
            except Misuse as problem:
                raise Misuse(f"{said}: {problem}") from None

    def _not_private(self, trust: Trust) -> str | None:
        """Why a plan as this cannot be private, and what to change; None: it can."""
        if self.data != "local":
            return (
                f"with data = {self.data!r}: every member has the examples, so that there is no person's device to"
                " protect. Set data = 'local'"
            )
        if trust.rule is not None:
            return (
                "weighs updates against each other: one device then moves what others count for, and no clip bounds"
                " that. Set trust = 'private(...)' alone, whose clip bounds each device, or 'robust' alone"
            )
        if self.topology == "chain":
            return (
                "with topology = 'chain': the last device of a chain has the sum without noise, and nobody leads. Set"
                " topology = 'star', 'tree' or 'shard'"
            )
        if not trust.sealed and (coded := self._coded_shard()) is not None:
            return coded
        if self.topology != "star" and self.pace == "async":
            return (
                f"with topology = {self.topology!r} and pace = 'async': an aggregator sums up its whole group, and a"
                " version at that pace is divided by one. Set pace = 'sync' or 'buffered', or topology = 'star'"
            )
        if self.share_labels:
            return (
                "with share_labels: counts of labels tell of a person beside the account, and labels_epsilon hides one"
                " example of theirs. Set share_labels = False"
            )
        if self.pace == "auto":
            return "with pace = 'auto': how many devices make a version has to be known. Set pace = 'sync'"
        if self.pace == "sync" and not self.cohort:
            return (
                "with pace = 'sync' and no cohort: a sum is divided by a number that is known before. Set cohort to how"
                " many devices make a version, such as 50" + ("" if trust.sealed else ", or pace = 'buffered'")
            )
        if self.until.epochs is None:
            return (
                "without a number of epochs: the account needs to know how many versions there are at most. Set until ="
                " shoal.epochs(n), with any other end"
            )
        if not 0 < self.clip_update < math.inf:
            return (
                "needs a clip: set clip_update to the length of a usual update, such as 0.5 (a job without private"
                " shows it; an adaptive one would be another thing to account for)"
            )
        if self.participations < 0 or self.apart < 0:
            return f"with participations = {self.participations} and apart = {self.apart}: they are numbers from 0"
        return None

    @property
    def why_not_new(self) -> str | None:
        """Return why a new job must not have this plan, or None if it may. Releases before accepted such plans, so one
        that is stored, or comes from such a release, is read all the same."""
        if self.share_labels and self.data != "local":
            return (
                f"share_labels has no effect with data = {self.data!r}: only devices with examples of their own report"
                " labels. Set data = 'local', or leave share_labels out"
            )
        if self.share_labels and self.believes.sealed is not None:
            return (
                f"share_labels has no effect with trust = {self.trust!r}: a device tells nothing of its examples beside"
                " the sealed update. Leave share_labels out"
            )
        if self.worker_momentum and self.believes.sealed is not None:
            return (
                f"worker_momentum = {self.worker_momentum:g} with trust = {self.trust!r}: what a device keeps of an"
                " update would be in many sums. Name momentum, which the leader keeps, and leave worker_momentum out"
            )
        if self.staleness == "parameter" and self.topology in ("tree", "auto"):
            return (
                f"staleness = 'parameter' with topology = {self.topology!r}: an aggregator sums updates before the"
                " leader could weigh single values of them. Set topology = 'star', or staleness = 'root'"
            )
        return None

    @property
    def privacy(self) -> Privacy | None:
        """What a private plan promises; None: it promises nothing to a person."""
        private = self.believes.private
        if private is None or self.until.epochs is None:
            return None
        devices = {"sync": self.cohort, "buffered": self.buffer}.get(self.pace, 1)
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
        """Of a sealed plan: a sum of fewer devices is not opened. Where it is private too, each device adds noise for
        the smallest sum: that which is left of a version when as many are lost as may be."""
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
    def has_energy_budget(self) -> bool:
        return bool(self.budget_joules or self.budget_battery_percent)

    @property
    def believes(self) -> Trust:
        """What ``trust`` says."""
        return Trust.parse(self.trust)

    @property
    def workers_least(self) -> int:
        """How many workers a job needs to train: what the plan says, and as many as its trust can compare."""
        least = DEVICES_LEAST if self.believes.rule == "nearest" else 1
        return max(self.workers_min, least)

    @property
    def hubs_max(self) -> int:
        """How many hubs a job is given: none where its updates meet in no tree, else at most one for two workers."""
        return max(1, self.workers_max // 2) if self.topology in ("tree", "auto") else 0

    @property
    def lent_most(self) -> int:
        """Leases lent for one version, where others wait for it; 0: any number."""
        is_bounded = self.believes.rule == "nearest" or self.believes.sealed is not None
        most = min(DEVICES_MAX, self._group_most) if self.believes.sealed is not None else DEVICES_MAX
        return self.cohort or (most if is_bounded and self.pace == "sync" else 0)

    @property
    def device_momentum(self) -> float:
        """How much of its last updates a device keeps. Under a sealed plan nothing: an update would be in the sums of
        many versions, and sums over different devices would tell it."""
        if self.believes.sealed is not None:
            return 0.0
        if self.worker_momentum is not None:
            return self.worker_momentum
        return DEVICE_MOMENTUM if self.believes.rule is not None else 0.0

    @property
    def device_gain(self) -> float:
        """How much of what a device keeps and adds up is sent. A model moves as far in the long run as it would with
        the momentum that its leader usually has at this pace: what moves to the devices is not added to it."""
        if not self.device_momentum:
            return 1.0
        kept = 0.0 if self.outer in ADAPTIVE else usual_momentum(self.outer, self.pace)
        return (1.0 - self.device_momentum) / (1.0 - kept)

    def _settle_outer(self) -> None:
        """Fill in what was left out about the leader's step."""
        outer = "nesterov" if self.nesterov and self.outer in ("", "sgd") else self.outer or "sgd"
        _check_choice("outer", outer, OUTER_KINDS)
        if self.nesterov and outer != "nesterov":
            raise Misuse(f"outer = {outer!r} does not look ahead: leave nesterov out, or choose outer = 'nesterov'")
        object.__setattr__(self, "outer", outer)
        object.__setattr__(self, "nesterov", outer == "nesterov")
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
        """What each step of a worker takes off: nothing where the leader's step does."""
        return 0.0 if self.outer == "adamw" else self.weight_decay

    def rate_at(self, version: int) -> float:
        """The learning rate of a version's leases; 0: ``learning_rate``, since no schedule changes it."""
        if not self.schedule or self.outer in ADAPTIVE:
            return 0.0
        return self.learning_rate * Schedule.parse(self.schedule).factor(version)

    def outer_rate_at(self, version: int) -> float:
        """How far the leader goes in the step that leads from this version to the next; 0: ``outer_rate``."""
        if not self.schedule or self.outer not in ADAPTIVE:
            return 0.0
        return self.outer_rate * Schedule.parse(self.schedule).factor(version)

    @property
    def down(self) -> str:
        """What crosses the wire to the workers. Where that is not said: a version is made of many updates, and momentum
        carries all of them on, so that it moves in more places than any one of them."""
        codec = Codec.parse(self.codec)
        if self.codec_down or codec.form != "top":
            return self.codec_down or ("dense" if codec.is_sealed_only else self.codec)
        percent = min(100, max(1, DOWN_TIMES * codec.share_ppm // 10_000))
        return f"top{percent}%" + (f"+{codec.bits}bit" if codec.bits < 32 else "")


def usual_momentum(outer: str, pace: str) -> float:
    """How much of the last step is kept where a plan does not say."""
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
