"""The base class of all messages, the checks that all share, and the rules of each.

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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, cast, dataclass_transform

from shoal.compress.codec import Codec
from shoal.errors import Misuse, PeerViolation
from shoal.wire.limits import NAME_MAX_CHARS, REASON_MAX_CHARS, TRACEBACK_MAX_CHARS
from shoal.wire.messages.slim import slim

if TYPE_CHECKING:
    import numpy as np

    Tensors: TypeAlias = Mapping[str, np.ndarray]
else:
    # ``encoding`` reads the types of fields when it is imported, and a device without a job does not load numpy.
    Tensors = Mapping[str, Any]

#: Counts changes of the protocol. Nodes of one protocol and of the one before work together: decision 35 says which
#: changes are allowed. ``proto/previous.binpb`` is the contract of the one before.
PROTOCOL = 2
PROTOCOL_LEAST = PROTOCOL - 1

NO_TENSORS: Tensors = {}

#: The calls of the service. Control and Work are streams, the others are single requests.
Verb = Literal["Control", "Work", "Fetch", "Operate", "Store", "Renew"]

#: What the other end of a session is, by its certificate or by its current standing in the cluster (see ``Access``).
Caller = Literal["manager", "node", "browser", "worker", "pending", "operator", "peer"]

#: The role that a message is for. ``leading`` is a node that leads a job or will lead it. ``pool`` is offloading, where
#: the sender decides: a client's or an executor's message is for the broker, and a broker's message is for one of them.
Recipient = Literal["manager", "node", "leader", "leading", "aggregator", "worker", "peer", "pool"]


class Lane(StrEnum):
    """Two streams on two connections, so that a small and urgent message never waits behind a model."""

    CONTROL = "Control"
    WORK = "Work"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """The properties of a kind of message from which the routing and access tables are derived."""

    #: The role that handles it. None if it is an answer, or a part of another message.
    to: Recipient | None = None
    #: Verb -> the callers that may send it there.
    said_by: Mapping[Verb, tuple[Caller, ...]] = field(default_factory=dict)
    #: Verb -> the callees that may send it to us there.
    answered_by: Mapping[Verb, tuple[Caller, ...]] = field(default_factory=dict)
    #: What it costs of a sender's rate. More than 1 for a message that an honest sender rarely sends and that makes us
    #: write a line in the journal, or send a model.
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
    "text",
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
    """Whether a text may be the id of a node or job: short, lower case, safe as a file name."""
    return _ID.fullmatch(text) is not None


#: Nearly every message names its job, and jobs are few. The length of a text was checked before.
_is_known_id = lru_cache(maxsize=1024)(is_id)


def is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None


def is_endpoint(text: str) -> bool:
    """Whether a text is ``host:port``, as a node is dialled."""
    return _ENDPOINT.fullmatch(text) is not None


class Message:
    """The base class of all messages. It checks the limits that all fields share."""

    __slots__ = ()

    rule: ClassVar[Rule] = Rule()

    def __repr__(self) -> str:
        # One for all, as in `slim`.
        told = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(cast(Any, self)) if each.repr)
        return f"{type(self).__qualname__}({', '.join(told)})"

    def __post_init__(self) -> None:
        names, values, ids = _CHECKS.get(type(self)) or _checks_of(type(self))
        for value in values(self):
            kind = type(value)
            # A fast check for the plain and valid values that nearly all are. Only the others get the full check.
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
        self._check()

    def _check(self) -> None:
        """Check the limits of this kind of message. Those that all kinds share were checked before."""


#: The names of a class's fields, a function that returns their values, and the names of the fields that are ids.
_Checks: TypeAlias = tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[str, ...]]

#: Filled when a class is first used: listing its fields takes longer than checking them.
_CHECKS: dict[type[Message], _Checks] = {}

#: Integers beyond this do not cross the wire.
_INT_END = 1 << 62

#: Types whose values have no common limits.
_UNCHECKED = frozenset((bool, tuple, dict, type(None)))


def _checks_of(kind: type[Message]) -> _Checks:
    names = tuple(f.name for f in fields(kind))  # type: ignore[arg-type]
    ids = tuple(name for name in ("job", "node") if name in names)
    checks = _CHECKS[kind] = names, _values_of(names), ids
    return checks


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns these fields. ``attrgetter`` returns a tuple only for two names or more."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _check_value(kind: type[Message], name: str, value: object) -> None:
    """Check a value against the common limits. A subclass of a plain type has the limits of that type."""
    if isinstance(value, str):
        limit = REASON_MAX_CHARS if name in _LONG_TEXT else NAME_MAX_CHARS
        limit = TRACEBACK_MAX_CHARS if name == "traceback" else limit
        if len(value) > limit:
            raise PeerViolation(f"{kind.__name__}.{name} has {len(value)} characters; the maximum is {limit}")
        if "\0" in value:
            raise PeerViolation(f"{kind.__name__}.{name} has a NUL character")
    elif isinstance(value, float) and value != value:
        raise PeerViolation(f"{kind.__name__}.{name} is not a number")
    elif isinstance(value, int) and not isinstance(value, bool) and not -_INT_END < value < _INT_END:
        raise PeerViolation(f"{kind.__name__}.{name} is out of range: it must be below 2^62 in size")


def clip(text: str, limit: int = REASON_MAX_CHARS) -> str:
    """Shorten free text of unknown length (an exception, a peer's text) so that it fits a message."""
    # A lone surrogate (a file name that is not UTF-8, quoted in an error) cannot be encoded, and a terminal would carry
    # out an escape sequence.
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

#: Every kind of message by its name. ``message`` fills it.
MESSAGES: dict[str, type[Message]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def message(
    *,
    to: Recipient | None = None,
    said_by: Mapping[Verb, tuple[Caller, ...]] = {},
    answered_by: Mapping[Verb, tuple[Caller, ...]] = {},
    cost: float = 1.0,
) -> Callable[[type[_M]], type[_M]]:
    """Make a class a message: a frozen dataclass with these rules."""

    def define(kind: type[_M]) -> type[_M]:
        made = slim(dataclass(frozen=True, kw_only=True, slots=True, repr=False)(kind))
        lane = Lane.CONTROL if "Control" in (*said_by, *answered_by) else Lane.WORK
        made.rule = Rule(to=to, said_by=said_by, answered_by=answered_by, cost=cost, lane=lane)
        MESSAGES[made.__name__] = made
        return made

    return define


def with_tensors(message: Any, tensors: Tensors) -> Any:
    """Return a copy of the message with these tensors. Its other fields were checked when it was built."""
    kind = type(message)
    names, values, _ = _CHECKS.get(kind) or _checks_of(kind)
    whole = object.__new__(kind)
    for name, value in zip(names, values(message), strict=True):
        object.__setattr__(whole, name, value)
    object.__setattr__(whole, "tensors", tensors)
    return whole


def completed(message: Any, tensors: Tensors) -> Any:
    """Add tensors to a message in place, and return it. Only for a message that was just read and nobody else has."""
    object.__setattr__(message, "tensors", tensors)
    return message
