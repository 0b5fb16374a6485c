"""Messages to and from the protobuf contract, field by field. The only module that knows both."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Callable, Container, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

from google.protobuf.message import DecodeError

from shoal import plan, until
from shoal.errors import Misuse, PeerViolation, ShoalError
from shoal.learning.metrics import LOGGED_MAX, METRICS_MAX, MetricSum
from shoal.wire import contract, messages
from shoal.wire.limits import (
    ENVELOPE_MAX_BYTES,
    MESSAGE_TENSORS_MAX,
    NAME_MAX_CHARS,
    PAYLOAD_MAX_BYTES,
    SEAL_GROUP_MAX,
    WORKERS_TOLD_MAX,
)
from shoal.wire.messages import Message

#: The types that a tensor may have on the wire, and the bytes of a value. Little-endian, no objects, no strings. The
#: bytes are listed here because numpy is not loaded before the first tensors arrive.
ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
}
DTYPES = tuple(ITEM_BYTES)

#: numpy's type -> its name on the wire, filled as types are first sent: numpy takes longer to return a name than it
#: takes to send it.
_DTYPE_NAMES: dict[Any, str] = {}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as announced: enough to know its size before any of it is read."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    #: Builds our value from a protobuf value. None if both values are the same.
    read: Callable[[Any], Any] | None
    repeated: bool
    optional: bool
    #: The message class of its value or values, or None for plain values. It is read from the type hints only once:
    #: reading them takes longer than everything else in ``from_json``.
    nested: type[Any] | None

    @property
    def is_plain(self) -> bool:
        """Whether it is one value that is always present and the same in both classes."""
        return not (self.read or self.repeated or self.optional or self.nested)


class _Plan:
    """The fields of a class for conversion to and from protobuf: plain ones all at once, the others one by one."""

    __slots__ = ("fields", "others", "plain", "plain_values")

    def __init__(self, cls: type[Any]) -> None:
        self.fields = _describe(cls)
        plain = [field for field in self.fields if field.is_plain]
        # attrgetter returns a tuple only for two names or more.
        self.plain = tuple(field.name for field in plain) if len(plain) > 1 else ()
        self.plain_values: Callable[[Any], tuple[Any, ...]] = attrgetter(*self.plain) if self.plain else _nothing
        self.others = tuple(field for field in self.fields if field.name not in self.plain)


def _nothing(_: Any) -> tuple[Any, ...]:
    return ()


_CLASSES: dict[str, type[Any]] = {
    **messages.MESSAGES,
    **{kind.__name__: kind for kind in (plan.Plan, until.Until, until.Goal, until.Plateau, MetricSum)},
}


#: Field -> the most parts that are read: an envelope full of tiny parts costs far more than its bytes.
_PARTS_MAX = {
    "workers": WORKERS_TOLD_MAX,
    "metrics": METRICS_MAX,
    "fresh_metrics": METRICS_MAX,
    "logged": LOGGED_MAX,
    "goals": until.CONDITIONS_MAX,
    "plateaus": until.CONDITIONS_MAX,
    "keys": SEAL_GROUP_MAX,
}


def _describe(cls: type[Any]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    return tuple(_describe_field(f.name, hints[f.name]) for f in fields(cls) if f.name != "tensors")


def _describe_field(name: str, hint: Any) -> _Field:
    optional = isinstance(hint, types.UnionType)
    if optional:
        hint = next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    repeated = typing.get_origin(hint) is tuple
    if repeated:
        hint = typing.get_args(hint)[0]
    nested = hint if hasattr(hint, "__dataclass_fields__") else None
    return _Field(name, _reader(hint), repeated, optional, nested)


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    if hasattr(hint, "__dataclass_fields__"):
        return lambda proto: _from_proto(hint, proto)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda text: _member(hint, text)
    # Bytes are hex in JSON.
    return (lambda held: bytes.fromhex(held) if isinstance(held, str) else held) if hint is bytes else None


class _Plans(dict[type[Any], _Plan]):
    """How classes are converted, each described at its first use: an idle device sends few kinds of messages."""

    def __missing__(self, cls: type[Any]) -> _Plan:
        plan = self[cls] = _Plan(cls)
        return plan


_PLANS = _Plans()


def _member(kind: type[StrEnum], text: str) -> StrEnum:
    try:
        return kind(text)
    except ValueError:
        raise PeerViolation(f"{text[:80]!r} is not a {kind.__name__}") from None


@functools.cache
def _twin_of(name: str) -> Any:
    """Return the protobuf class of one of ours. It is made on first use: an idle device sends few kinds of messages."""
    return contract.proto_class(name)


def _to_proto(value: Any) -> Any:
    """Return the protobuf twin of a value. Protobuf does not write plain fields that are empty or 0."""
    plan = _PLANS[type(value)]
    filled = dict(zip(plan.plain, plan.plain_values(value), strict=True))
    for field in plan.others:
        item = getattr(value, field.name)
        if field.repeated:
            if item:
                filled[field.name] = list(map(_to_proto, item)) if field.nested else item
        elif item is not None:
            filled[field.name] = _to_proto(item) if field.nested else item
    return _twin_of(type(value).__name__)(**filled)


def _from_proto(cls: type[Any], proto: Any) -> Any:
    plan = _PLANS[cls]
    values: dict[str, Any] = dict(zip(plan.plain, plan.plain_values(proto), strict=True))
    for field in plan.others:
        name = field.name
        if field.optional and not proto.HasField(name):
            values[name] = None
            continue
        item = getattr(proto, name)
        if field.repeated:
            if not item:
                values[name] = ()
                continue
            if field.nested and len(item) > _PARTS_MAX.get(name, len(item)):
                raise PeerViolation(f"{cls.__name__}.{name} has {len(item)} entries; the maximum is {_PARTS_MAX[name]}")
            values[name] = tuple(map(field.read, item)) if field.read else tuple(item)
        elif field.read:
            values[name] = field.read(item)
        else:
            values[name] = item
    return cls(**values)


def encode_envelope(message: Message, *, max_bytes: int = ENVELOPE_MAX_BYTES) -> bytes:
    """Encode a message, with its tensors only announced. Raises Misuse if it does not fit, which is our own fault."""
    body: bytes = _to_proto(message).SerializeToString()
    # The fields of an envelope follow each other. Writing them by hand saves copying the body into it first.
    parts = [_TAGS[type(message)], varint(len(body)), body]
    tensors = getattr(message, "tensors", messages.NO_TENSORS)
    if tensors:
        parts[:0] = [
            _announced(name, _DTYPE_NAMES.get(array.dtype) or _dtype_name(name, array.dtype), array.shape)
            for name, array in tensors.items()
        ]
    data = b"".join(parts)
    if len(data) > max_bytes:
        raise Misuse(f"{type(message).__name__} takes {len(data)} bytes; the maximum is {max_bytes}")
    return data


#: Few lengths occur, so they are cached.
@functools.lru_cache(4096)
def varint(value: int) -> bytes:
    """Return a number as protobuf writes it, seven bits per byte."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int) -> bytes:
    """Return the bytes that protobuf writes before the length and content of this field."""
    return varint(number << 3 | 2)


