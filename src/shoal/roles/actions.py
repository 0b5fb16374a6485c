"""The actions that a role asks for. Values only; a driver carries them out in order."""

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
    from shoal.learning.algorithm import AlgorithmState
    from shoal.learning.algorithm_call import Question
    from shoal.learning.layout import Layout
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
    """Fire ``name`` once, in ``after_s`` seconds. A second timer of the same name replaces the first."""

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
    #: The complete traceback of a failure in a task's code.
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """Make a version durable together with the ledger and state that belong to it; answered by Saved."""

    version: int
    tensors: Tensors = field(compare=False, repr=False)
    state: dict[str, Any]
    #: The version after which ``applied`` begins, or -1 for all. The store drops later versions that are not in
    #: ``applied``: they are not part of this history.
    after: int = -1
    #: History since the last save: which batch went into which version.
    applied: tuple[Applied, ...] = ()
    evaluations: tuple[EvaluationView, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AskAlgorithm:
    """Call the job's algorithm; answered by AlgorithmAnswered or AlgorithmFailed before the role gets another event."""

    number: int
    question: Question
    #: What the algorithm kept from the version before.
    state: AlgorithmState = field(compare=False, repr=False)
    layout: Layout = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """Make a job's record durable before the actions that follow are carried out."""

    job: str
    state: JobState
    reason: str
    term: int
    spec: JobSpec | None = None
    #: The node that leads it under this term.
    leader: str = ""
    #: Term -> the node that got it and the newest durable version then, or `None` to leave them unchanged.
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
    """Remove ended jobs and their files without a request, each with its reason."""

    reasons: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class DropFiles:
    """Remove files of an ended job that stays on record: its checkpoints, or code and data that no other job has."""

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
    """Send the newest durable version of a job to its new leader; answered by LoadFailed if none can be read."""

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
    #: The learning rate, or 0 for the plan's; and the number of the model.
    rate: float = 0.0
    version: int = 0
    #: With local data: how many of the device's own examples to train on.
    examples: int = 0
    #: When a script's own loop must end the lease.
    deadline_s: float = 0.0
    #: The model to start from, or changes to add one after the other to the model that the trainer holds. Empty if the
    #: trainer already holds it.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    changes: tuple[np.ndarray | Sparse, ...] = field(default=(), compare=False, repr=False)
    #: Whether to start from the staged model, which the trainer gets first.
    staged: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate:
    """Evaluate leased parts of the held-out data; answered by EvaluationDone or TrainerFailed."""

    lease: int
    chunks: tuple[int, ...]
    #: Examples per chunk, or 0 for the maximum.
    size: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    changes: tuple[np.ndarray | Sparse, ...] = field(default=(), compare=False, repr=False)
    staged: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleOwn:
    """Continue, durably, from the own part of the model that this lease made if ``taken``, else from the one before."""

    lease: int
    taken: bool
    #: How many of the leases that were taken last may still be taken back, this one among them.
    undoable: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoOwn:
    """Go back, durably, to the own part before the last N leases that were taken: a new leader's history lacks their
    updates."""

    leases: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Participate:
    """Record durably that this device takes part in a private job; answered by (Not)Participated."""

    term: int
    version: int
    lease: int
    #: The group that a sealed update is sealed for. Each group is a separate participation.
    group: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CountExamples:
    """Count the device's own examples again; answered by ExamplesCounted, or by TrainerFailed of lease 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageModel:
    """Keep a part of the next model, from ``start`` on, next to the trainer's model until it is complete."""

    start: int
    #: Values of this part, or changes to its staged values or, with ``anew``, to the trainer's values.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
    changes: tuple[np.ndarray | Sparse, ...] = field(default=(), compare=False, repr=False)
    anew: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeSealKey:
    """Draw and sign a key for the sealed sums of this term; answered by SealKeyMade. It is never stored."""

    term: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRoster:
    """Check whether the cluster's devices signed these keys; answered by RosterChecked."""

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
    """End a trainer that is out of time, and find out where it hangs; answered by TrainerFailed."""

    lease: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Multiply:
    """Multiply on this machine, in parallel to everything else; answered by Multiplied or MultiplyFailed."""

    number: int
    #: As in ``Task``, or ``measure`` to multiply made-up matrices of this size.
    kind: str
    rows: int
    inner: int
    columns: int
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deliver:
    """Give a client's program the product that it waits for, or the reason why there is none."""

    product: int
    result: np.ndarray | None = field(compare=False, repr=False)
    #: Why there is no product. Empty if there is one.
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The role is done, and the driver releases it."""

    reason: str


Action = (
    Send
    | Answer
    | SetTimer
    | CancelTimer
    | Record
    | Save
    | AskAlgorithm
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
    | UndoOwn
    | Participate
    | CountExamples
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
    """The interface of a role to its driver."""

    def handle(self, event: Event, now_s: float) -> list[Action]: ...
