"""Everyday models, losses, optimisers and augmentations are captured, and agree with PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from benchmarks.portable_more_tasks import MORE_TASKS
from shoal.plan import Plan
from shoal.trainer.arrays import write_examples
from shoal.trainer.placement import place
from shoal.trainer.portable.capture import capture, settings_of
from shoal.trainer.portable.graphs_file import Graphs
from shoal.trainer.portable.refusal import in_words, instead_of
from shoal.trainer.portable.verify import LARGEST_ERROR
from shoal.trainer.shards import Examples
from shoal.trainer.steps import build_model

pytestmark = pytest.mark.timeout(600)

#: One for each rewriting and each rule of an optimiser. The full set captures the others.
QUICK = ("bag", "metric", "unet_bilinear", "weight_norm", "groups", "rmsprop", "adagrad", "amsgrad", "mixup", "flipped")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in MORE_TASKS]
)
def test_it_is_captured(name: str, tmp_path: Path) -> None:
    task = MORE_TASKS[name]()
    model = build_model(task, 0)
    placed = place(task, model)
    settings = settings_of(Plan(batch_size=32, learning_rate=0.01, lease_batches=32), task=task, layout=placed.layout)
    manifest = write_examples(task.examples("train"), tmp_path)
    examples = Examples([tmp_path / shard.sha256 for shard in manifest.shards])
    evaluates = name in QUICK
    graphs = capture(task, model, placed, settings, train=examples, test=examples, evaluates=evaluates)
    assert graphs.error <= LARGEST_ERROR
    if evaluates:
        # A device takes what was captured.
        with (tmp_path / "graphs").open("wb") as file:
            graphs.write(file)
        assert Graphs.read(tmp_path / "graphs").states == graphs.states


def test_a_refusal_says_what_to_write_instead() -> None:
    assert "torch.where" in instead_of("aten.nonzero.default")
    assert instead_of("aten.new_operation.default") == ""
    assert "index by the tensor" in str(in_words("GuardOnDataDependentSymNode", "Could not extract"))
    assert "multiply by the mask" in str(in_words("DynamicOutputShapeException", "aten.nonzero"))
    assert in_words("RuntimeError", "mat1 and mat2") is None
