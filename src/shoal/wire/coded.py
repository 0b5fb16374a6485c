"""Updates as tensors of a message, by codec, and back: the only module that turns a codec's values into bytes.

``compress`` chooses and rounds the values; this module packs them. Whatever it reads came from a peer: lengths are
checked against the model and the codec before anything is unpacked or allocated, and every value is checked before it
is returned. An update of any codec is one tensor of the message.

    dense   float32        fp16   float16        bf16   uint16, the bits
    int16   uint8: a float32 scale per tensor, then the words; sealing an update makes other words of it
    led     not encoded here: sealing an update makes its integers
    top     uint8, see below

``top`` is the number of places, which are the indices of the values sent (4 bytes), and their Rice parameter (1 byte).
Then, if values have few bits, a float32 scale per tensor. Then the places (``wire.rice``), then the values: float32, or
packed levels (``wire.bits``). Numbers are little-endian, and every length follows from these and from the model.

A level of b bits is a sign and the magnitude minus one. Zero has no level, because zeros are not sent.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.quantise import (
    from_bfloat16,
    from_int16,
    int16_scales,
    levels_of,
    quantise,
    restored,
    scales_of,
    to_bfloat16,
    to_float16,
    to_int16,
)
from shoal.compress.sparse import Sparse, count_of, largest, take_from
from shoal.errors import BadValues, Misuse, PeerViolation
from shoal.learning.layout import Layout
from shoal.wire import checks, rice
from shoal.wire.bits import pack, packed_bytes, unpack
from shoal.wire.limits import MESSAGE_TENSORS_MAX, UPDATE_NORM_MAX, VALUE_BYTES
from shoal.wire.messages import Tensors

#: The bytes that are read before any length is known.
_COUNT_BYTES = 4
_HEAD_BYTES = _COUNT_BYTES + 1

#: Sends every value that is not zero, without rounding.
_EXACT = Codec.parse("top100%")
_NO_SCALES = np.empty(0, dtype=np.float32)

_DTYPES = {
    "dense": np.float32,
    "fp16": np.float16,
    "bf16": np.uint16,
    "int16": np.uint16,
    "led": np.uint16,
    "top": np.uint8,
}


def sizes_of(layout: Layout) -> tuple[int, ...]:
    """Return how many values each tensor of a model has, in the order of its vector. A codec needs nothing else."""
    return tuple(entry.size for entry in layout.entries)


def cut(sizes: Sequence[int], start: int, stop: int) -> tuple[int, tuple[int, ...]]:
    """Return the index of the first tensor that overlaps ``start`` to ``stop``, and how many values each overlaps."""
    ends = np.cumsum(sizes)
    first = int(np.searchsorted(ends, start, side="right"))
    parts: list[int] = []
    for size, end in zip(sizes[first:], ends[first:], strict=True):
        if end - size >= stop:
            break
        parts.append(int(min(end, stop) - max(end - size, start)))
    return first, tuple(parts)


def entries_max(codec: Codec, sizes: Sequence[int]) -> int:
    """Return the most values that one update may name."""
    if codec.form == "led":
        return count_of(sum(sizes), share_ppm=codec.share_ppm)
    return sum(count_of(size, share_ppm=codec.share_ppm) for size in sizes) if codec.form == "top" else sum(sizes)


def bytes_max(codec: Codec, sizes: Sequence[int], *, entries: int | None = None) -> int:
    """Return the most bytes that any update takes, or with ``entries`` any update with at most that many values."""
    if codec.form != "top":
        scales = _scales_bytes(codec, sizes) if codec.form == "int16" else 0
        return scales + entries_max(codec, sizes) * np.dtype(_DTYPES[codec.form]).itemsize
    count = entries_max(codec, sizes) if entries is None else min(entries, sum(sizes))
    around = _HEAD_BYTES + _scales_bytes(codec, sizes) + packed_bytes(count, codec.bits)
    return around + rice.coded_bytes_max(count, sum(sizes))


def bytes_expected(codec: Codec, sizes: Sequence[int]) -> int:
    """Return about how many bytes an update takes. The places of a fraction c take their entropy, about
    log2(1/c) + 1.5 bits each."""
    if codec.form != "top":
        return bytes_max(codec, sizes)
    count = entries_max(codec, sizes)
    place_bits = math.log2(max(1.0, sum(sizes) / max(1, count))) + 1.5
    return _HEAD_BYTES + _scales_bytes(codec, sizes) + math.ceil(count * (codec.bits + place_bits) / 8)


def norm_of(update: np.ndarray | Sparse) -> float:
    """Return the Euclidean norm of a decoded update."""
    return checks.norm_of(update.values if isinstance(update, Sparse) else update)


def bytes_of(tensors: Tensors) -> int:
    """Return the bytes that tensors take on the wire, without the envelope that announces them."""
    return sum(array.nbytes for array in tensors.values())


# Writing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Coded:
    """A rounded update, from which the complete update or the piece for one aggregator can be written.

    It is rounded only once, with one scale per tensor of the model. So pieces have the same values wherever it is cut,
    and it can be sent again in other pieces.
    """

    codec: Codec
    sizes: tuple[int, ...]
    values: np.ndarray | Sparse
    scales: np.ndarray

    def tensors(self, *, name: str = "delta") -> dict[str, np.ndarray]:
        """Return the complete update as a tensor."""
        return {name: _array(self.codec, self.values, self.sizes, self.scales)}

    def part(self, start: int, stop: int, *, name: str = "delta") -> dict[str, np.ndarray]:
        """Return the values from ``start`` to ``stop`` as a tensor. Read it with the sizes that ``cut`` returns."""
        first, sizes = cut(self.sizes, start, stop)
        values = self.values.part(start, stop) if isinstance(self.values, Sparse) else self.values[start:stop]
        return {name: _array(self.codec, values, sizes, self.scales[first : first + len(sizes)])}


def code(codec: Codec, update: np.ndarray, sizes: Sequence[int], *, chance: np.random.Generator | None = None) -> Coded:
    """Choose the values of an update to send, and round them."""
    if codec.form == "int16":
        scales = int16_scales(_ours(update, sizes), sizes)
        return Coded(codec, tuple(sizes), from_int16(to_int16(update, sizes, scales), sizes, scales), scales)
    if codec.form != "top":
        flat = decode(codec, encode(codec, update, sizes), sizes)
        return Coded(codec, tuple(sizes), flat, _NO_SCALES)
    chosen = largest(update, sizes, share_ppm=codec.share_ppm)
    _check_ours(chosen.values)
    if codec.bits == 32:
        return Coded(codec, tuple(sizes), _without(chosen, chosen.values == 0, chosen.values), _NO_SCALES)
    counts = _counts(chosen.places, sizes)
    scales = scales_of(chosen.values, counts, bits=codec.bits)
    spread = np.repeat(scales, counts)
    levels = quantise(chosen.values, spread, bits=codec.bits, chance=chance)
    return Coded(codec, tuple(sizes), _without(chosen, levels == 0, restored(levels, spread)), scales)


def code_with(codec: Codec, residual: np.ndarray, change: np.ndarray, sizes: Sequence[int]) -> tuple[Coded, np.ndarray]:
    """Code a change plus the residual of earlier changes. Return that, and the new residual in a new vector."""
    total = residual + change
    coded = code(codec, total, sizes)
    take_from(total, coded.values)
    return coded, total


def _without(chosen: Sparse, dropped: np.ndarray, values: np.ndarray) -> Sparse:
    if not dropped.any():
        return Sparse(chosen.size, chosen.places, values)
    return Sparse(chosen.size, chosen.places[~dropped], values[~dropped])


def _array(codec: Codec, values: np.ndarray | Sparse, sizes: Sequence[int], scales: np.ndarray) -> np.ndarray:
    if isinstance(values, Sparse):
        return _written(codec, values, sizes, None, scales=scales)
    return _words(values, sizes, scales) if codec.form == "int16" else encode(codec, values, sizes)["delta"]


def encode_exact(update: np.ndarray, *, name: str) -> dict[str, np.ndarray]:
    """Encode a vector without loss: only the values that are not zero, or all of them, whichever is shorter.

    The sum of several sparse updates may be either, and must not be rounded again.
    """
    places = np.flatnonzero(update)
    if places.size * VALUE_BYTES >= update.nbytes:
        return {name: update}
    sparse = encode(_EXACT, Sparse(update.size, places, update[places]), (update.size,), name=name)
    return sparse if sparse[name].nbytes < update.nbytes else {name: update}


def encode(
    codec: Codec,
    update: np.ndarray | Sparse,
    sizes: Sequence[int],
    *,
    name: str = "delta",
    chance: np.random.Generator | None = None,
) -> dict[str, np.ndarray]:
    """Encode an update as one tensor called ``name``. With ``chance``, levels are random with the value as their mean.

    All values of an update that is already sparse are encoded, except zeros.
    """
    if codec.form == "top":
        chosen = update if isinstance(update, Sparse) else largest(update, sizes, share_ppm=codec.share_ppm)
        return {name: _written(codec, chosen, sizes, chance)}
    if codec.is_sealed_only:
        raise Misuse(f"{codec} is only for sealed updates: seal the update")
    flat = _ours(update.dense() if isinstance(update, Sparse) else update, sizes)
    if codec.form == "int16":
        return {name: _words(flat, sizes, int16_scales(flat, sizes))}
    if codec.form == "fp16":
        return {name: to_float16(flat)}
    if codec.form == "bf16":
        return {name: to_bfloat16(flat)}
    return {name: flat}


def encode_places(places: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """Encode the places that all updates of a sum have, as one tensor: the Rice parameter and the gaps."""
    parameter, gaps = rice.encode(places, size)
    return {"places": np.concatenate((np.array([parameter], dtype=np.uint8), gaps))}


def encode_places_bytes(codec: Codec, size: int) -> int:
    """Return the most bytes that the places of a sum take."""
    return 1 + rice.coded_bytes_max(entries_max(codec, (size,)), size)


def _written(
    codec: Codec,
    sparse: Sparse,
    sizes: Sequence[int],
    chance: np.random.Generator | None,
    *,
    scales: np.ndarray | None = None,
) -> np.ndarray:
    if sparse.size != sum(sizes):
        raise Misuse(f"the update has {sparse.size} values; the model has {sum(sizes)}")
    _check_ours(sparse.values)
    if codec.bits == 32:
        sent = sparse.values != 0
        places, body = sparse.places[sent], _bytes_of(sparse.values[sent], "<f4")
        scales = _NO_SCALES
    else:
        counts = _counts(sparse.places, sizes)
        scales = scales_of(sparse.values, counts, bits=codec.bits) if scales is None else scales
        levels = quantise(sparse.values, np.repeat(scales, counts), bits=codec.bits, chance=chance)
        sent = levels != 0
        places, body = sparse.places[sent], pack(_codes(levels[sent], codec.bits), codec.bits)
    parameter, gaps = rice.encode(places, sparse.size)
    head = np.frombuffer(places.size.to_bytes(_COUNT_BYTES, "little") + bytes([parameter]), dtype=np.uint8)
    return np.concatenate((head, _bytes_of(scales, "<f4"), gaps, body))


def _words(flat: np.ndarray, sizes: Sequence[int], scales: np.ndarray) -> np.ndarray:
    return np.concatenate((_bytes_of(scales, "<f4"), _bytes_of(to_int16(flat, sizes, scales), "<i2")))


def _codes(levels: np.ndarray, bits: int) -> np.ndarray:
    """Return each level's code: its sign and its magnitude minus one."""
    return np.where(levels < 0, levels_of(bits) - 1 - levels, levels - 1)


