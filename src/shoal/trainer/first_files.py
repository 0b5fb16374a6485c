"""Write a job's first model and its frozen base. Imports torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.learning.layout import Layout
from shoal.store.readable import write_readable
from shoal.trainer.base import write_base
from shoal.trainer.flat import read_into
from shoal.trainer.placement import Placed
from shoal.trainer.prepared_job import LAYOUT_NOTE, OWN_NOTE
from shoal.trainer.report import Report
from shoal.trainer.start import StartPlace, start_from
from shoal.wire import tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstFiles:
    """The files of a first model and its base."""

    model: str
    model_sha256: str
    layout: Layout
    #: Hashes that name the files of the frozen base, in order.
    base: tuple[str, ...]


def write_first(placed: Placed, *, out: Path, key: str, start: Path | None, report: Report) -> FirstFiles:
    """Write the tensors that are trained to ``out / key``, and those that are not to ``out / "shards"``.

    ``start`` is a safetensors file whose tensors replace the model's own, where they fit.
    """
    layout = placed.layout
    flat = np.empty(layout.size, np.float32)
    read_into(flat, {name: tensor for name, (tensor, _) in placed.shared.items()}, layout)
    if start is not None:
        report({"step": "start", "told": str(start_from(flat, layout, start, frozen=_frozen_places(placed)))})
    notes = {LAYOUT_NOTE: layout.to_json()} | ({OWN_NOTE: placed.own_layout.to_json()} if placed.own_layout else {})
    file = out / key / "model.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_readable(file, lambda opened: tensors.write(opened, layout.views(flat), notes))
    if placed.frozen:
        report({"step": "base", "bytes": sum(tensor.nbytes for tensor in placed.frozen.values())})
    return FirstFiles(
        model=str(file),
        model_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        layout=layout,
        base=write_base(placed.frozen, out / "shards"),
    )


def _frozen_places(placed: Placed) -> dict[str, StartPlace]:
    """Return where a checkpoint's values for frozen tensors go: into the model, before its base is written."""

    def put(tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.array(array)))

    shapes = {name: tuple(tensor.shape) for name, tensor in placed.frozen.items()}
    return {name: StartPlace(shape=shapes[name], put=partial(put, placed.frozen[name])) for name in shapes}
