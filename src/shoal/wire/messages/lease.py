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
    """Return the version that a number names, directly or by its mean."""
    return number if number >= -1 else -2 - number


@message()
class DeviceState(Message):
    """A device's state when it asks for work of a size that suits it. Fields are None if unknown."""

    kind: str = ""
    memory_total_mb: float | None = None
    memory_available_mb: float | None = None
    frequency_sum_mhz: float | None = None
    temperature_c: float | None = None
    load: float | None = None
    battery: float | None = None
    #: Joules per second of CPU time, measured by a sensor during recent leases.
    joules_per_cpu_s: float | None = None
    #: How many local examples it has.
    examples: int = 0
    #: Under ``private``, by the device's own count: updates that it has sent, how many more it may send, the ratio that
    #: the sent ones used (``learning.privacy``), and the version of the last one under the present term.
    participations: int = 0
    participations_left: int = 0
    spent: float = 0.0
    spent_version: int | None = None
    #: The energy in its full battery, if the plan's budget is a share of that.
    battery_joules: float | None = None

    def _check(self) -> None:
        for name in ("participations", "participations_left", "spent"):
            if not 0 <= getattr(self, name) < math.inf:
                raise PeerViolation(f"DeviceState.{name} is {getattr(self, name)}; it must be finite and at least 0")
        if not self.kind.isprintable():
            raise PeerViolation("DeviceState.kind has characters that cannot be printed")
        if not 0 <= self.examples <= LABELLED_MAX:
            raise PeerViolation(f"DeviceState.examples is {self.examples}; it must be 0 to {LABELLED_MAX}")