def _counts(places: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return how many of the places are in each tensor."""
    return np.diff(np.searchsorted(places, np.cumsum(sizes)), prepend=0)


def _bytes_of(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype, copy=False).view(np.uint8)


def _ours(update: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return our own dense update, checked."""
    if update.dtype != np.float32 or update.shape != (sum(sizes),):
        raise Misuse(f"the update is {update.dtype} {update.shape}; the model is float32 ({sum(sizes)},)")
    _check_ours(update)
    return update


def _check_ours(values: np.ndarray) -> None:
    # One pass checks all: any NaN or infinity makes the sum of squares not finite, and few other values do.
    with np.errstate(over="ignore", invalid="ignore"):
        squared = float(np.dot(values, values))
    if not math.isfinite(squared) and not np.isfinite(values).all():
        raise Misuse("the update has values that are not finite: try a lower learning rate")


# Reading ------------------------------------------------------------------------------------------


def decode(
    codec: Codec,
    tensors: Tensors,
    sizes: Sequence[int],
    *,
    name: str = "delta",
    entries: int | None = None,
) -> np.ndarray | Sparse:
    """Return only the update of ``decode_with_norm``."""
    return decode_with_norm(codec, tensors, sizes, name=name, entries=entries)[0]


def decode_with_norm(
    codec: Codec,
    tensors: Tensors,
    sizes: Sequence[int],
    *,
    name: str = "delta",
    entries: int | None = None,
) -> tuple[np.ndarray | Sparse, float]:
    """Return the checked update in a peer's message, and its norm. It is float32 and flat, or sparse with ``top``.

    ``entries`` is how many values it may name, if more than the codec keeps of one update: merged updates name more.
    It takes at most 8 bytes of memory per byte received, and some 100 per value that may be named.
    """
    if codec.form == "dense":
        return checks.dense_with_norm(name, tensors, size=sum(sizes))
    if codec.is_sealed_only:
        raise PeerViolation(f"an update in {codec} must be sealed: its values are words of a sealed sum")
    if list(tensors) != [name]:
        raise PeerViolation(f"an update in {codec} is one tensor named {name}, not {sorted(tensors)[:4]}")
    array = tensors[name]
    if codec.form == "int16":
        return _read_words(array, sizes)
    if array.dtype != _DTYPES[codec.form] or array.ndim != 1:
        raise PeerViolation(f"the update is {array.dtype} {array.shape}, which {codec} does not produce")
    if codec.form == "top":
        return _read(codec, array, sizes, entries_max(codec, sizes) if entries is None else entries)
    if array.size != sum(sizes):
        raise PeerViolation(f"the update has {array.size} values; the model has {sum(sizes)}")
    flat = from_bfloat16(array) if codec.form == "bf16" else array.astype(np.float32)
    return flat, _norm_of_theirs(flat)


def decode_changes(
    codec: Codec, tensors: Tensors, sizes: Sequence[int], *, base: int, version: int
) -> tuple[np.ndarray | Sparse, ...]:
    """Return the changes that turn ``base`` into ``version``, in order. Each is a tensor named by its version."""
    names = [str(number) for number in range(base + 1, version + 1)] if version - base <= MESSAGE_TENSORS_MAX else []
    if not names or list(tensors) != names:
        raise PeerViolation(f"changes {sorted(tensors)[:4]} do not make version {version} of {base}")
    return tuple(decode(codec, {name: tensors[name]}, sizes, name=name) for name in names)


def decode_places(tensors: Tensors, *, count: int, size: int) -> np.ndarray:
    """Invert ``encode_places``, and check the result: ``count`` ascending places below ``size``."""
    array = tensors.get("places")
    if list(tensors) != ["places"] or array is None or array.dtype != np.uint8 or array.ndim != 1:
        raise PeerViolation("places of a sum must be one tensor of uint8 named places")
    if not 1 <= array.size <= 1 + rice.coded_bytes_max(count, size):
        raise PeerViolation(f"{count} places of {size} cannot take {array.size} bytes")
    return rice.decode(array[1:], count=count, size=size, parameter=int(array[0]))


def places_digest(tensors: Tensors) -> bytes:
    """Return a hash by which a sum's members check that all have the same places, or nothing if the sum covers all."""
    return hashlib.sha256(tensors["places"].data).digest() if "places" in tensors else b""


def decode_exact(name: str, tensors: Tensors, *, size: int) -> np.ndarray:
    """Invert ``encode_exact``, and check the result: float32 and flat."""
    array = tensors.get(name)
    if array is None or array.dtype != np.uint8:
        return checks.dense(name, tensors, size=size)
    sparse = decode(_EXACT, tensors, (size,), name=name)
    assert isinstance(sparse, Sparse)
    return sparse.dense()


def _read_words(array: np.ndarray, sizes: Sequence[int]) -> tuple[np.ndarray, float]:
    scales_end = VALUE_BYTES * len(sizes)
    expected = scales_end + 2 * sum(sizes)
    if array.dtype != np.uint8 or array.shape != (expected,):
        raise PeerViolation(f"the update is {array.dtype} {array.shape}; in int16 it is uint8 ({expected},)")
    scales = _scales(array[:scales_end])
    levels = np.frombuffer(array[scales_end:].tobytes(), dtype="<i2")
    with np.errstate(over="ignore"):
        values = from_int16(levels, sizes, scales)
    return values, _norm_of_theirs(values)


def _scales(data: np.ndarray) -> np.ndarray:
    scales = _floats(data)
    if not np.isfinite(scales).all() or (scales < 0).any():
        raise PeerViolation("the update has a scale that is negative or not finite")
    return scales


def _read(codec: Codec, data: np.ndarray, sizes: Sequence[int], entries: int) -> tuple[Sparse, float]:
    size, most_bytes = sum(sizes), bytes_max(codec, sizes, entries=entries)
    scales_end = _HEAD_BYTES + _scales_bytes(codec, sizes)
    if not scales_end <= data.size <= most_bytes:
        raise PeerViolation(f"the update has {data.size} bytes in {codec}; it must have {scales_end} to {most_bytes}")
    head = data[:_HEAD_BYTES].tobytes()
    count, parameter = int.from_bytes(head[:_COUNT_BYTES], "little"), head[_COUNT_BYTES]
    if count > entries:
        raise PeerViolation(f"the update names {count} values; the maximum is {entries}")
    body_start = data.size - packed_bytes(count, codec.bits)
    if body_start < scales_end:
        raise PeerViolation(f"{count} values do not fit into {data.size} bytes")
    places = rice.decode(data[scales_end:body_start], count=count, size=size, parameter=parameter)
    body = data[body_start:]
    if codec.bits == 32:
        values = _floats(body)
    else:
        scales = _scales(data[_HEAD_BYTES:scales_end])
        levels = _levels(unpack(body, count, codec.bits), codec.bits)
        with np.errstate(over="ignore"):
            values = restored(levels, np.repeat(scales, _counts(places, sizes)))
    return Sparse(size, places, values), _norm_of_theirs(values)


def _levels(codes: np.ndarray, bits: int) -> np.ndarray:
    magnitudes = (codes & (levels_of(bits) - 1)) + 1
    return np.where(codes >= levels_of(bits), -magnitudes, magnitudes)


def _floats(data: np.ndarray) -> np.ndarray:
    # Copied because they are not aligned in the message.
    return np.frombuffer(data.tobytes(), dtype="<f4").astype(np.float32, copy=False)


def _scales_bytes(codec: Codec, sizes: Sequence[int]) -> int:
    return 0 if codec.bits == 32 else VALUE_BYTES * len(sizes)


def _norm_of_theirs(values: np.ndarray) -> float:
    """Return the norm of a peer's values, which must be finite and within the limit."""
    norm = checks.norm_of(values)
    if norm > UPDATE_NORM_MAX:
        raise BadValues(f"the update's norm is {norm:.3g}; the maximum is {UPDATE_NORM_MAX:.3g}")
    return norm
