"""The kinds of task that an executor knows: inputs, result, computation.

===========  =============================================  ==============================================
kind         left side                                      result
===========  =============================================  ==============================================
``tile``     rows of a float32 matrix                       their product with a float32 right side
``outer``    one column of it, with a row of the right      their outer product, float32
``share``    integers minus a mask, uint32                  their product with digits of the right side, mod 2^32
``mask``     the seed of that mask                          the mask's product with the same digits, mod 2^32
===========  =============================================  ==============================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from shoal.errors import PeerViolation
from shoal.offload.tiling import in_panels, product

Tensors = Mapping[str, np.ndarray]

#: As in ``masking``, which is read only where it is needed.
SEED_BYTES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Types by numpy's names. Without ``left`` a seed stands for the left side."""

    left: str
    right: str
    result: str
    #: By tensors, rows, terms of each sum, and threads.
    compute: Callable[[Tensors, int, int, int], np.ndarray]
    seed_bytes: int = 0


def execute(column: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The outer product: one rounding an entry, so that its bits are the same on every processor. (DCL Figure 3.8)"""
    return np.multiply.outer(column.astype(np.float32, copy=False), row.astype(np.float32, copy=False))


def _product(tensors: Tensors, rows: int, inner: int, threads: int) -> np.ndarray:
    return product(tensors["left"], tensors["right"], threads=threads)


def _outer(tensors: Tensors, rows: int, inner: int, threads: int) -> np.ndarray:
    if inner != 1:
        raise PeerViolation(f"an outer product is of one column, not of {inner}")
    return execute(tensors["left"][:, 0], tensors["right"][0])


def _share(tensors: Tensors, rows: int, inner: int, threads: int) -> np.ndarray:
    # Only where it is needed: ciphers take memory that a small board may want for other things.
    from shoal.offload.masking import share_product

    return in_panels(share_product, tensors["left"], tensors["right"], threads=threads)


def _mask(tensors: Tensors, rows: int, inner: int, threads: int) -> np.ndarray:
    from shoal.offload.masking import mask, share_product

    return in_panels(share_product, mask(tensors["seed"].tobytes(), (rows, inner)), tensors["right"], threads=threads)


KINDS: dict[str, Kind] = {
    "tile": Kind(left="float32", right="float32", result="float32", compute=_product),
    "outer": Kind(left="float32", right="float32", result="float32", compute=_outer),
    "share": Kind(left="uint32", right="int16", result="uint32", compute=_share),
    "mask": Kind(left="", right="int16", result="uint32", compute=_mask, seed_bytes=SEED_BYTES),
}


def digest_of(right: np.ndarray) -> str:
    """The name of a right side: of its type, its shape and its bytes."""
    digest = hashlib.sha256(f"{right.dtype.str} {right.shape}".encode())
    digest.update(np.ascontiguousarray(right).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def right_bytes(kind: str, inner: int, columns: int) -> int:
    return np.dtype(_known(kind).right).itemsize * inner * columns


def result_bytes(kind: str, rows: int, columns: int) -> int:
    return np.dtype(_known(kind).result).itemsize * rows * columns


def check_inputs(kind: str, tensors: Tensors, *, rows: int, inner: int, columns: int, named: bool) -> None:
    """Raise unless these are the tensors of such a task; ``named``: its right side comes by its digest."""
    of = _known(kind)
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {}
    if of.seed_bytes:
        wanted["seed"] = "uint8", (of.seed_bytes,)
    else:
        wanted["left"] = of.left, (rows, inner)
    if not named:
        wanted["right"] = of.right, (inner, columns)
    found = {name: (array.dtype.name, array.shape) for name, array in tensors.items()}
    if found != wanted:
        raise PeerViolation(f"a {kind} of {_shown(wanted)} came with {_shown(found)}")


def check_result(kind: str, tensors: Tensors, *, rows: int, columns: int) -> np.ndarray:
    """Return the result of a task after checking its type and shape."""
    of = _known(kind)
    if list(tensors) != ["result"]:
        raise PeerViolation(f"a result is one tensor of that name, not {sorted(tensors)[:4]}")
    result = tensors["result"]
    if (result.dtype.name, result.shape) != (of.result, (rows, columns)):
        raise PeerViolation(f"the result is {result.dtype.name} {result.shape}, not {of.result} {(rows, columns)}")
    return result


def compute(kind: str, tensors: Tensors, *, rows: int, inner: int, columns: int, threads: int = 1) -> np.ndarray:
    """Compute a task, as an executor does. Raises PeerViolation where the sides do not fit."""
    of = _known(kind)
    check_inputs(kind, tensors, rows=rows, inner=inner, columns=columns, named=False)
    # An overflow is the same wherever it is computed: the client sees it in the result.
    with np.errstate(all="ignore"):
        return of.compute(tensors, rows, inner, threads)


def measured(rows: int, inner: int, columns: int, *, threads: int = 1) -> None:
    """Multiply matrices of this size: the caller takes the time."""
    product(
        np.full((rows, inner), 0.5, dtype=np.float32),
        np.full((inner, columns), 0.25, dtype=np.float32),
        threads=threads,
    )


def _known(kind: str) -> Kind:
    if kind not in KINDS:
        raise PeerViolation(f"tasks of kind {kind[:40]!r} are not known here")
    return KINDS[kind]


def _shown(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {dtype} {shape}" for name, (dtype, shape) in sorted(tensors.items())) or "nothing"
