"""Begin with a model that was trained before: tensors of a safetensors file that fit are copied. Numpy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import Corrupt, Misuse
from shoal.learning.layout import Layout
from shoal.wire import tensors

#: Names that are listed of each kind; of the rest, how many.
_NAMED_MAX = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class StartCopy:
    """What of a file became part of the first model."""

    copied: tuple[str, ...]
    #: Tensors of the model that the file does not have: they stay as the task made them.
    missing: tuple[str, ...] = ()
    #: In both, with another shape; each with the two shapes.
    misfits: tuple[str, ...] = ()
    #: Tensors of the file that the model does not have.
    unused: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"started from {_plural(len(self.copied))} of the file"]
        for names, what in (
            (self.misfits, "differ in shape"),
            (self.missing, "are not in the file"),
            (self.unused, "are not in the model"),
        ):
            if names:
                more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
                parts.append(f"{', '.join(names[:_NAMED_MAX])}{more} {what}")
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class StartPlace:
    """A place for a tensor of the file: its shape, and what puts values there."""

    shape: tuple[int, ...]
    put: Callable[[np.ndarray[Any, Any]], object]


def _plural(count: int) -> str:
    return f"{count} tensor" + ("s" if count != 1 else "")


def start_from(
    flat: np.ndarray[Any, Any], layout: Layout, file: Path, *, frozen: Mapping[str, StartPlace] | None = None
) -> StartCopy:
    """Copy each tensor of the file that has the name and the shape of one in the layout into ``flat``.

    ``frozen``: the model's other tensors by name, with their shapes and what puts values into them.
    """
    try:
        raw = memoryview(np.memmap(file, np.uint8, "r"))  # type: ignore[arg-type]
        header = tensors.parse_header(raw, total_bytes=len(raw))
        arrays, _ = tensors.read(raw)
    except (OSError, ValueError, Corrupt) as error:
        raise Misuse(f"{file.name} is not a safetensors file that can be read: {error}") from None
    views = layout.views(flat)
    wanted = {name: StartPlace(shape=view.shape, put=_putting(view)) for name, view in views.items()} | dict(
        frozen or {}
    )
    copied, misfits = [], []
    for name in sorted(arrays.keys() & wanted.keys()):
        array, place = arrays[name], wanted[name]
        if array.shape != place.shape:
            misfits.append(f"{name} {list(array.shape)} to {list(place.shape)}")
            continue
        place.put(_floats(array) if header.tensors[name].dtype == "BF16" else array)
        copied.append(name)
    if not copied:
        raise Misuse(
            f"no tensor of {file.name} fits: it has {_few(arrays.keys())}, the model has {_few(wanted.keys())}"
        )
    return StartCopy(
        copied=tuple(copied),
        missing=tuple(sorted(wanted.keys() - arrays.keys())),
        misfits=tuple(misfits),
        unused=tuple(sorted(arrays.keys() - wanted.keys())),
    )


def _putting(view: np.ndarray[Any, Any]) -> Callable[[np.ndarray[Any, Any]], object]:
    return lambda array: view.__setitem__(..., array)


def _few(names: Any) -> str:
    return ", ".join(sorted(names)[:3]) or "none"


def _floats(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """bfloat16, which numpy has not, is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
