"""Borrowed compute: a client, a broker and its executors."""

from __future__ import annotations

import math
from dataclasses import field

from shoal.errors import PeerViolation
from shoal.wire.limits import AVOIDED_MAX, SECONDS_MAX, SIDE_MAX
from shoal.wire.messages.base import Message, Tensors, is_id, is_sha256, message

#: What is done with the left side of a task (see ``offload.kinds``).
TASK_KINDS = ("tile", "outer", "mask", "share")


@message(to="pool", answered_by={"Work": ("manager",)})
class Measure(Message):
    """A broker asks a lending device to multiply matrices of this size, which it makes up itself."""

    number: int
    rows: int
    inner: int
    columns: int

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _check_sides(self.rows, self.inner, self.columns)


@message(to="pool", said_by={"Work": ("node",)})
class Lend(Message):
    """What came of a measure, and what this executor can take."""

    number: int
    #: What multiplying took, by its own clock; the broker believes its own.
    seconds: float
    #: The most that the tensors of a task, or of its result, may have; and all right sides that it keeps.
    task_max_bytes: int
    rights_max_bytes: int

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.seconds <= SECONDS_MAX or self.task_max_bytes < 0 or self.rights_max_bytes < 0:
            raise PeerViolation("an executor that cannot be")


@message(to="pool", said_by={"Work": ("operator",)})
class AskPool(Message):
    """A client asks what the pool can; it is told again when that changes."""

    #: For people: what it is for.
    purpose: str = ""


@message(to="pool", answered_by={"Work": ("manager",)})
class Pool(Message):
    """What the executors of one broker can together, as it measured them."""

    #: Those that would be given a task of this client now.
    executors: int
    multiply_adds_per_s: float = 0.0
    latency_s: float = 0.0
    #: Tasks that the client may have there at a time.
    window: int = 0
    task_max_bytes: int = 0
    right_max_bytes: int = 0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not (0 <= self.multiply_adds_per_s < math.inf and 0 <= self.latency_s <= SECONDS_MAX):
            raise PeerViolation("a pool that cannot be")
        if min(self.executors, self.window, self.task_max_bytes, self.right_max_bytes) < 0:
            raise PeerViolation("a pool that cannot be")


@message(to="pool", said_by={"Work": ("operator",)}, answered_by={"Work": ("manager",)})
class TileTask(Message):
    """A left side to be multiplied by a right one: from a client to a broker, and from there to an executor."""

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


@message(to="pool", said_by={"Work": ("operator",)}, answered_by={"Work": ("manager",)})
class RightOperand(Message):
    """A right side, once for all tasks that name it: one tensor ``right``."""

    right: str
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not is_sha256(self.right):
            raise PeerViolation(f"a right side is named by its sha256, not {self.right[:80]!r}")


@message(to="pool", said_by={"Work": ("node",)}, answered_by={"Work": ("manager",)})
class NeedOperand(Message):
    """A task named a right side that is not here, or not any more."""

    right: str

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not is_sha256(self.right):
            raise PeerViolation(f"a right side is named by its sha256, not {self.right[:80]!r}")


@message(to="pool", said_by={"Work": ("node",)}, answered_by={"Work": ("manager",)})
class TileResult(Message):
    """What came of a task: one tensor ``result``, or the reason why there is none."""

    task: int
    #: Who computed it. The broker says so: an executor is known by its session.
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


@message(to="pool", said_by={"Work": ("operator",)})
class Caught(Message):
    """A client found a result of this executor to be wrong."""

    executor: str
    reason: str

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not is_id(self.executor):
            raise PeerViolation(f"an executor is named by its id, not {self.executor[:80]!r}")


@message(to="pool", said_by={"Work": ("operator",)})
class Forget(Message):
    """Nobody waits for the sender's tasks up to this number any more."""

    upto: int


@message()
class ExecutorView(Message):
    """One executor as its broker sees it: what people read in ``shoal status``."""

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