#: A job's tensors have the same names and shapes with every message.
@functools.lru_cache(1024)
def _announced(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return a tensor's announcement in an envelope."""
    info = contract.TensorInfo(name=name, dtype=dtype, shape=shape).SerializeToString()
    return _TENSORS_TAG + varint(len(info)) + bytes(info)


_TENSORS_TAG = _tag(contract.Envelope.DESCRIPTOR.fields_by_name["tensors"].number)

#: Message -> the tag of its field in an envelope.
_TAGS: dict[type[Any], bytes] = {
    messages.MESSAGES[name]: _tag(contract.Envelope.DESCRIPTOR.fields_by_name[field].number)
    for field, name in contract.ENVELOPE_FIELDS.items()
}


def _dtype_name(tensor: str, dtype: Any) -> str:
    if dtype.name not in DTYPES or not dtype.isnative:
        raise Misuse(f"tensor {tensor!r} has type {dtype.str!r}, which does not cross the wire")
    name = _DTYPE_NAMES[dtype] = str(dtype.name)
    return name


def decode_envelope(
    data: bytes | memoryview, *, max_bytes: int = ENVELOPE_MAX_BYTES, hears: Container[str] | None = None
) -> tuple[Message, tuple[TensorInfo, ...]]:
    """Read and check a message and the announcements of its tensors. PeerViolation states what was wrong.

    A message that is not in ``hears`` is refused before it is built: an envelope full of tiny parts costs far more than
    its bytes.
    """
    if len(data) > max_bytes:
        raise PeerViolation(f"an envelope has {len(data)} bytes; the maximum is {max_bytes}")
    try:
        envelope = contract.Envelope.FromString(bytes(data))
    except DecodeError as error:
        raise PeerViolation(f"an envelope cannot be decoded: {error}") from None
    which = envelope.WhichOneof("message")
    if which is None:
        raise PeerViolation("an envelope has no message that this release knows; the peer may be newer")
    cls = _CLASSES[contract.ENVELOPE_FIELDS[which]]
    if hears is not None and cls.__name__ not in hears:
        raise PeerViolation(f"{cls.__name__} may not be sent here")
    infos = _tensor_infos(envelope.tensors)
    if infos and "tensors" not in cls.__dataclass_fields__:
        raise PeerViolation(f"{cls.__name__} carries no tensors, but {len(infos)} were announced")
    try:
        message = _from_proto(cls, getattr(envelope, which))
    except PeerViolation:
        raise
    except ShoalError as error:
        raise PeerViolation(f"{cls.__name__}: {error}") from None
    return message, infos


def _tensor_infos(announced: Sequence[Any]) -> tuple[TensorInfo, ...]:
    if not announced:
        return ()
    if len(announced) > MESSAGE_TENSORS_MAX:
        raise PeerViolation(f"{len(announced)} tensors were announced; the maximum is {MESSAGE_TENSORS_MAX}")
    infos = []
    total = 0
    for item in announced:
        name, dtype, sides = item.name, item.dtype, item.shape
        if not 0 < len(name) <= NAME_MAX_CHARS:
            raise PeerViolation(f"a tensor's name has {len(name)} characters; it must have 1 to {NAME_MAX_CHARS}")
        if dtype not in ITEM_BYTES:
            raise PeerViolation(f"tensor {name!r} has type {dtype[:40]!r}; it must be one of {', '.join(DTYPES)}")
        if len(sides) > 8:
            raise PeerViolation(f"tensor {name!r} has an impossible shape")
        shape = tuple(sides)
        if shape and not 0 <= min(shape) <= max(shape) <= PAYLOAD_MAX_BYTES:
            raise PeerViolation(f"tensor {name!r} has an impossible shape")
        # A side of 0 makes the tensor empty, but numpy still limits the product of the other sides.
        if 0 in shape and math.prod(max(side, 1) for side in shape) > PAYLOAD_MAX_BYTES:
            raise PeerViolation(f"tensor {name!r} has an impossible shape")
        info = TensorInfo(name, dtype, shape, ITEM_BYTES[dtype] * math.prod(shape))
        total += info.size_bytes
        if total > PAYLOAD_MAX_BYTES:
            raise PeerViolation(f"more than {PAYLOAD_MAX_BYTES} bytes of tensors were announced")
        infos.append(info)
    if len(infos) > 1 and len({info.name for info in infos}) != len(infos):
        raise PeerViolation("two tensors have the same name")
    return tuple(infos)


def to_json(value: Any) -> Any:
    """Return a message as plain JSON values, for people and scripts."""
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value) if f.name != "tensors"}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def changed_json(value: Any) -> Any:
    """Return ``to_json`` without the fields that have their default, so that a release with more fields writes the
    same."""
    if hasattr(value, "__dataclass_fields__"):
        held = ((f, getattr(value, f.name)) for f in fields(value) if f.name != "tensors")
        return {f.name: changed_json(item) for f, item in held if not _is_default(f, item)}
    if isinstance(value, tuple | list):
        return [changed_json(item) for item in value]
    return value


def _is_default(f: Field[Any], item: Any) -> bool:
    default = f.default if f.default_factory is MISSING else f.default_factory()
    # Compared as text, because 1 and 1.0 must differ here, as must 0.0 and -0.0.
    return default is not MISSING and repr(to_json(item)) == repr(to_json(default))


def from_json(cls: type[Any], value: Any) -> Any:
    """Invert ``to_json``, for values from our own store. Missing fields get their defaults."""
    kept: dict[str, Any] = {}
    for field in _PLANS[cls].fields:
        if field.name not in value:
            if _is_required(cls, field.name):
                raise Misuse(f"{cls.__name__} was stored without {field.name!r}")
            continue
        item = value[field.name]
        nested = field.nested
        if item is None or nested is None:
            kept[field.name] = (
                tuple(item) if field.repeated else field.read(item) if field.read and item is not None else item
            )
        elif field.repeated:
            kept[field.name] = tuple(from_json(nested, element) for element in item)
        else:
            kept[field.name] = from_json(nested, item)
    return cls(**kept)


def _is_required(cls: type[Any], name: str) -> bool:
    f = cls.__dataclass_fields__[name]
    return f.default is MISSING and f.default_factory is MISSING
