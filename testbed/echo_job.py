"""A job without a task, for trainers that echo: what runs it is real, and only the training is left out."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from shoal.learning.layout import Layout
from shoal.trainer.package import ReadyTask
from shoal.trainer.prepared_job import LAYOUT_NOTE, PreparedJob
from shoal.trainer.shards import write_shards
from shoal.wire import tensors

ECHO = ("--child-module", "shoal.trainer.echo", "--quiet")


def echo_job(directory: Path, *, values: int, batches: int) -> ReadyTask:
    """A job of ``values`` parameters and ``batches`` batches of one example, for the echo trainer."""
    layout = Layout.of([("flat", (values,), "parameter")])
    model = directory / "model.safetensors"
    with model.open("wb") as file:
        tensors.write(file, layout.views(np.zeros(values, np.float32)), {LAYOUT_NOTE: layout.to_json()})
    nothing = np.zeros(batches, np.uint8)
    manifest = write_shards(nothing, nothing, directory / "shards")
    empty = write_shards(nothing[:0], nothing[:0], directory / "shards")
    prepared = PreparedJob(
        model=str(model),
        model_sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
        layout=layout,
        train=manifest,
        test=empty,
        shards=str(directory / "shards"),
        plan={"batch_size": 1},
    )
    bundle = _empty_bundle()
    return ReadyTask(name="echo", entry="task:Echo", arguments={}, bundle=bundle, prepared=prepared)


def _empty_bundle() -> bytes:
    import tempfile

    from shoal.trainer.bundle import pack

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.py"
        file.write_text("import shoal\n\n\nclass Echo(shoal.Task):\n    pass\n")
        return pack(file, "task:Echo")