@message(to="leader", said_by={"Work": ("node", "browser", "worker")}, cost=20.0)
class Ready(Message):
    """A worker can take work. It names the model that it holds, so that the leader does not send it again."""

    job: str
    holds_term: int = 0
    holds_version: int = -1
    #: The measured rates of its link. 0 if unknown.
    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    #: The Wi-Fi channel or other medium that it shares with other devices. Empty if it has its own link.
    medium: str = ""
    #: The device's state, if work is sized.
    state: DeviceState | None = None
    #: A hub can be an aggregator, and does not train.
    is_hub: bool = False

    def _check(self) -> None:
        for name in ("up_bytes_per_s", "down_bytes_per_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise PeerViolation(f"Ready.{name} is {getattr(self, name)}; it must be finite and at least 0")
        if not self.medium.isprintable():
            raise PeerViolation("Ready.medium has characters that cannot be printed")


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Work(Message):
    """A lease, and the model that it starts from: EDDL's steps 8 and 2 in one message (§4.2)."""

    job: str
    term: int
    lease: int
    #: ``train`` or ``evaluate``.
    kind: str
    #: If the plan has ``ema``, an evaluation names the mean (``mean_number``).
    version: int
    durable_version: int = 0
    epoch: int = 0
    batches: tuple[int, ...] = ()
    #: Seconds from receipt until the lease expires. A duration, because clocks differ.
    deadline_s: float
    #: Whether the update may be sent at once. If not, the worker offers it first.
    credit: bool = True
    #: The formation that sums the update. 0 if the update goes to the leader in one piece.
    formation: int = 0
    #: The formation whose aggregators send this version's values. 0 if this message has them or the worker holds them.
    values_by: int = 0
    #: The version to which the tensors are applied, in order, if they are changes and not the model.
    base: int = -1
    #: In training on local data: the most examples to train on. In an evaluation: the examples of a chunk.
    examples: int = 0
    #: The version that this leader began with. Updates that were made from it or a later one for an earlier leader are
    #: in no version: their batches are trained again.
    began: int = 0
    #: The learning rate. 0 means the plan's.
    rate: float = 0.0
    #: The ``model``, or its changes since the version that the worker holds: a tensor per version, named by its number.
    #: No tensors if the worker holds this version, or gets its values from aggregators.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def _check(self) -> None:
        if not 0 <= self.rate < math.inf:
            raise PeerViolation(f"Work.rate is {self.rate}; it must be finite and at least 0")


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Wait(Message):
    """Why a ready worker gets no lease now."""

    job: str
    reason: str
    #: Seconds after which the worker should ask again. 0 if the leader will send work when it has some.
    retry_after_s: float = 0.0

    def _check(self) -> None:
        if not 0 <= self.retry_after_s <= SECONDS_MAX:
            raise PeerViolation(f"Wait.retry_after_s is {self.retry_after_s}; it must be 0 to {SECONDS_MAX:g}")


@message(to="leader", said_by={"Work": ("node", "browser", "worker")})
class Offer(Message):
    """An update is ready, and the worker waits for a credit to send it. This bounds the leader's memory."""

    job: str
    term: int
    lease: int
    size_bytes: int


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Go(Message):
    """The credit for an offered update, or a new formation for it in place of the lease's."""

    job: str
    term: int
    lease: int
    #: The formation that sums the update. 0 if the update goes to the leader in one piece.
    formation: int = 0


@message(to="leader", said_by={"Work": ("node", "browser", "worker")})
class Update(Message):
    """The update that a lease's training made, as a codec's tensors. If dense, one tensor ``delta``.

    With a formation it carries no tensors: the worker sent a piece to every aggregator of its route.
    """

    job: str
    term: int
    lease: int
    version: int
    examples: int
    loss_sum: float = 0.0
    train_s: float = 0.0
    formation: int = 0
    #: In training on local data: examples that were added since the last lease.
    fresh: int = 0
    #: Trained examples per label, if the plan has devices report them.
    labels: tuple[int, ...] = ()
    #: The energy used, 0 if unknown, and whether it was measured or estimated.
    joules: float = 0.0
    joules_measured: bool = False
    #: The device's state now.
    state: DeviceState | None = None
    #: The model's results on the fresh examples before it was trained on them (test, then train).
    fresh_metrics: tuple[MetricSum, ...] = ()
    #: Figures besides the loss that the task's training code logged.
    logged: tuple[MetricSum, ...] = ()
    #: The group whose masks are on the update's words. 0 if the update is not sealed.
    group: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def _check(self) -> None:
        if len(self.labels) > LABELS_MAX or not all(0 <= count <= LABELLED_MAX for count in self.labels):
            raise PeerViolation(f"Update.labels must list at most {LABELS_MAX} counts, each 0 to {LABELLED_MAX}")
        if self.labels and sum(self.labels) > self.examples:
            # Counts are summed over all devices: one that overstates its own would outweigh the others.
            raise PeerViolation(f"Update.labels adds up to {sum(self.labels)}; the update has {self.examples} examples")
        if self.fresh_metrics:
            check_sums(self.fresh_metrics)
        if self.logged:
            check_sums(self.logged)


@message(to="leader", said_by={"Work": ("node", "browser", "worker")})
class Evaluated(Message):
    """Metric sums over a leased share of the held-out data. The leader adds them up."""

    job: str
    term: int
    lease: int
    version: int
    examples: int
    metrics: tuple[MetricSum, ...] = ()

    def _check(self) -> None:
        check_sums(self.metrics)


@message(to="leader", said_by={"Work": ("node", "browser", "worker")}, cost=20.0)
class Failed(Message):
    """A worker could not finish a lease: user code raised, hung or died. Another worker gets the batch."""

    job: str
    term: int
    lease: int
    reason: str
    #: The traceback of the task's code. Empty if that code was not the cause.
    traceback: str = ""
    #: The device and its trainer work, but the model's values were not finite.
    diverged: bool = False


@message(to="worker", answered_by={"Work": ("manager", "node")})
class UpdateRefused(Message):
    """The leader did not merge an update, and why."""

    job: str
    term: int
    lease: int
    reason: str
    #: Another lease that the worker has, as far as the leader knows. If 0, the worker waits for the leader.
    holds: int = 0
    #: The update was merged when it came first. Releases before do not say so.
    is_copy: bool = False


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Finished(Message):
    """The job is over for this worker."""

    job: str
    reason: str
