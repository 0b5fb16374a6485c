"""What nodes say to each other, as frozen values that are valid once built. Knows no bytes and no sockets.

Every class has a twin of the same name and fields in ``proto/shoal/v1/shoal.proto``; ``encoding`` maps one
onto the other. A field named ``tensors`` never enters the envelope: it follows in chunks (see ``frames``).
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from shoal.compress.codec import Codec
from shoal.errors import Misuse, PeerViolation
from shoal.learning.layout import ENTRIES_MAX
from shoal.plan import Plan
from shoal.states import ENDED, REPORTED, JobState
from shoal.wire.limits import (
    AVOIDED_MAX,
    BATCHES_MAX,
    COUNTED_MAX,
    LABELLED_MAX,
    LABELS_MAX,
    MATES_MAX,
    NAME_MAX_CHARS,
    REASON_MAX_CHARS,
    SECONDS_MAX,
    SIDE_MAX,
    TOLD_BYTES_MAX,
    TRACEBACK_MAX_CHARS,
)

PROTOCOL = 1

Tensors = Mapping[str, np.ndarray]
NO_TENSORS: Tensors = {}

#: What a mate of a flock may be at, and what its conductor may call for.
MATE_PHASES = ("idle", "training", "holding", "resting", "failed")
CALLS = ("train", "keep", "take", "rest", "anew", "make", "fetch", "over")

#: The term and version of one who holds the model that a job begins with: it is the same under every leader.
FIRST_HELD = (0, 0)

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ENDPOINT = re.compile(r"(?:[0-9A-Za-z.-]{1,120}|\[[0-9a-fA-F:.]{2,60}\]):[0-9]{1,5}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONG_TEXT = (
    "reason",
    "discarded",
    "kwargs_json",
    "layout_json",
    "detail",
    "shape_reason",
    "join_line",
    "csr_pem",
    "certificate_pem",
    "state_json",
    "signer_pem",
    "saturation_reason",
    "hold",
    "verdict",
)


def is_id(text: str) -> bool:
    """Node and job ids: short, lower case, safe as a file name."""
    return _ID.fullmatch(text) is not None


def is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None


class Message:
    """The root of everything that crosses the wire; checks what every message has in common."""

    __slots__ = ()

    def __post_init__(self) -> None:
        names, ids = _CHECKS.get(type(self)) or _checks_of(type(self))
        for name in names:
            value = getattr(self, name)
            kind = type(value)
            # Nearly every value is plain and right: that much is seen here, and only the rest is asked about.
            if kind is int:
                if -_INT_END < value < _INT_END:
                    continue
            elif kind is str:
                if len(value) <= NAME_MAX_CHARS and "\0" not in value:
                    continue
            elif kind is float:
                if value == value:
                    continue
            elif kind in _UNCHECKED:
                continue
            _check_value(type(self), name, value)
        for name in ids:
            value = getattr(self, name)
            if value and not is_id(value):
                raise PeerViolation(f"{type(self).__name__}.{name} is not an id: {value[:80]!r}")


#: Class -> the names of its fields, and of those that are ids. Filled as classes are first used: asking a class for
#: its fields costs more than checking them.
_CHECKS: dict[type[Message], tuple[tuple[str, ...], tuple[str, ...]]] = {}

#: Integers beyond this do not cross the wire.
_INT_END = 1 << 62

#: Types of values that have no rule in common.
_UNCHECKED = frozenset((bool, tuple, dict, type(None)))


def _checks_of(kind: type[Message]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = tuple(f.name for f in fields(kind))  # type: ignore[arg-type]
    checks = _CHECKS[kind] = names, tuple(name for name in ("job", "node") if name in names)
    return checks


def _check_value(kind: type[Message], name: str, value: object) -> None:
    """The rules that every message has in common. A subclass of a plain type is held to the rule of that type."""
    if isinstance(value, str):
        limit = REASON_MAX_CHARS if name in _LONG_TEXT else NAME_MAX_CHARS
        limit = TRACEBACK_MAX_CHARS if name == "traceback" else limit
        if len(value) > limit:
            raise PeerViolation(f"{kind.__name__}.{name} has {len(value)} characters, at most {limit}")
        if "\0" in value:
            raise PeerViolation(f"{kind.__name__}.{name} holds a NUL character")
    elif isinstance(value, float) and value != value:
        raise PeerViolation(f"{kind.__name__}.{name} is not a number")
    elif isinstance(value, int) and not isinstance(value, bool) and not -_INT_END < value < _INT_END:
        raise PeerViolation(f"{kind.__name__}.{name} is out of range")


def clip(text: str, limit: int = REASON_MAX_CHARS) -> str:
    """Shorten free text of unknown length (an exception, a peer's words) so that it fits a message."""
    # A lone surrogate (a file name that is not UTF-8, quoted in an error) cannot be encoded; an escape sequence is a
    # command to the terminal on which someone will read this.
    text = _CONTROL.sub(" ", text).encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _check_codecs(*names: str) -> None:
    try:
        for name in names:
            Codec.parse(name)
    except Misuse as error:
        raise PeerViolation(str(error)) from None


# A node and the node it dialled -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts(Message):
    """What a device says about itself when it connects."""

    host: str = ""
    arch: str = ""
    cpus: int = 0
    memory_mb: int = 0
    python: str = ""
    #: Empty where PyTorch is not installed: such a node can lead, not train.
    torch: str = ""
    shoal: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        # They end up in a log and on an operator's terminal, where a new line is a lie and an escape a command.
        if not (self.host + self.arch + self.python + self.torch + self.shoal).isprintable():
            raise PeerViolation("facts that cannot be printed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Leads(Message):
    """A node leads a job from here on, or still does: its workers find it there."""

    job: str
    term: int
    #: Where other members dial it.
    endpoint: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.endpoint and _ENDPOINT.fullmatch(self.endpoint) is None:
            raise PeerViolation(f"not where anyone can be dialled: {self.endpoint[:80]!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello(Message):
    """The first message on a control stream. A new incarnation is a new process: it holds no old lease."""

    node: str
    incarnation: str
    protocol: int = PROTOCOL
    facts: Facts = field(default_factory=Facts)
    #: The jobs this process leads.
    leads: tuple[Leads, ...] = ()
    #: It multiplies matrices for others.
    lends: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome(Message):
    heartbeat_s: float
    lost_after_s: float
    reason: str = ""
    #: Seconds since 1970 by the manager's clock: a device may not know the time.
    time_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat(Message):
    seq: int
    #: Processes that want to run, per CPU.
    load: float = 0.0
    memory_free_mb: int = 0
    #: The best rate of its large transfers of late; 0: not known.
    link_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not -math.inf < self.load < math.inf:
            raise PeerViolation("a load that is not finite")
        if not 0 <= self.link_bytes_per_s < math.inf:
            raise PeerViolation("a rate that cannot be")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeartbeatSeen(Message):
    seq: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave(Message):
    """A node says goodbye: its leases return at once, nobody has to wait for a time-out."""

    reason: str


# A job, and who does what in it -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset(Message):
    """One split of a task's data, by the hash of its manifest in the store."""

    manifest: str = ""
    examples: int = 0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.manifest and not is_sha256(self.manifest):
            raise PeerViolation(f"a manifest is named by its sha256, not {self.manifest[:80]!r}")
        if self.examples < 0:
            raise PeerViolation(f"a data set has {self.examples} examples")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec(Message):
    """A task and a plan, by content: code, initial model and data are named by their hashes."""

    job: str
    name: str
    #: ``module:Class`` inside the bundle.
    entry: str
    kwargs_json: str = "{}"
    bundle: str
    initial: str
    train: Dataset
    test: Dataset
    plan: Plan
    #: By the operator who submitted it, over everything above (see ``transport.signing``); base64.
    signature: str = ""
    #: That operator's certificate.
    signer_pem: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        for name in ("bundle", "initial"):
            if not is_sha256(getattr(self, name)):
                raise PeerViolation(f"a job's {name} is named by its sha256, not {getattr(self, name)[:80]!r}")
        if not self.job:
            raise PeerViolation("a job needs an id")
        if self.plan.data == "shared" and self.train.examples < 1:
            raise PeerViolation("a job with shared data needs at least one training example")
        batches = self.batches
        if batches > BATCHES_MAX:
            raise PeerViolation(f"{batches} batches an epoch, at most {BATCHES_MAX}: take a larger batch_size")

    @property
    def batches(self) -> int:
        """Of an epoch; with local data, its leases."""
        if self.plan.data == "local":
            return self.plan.epoch_leases
        return -(-self.train.examples // self.plan.batch_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assign(Message):
    """The manager gives a node a role in a job. ``term`` fences: a message from an older term is refused."""

    job: str
    role: str
    term: int
    leader: str
    #: Where the leader is dialled; empty: where the manager is.
    leader_endpoint: str = ""
    spec: JobSpec
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dismiss(Message):
    """The manager takes a role back."""

    job: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerView(Message):
    """One worker as its leader sees it: what people read in ``shoal status``."""

    node: str
    state: str
    reason: str = ""
    batches: int = 0
    #: Median seconds from lease to update.
    lease_s: float = 0.0
    #: This worker's median over the median of all: above 1 is slow.
    slowness: float = 1.0
    bytes_up: int = 0
    bytes_down: int = 0
    failures: int = 0
    #: Median seconds of this that its trainer says it trained; the rest went to moving models and waiting.
    train_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeView(Message):
    """A way in which updates could meet, and what a batch is predicted to take then."""

    shape: str
    pace: str = "sync"
    batch_s: float = 0.0
    detail: str = ""
    chosen: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress(Message):
    """How a job stands, told by its leader to the manager about once a second and at every turn."""

    job: str
    term: int
    #: A ``LeaderPhase``; once the job is over, its ``JobState``.
    state: str
    reason: str = ""
    version: int = 0
    durable_version: int = 0
    epoch: int = 0
    batches_applied: int = 0
    batches_total: int = 0
    accuracy: float | None = None
    loss: float | None = None
    train_loss: float | None = None
    rounds_per_s: float = 0.0
    examples_per_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    refused: int = 0
    workers: tuple[WorkerView, ...] = ()
    #: Versions made between a lease and the merge of its update: the median of recent ones, and the most.
    staleness: float = 0.0
    staleness_max: int = 0
    #: Does one more worker bring anything? ``gains``, ``saturated``, ``unsure``, or empty while nothing was measured.
    #: What speaks for it; and the size from which on more bring too little, 0 if there is none.
    saturation: str = ""
    saturation_reason: str = ""
    saturated_at: int = 0
    #: From one version to the next, or where nobody waits as many updates as there are workers: the median of late
    #: rounds that nothing disturbed. And what of it was not training.
    round_s: float = 0.0
    sync_s: float = 0.0
    #: How updates meet now, and why; which pace that goes by.
    shape: str = ""
    shape_reason: str = ""
    pace: str = ""
    #: What a batch was predicted to take; 0: nothing was.
    predicted_s: float = 0.0
    #: What there was to choose from.
    alternatives: tuple[ShapeView, ...] = ()
    #: What would be lost with this leader: batches applied since its last durable version, or since it lost sight of
    #: the manager, and how many workers trained them.
    unsaved_batches: int = 0
    unsaved_workers: int = 0
    #: Batches applied under this term, and how many workers trained them.
    term_batches: int = 0
    term_workers: int = 0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.state not in REPORTED:
            raise PeerViolation(f"{self.state[:80]!r} is not a state of a job")

    @property
    def is_last(self) -> bool:
        """The job is over: its leader says nothing after this."""
        return self.state in ENDED


# Who leads a job, and what it must not lose -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Admit(Message):
    """These nodes work for a job that is led there: its leader's door opens to them."""

    job: str
    term: int
    nodes: tuple[str, ...] = ()
    #: These alone: who was admitted before and is not among them works there no more.
    anew: bool = False

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not all(is_id(node) for node in self.nodes):
            raise PeerViolation("a node is admitted by its id")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar(Message):
    """This node works there no more: it was lost, or shut out. What it holds returns."""

    job: str
    term: int
    node: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conclude(Message):
    """The job is to end: its leader makes the last version durable and reports."""

    job: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HandOver(Message):
    """The manager asks a leader to finish its round, make it durable and step down."""

    job: str
    term: int
    reason: str = ""
    #: The version it hands over has at least this number: numbers below it were used by another leader.
    version_least: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDown(Message):
    """Nobody leads this job under this term or an older one any more. Also the answer to a leader's last word."""

    job: str
    term: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SteppedDown(Message):
    """A node does not lead a job under this term, or not any more."""

    job: str
    term: int
    reason: str
    #: It could not do it, and another node may.
    failed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfReach(Message):
    """A worker cannot reach the leader it was given."""

    job: str
    term: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Noted(Message):
    """A decision of a leader and its reason, for the manager to write down."""

    job: str
    term: int
    kind: str
    reason: str
    traceback: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not self.kind.isprintable():
            raise PeerViolation("a kind of decision that cannot be printed")


@dataclass(frozen=True, kw_only=True, slots=True)
class AskCheckpoint(Message):
    """A new leader asks where the job stands."""

    job: str
    term: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint(Message):
    """A version with the ledger and state that belong to it, as the bytes of one file: to be kept, or to go on from.

    Version -1, without a file: there is none yet.
    """

    job: str
    term: int
    version: int
    #: Of the leader's saves: a version may be sent twice, with more in it the second time.
    number: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointKept(Message):
    """It is durable where the manager is: written, flushed, found again after a crash."""

    job: str
    term: int
    version: int
    number: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRefused(Message):
    job: str
    term: int
    version: int
    reason: str
    number: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferJob(Message):
    """Let another node lead a job; empty: whichever is placed best."""

    job: str
    node: str = ""


# A worker and its leader --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceState(Message):
    """How a device is as it asks for work of a size that suits it. None: not known."""

    kind: str = ""
    memory_total_mb: float | None = None
    memory_available_mb: float | None = None
    frequency_sum_mhz: float | None = None
    temperature_c: float | None = None
    load: float | None = None
    battery: float | None = None
    joules_per_cpu_s: float | None = None
    #: Examples it has of its own.
    examples: int = 0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not self.kind.isprintable():
            raise PeerViolation("a kind of device that cannot be printed")
        if not 0 <= self.examples <= LABELLED_MAX:
            raise PeerViolation(f"a device with {self.examples} examples")


@dataclass(frozen=True, kw_only=True, slots=True)
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

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not (0 <= self.up_bytes_per_s < math.inf and 0 <= self.down_bytes_per_s < math.inf):
            raise PeerViolation("a rate that cannot be")
        if not self.medium.isprintable():
            raise PeerViolation("a medium that cannot be printed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work(Message):
    """A lease, and the model it is to be done on: EDDL's steps 8 and 2 in one message (§4.2)."""

    job: str
    term: int
    lease: int
    #: ``train`` or ``evaluate``.
    kind: str
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
    #: The formation whose sub-leaders give out this version's values; 0: the model is carried here, or held already.
    values_by: int = 0
    #: The version that the tensors change, one after the other, where they are changes.
    base: int = -1
    #: With local data: of its own examples it trains on so many, or on all it has.
    examples: int = 0
    #: The version this leader began with. Updates made against it or later for an older leader are in no version: their
    #: batches are trained once more.
    began: int = 0
    #: The ``model``, or what makes it of the one the worker holds: a tensor for each version in between, named by its
    #: number. None where the worker already holds this version, or its values come from sub-leaders.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer(Message):
    """An update is ready and waits for a credit, so that a leader's memory is bounded."""

    job: str
    term: int
    lease: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Go(Message):
    """The credit for an offered update; or word that it is to go another way than its lease said."""

    job: str
    term: int
    lease: int
    #: The formation by which it goes; 0: whole, to the leader.
    formation: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Update(Message):
    """What training a lease changed, as a codec's tensors. Dense: one tensor ``delta``.

    With a formation it carries none: every sub-leader of the worker's route has its piece.
    """

    job: str
    term: int
    lease: int
    version: int
    examples: int
    loss_sum: float = 0.0
    train_s: float = 0.0
    formation: int = 0
    #: With local data: examples that had come since the last lease, how many of them the model got right before it was
    #: trained on them, and their losses (test, then train).
    fresh: int = 0
    fresh_correct: int = 0
    fresh_loss_sum: float = 0.0
    #: How many of each label it was trained on, where the plan says that this is told.
    labels: tuple[int, ...] = ()
    #: What it took, if that is known; and whether it was measured, or estimated.
    joules: float = 0.0
    joules_measured: bool = False
    #: How the device is now.
    state: DeviceState | None = None
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if len(self.labels) > LABELS_MAX or not all(0 <= count <= LABELLED_MAX for count in self.labels):
            raise PeerViolation("labels that cannot be counted so")
        if self.labels and sum(self.labels) > self.examples:
            # They are summed up over all devices: one that counts more than it trained on would outweigh the others.
            raise PeerViolation(f"{sum(self.labels)} labels in an update over {self.examples} examples")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated(Message):
    """Sums over a leased share of the held-out data: they add up like partials do."""

    job: str
    term: int
    lease: int
    version: int
    examples: int
    loss_sum: float
    correct: int


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused(Message):
    """An update that was not merged, and why."""

    job: str
    term: int
    lease: int
    reason: str
    #: Another lease that the worker has, as far as the leader knows; 0: none, and the leader speaks next.
    holds: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Message):
    """The job is over for this worker."""

    job: str
    reason: str


# A leader, its sub-leaders and their workers: where tensors meet ------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Form(Message):
    """A leader makes a node a sub-leader: it sums up a share of the updates of these workers from now on.

    In a tree that share is the whole model, for a group of workers. In a shard it is a part of the model, for all of
    them, and the sub-leader also takes the step for it: the tensors are where its part stands. Said again, it changes
    the members.
    """

    job: str
    term: int
    formation: int
    #: ``tree`` or ``shard``.
    kind: str
    version: int
    start: int
    stop: int
    #: Of its part, how many values are parameters: they have momentum, and come first.
    parameters: int = 0
    momentum: float = 0.0
    members: tuple[str, ...] = ()
    #: How pieces are coded, and what the parts are of the tensors that lie in its part.
    codec: str = "dense"
    sizes: tuple[int, ...] = ()
    #: The most values that a piece may name.
    entries: int = 0
    #: Of a shard, whose sub-leader takes the step: how what it gives out is coded, and how far it goes.
    codec_down: str = "dense"
    outer_rate: float = 1.0
    nesterov: bool = False
    #: The largest norm of a piece that is taken; 0: any that is finite.
    norm_max: float = 0.0
    #: In a shard: ``model`` and ``velocity``, and with a codec the ``residual``, which was not given out yet.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.start < self.stop or not 0 <= self.parameters <= self.stop - self.start:
            raise PeerViolation(f"no part of a model: {self.start} to {self.stop}, {self.parameters} parameters")
        if self.kind not in ("tree", "shard") or not 0 <= self.momentum < 1 or not 0 < self.outer_rate < math.inf:
            raise PeerViolation(f"no formation that this release knows: {self.kind[:80]!r}, {self.momentum}")
        _check_norm(self.norm_max)
        if self.codec != "dense" or self.codec_down != "dense":
            if len(self.sizes) > ENTRIES_MAX or any(size < 1 for size in self.sizes):
                raise PeerViolation("a part of a model has parts of tensors, each of at least one value")
            if sum(self.sizes) != self.stop - self.start or not 0 <= self.entries <= self.stop - self.start:
                raise PeerViolation(f"tensors of {sum(self.sizes)} values in a part from {self.start} to {self.stop}")
            _check_codecs(self.codec, self.codec_down)
        if not all(is_id(node) for node in self.members):
            raise PeerViolation("a member is named by its id")


@dataclass(frozen=True, kw_only=True, slots=True)
class Formed(Message):
    """A sub-leader is set up, and its members find it there; without an endpoint: it could not be."""

    job: str
    term: int
    formation: int
    endpoint: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.endpoint and _ENDPOINT.fullmatch(self.endpoint) is None:
            raise PeerViolation(f"not where anyone can be dialled: {self.endpoint[:80]!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop(Message):
    """A sub-leader, and the part of an update that goes to it."""

    node: str
    endpoint: str
    start: int
    stop: int

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if _ENDPOINT.fullmatch(self.endpoint) is None:
            raise PeerViolation(f"not where anyone can be dialled: {self.endpoint[:80]!r}")
        if not 0 <= self.start < self.stop:
            raise PeerViolation(f"no part of a model: {self.start} to {self.stop}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Route(Message):
    """By which sub-leaders a worker's updates go in a formation. It gets ready for it; a lease says when it holds."""

    job: str
    term: int
    formation: int
    hops: tuple[Hop, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        ends = [0, *(hop.stop for hop in self.hops)]
        if not self.hops or [hop.start for hop in self.hops] != ends[:-1]:
            raise PeerViolation("the hops of a route have the parts of a model in order, without a gap")
        if len({hop.node for hop in self.hops}) != len(self.hops):
            raise PeerViolation("two hops of a route are one node")


@dataclass(frozen=True, kw_only=True, slots=True)
class Routed(Message):
    """A worker reaches every sub-leader of its route, or all but these."""

    job: str
    term: int
    formation: int
    unreached: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not all(is_id(node) for node in self.unreached):
            raise PeerViolation("a node that is not reached is named by its id")


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece(Message):
    """The part of an update that is for one sub-leader: one tensor ``delta``."""

    job: str
    term: int
    formation: int
    lease: int
    version: int
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Made(Message):
    """A lease is trained, and its pieces are on their way: what it takes from here on is not its worker's fault."""

    job: str
    term: int
    lease: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken(Message):
    """A sub-leader has a worker's piece, checked."""

    job: str
    term: int
    formation: int
    lease: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Spoilt(Message):
    """A sub-leader could not take a worker's piece: what was wrong with it."""

    job: str
    term: int
    formation: int
    lease: int
    node: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Count(Message):
    """The leader has these leases in its ledger: their pieces are to be summed up, each with its weight and scale.

    The last of a round asks for the sum.
    """

    job: str
    term: int
    formation: int
    #: What the sum will be part of: one after the version that the leases are of, or later.
    version: int
    leases: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    last: bool = False
    #: As in ``Form``, for the pieces that come next.
    norm_max: float = 0.0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _check_norm(self.norm_max)
        if not len(self.leases) == len(self.weights) == len(self.scales) <= COUNTED_MAX:
            raise PeerViolation(f"each lease has a weight and a scale, and at most {COUNTED_MAX} are counted at a time")
        if not all(0 < number < math.inf for number in (*self.weights, *self.scales)):
            raise PeerViolation("a weight or a scale that is not positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered(Message):
    """The mean over a sub-leader's counted pieces, and of which leases it is: one tensor ``mean``.

    In a shard with a codec also ``moved``: how its part of the model moved by that, as it was given out.
    """

    job: str
    term: int
    formation: int
    version: int
    leases: tuple[int, ...] = ()
    weight: float = 0.0
    #: Bytes of tensors that came from its members, and went to them, since its last sum.
    bytes_up: int = 0
    bytes_down: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not (0 <= self.bytes_up <= TOLD_BYTES_MAX and 0 <= self.bytes_down <= TOLD_BYTES_MAX):
            raise PeerViolation("bytes that no sub-leader can have moved")


def _check_norm(norm_max: float) -> None:
    if not 0 <= norm_max < math.inf:
        raise PeerViolation(f"a largest norm of {norm_max}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass(Message):
    """A version, for a sub-leader of a tree to give to its members: as in ``Work``, the model or changes."""

    job: str
    term: int
    formation: int
    version: int
    base: int = -1
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Values(Message):
    """A sub-leader's part of a version, for a worker: as in ``Work``, this part of the model or changes to it."""

    job: str
    term: int
    formation: int
    version: int
    start: int
    stop: int
    base: int = -1
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.start < self.stop:
            raise PeerViolation(f"no part of a model: {self.start} to {self.stop}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Disband(Message):
    """A formation is over: its sub-leaders and routes up to this number are no more."""

    job: str
    term: int
    formation: int
    reason: str = ""


# A flock: devices without a manager -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing(Message):
    """How a mate of a flock is, told to all of them every second and whenever it changes."""

    #: The hash of task and plan: only mates that have the same train together.
    plan: str
    term: int = 0
    #: Whom it follows, whether it hears that one, and the last of its calls that it heeded.
    conductor: str = ""
    in_touch: bool = False
    heard: int = 0
    #: The model it holds: its number, its hash, and how many updates were in it.
    version: int = -1
    digest: str = ""
    made_of: int = 0
    #: What it is at: ``idle``, ``training``, ``holding`` updates, ``resting`` since it handed them on, ``failed``.
    phase: str = "idle"
    round: int = 0
    #: Whose updates it holds, how much they weigh, since which term, and the last merge that it took.
    of: tuple[str, ...] = ()
    weight: float = 0.0
    token_term: int = 0
    took: int = 0
    #: Whether it may be asked for a merge now; if not, why.
    is_free: bool = True
    reason: str = ""
    spent_joules: float = 0.0
    #: How the model of this version did on its held-out examples.
    tested: int = -1
    correct: int = 0
    examples: int = 0
    #: It has the last version and goes.
    is_over: bool = False

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _check_mates("of", self.of)
        if not is_sha256(self.plan):
            raise PeerViolation("a mate without a plan")
        if self.phase not in MATE_PHASES:
            raise PeerViolation(f"a mate that is {self.phase[:40]!r}")
        if not (0 <= self.weight < math.inf and 0 <= self.spent_joules < math.inf):
            raise PeerViolation("a weight or an energy that cannot be")
        if min(self.correct, self.examples, self.made_of) < 0 or self.correct > self.examples:
            raise PeerViolation("a test that cannot be")


@dataclass(frozen=True, kw_only=True, slots=True)
class Call(Message):
    """What the conductor of a flock wants of a mate now. It replaces every earlier one."""

    term: int
    number: int
    #: ``train``, ``keep`` what it holds, ``take`` another's updates, ``rest``, begin ``anew`` with its own, ``make``
    #: the next version, ``fetch`` one, ``over``.
    kind: str
    round: int = 0
    version: int = -1
    digest: str = ""
    merge: int = 0
    #: Whose updates to take, or of whom to fetch.
    other: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.kind not in CALLS:
            raise PeerViolation(f"no call of a conductor: {self.kind[:40]!r}")
        if self.other and not is_id(self.other):
            raise PeerViolation("a call that names nobody")


@dataclass(frozen=True, kw_only=True, slots=True)
class Want(Message):
    """One mate asks another: for its updates, to merge them, or for the model of a version where ``merge`` is 0."""

    term: int
    #: Who called for it: two may conduct in one term, for a while, where they do not hear each other.
    conductor: str
    round: int
    merge: int = 0
    version: int = -1
    digest: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part(Message):
    """The weighted mean of some mates' updates, and its weight: MDLdroid's (W, θ)."""

    term: int
    conductor: str
    round: int
    merge: int
    of: tuple[str, ...]
    weight: float
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _check_mates("of", self.of)
        if not 0 < self.weight <= LABELLED_MAX * len(self.of):
            raise PeerViolation(f"{len(self.of)} updates that weigh {self.weight}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Given(Message):
    """The model of a version, whole."""

    version: int
    digest: str
    made_of: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


def _check_mates(name: str, mates: tuple[str, ...]) -> None:
    if len(mates) > MATES_MAX or not all(map(is_id, mates)) or len(set(mates)) != len(mates):
        raise PeerViolation(f"{name}: not the names of mates")


# Borrowed compute: an analyst, a scheduler and its executors ------------------------------------------------

#: What is done with the left side of a task (see ``offload.kinds``).
TASK_KINDS = ("tile", "outer", "mask", "share")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure(Message):
    """A scheduler asks one who lends to multiply matrices of this size, which it makes up itself."""

    number: int
    rows: int
    inner: int
    columns: int

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _check_sides(self.rows, self.inner, self.columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lend(Message):
    """What came of a measure, and what this executor can take."""

    number: int
    #: What multiplying took, by its own clock; the scheduler believes its own.
    seconds: float
    #: The most that the tensors of a task, or of its result, may have; and all right sides that it keeps.
    task_max_bytes: int
    rights_max_bytes: int

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.seconds <= SECONDS_MAX or self.task_max_bytes < 0 or self.rights_max_bytes < 0:
            raise PeerViolation("an executor that cannot be")


@dataclass(frozen=True, kw_only=True, slots=True)
class AskPool(Message):
    """An analyst asks what the pool can; it is told again when that changes."""

    #: For people: what it is for.
    purpose: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool(Message):
    """What the executors of one scheduler can together, as it measured them."""

    #: Those that would be given a task of this analyst now.
    executors: int
    multiply_adds_per_s: float = 0.0
    latency_s: float = 0.0
    #: Tasks that the analyst may have there at a time.
    window: int = 0
    task_max_bytes: int = 0
    right_max_bytes: int = 0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not (0 <= self.multiply_adds_per_s < math.inf and 0 <= self.latency_s <= SECONDS_MAX):
            raise PeerViolation("a pool that cannot be")
        if min(self.executors, self.window, self.task_max_bytes, self.right_max_bytes) < 0:
            raise PeerViolation("a pool that cannot be")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task(Message):
    """A left side to be multiplied by a right one: from an analyst to a scheduler, and from there to an executor."""

    #: As its sender numbers them.
    task: int
    kind: str
    #: Tasks of one group go to different executors; 0: of none.
    group: int = 0
    #: The right side by its digest (``offload.kinds``); empty: it is among the tensors.
    right: str
    rows: int
    inner: int
    columns: int
    #: Seconds from receipt after which nobody waits for it. A span, not a time: clocks differ.
    deadline_s: float
    #: Executors that are not to have it.
    avoid: tuple[str, ...] = ()
    #: ``left``, or the ``seed`` of a mask; and ``right`` where it has no digest.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.kind not in TASK_KINDS:
            raise PeerViolation(f"no task that this release knows: {self.kind[:80]!r}")
        if self.right and not is_sha256(self.right):
            raise PeerViolation(f"a right side is named by its sha256, not {self.right[:80]!r}")
        _check_sides(self.rows, self.inner, self.columns)
        if not 0 < self.deadline_s <= SECONDS_MAX:
            raise PeerViolation(f"a deadline of {self.deadline_s} s")
        if len(self.avoid) > AVOIDED_MAX or not all(is_id(node) for node in self.avoid):
            raise PeerViolation(f"up to {AVOIDED_MAX} executors are avoided, by their ids")


@dataclass(frozen=True, kw_only=True, slots=True)
class Right(Message):
    """A right side, once for all tasks that name it: one tensor ``right``."""

    right: str
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not is_sha256(self.right):
            raise PeerViolation(f"a right side is named by its sha256, not {self.right[:80]!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NeedRight(Message):
    """A task named a right side that is not here, or not any more."""

    right: str

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not is_sha256(self.right):
            raise PeerViolation(f"a right side is named by its sha256, not {self.right[:80]!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Result(Message):
    """What came of a task: one tensor ``result``, or the reason why there is none."""

    task: int
    #: Who computed it. The scheduler says so: an executor is known by its session.
    executor: str = ""
    seconds: float = 0.0
    reason: str = ""
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.executor and not is_id(self.executor):
            raise PeerViolation(f"an executor is named by its id, not {self.executor[:80]!r}")
        if not 0 <= self.seconds <= SECONDS_MAX:
            raise PeerViolation(f"a task that took {self.seconds} s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Caught(Message):
    """An analyst found a result of this executor to be wrong."""

    executor: str
    reason: str

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not is_id(self.executor):
            raise PeerViolation(f"an executor is named by its id, not {self.executor[:80]!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Forget(Message):
    """Nobody waits for the sender's tasks up to this number any more."""

    upto: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LenderView(Message):
    """One executor as its scheduler sees it: what people read in ``shoal status``."""

    node: str
    #: ``measured``, ``ready``, ``excluded``, ``held`` or ``lost``.
    state: str
    reason: str = ""
    multiply_adds_per_s: float = 0.0
    latency_s: float = 0.0
    #: What counted of it.
    tasks: int = 0
    multiply_adds: int = 0
    #: Tasks that were given to another as well, since this one took too long; that it could not do; that were wrong.
    late: int = 0
    refused: int = 0
    caught: int = 0


def _check_sides(*sides: int) -> None:
    if not all(0 < side <= SIDE_MAX for side in sides):
        raise PeerViolation(f"matrices of sides {sides}: each is 1 to {SIDE_MAX:,}")


# An operator and the manager ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Submit(Message):
    spec: JobSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class StopJob(Message):
    job: str
    reason: str = "stopped by the operator"


@dataclass(frozen=True, kw_only=True, slots=True)
class AskStatus(Message):
    """Everything, or one job with its latest events and evaluations."""

    job: str = ""
    after_event: int = 0
    #: Of its events, those alone that have a traceback, and it.
    tracebacks: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Done(Message):
    """The command took effect, durably."""

    job: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Denied(Message):
    """The command was refused."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView(Message):
    node: str
    #: ``alive``, ``suspect`` or ``lost``.
    state: str
    reason: str = ""
    job: str = ""
    facts: Facts = field(default_factory=Facts)
    load: float = 0.0
    memory_free_mb: int = 0
    #: Seconds since it was last heard; negative: never since the manager started.
    heard_s: float = -1.0
    #: ``pending``, ``drained`` or ``revoked``; empty: a member like any other.
    standing: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedView(Message):
    """The published version that a job serves now."""

    version: int
    sha256: str
    #: How it was judged when it was published; None: it was not.
    accuracy: float | None = None
    examples: int = 0
    #: Why this one is served.
    reason: str = ""
    #: Why none is published by itself now; empty: one is, as the plan says.
    hold: str = ""
    #: What came of the latest evaluation.
    verdict: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView(Message):
    job: str
    name: str
    state: JobState
    reason: str = ""
    leader: str = ""
    plan: Plan
    progress: Progress | None = None
    model_size: int = 0
    train_examples: int = 0
    test_examples: int = 0
    term: int = 0
    #: None: no version was published.
    served: ServedView | None = None
    #: Which versions were discarded last, and why; empty: none ever was.
    discarded: str = ""
    #: Seconds since the manager first heard that it is so: by its leader while the job runs. Below 0: not known.
    since_s: float = -1.0
    #: Seconds since its leader was last heard; below 0: not since the manager started.
    heard_s: float = -1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class EventView(Message):
    """A decision and its reason, as recorded."""

    seq: int
    #: Seconds since 1970 by the manager's clock: for people, never for decisions.
    at_s: float
    kind: str
    reason: str
    #: Only where tracebacks were asked for.
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationView(Message):
    version: int
    epoch: int
    accuracy: float
    loss: float
    examples: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Status(Message):
    cluster: str
    manager: str
    nodes: tuple[NodeView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    events: tuple[EventView, ...] = ()
    evaluations: tuple[EvaluationView, ...] = ()
    #: The pool: who multiplies for others.
    lenders: tuple[LenderView, ...] = ()


# Bytes by content -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob(Message):
    """A content-addressed blob: asked for, announced before its chunks, or received."""

    sha256: str
    size_bytes: int = 0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not is_sha256(self.sha256):
            raise PeerViolation(f"a blob is named by its sha256, not {self.sha256[:80]!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class AskModel(Message):
    """A job's model, as a safetensors blob: the one that is served, or the newest durable one where none is."""

    job: str
    #: A published version by its number; 0: the one that is served.
    version: int = 0
    #: The newest durable one, whatever is served.
    newest: bool = False


# Which version is served ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedView(Message):
    """A version that was published, and is kept."""

    version: int
    #: Counts what was published of a job.
    number: int
    epoch: int = 0
    #: How it was judged when it was published; None: it was not.
    accuracy: float | None = None
    loss: float | None = None
    examples: int = 0
    sha256: str = ""
    size_bytes: int = 0
    #: Seconds since 1970 by the manager's clock.
    at_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishModel(Message):
    """Serve the newest durable version of a job from now on."""

    job: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RollBackModel(Message):
    """Serve a version again that was published earlier; 0: the one before the one that is served."""

    job: str
    version: int = 0
    reason: str = ""
    #: Nothing is published by itself before an evaluation is surely this good; None: before an operator publishes.
    until_accuracy: float | None = None

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.until_accuracy is not None and not 0 < self.until_accuracy <= 1:
            raise PeerViolation(f"an accuracy is a share between 0 and 1, not {self.until_accuracy}")


@dataclass(frozen=True, kw_only=True, slots=True)
class AskVersions(Message):
    """The versions of a job that were published and are kept."""

    job: str


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionList(Message):
    job: str
    #: Oldest first.
    versions: tuple[PublishedView, ...] = ()
    served: ServedView | None = None


# Who may be a member --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenView(Message):
    """A join secret as people see it: never the secret itself."""

    #: The start of the secret's hash: enough to name it, of no use to anyone who wants to join.
    token: str
    role: str
    uses_left: int
    #: Seconds since 1970 by the manager's clock; 0: never.
    expires_s: float = 0.0
    made_s: float = 0.0
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeToken(Message):
    """Let this many devices, or operators, join within this time."""

    role: str = "node"
    uses: int = 1
    valid_s: float = 86400.0
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenMade(Message):
    """The only time that the line is told: the manager keeps a hash of its secret."""

    token: TokenView
    join_line: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class AskTokens(Message):
    """Every token, or those whose id starts so."""

    token: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenList(Message):
    tokens: tuple[TokenView, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RevokeToken(Message):
    """Nobody joins with this token from now on. Those who did stay."""

    token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RevokeNode(Message):
    """Shut a member out, now and for good."""

    node: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApproveNode(Message):
    """A newcomer may work from now on."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainNode(Message):
    """Let a node finish what it has, and give it nothing more."""

    node: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class UndrainNode(Message):
    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(Message):
    """The manager asks a leader to let a worker go, once it holds no lease."""

    job: str
    node: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Released(Message):
    """The leader has let a worker go."""

    job: str
    term: int
    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Renew(Message):
    """A member asks for a certificate that replaces its own. Its session says who it is; the request, for which key."""

    csr_pem: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewed(Message):
    certificate_pem: str
    #: By the manager's clock.
    issued_s: float
    expires_s: float


#: Which role a message is for: the whole routing table.
RECIPIENT: dict[type[Message], str] = {
    Hello: "manager",
    Leave: "manager",
    Heartbeat: "manager",
    Progress: "manager",
    Welcome: "node",
    HeartbeatSeen: "node",
    Assign: "node",
    Dismiss: "node",
    Admit: "leading",
    Bar: "leading",
    Conclude: "leading",
    HandOver: "leading",
    StepDown: "leading",
    CheckpointKept: "leading",
    CheckpointRefused: "leading",
    Leads: "manager",
    SteppedDown: "manager",
    OutOfReach: "manager",
    Noted: "manager",
    AskCheckpoint: "manager",
    Checkpoint: "manager",
    TransferJob: "manager",
    Form: "subleader",
    Count: "subleader",
    Pass: "subleader",
    Piece: "subleader",
    Formed: "leader",
    Made: "leader",
    Routed: "leader",
    Spoilt: "leader",
    Gathered: "leader",
    Route: "worker",
    Taken: "worker",
    Values: "worker",
    Disband: "worker",
    Ready: "leader",
    Offer: "leader",
    Update: "leader",
    Evaluated: "leader",
    Failed: "leader",
    Work: "worker",
    Wait: "worker",
    Go: "worker",
    Refused: "worker",
    Finished: "worker",
    Submit: "manager",
    StopJob: "manager",
    AskStatus: "manager",
    MakeToken: "manager",
    AskTokens: "manager",
    RevokeToken: "manager",
    RevokeNode: "manager",
    ApproveNode: "manager",
    DrainNode: "manager",
    UndrainNode: "manager",
    Release: "leader",
    Released: "manager",
    Renew: "manager",
    Standing: "mate",
    Call: "mate",
    Want: "mate",
    Part: "mate",
    Given: "mate",
    PublishModel: "manager",
    RollBackModel: "manager",
    AskVersions: "manager",
    # Who of the pool, the sender says: what comes from an analyst or an executor is for the scheduler, and from a
    # scheduler for one of them.
    Measure: "pool",
    Lend: "pool",
    AskPool: "pool",
    Pool: "pool",
    Task: "pool",
    Right: "pool",
    NeedRight: "pool",
    Result: "pool",
    Caught: "pool",
    Forget: "pool",
}


def is_of_pool(message: Message) -> bool:
    """Whether it is of borrowed compute: for an executor, a scheduler or an analyst."""
    return RECIPIENT.get(type(message)) == "pool"


def with_tensors(message: Any, tensors: Tensors) -> Any:
    """The same message, carrying these tensors. Its other fields were checked when it was built."""
    whole = copy.copy(message)
    object.__setattr__(whole, "tensors", tensors)
    return whole
