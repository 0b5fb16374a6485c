"""A worker and its leader: leases go out, updates come back."""

from __future__ import annotations

import math
from dataclasses import field

from shoal.errors import PeerViolation
from shoal.learning.metrics import MetricSum
from shoal.wire.limits import LABELLED_MAX, LABELS_MAX, SECONDS_MAX
from shoal.wire.messages.base import Message, Tensors, message
from shoal.wire.messages.metrics import check_sums

#: The term and version of the model that a job begins with: it is the same under every leader.
FIRST_HELD = (0, 0)


def mean_number(version: int) -> int:
    """Return the number that names the exponential mean at a version: below -1, which means no model. A worker treats
    it as it treats any version, so that it never trains on the mean."""
    return -2 - version


def version_named(number: int) -> int:
    """Return the version that a number is of, also if it names the mean."""
    return number if number >= -1 else -2 - number


@message()
class DeviceState(Message):
    """How a device is as it asks for work of a size that suits it. None: not known."""

    kind: str = ""
    memory_total_mb: float | None = None
    memory_available_mb: float | None = None
    frequency_sum_mhz: float | None = None
    temperature_c: float | None = None
    load: float | None = None
    battery: float | None = None
    #: Joules per second of CPU time, as a sensor measured recent leases.
    joules_per_cpu_s: float | None = None
    #: Examples it has of its own.
    examples: int = 0
    #: Under ``private``, by the device's own account: updates that left it, how many more may, what they cost as a
    #: ratio, and the version of the last one under the present term.
    participations: int = 0
    participations_left: int = 0
    spent: float = 0.0
    spent_version: int | None = None
    #: What its full battery holds, where the plan's budget is a share of it.
    battery_joules: float | None = None

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if min(self.participations, self.participations_left) < 0 or not 0 <= self.spent < math.inf:
            raise PeerViolation("an account of privacy that cannot be")
        if not self.kind.isprintable():
            raise PeerViolation("a kind of device that cannot be printed")
        if not 0 <= self.examples <= LABELLED_MAX:
            raise PeerViolation(f"a device with {self.examples} examples")


@message(to="leader", said_by={"Work": ("node", "browser", "worker")}, cost=20.0)
class Ready(Message):
    """A worker can take work. It names the model it holds, so that nobody sends it again."""

    job: str
    holds_term: int = 0
    holds_version: int = -1
    #: What its link carries, as it was measured; 0: not known.
    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    #: The air it shares with others; empty: a link of its own.
    medium: str = ""
    #: Where work is sized: how it is now.
    state: DeviceState | None = None
    #: A hub says so: it can be an aggregator, and takes no work.
    is_hub: bool = False

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not (0 <= self.up_bytes_per_s < math.inf and 0 <= self.down_bytes_per_s < math.inf):
            raise PeerViolation("a rate that cannot be")
        if not self.medium.isprintable():
            raise PeerViolation("a medium that cannot be printed")


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Work(Message):
    """A lease, and the model it is to be done on: EDDL's steps 8 and 2 in one message (§4.2)."""

    job: str
    term: int
    lease: int
    #: ``train`` or ``evaluate``.
    kind: str
    #: Where a plan has ``ema``, an evaluation names the mean (``mean_number``).
    version: int
    durable_version: int = 0
    epoch: int = 0
    batches: tuple[int, ...] = ()
    #: Seconds from receipt until the lease is void. A span, not a time: clocks differ.
    deadline_s: float
    #: The update may be sent at once; else it is offered first.
    credit: bool = True
    #: The formation by which the update goes; 0: whole, to the leader.
    formation: int = 0
    #: The formation whose aggregators give out this version's values; 0: the model is carried here, or held already.
    values_by: int = 0
    #: The version that the tensors change, one after the other, where they are changes.
    base: int = -1
    #: With local data: of its own examples it trains on so many, or on all it has. In an evaluation: the examples of
    #: a chunk.
    examples: int = 0
    #: The version this leader began with. Updates made against it or later for an older leader are in no version: their
    #: batches are trained once more.
    began: int = 0
    #: The learning rate; 0: the plan's.
    rate: float = 0.0
    #: The ``model``, or what makes it of the one the worker holds: a tensor for each version in between, named by its
    #: number. None where the worker already holds this version, or its values come from aggregators.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.rate < math.inf:
            raise PeerViolation(f"a lease to be trained with a learning rate of {self.rate}")


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Wait(Message):
    """Why a ready worker gets no lease now."""

    job: str
    reason: str
    #: It is to ask again after this; 0: the leader speaks when there is work.
    retry_after_s: float = 0.0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.retry_after_s <= SECONDS_MAX:
            raise PeerViolation(f"to ask again after {self.retry_after_s} s")


