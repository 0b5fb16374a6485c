"""What a role wants done. Values only; a driver carries them out in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from shoal.roles.events import Event
from shoal.states import JobState
from shoal.wire.messages import Checkpoint, EvaluationView, JobSpec, Message, SealRoster, Tensors

if TYPE_CHECKING:
    import numpy as np

    from shoal.compress.sparse import Sparse
    from shoal.scheduling.ledger import Applied
    from shoal.sealing.request import MasksRequest, SealRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    to: str
    message: Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The reply to an operator's question."""

    question: int
    message: Message


@dataclass(frozen=True, kw_only=True, slots=True)
class SetTimer:
    """Fire ``name`` once, so many seconds from now; a second timer of the same name replaces the first."""

    name: str
    after_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelTimer:
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A decision and its reason: to the log, to ``shoal status``, to tests."""

    kind: str
    reason: str
    job: str = ""
    #: Of a failure of a task's code: where, in full.
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """Make a version durable together with the ledger and state that belong to it; answered by Saved."""

    version: int
    tensors: Tensors = field(compare=False, repr=False)
    state: dict[str, Any]
    #: The version after which ``applied`` begins, -1 for all. A version above it that is not in ``applied`` is not of
    #: this history: what is kept of it goes.
    after: int = -1
    #: History since the last save: which batch went into which version.
    applied: tuple[Applied, ...] = ()
    evaluations: tuple[EvaluationView, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """Make a job's record durable before the actions that follow are carried out."""

    job: str
    state: JobState
    reason: str
    term: int
    spec: JobSpec | None = None
    #: Who leads it under this term.
    leader: str = ""
    #: Term -> who was given it, and the newest durable version then; None: as it was.
    terms: dict[int, tuple[str, int]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgetMember:
    """Take a member off the register, durably, before the actions that follow are carried out."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DropJob:
    """Remove an ended job's record, durably, before the actions that follow are carried out; then its files."""

    job: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DropOldJobs:
    """Remove ended jobs that nobody asked to remove, each with its reason, and their files."""

    reasons: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class DropFiles:
    """Remove files of an ended job that stays on record: its checkpoints, or the code and data that it alone has."""

    job: str
    checkpoints: bool = False
    contents: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """Make a checkpoint durable that the leader of a job sent; answered by Stored or StoreFailed."""

    checkpoint: Checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveJob:
    """Make a job another manager's; answered by JobGiven. From here on this manager writes nothing about it."""

    job: str
    #: Where devices dial the other manager.
    endpoint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Send the newest durable version of a job to its new leader; answered by LoadFailed where none can be read."""

    job: str
    term: int
    to: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepare:
    """Fetch code and data, verify them, start (or restart) the trainer; answered by Prepared or PrepareFailed."""

    spec: JobSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Train:
    """Train a lease; answered by Trained or TrainerFailed."""

    lease: int
    epoch: int
    batches: tuple[int, ...]
    #: The learning rate; 0: the plan's. And the number of the model.
    rate: float = 0.0
    version: int = 0
    #: With local data: train on so many of the device's own.
    examples: int = 0
    #: A loop of a script's own ends its lease by then.
    deadline_s: float = 0.0
    #: The model to start from; empty when the trainer already holds it, or what makes it of the one that it holds:
    #: these are added to that, one after the other.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    changes: tuple[np.ndarray | Sparse, ...] = field(default=(), compare=False, repr=False)
    #: The model to start from is the one that was staged: the trainer gets it first.
    staged: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate:
    """Evaluate leased shares of the held-out data; answered by EvaluationDone or TrainerFailed."""

    lease: int
    chunks: tuple[int, ...]
    #: Examples of a chunk; 0: as many as one has at most.
    size: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    changes: tuple[np.ndarray | Sparse, ...] = field(default=(), compare=False, repr=False)
    staged: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleOwn:
    """Go on from the own part of the model that this lease made, durably; not taken: from the one before it."""

    lease: int
    taken: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Participate:
    """Write down, durably, that this device takes part in a private job; answered by (Not)Participated."""

    term: int
    version: int
    lease: int
    #: Where the update is sealed: the group that it is sealed for. Each is a participation of its own.
    group: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StageModel:
    """Keep a part of a model beside the one the trainer has, from ``start`` on, until all of it is there."""

    start: int
    #: Values of this part; or changes to its staged values, or with ``anew`` to the values that the trainer has.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    changes: tuple[np.ndarray | Sparse, ...] = field(default=(), compare=False, repr=False)
    anew: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeSealKey:
    """Draw and sign a key for the sealed sums of this term; answered by SealKeyMade. It is never written down."""

    term: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRoster:
    """Look whether the cluster's devices signed these keys; answered by RosterChecked."""

    roster: SealRoster


@dataclass(frozen=True, kw_only=True, slots=True)
class Seal:
    """Mask an update; answered by UpdateSealed."""

    lease: int
    request: SealRequest = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class SumMasks:
    """Add up the masks of the members of a sealed sum, as its helper; answered by MasksSummed."""

    request: MasksRequest = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interrupt:
    """The trainer is out of time: find out where it is, end it; answered by TrainerFailed."""

    lease: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Multiply:
    """Multiply on this machine, beside everything else; answered by Multiplied or MultiplyFailed."""

    number: int
    #: As in ``Task``; or ``measure``: matrices of this size that are made up.
    kind: str
    rows: int
    inner: int
    columns: int
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deliver:
    """A product is whole, or cannot be had: its client's program has waited for it."""

    product: int
    result: np.ndarray | None = field(compare=False, repr=False)
    #: Why there is none.
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The role is done; the driver lets go of it."""

    reason: str


Action = (
    Send
    | Answer
    | SetTimer
    | CancelTimer
    | Record
    | Save
    | Keep
    | ForgetMember
    | DropJob
    | DropOldJobs
    | DropFiles
    | Store
    | GiveJob
    | Load
    | Prepare
    | Train
    | Evaluate
    | SettleOwn
    | Participate
    | StageModel
    | MakeSealKey
    | CheckRoster
    | Seal
    | SumMasks
    | Interrupt
    | Multiply
    | Deliver
    | End
)


class Role(Protocol):
    """Everything a driver knows of a role."""

    def handle(self, event: Event, now_s: float) -> list[Action]: ...
