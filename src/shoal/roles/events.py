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

    from shoal.learning.algorithm_call import AlgorithmAnswer
    from shoal.roles.manager.cluster_state import JobRecord
    from shoal.roles.manager.retention import KeepJobs
    from shoal.sealing.device import SealedUpdate


class Liveness(StrEnum):
    """Suspect is not dead: only a lost node's leases are taken back. Dormant is not lost: the node holds no lease, is
    not connected, and was told when to come again."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DORMANT = "dormant"
    LOST = "lost"

    @property
    def is_gone(self) -> bool:
        """Whether messages that were sent to the peer before no longer arrive."""
        return self in _GONE


#: Before the reason of a peer that said goodbye.
LEFT = "left: "

_GONE = (Liveness.LOST, Liveness.DORMANT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The driver has set the role up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A message from a peer whose identity the transport has proven."""

    sender: str
    message: Message
    #: Its size on the wire.
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
    #: Whether the node itself reported it (it left, or is a new process) or an operator did: it is not just silent.
    is_certain: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """Heartbeats with their nodes and times, in order of arrival."""

    beats: tuple[tuple[str, float, Heartbeat], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberHeld:
    """An operator changed whether a node may be given work."""

    node: str
    #: ``pending``, ``drained``, ``revoked``, or empty if it may be given work.
    hold: str
    reason: str = ""
    #: The card that an operator signed for it. Empty if there is none.
    card: bytes = field(repr=False, default=b"")
    #: Labels that an operator gave it, each ``NAME=VALUE``.
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskMeasured:
    """How much of its disk quota the manager uses, and how much its ended jobs could free."""

    quota_bytes: int
    used_bytes: int
    #: Ended job -> the size of its checkpoints, and of the code and data that no other job names. The job that ended
    #: first comes first.
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    contents: Mapping[str, int] = field(default_factory=dict)
    #: Job that is about to be submitted -> the size of its checkpoints.
    wanted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobsOutdated:
    """Ended jobs that are older than the operator wants to keep."""

    keep: KeepJobs
    #: Ended job -> seconds since it ended.
    ages_s: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimerFired:
    name: str
    #: How late it fired, because this process or the machine stood still.
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
    #: Whether a leader should end its job as failed.
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
class AlgorithmAnswered:
    """The answer to ``AskAlgorithm`` of this number."""

    number: int
    answer: AlgorithmAnswer


@dataclass(frozen=True, kw_only=True, slots=True)
class AlgorithmFailed:
    """The algorithm gave no answer that can be used, and will give none."""

    number: int
    reason: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """A checkpoint that a leader elsewhere sent is durable here."""

    job: str
    term: int
    version: int
    #: Whether it is the job's last: nothing is trained after it.
    is_last: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFailed:
    job: str
    term: int
    version: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadFailed:
    """No leader can resume this job: none of its checkpoints can be read."""

    job: str
    term: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkMeasured:
    """The measured rates of this device's link, which its next Ready reports."""

    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    #: The medium that it shares with others, such as a Wi-Fi channel. Empty if it has its own link.
    medium: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """The state of a device by its sensors. A value is `None` if it is not known or there is no such sensor."""

    memory_available_mb: float | None = None
    #: The remaining charge, from 0 to 1.
    battery: float | None = None
    is_charging: bool | None = None
    #: The share of its processors that other programs use, from 0 to 1. A device without a screen cannot tell whether a
    #: person uses it.
    in_use: float | None = None
    #: Runnable processes per processor, including Shoal's.
    load: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Felt:
    """The state of this device was measured. The role decides whether it has time for others."""

    condition: Condition


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Code and data are here, verified, and the trainer is loaded."""

    #: How many values each tensor of the model has.
    sizes: tuple[int, ...] = ()
    #: Whether the first model of the job is here, so that changes to it can be applied.
    holds_first: bool = False
    #: With local data: the state of the device and its data.
    state: DeviceState | None = None
    #: Whether the device has its own part of the model.
    has_own: bool = False
    #: How many values are parameters, or 0 for all. Parameters come first, and buffers follow.
    parameters: int = 0
    #: If the plan is private: the term and the version of each of the device's participations, from its disk.
    participations: tuple[tuple[int, int], ...] = ()
    #: The epsilon that the device's owner leaves for this job.
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
    #: If updates are sealed: the digest of the model that it was trained on.
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
    """A participation could not be made durable."""

    term: int
    lease: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExamplesCounted:
    """The device's own examples were counted again."""

    state: DeviceState | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationDone:
    lease: int
    examples: int
    metrics: tuple[MetricSum, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerFailed:
    """User code raised, hung or died while it trained this lease, or while it counted examples, which has lease 0."""

    lease: int
    reason: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SealKeyMade:
    """A key for the sealed sums of a term, and the device's signature under it."""

    term: int
    key: MemberKey
    #: Randomness that the device drew and keeps secret.
    chance: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class RosterChecked:
    """Keys of a roster that no device of the cluster signed, by the device's name, and why not."""

    roster: int
    term: int
    bad: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateSealed:
    """A masked update and the secrets with which the device can help to open its sum, or why it was not sealed."""

    lease: int
    group: int
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    kept: SealedUpdate | None = field(default=None, compare=False, repr=False)
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MasksSummed:
    """The sum of the masks of a sealed sum's members, as the tensor ``words``, or why there is none."""

    term: int
    group: int
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Multiplied:
    """The product of a multiplication on this machine, as the tensor ``result``. A measurement has only its time."""

    number: int
    seconds: float
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiplyFailed:
    number: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductWanted:
    """A client's program asks for ``left`` times ``right``; answered by ``Deliver`` under the same number."""

    product: int
    left: np.ndarray = field(compare=False, repr=False)
    right: np.ndarray = field(compare=False, repr=False)
    #: Which factors no executor may see: ``none``, ``left`` or ``both``.
    hidden: str
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductUnwanted:
    """The client no longer waits for a product."""

    product: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherManager:
    """Another manager of the same cluster, which has its own jobs."""

    #: Where devices dial it.
    endpoint: str
    #: How many more devices its jobs could use, and how many they need to begin or to continue.
    wants: int = 0
    starving: int = 0
    #: How many devices are connected to it.
    devices: int = 0
    #: An operator drained it: it takes no job.
    is_drained: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherManagersSeen:
    """The cluster's other managers, as the store shows them."""

    managers: tuple[OtherManager, ...] = ()
    #: Open job of another manager -> that manager's address, or "" if no manager has the job at this moment.
    jobs: Mapping[str, str] = field(default_factory=dict)
    #: Open job of another manager -> the node that opens its sums, if its plan names one.
    helpers: Mapping[str, str] = field(default_factory=dict)
    #: An operator drained this manager: it takes no job, and gives those that it has to others.
    is_drained: bool = False
    #: This manager holds as many devices as it can.
    is_full: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTaken:
    """This manager takes over a job, as after a restart: its manager failed or gave it away. Or the job has ended, and
    needs no manager."""

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
    | AlgorithmAnswered
    | AlgorithmFailed
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
    | ExamplesCounted
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