@message(to="leader", said_by={"Work": ("node", "browser", "worker")})
class Offer(Message):
    """An update is ready and waits for a credit, so that a leader's memory is bounded."""

    job: str
    term: int
    lease: int
    size_bytes: int


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Go(Message):
    """The credit for an offered update; or word that it is to go another way than its lease said."""

    job: str
    term: int
    lease: int
    #: The formation by which it goes; 0: whole, to the leader.
    formation: int = 0


@message(to="leader", said_by={"Work": ("node", "browser", "worker")})
class Update(Message):
    """What training a lease changed, as a codec's tensors. Dense: one tensor ``delta``.

    With a formation it carries none: every aggregator of the worker's route has its piece.
    """

    job: str
    term: int
    lease: int
    version: int
    examples: int
    loss_sum: float = 0.0
    train_s: float = 0.0
    formation: int = 0
    #: With local data: examples that had come since the last lease.
    fresh: int = 0
    #: How many of each label it was trained on, where the plan says that this is told.
    labels: tuple[int, ...] = ()
    #: What it took, if that is known; and whether it was measured, or estimated.
    joules: float = 0.0
    joules_measured: bool = False
    #: How the device is now.
    state: DeviceState | None = None
    #: How the model did on the fresh examples before it was trained on them (test, then train).
    fresh_metrics: tuple[MetricSum, ...] = ()
    #: Figures besides the loss that the task's training code logged.
    logged: tuple[MetricSum, ...] = ()
    #: Of a sealed update: the group whose masks its words have; 0: it is not sealed.
    group: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if len(self.labels) > LABELS_MAX or not all(0 <= count <= LABELLED_MAX for count in self.labels):
            raise PeerViolation("labels that cannot be counted so")
        if self.labels and sum(self.labels) > self.examples:
            # They are summed up over all devices: one that counts more than it trained on would outweigh the others.
            raise PeerViolation(f"{sum(self.labels)} labels in an update over {self.examples} examples")
        if self.fresh_metrics:
            check_sums(self.fresh_metrics)
        if self.logged:
            check_sums(self.logged)


@message(to="leader", said_by={"Work": ("node", "browser", "worker")})
class Evaluated(Message):
    """Sums over a leased share of the held-out data: they add up like partials do."""

    job: str
    term: int
    lease: int
    version: int
    examples: int
    metrics: tuple[MetricSum, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        check_sums(self.metrics)


@message(to="leader", said_by={"Work": ("node", "browser", "worker")}, cost=20.0)
class Failed(Message):
    """A lease could not be done: user code raised, hung or died. The batch goes to someone else."""

    job: str
    term: int
    lease: int
    reason: str
    #: Where the task's code failed, as Python tells it; empty if it was not that.
    traceback: str = ""
    #: The device works, and its trainer does; what the model gave was not finite.
    diverged: bool = False


@message(to="worker", answered_by={"Work": ("manager", "node")})
class UpdateRefused(Message):
    """An update that was not merged, and why."""

    job: str
    term: int
    lease: int
    reason: str
    #: Another lease that the worker has, as far as the leader knows; 0: none, and the leader speaks next.
    holds: int = 0


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Finished(Message):
    """The job is over for this worker."""

    job: str
    reason: str
