"""The root of all messages: what they have in common, and the rules that stand on each.

Every class has a twin of the same name and fields in ``proto/shoal/v1/shoal.proto``; ``encoding`` maps one
onto the other. A field named ``tensors`` never enters the envelope: it follows in chunks (see ``frames``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, dataclass_transform

from shoal.compress.codec import Codec
from shoal.errors import Misuse, PeerViolation
from shoal.wire.limits import NAME_MAX_CHARS, REASON_MAX_CHARS, TRACEBACK_MAX_CHARS

if TYPE_CHECKING:
    import numpy as np

    Tensors: TypeAlias = Mapping[str, np.ndarray]
else:
    # The types of fields are read when ``encoding`` is imported, and a device that has no job does not load numpy.
    Tensors = Mapping[str, Any]

#: Counts the changes of the wire. Nodes of one protocol and of the one before it work together: decision 35 says what
#: a change may be. ``proto/previous.binpb`` is the contract of the one before.
PROTOCOL = 2
PROTOCOL_LEAST = PROTOCOL - 1

NO_TENSORS: Tensors = {}

#: What a node may call at another. Control and Work are streams, the others are single questions.
Verb = Literal["Control", "Work", "Fetch", "Operate", "Store", "Renew"]

#: What the other end of a session is: by its certificate, or by what is known of its owner now (see ``Access``).
Caller = Literal["manager", "node", "browser", "worker", "pending", "operator", "peer"]

#: The role that a message is for. ``leading`` is a node that leads a job or is to; ``pool`` is borrowed compute, where
#: the sender decides: a message of a client or of an executor is for the broker, a message of a broker is for
#: one of them.
Recipient = Literal["manager", "node", "leader", "leading", "aggregator", "worker", "peer", "pool"]


class Lane(StrEnum):
    """Two streams on two connections: what is small and urgent never waits behind a model."""

    CONTROL = "Control"
    WORK = "Work"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Everything the rest of Shoal must know of a kind of message: the tables of routing and access are made of it."""

    #: None: it is an answer, or a part of another message.
    to: Recipient | None = None
    #: Verb -> the callers that may say it there.
    said_by: Mapping[Verb, tuple[Caller, ...]] = field(default_factory=dict)
    #: Verb -> what we called -> may say it to us there.
    answered_by: Mapping[Verb, tuple[Caller, ...]] = field(default_factory=dict)
    #: What it costs of a sender's rate. More than 1 for what is rare from an honest sender and makes us write a line in
    #: the journal, or send a model.
    cost: float = 1.0
    lane: Lane = Lane.WORK


_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ENDPOINT = re.compile(r"(?:[0-9A-Za-z.-]{1,120}|\[[0-9a-fA-F:.]{2,60}\]):[0-9]{1,5}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONG_TEXT = (
    "reason",
    "trouble",
    "failure",
    "url",
    "discarded",
    "kwargs_json",
    "layout_json",
    "detail",
    "topology_reason",
    "join_line",
    "csr_pem",
    "certificate_pem",
    "state_json",
    "signer_pem",
    "saturation_reason",
    "hold",
    "verdict",
    "trouble",
    "failure",
)


def is_id(text: str) -> bool:
    """Node and job ids: short, lower case, safe as a file name."""
    return _ID.fullmatch(text) is not None


#: Nearly every message names its job, and there are few of them. What is asked here is no longer than a name.
_is_known_id = lru_cache(maxsize=1024)(is_id)


def is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None


def is_endpoint(text: str) -> bool:
    """``host:port``, as a node is dialled."""
    return _ENDPOINT.fullmatch(text) is not None


class Message:
    """The root of everything that crosses the wire; checks what every message has in common."""

    __slots__ = ()

    rule: ClassVar[Rule] = Rule()

    def __post_init__(self) -> None:
        names, values, ids = _CHECKS.get(type(self)) or _checks_of(type(self))
        for value in values(self):
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
            for name in names:
                _check_value(type(self), name, getattr(self, name))
            break
        for name in ids:
            value = getattr(self, name)
            if value and not _is_known_id(value):
                raise PeerViolation(f"{type(self).__name__}.{name} is not an id: {value[:80]!r}")


#: The names of a class's fields, what gives their values, and the names of those that are ids.
_Checks: TypeAlias = tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[str, ...]]

#: Filled as classes are first used: asking a class for its fields costs more than checking them.
_CHECKS: dict[type[Message], _Checks] = {}

#: Integers beyond this do not cross the wire.
_INT_END = 1 << 62

#: Types of values that have no rule in common.
_UNCHECKED = frozenset((bool, tuple, dict, type(None)))


def _checks_of(kind: type[Message]) -> _Checks:
    names = tuple(f.name for f in fields(kind))  # type: ignore[arg-type]
    ids = tuple(name for name in ("job", "node") if name in names)
    checks = _CHECKS[kind] = names, _values_of(names), ids
    return checks


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Gives the values of these fields. ``attrgetter`` gives a tuple of two names and more."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


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
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text
    text = _CONTROL.sub(" ", text).encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def check_codecs(*names: str) -> None:
    try:
        for name in names:
            Codec.parse(name)
    except Misuse as error:
        raise PeerViolation(str(error)) from None


_M = TypeVar("_M", bound=Message)

#: Every kind of message by its name, filled as they are defined.
MESSAGES: dict[str, type[Message]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def message(
    *,
    to: Recipient | None = None,
    said_by: Mapping[Verb, tuple[Caller, ...]] = {},
    answered_by: Mapping[Verb, tuple[Caller, ...]] = {},
    cost: float = 1.0,
) -> Callable[[type[_M]], type[_M]]:
    """Make a class a frozen value that is valid once built, under these rules."""

    def define(kind: type[_M]) -> type[_M]:
        made = dataclass(frozen=True, kw_only=True, slots=True)(kind)
        lane = Lane.CONTROL if "Control" in (*said_by, *answered_by) else Lane.WORK
        made.rule = Rule(to=to, said_by=said_by, answered_by=answered_by, cost=cost, lane=lane)
        MESSAGES[made.__name__] = made
        return made

    return define


def with_tensors(message: Any, tensors: Tensors) -> Any:
    """The same message, carrying these tensors. Its other fields were checked when it was built."""
    kind = type(message)
    names, values, _ = _CHECKS.get(kind) or _checks_of(kind)
    whole = object.__new__(kind)
    for name, value in zip(names, values(message), strict=True):
        object.__setattr__(whole, name, value)
    object.__setattr__(whole, "tensors", tensors)
    return whole


def completed(message: Any, tensors: Tensors) -> Any:
    """This message with the tensors that came along. Only where it was just read, and nobody else has it."""
    object.__setattr__(message, "tensors", tensors)
    return message
