"""What happens to a role. Values only; a driver makes them, a role handles them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from shoal.learning.metrics import MetricSum
from shoal.wire.messages import DeviceState, Heartbeat, MemberKey, Message, Tensors

if TYPE_CHECKING:
    import numpy as np

    from shoal.roles.manager.cluster_state import JobRecord
    from shoal.roles.manager.retention import KeepJobs
    from shoal.sealing.device import SealedUpdate


class Liveness(StrEnum):
    """Suspect is not dead: only a lost node's leases are taken back. Dormant is not lost: it was told when to come
    again, holds nothing, and is not connected until then."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DORMANT = "dormant"
    LOST = "lost"

    @property
    def is_gone(self) -> bool:
        """Nothing that was said to it before arrives any more."""
        return self in _GONE


_GONE = (Liveness.LOST, Liveness.DORMANT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The driver has set the role up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A message from a peer whose identity the transport has proven."""

    sender: str
    message: Message
    #: What it took on the wire.
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """An operator's command; answered with ``Answer`` under the same number."""

    question: int
    message: Message
    #: The operator's name, by its certificate; empty in a simulation.
    by: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerChanged:
    node: str
    state: Liveness
    reason: str
    #: The node itself said so (it left, or is another process now), or an operator did: this is more than silence.
    is_certain: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """Heartbeats, with their nodes and times, in the order in which they came."""

    beats: tuple[tuple[str, float, Heartbeat], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberHeld:
    """An operator holds a node back, or lets it go on."""

    node: str
    #: ``pending``, ``drained``, ``revoked``, or empty: it may be given work.
    hold: str
    reason: str = ""
    #: The card that an operator signed for it; empty if there is none.
    card: bytes = field(repr=False, default=b"")
    #: What an operator says that it is, ``NAME=VALUE`` each.
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskMeasured:
    """How much of its disk quota the manager uses, and what its ended jobs could give back."""

    quota_bytes: int
    used_bytes: int
    #: Ended job -> the size of its checkpoints; and of the code and data that no other job names. Those that ended
    #: first come first.
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    contents: Mapping[str, int] = field(default_factory=dict)
    #: Job that is about to be submitted -> what its checkpoints will take.
    wanted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobsOutdated:
    """Ended jobs that the operator does not want to keep any longer."""

    keep: KeepJobs
    #: Ended job -> seconds since it ended.
    ages_s: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimerFired:
    name: str
    #: How much later than it was due: this process, or the machine, stood still.
    late_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Connected:
    """There is a session to this peer (again)."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Disconnected:
    node: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reassigned:
    """The job has a new leader, or its leader restarted under a higher term."""

    term: int
    leader: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRequested:
    reason: str
    #: A leader ends its job as failed.
    is_failure: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint is durable: written, fsynced, renamed, its directory fsynced."""

    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveFailed:
    version: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """A checkpoint that a leader elsewhere sent is durable here."""

    job: str
    term: int
    version: int
    #: It is the job's last: nothing is trained after it.
    is_last: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFailed:
    job: str
    term: int
    version: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadFailed:
    """No leader can go on with this job: none of its checkpoints can be read."""

    job: str
    term: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkMeasured:
    """What this device's link carries, as far as it is known: what is said when it is next ready."""

    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    #: The air it shares with others; empty: a link of its own.
    medium: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """The state of a device, as its sensors tell. None: not known, or there is no such sensor."""

    memory_available_mb: float | None = None
    #: The remaining charge, from 0 to 1.
    battery: float | None = None
    is_charging: bool | None = None
    #: The share of its processors that other programs use, from 0 to 1. A device without a screen cannot tell whether a
    #: person uses it.
    in_use: float | None = None
    #: Processes that want to run, per processor, ours among them.
    load: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Felt:
    """How this device is: whether it has time for others, the role says."""

    condition: Condition


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Code and data are here, verified, and the trainer is loaded."""

    #: How many values each tensor of the model has.
    sizes: tuple[int, ...] = ()
    #: The model that the job begins with is here: changes can be made to it.
    holds_first: bool = False
    #: With local data: how the device is, and what it has.
    state: DeviceState | None = None
    #: A part of the model is the device's own.
    has_own: bool = False
    #: How many values are parameters: they come first, and buffers follow. 0: all.
    parameters: int = 0
    #: Where the plan is private: the term and the version of each of the device's participations, as they are on disk.
    participations: tuple[tuple[int, int], ...] = ()
    #: And the epsilon that the device's owner leaves for this job.
    epsilon_left: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareFailed:
    reason: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    lease: int
    examples: int
    loss_sum: float
    seconds: float
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    #: With local data: see ``Update``.
    fresh: int = 0
    fresh_metrics: tuple[MetricSum, ...] = ()
    labels: tuple[int, ...] = ()
    joules: float = 0.0
    joules_measured: bool = False
    state: DeviceState | None = None
    #: Figures besides the loss that the task's training code logged.
    logged: tuple[MetricSum, ...] = ()
    #: Where updates are sealed: the digest of the model that it was trained on.
    model: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Participated:
    """A participation is durable: the update of this lease may leave, or be sealed for this group."""

    term: int
    version: int
    lease: int
    group: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class NotParticipated:
    """It could not be written down."""

    term: int
    lease: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationDone:
    lease: int
    examples: int
    metrics: tuple[MetricSum, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerFailed:
    """User code raised, hung or died while at this lease."""

    lease: int
    reason: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SealKeyMade:
    """A key for the sealed sums of a term, and the device's signature under it."""

    term: int
    key: MemberKey
    #: Chance of the device's own, which it tells nobody.
    chance: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class RosterChecked:
    """Which keys of a roster no device of the cluster signed, by the device's name, and why."""

    roster: int
    term: int
    bad: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateSealed:
    """An update under its masks, and what the device may still say of it; or why it was not sealed."""

    lease: int
    group: int
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    kept: SealedUpdate | None = field(default=None, compare=False, repr=False)
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MasksSummed:
    """The masks of the members of a sealed sum, added up: the tensor ``words``; or why they are not."""

    term: int
    group: int
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Multiplied:
    """What came of a multiplication on this machine: the tensor ``result``; of a measure, nothing but the time."""

    number: int
    seconds: float
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiplyFailed:
    number: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductWanted:
    """A client's own program wants ``left`` times ``right``; answered by ``Deliver`` under the same number."""

    product: int
    left: np.ndarray = field(compare=False, repr=False)
    right: np.ndarray = field(compare=False, repr=False)
    #: What may not be shown: ``none``, ``left`` or ``both``.
    hidden: str
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductUnwanted:
    """Nobody waits for it any more."""

    product: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherManager:
    """A manager of the same cluster, with jobs of its own."""

    #: Where devices dial it.
    endpoint: str
    #: How many devices more its jobs could use, and how many they lack to begin or to go on.
    wants: int = 0
    starving: int = 0
    #: How many devices are connected to it.
    devices: int = 0
    #: An operator drained it: it takes no job.
    is_drained: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherManagersSeen:
    """What the store shows of the cluster's other managers."""

    managers: tuple[OtherManager, ...] = ()
    #: Open job of another manager -> where that one is dialled; empty: no manager has it at this moment.
    jobs: Mapping[str, str] = field(default_factory=dict)
    #: Open job of another manager -> the node that opens its sums, where its plan names one.
    helpers: Mapping[str, str] = field(default_factory=dict)
    #: An operator drained this manager: it takes no job, and gives those that it has to others.
    is_drained: bool = False
    #: This manager holds as many devices as it can.
    is_full: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTaken:
    """This manager has a job from here on that another one had, which is gone or gave it away: as after a restart. Or
    the job is over, and no manager has to have it."""

    record: JobRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class JobGiven:
    """A job that this manager gave away is another manager's now, or could not be given."""

    job: str
    #: The job as the store has it, if it stays with this manager. None if it is the other manager's.
    record: JobRecord | None = None


Event = (
    Started
    | Received
    | Asked
    | PeerChanged
    | Heard
    | MemberHeld
    | DiskMeasured
    | JobsOutdated
    | OtherManagersSeen
    | JobTaken
    | JobGiven
    | TimerFired
    | Connected
    | Disconnected
    | Reassigned
    | StopRequested
    | Saved
    | SaveFailed
    | Stored
    | StoreFailed
    | LoadFailed
    | LinkMeasured
    | Felt
    | Prepared
    | PrepareFailed
    | Trained
    | Participated
    | NotParticipated
    | EvaluationDone
    | TrainerFailed
    | SealKeyMade
    | RosterChecked
    | UpdateSealed
    | MasksSummed
    | Multiplied
    | MultiplyFailed
    | ProductWanted
    | ProductUnwanted
)
