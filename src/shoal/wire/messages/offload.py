"""Offloading: a client sends matrix products to a broker, and the broker to its executors."""

from __future__ import annotations

import math
from dataclasses import field

from shoal.errors import PeerViolation
from shoal.wire.limits import AVOIDED_MAX, SECONDS_MAX, SIDE_MAX
from shoal.wire.messages.base import Message, Tensors, is_id, is_sha256, message

#: How an executor uses the left side of a task (see ``offload.kinds``).
TASK_KINDS = ("tile", "outer", "mask", "share")


@message(to="pool", answered_by={"Work": ("manager",)})
class Measure(Message):
    """A broker asks an executor to multiply matrices of this size, which the executor makes up itself."""

    number: int
    rows: int
    inner: int
    columns: int

    def _check(self) -> None:
        _check_sides(self.rows, self.inner, self.columns)


@message(to="pool", said_by={"Work": ("node",)})
class Lend(Message):
    """An executor's answer to a ``Measure``, and how much memory it offers."""

    number: int
    #: Seconds that the product took by the executor's clock. The broker relies on its own clock.
    seconds: float
    #: Bytes that the tensors of a task, or of its result, may have; and all right sides that it keeps.
    task_max_bytes: int
    rights_max_bytes: int

    def _check(self) -> None:
        _check_seconds(self, "seconds")
        _check_not_negative(self, "task_max_bytes", "rights_max_bytes")


@message(to="pool", said_by={"Work": ("operator",)})
class AskPool(Message):
    """A client asks for the pool's capacity. The broker answers with a ``Pool``, and again whenever it changes."""

    #: What the client computes, as text for people.
    purpose: str = ""


@message(to="pool", answered_by={"Work": ("manager",)})
class Pool(Message):
    """The capacity of a broker's executors together, as the broker measured it."""

    #: How many executors could get a task of this client now.
    executors: int
    multiply_adds_per_s: float = 0.0
    latency_s: float = 0.0
    #: How many tasks the client may have open at a time.
    window: int = 0
    task_max_bytes: int = 0
    right_max_bytes: int = 0

    def _check(self) -> None:
        if not 0 <= self.multiply_adds_per_s < math.inf:
            raise PeerViolation(
                f"Pool.multiply_adds_per_s is {self.multiply_adds_per_s}; it must be finite and at least 0"
            )
        _check_seconds(self, "latency_s")
        _check_not_negative(self, "executors", "window", "task_max_bytes", "right_max_bytes")


@message(to="pool", said_by={"Work": ("operator",)}, answered_by={"Work": ("manager",)})
class TileTask(Message):
    """A left side to multiply by a right side. A client sends it to a broker, and the broker to an executor."""

    #: Its number, chosen by the sender.
    task: int
    kind: str
    #: Tasks of one group go to different executors. 0 if the task has no group.
    group: int = 0
    #: The digest of the right side (``offload.kinds``). Empty if the right side is among the tensors.
    right: str
    rows: int
    inner: int
    columns: int
    #: Seconds from receipt after which nobody waits for the result. A duration, because clocks differ.
    deadline_s: float
    #: Executors that must not get the task.
    avoid: tuple[str, ...] = ()
    #: ``left``, or the ``seed`` of a mask; and ``right`` if it has no digest.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def _check(self) -> None:
        if self.kind not in TASK_KINDS:
            raise PeerViolation(f"TileTask.kind is {self.kind[:80]!r}; it must be one of {', '.join(TASK_KINDS)}")
        if self.right and not is_sha256(self.right):
            raise PeerViolation(f"a right side is named by its sha256, not {self.right[:80]!r}")
        _check_sides(self.rows, self.inner, self.columns)
        if not 0 < self.deadline_s <= SECONDS_MAX:
            raise PeerViolation(
                f"TileTask.deadline_s is {self.deadline_s}; it must be above 0 and at most {SECONDS_MAX:g}"
            )
        if len(self.avoid) > AVOIDED_MAX or not all(is_id(node) for node in self.avoid):
            raise PeerViolation(f"TileTask.avoid must list at most {AVOIDED_MAX} executors, each by its id")


@message(to="pool", said_by={"Work": ("operator",)}, answered_by={"Work": ("manager",)})
class RightOperand(Message):
    """A right side, sent once for all tasks that name it: one tensor ``right``."""

    right: str
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def _check(self) -> None:
        if not is_sha256(self.right):
            raise PeerViolation(f"a right side is named by its sha256, not {self.right[:80]!r}")


@message(to="pool", said_by={"Work": ("node",)}, answered_by={"Work": ("manager",)})
class NeedOperand(Message):
    """A task names a right side that the sender does not have, or no longer has."""

    right: str

    def _check(self) -> None:
        if not is_sha256(self.right):
            raise PeerViolation(f"a right side is named by its sha256, not {self.right[:80]!r}")


@message(to="pool", said_by={"Work": ("node",)}, answered_by={"Work": ("manager",)})
class TileResult(Message):
    """A task's outcome: one tensor ``result``, or the reason why it has none."""

    task: int
    #: The executor that computed it. The broker fills it in, from the session.
    executor: str = ""
    seconds: float = 0.0
    reason: str = ""
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def _check(self) -> None:
        if self.executor and not is_id(self.executor):
            raise PeerViolation(f"an executor is named by its id, not {self.executor[:80]!r}")
        _check_seconds(self, "seconds")


@message(to="pool", said_by={"Work": ("operator",)})
class Caught(Message):
    """A client found a result of this executor to be wrong."""

    executor: str
    reason: str

    def _check(self) -> None:
        if not is_id(self.executor):
            raise PeerViolation(f"an executor is named by its id, not {self.executor[:80]!r}")


@message(to="pool", said_by={"Work": ("operator",)})
class Forget(Message):
    """The sender no longer waits for its tasks up to this number."""

    upto: int


@message()
class ExecutorView(Message):
    """One executor as its broker sees it, shown in ``shoal status``."""

    node: str
    #: ``measured``, ``ready``, ``excluded``, ``held`` or ``lost``.
    state: str
    reason: str = ""
    multiply_adds_per_s: float = 0.0
    latency_s: float = 0.0
    #: Its accepted results.
    tasks: int = 0
    multiply_adds: int = 0
    #: Tasks that another executor got as well because this one took too long; that it refused; that it got wrong.
    late: int = 0
    refused: int = 0
    caught: int = 0


def _check_sides(*sides: int) -> None:
    if not all(0 < side <= SIDE_MAX for side in sides):
        raise PeerViolation(f"the sides of the matrices are {sides}; each must be 1 to {SIDE_MAX:,}")


def _check_seconds(of: Message, name: str) -> None:
    if not 0 <= (seconds := getattr(of, name)) <= SECONDS_MAX:
        raise PeerViolation(f"{type(of).__name__}.{name} is {seconds}; it must be 0 to {SECONDS_MAX:g}")


def _check_not_negative(of: Message, *names: str) -> None:
    for name in names:
        if getattr(of, name) < 0:
            raise PeerViolation(f"{type(of).__name__}.{name} is {getattr(of, name)}; it must be at least 0")
