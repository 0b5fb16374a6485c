"""Starts from a model that was trained before: copies the tensors of a safetensors file or a Hugging Face folder that
fit. Numpy only; unpickles nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import Corrupt, Misuse
from shoal.learning.layout import Layout
from shoal.wire import tensors

#: How many names of each kind are listed. The text only counts the others.
_NAMED_MAX = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class StartCopy:
    """Which tensors of a file became part of the first model."""

    copied: tuple[str, ...]
    #: Tensors of the model that the file does not have: they stay as the task made them.
    missing: tuple[str, ...] = ()
    #: Tensors that are in both with different shapes, each with the two shapes.
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
    """Where a tensor of the file can go: its shape, and the function that writes its values."""

    shape: tuple[int, ...]
    put: Callable[[np.ndarray[Any, Any]], object]


def _plural(count: int) -> str:
    return f"{count} tensor" + ("s" if count != 1 else "")


def start_from(
    flat: np.ndarray[Any, Any], layout: Layout, file: Path, *, frozen: Mapping[str, StartPlace] | None = None
) -> StartCopy:
    """Copy each tensor of the file that has the name and the shape of one in the layout into ``flat``.

    ``frozen`` has the model's other tensors by name.
    """
    views = layout.views(flat)
    wanted = {name: StartPlace(shape=view.shape, put=_putting(view)) for name, view in views.items()} | dict(
        frozen or {}
    )
    copied: set[str] = set()
    misfits: list[str] = []
    unused: list[str] = []
    for each in start_files(file):
        arrays, bfloats = _read(each)
        for name in sorted(arrays):
            array, place = arrays[name], next((other for other in _names_of(name) if other in wanted), None)
            if place is None:
                unused.append(name)
            elif array.shape != wanted[place].shape:
                misfits.append(f"{place} {list(array.shape)} to {list(wanted[place].shape)}")
            else:
                wanted[place].put(_floats(array) if name in bfloats else array)
                copied.add(place)
    if not copied:
        found = [*unused, *misfits]
        raise Misuse(f"no tensor of {file.name} fits: it has {_few(found)}, the model has {_few(wanted.keys())}")
    return StartCopy(
        copied=tuple(sorted(copied)),
        missing=tuple(sorted(wanted.keys() - copied - {each.partition(" ")[0] for each in misfits})),
        misfits=tuple(misfits),
        unused=tuple(sorted(unused)),
    )


def start_files(start: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a file, or of a folder that ``save_pretrained`` wrote: one model, its parts by
    their index, and adapters beside it. Raises Misuse if the folder has none."""
    if not start.is_dir():
        return (start,)
    index, found = start / "model.safetensors.index.json", list[Path]()
    if index.is_file():
        try:
            parts = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise Misuse(f"{index.name} of {start.name} does not list the files of a model") from None
        if not all(isinstance(part, str) and Path(part).name == part for part in parts):
            raise Misuse(f"{index.name} of {start.name} names files outside its folder")
        found = [start / part for part in parts]
    elif (start / "model.safetensors").is_file():
        found = [start / "model.safetensors"]
    if (adapters := start / "adapter_model.safetensors").is_file():
        found.append(adapters)
    if missing := [file.name for file in found if not file.is_file()]:
        raise Misuse(f"{start.name} lacks {_few(missing)}, which {index.name} names: fetch the whole folder")
    if found:
        return tuple(found)
    if any(start.glob("*.bin")) or any(start.glob("*.pt")):
        raise Misuse(
            f"{start.name} has its model as a pickle, which is not read: it may run code. If you trust it, convert it: "
            "AutoModel.from_pretrained(FOLDER).save_pretrained(OTHER, safe_serialization=True), then start from OTHER"
        )
    raise Misuse(f"{start.name} has no model.safetensors, no model.safetensors.index.json and no adapters")


def start_digest(start: Path) -> str:
    """Return a hash of everything that a job starts from."""
    digest = hashlib.sha256()
    for file in start_files(start):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


#: What peft puts before the names of a model that it wraps.
_WRAPPED = "base_model.model."


def _names_of(name: str) -> list[str]:
    """Return the names that a tensor of a file may have in the model. peft saves adapters without the adapter's name
    and with its own prefix; a model with adapters has its former layers as ``base_layer``."""
    bare = name.removeprefix(_WRAPPED)
    adapter = re.sub(r"\.(lora_[AB]|lora_magnitude_vector)\.(weight)$", r".\1.default.\2", bare)
    adapter = re.sub(r"\.(lora_embedding_[AB])$", r".\1.default", adapter)
    layer = re.sub(r"\.(weight|bias)$", r".base_layer.\1", bare)
    others = (f"{before}{each}" for each in (bare, adapter, layer) for before in ("", _WRAPPED))
    return list(dict.fromkeys((name, *others)))


def _read(file: Path) -> tuple[Mapping[str, np.ndarray[Any, Any]], frozenset[str]]:
    """Return the tensors of a file, and which of them are bfloat16."""
    try:
        raw = memoryview(np.memmap(file, np.uint8, "r"))  # type: ignore[arg-type]
        header = tensors.parse_header(raw, total_bytes=len(raw))
        arrays, _ = tensors.read(raw)
    except (OSError, ValueError, Corrupt) as error:
        raise Misuse(f"{file.name} is not a safetensors file that can be read: {error}") from None
    return arrays, frozenset(name for name in arrays if header.tensors[name].dtype == "BF16")


def _putting(view: np.ndarray[Any, Any]) -> Callable[[np.ndarray[Any, Any]], object]:
    return lambda array: view.__setitem__(..., array)


def _few(names: Any) -> str:
    return ", ".join(sorted(names)[:3]) or "none"


def _floats(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert bfloat16, which numpy lacks: it is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
