"""Tasks captured as graphs, verified against PyTorch, and trained without it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import shoal
from shoal.errors import Corrupt, Misuse
from shoal.plan import Plan
from shoal.task import Task
from shoal.trainer.arrays import write_examples
from shoal.trainer.first_files import write_first
from shoal.trainer.placement import place
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.shards import Examples
from shoal.trainer.shared import SharedVectors
from shoal.trainer.steps import TorchTrainer, build_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

from shoal.trainer.portable import lower_values
from shoal.trainer.portable.capture import capture, settings_of
from shoal.trainer.portable.graphs_file import Graphs
from shoal.trainer.portable.lowering import TABLE
from shoal.trainer.portable.refusal import Unportable
from shoal.trainer.portable.rules import rest_of_power
from shoal.trainer.portable.run import GraphRun, StepRun
from shoal.trainer.portable.steps import OnnxTrainer

pytestmark = pytest.mark.timeout(600)
assert lower_values


class Small(Task):
    """BatchNorm with its buffers, ReLU, class numbers, uint8 images."""

    def model(self) -> nn.Module:
        layers = [nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 3))

    def examples(self, split: str) -> Any:
        draw = np.random.default_rng(3)
        return draw.integers(0, 256, (21, 1, 4, 4), dtype=np.uint8), draw.integers(0, 3, 21)


class Plain(Task):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

    def examples(self, split: str) -> Any:
        draw = np.random.default_rng(4)
        return draw.normal(size=(21, 5)).astype(np.float32), draw.integers(0, 3, 21)


def captured(task: Task, folder: Path, **plan: Any) -> tuple[Graphs, TrainerSettings]:
    """The graphs of a task, and what a trainer of its job is told."""
    model = build_model(task, 0)
    placed = place(task, model)
    chosen = Plan(batch_size=8, learning_rate=0.05, **plan)
    manifest = write_examples(task.examples("train"), folder / "shards")
    paths = [folder / "shards" / shard.sha256 for shard in manifest.shards]
    first = write_first(placed, out=folder, key="job", start=None, report=lambda line: None)
    settings = settings_of(chosen, task=task, layout=placed.layout)
    graphs = capture(task, model, placed, settings, train=Examples(paths), test=Examples(paths))
    with (folder / "graphs").open("wb") as file:
        graphs.write(file)
    files = tuple(map(str, paths))
    base = tuple(str(folder / "shards" / part) for part in first.base)
    settings = dataclasses.replace(
        settings,
        bundle_dir=str(Path(__file__).parent),
        entry=f"{Path(__file__).stem}:{type(task).__name__}",
        train=files,
        test=files,
        base=base,
        graphs=str(folder / "graphs"),
        initial=first.model,
    )
    return graphs, settings


def both(settings: TrainerSettings, folder: Path) -> tuple[list[Any], list[Any]]:
    """Two leases and an evaluation by each engine."""
    from shoal.trainer.prepared_job import first_model

    found = []
    for trainer_of in (TorchTrainer, OnnxTrainer):
        shared = SharedVectors.create(settings.layout.size)
        trainer = trainer_of(settings, shared)
        shared.model[:] = first_model(Path(settings.initial))[1]
        # The last batch of an epoch is short.
        results = [trainer.train(0, [0, 1, 2]), trainer.train(1, [2])]
        judged = trainer.evaluate(1, 20)
        found.append([shared.update.copy(), *[result.loss_sum for result in results], judged])
        shared.close()
    return found[0], found[1]


def agree(ours: list[Any], theirs: list[Any]) -> None:
    assert np.linalg.norm(ours[0] - theirs[0]) <= 1e-4 * np.linalg.norm(theirs[0])
    assert ours[1:3] == pytest.approx(theirs[1:3], rel=1e-5)
    for one, other in zip(ours[3].metrics, theirs[3].metrics, strict=True):
        assert (one.name, one.kind, one.lower) == (other.name, other.kind, other.lower)
        assert one.sums == pytest.approx(other.sums, rel=1e-5)


def test_a_lease_is_the_same_with_and_without_pytorch(tmp_path: Path) -> None:
    graphs, settings = captured(Small(), tmp_path, weight_decay=0.01, clip_gradient=0.5)
    assert graphs.error <= 1e-5
    agree(*both(settings, tmp_path))


class Heavy(Task):
    """Weights of about 10 and small gradients: read back from the weights, two digits of a gradient would be left."""

    def model(self) -> nn.Module:
        net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        with torch.no_grad():
            net[2].weight.add_(10.0)
        return net

    def loss(self, output: Any, y: Any) -> Any:
        return 1e-2 * nn.functional.cross_entropy(output, y)

    def examples(self, split: str) -> Any:
        draw = np.random.default_rng(4)
        return draw.normal(size=(21, 5)).astype(np.float32), draw.integers(0, 3, 21)


def test_a_lease_of_one_plain_step_is_the_gradient(tmp_path: Path) -> None:
    """The last lease of ``both`` has one batch. Buffers change as they do in PyTorch."""
    graphs, settings = captured(Heavy(), tmp_path)
    assert graphs.states == 0
    theirs, ours = (found[0] for found in both(settings, tmp_path))
    size = settings.layout.parameters_size
    weight = settings.layout.views(ours)["2.weight"]
    assert np.count_nonzero(weight) == weight.size
    floor = 1e-6 * np.abs(theirs[:size]).max()
    np.testing.assert_allclose(ours[:size], theirs[:size], rtol=1e-3, atol=floor)
    np.testing.assert_allclose(ours[size:], theirs[size:], rtol=1e-5)


def test_adamw_keeps_its_state_through_a_lease(tmp_path: Path) -> None:
    graphs, settings = captured(Plain(), tmp_path, inner="adamw", weight_decay=0.1, lease_batches=32)
    assert graphs.states == 2
    agree(*both(settings, tmp_path))


def test_no_graph_has_float64(tmp_path: Path) -> None:
    """Graphics processors have none. AdamW counts steps, BatchNorm has factors of the batch's size, and the evaluation
    adds up."""
    graphs, _ = captured(Small(), tmp_path, inner="adamw", lease_batches=32)
    for raw in (graphs.train, graphs.evaluate):
        graph = onnx.load_from_string(raw).graph
        types = {each.type.tensor_type.elem_type for each in (*graph.input, *graph.output)}
        types |= {each.data_type for each in graph.initializer}
        types |= {attribute.i for node in graph.node for attribute in node.attribute if attribute.name == "to"}
        assert onnx.TensorProto.DOUBLE not in types
        assert onnx.TensorProto.FLOAT in types


@given(count=st.integers(1, 1 << 24), base=st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999, 0.9999]))
def test_the_correction_of_adam_is_exact_enough_in_float32(count: int, base: float) -> None:
    exact = 1 - base**count
    assert float(rest_of_power(base, torch.tensor(float(count)))) == pytest.approx(exact, rel=1e-6)


def test_a_graph_of_an_earlier_release_still_counts_its_steps() -> None:
    """Such a graph reads ``step``, in float64."""
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes = [
        helper.make_node("Cast", ["step"], ["counted"], to=kinds.FLOAT),
        helper.make_node("Add", ["vector", "counted"], ["vector_next"]),
        helper.make_node("Identity", ["counted"], ["loss"]),
    ]
    takes = [("vector", kinds.FLOAT, [2]), ("step", kinds.DOUBLE, [])]
    gives = [("vector_next", kinds.FLOAT, [2]), ("loss", kinds.FLOAT, [])]
    ins, outs = ([helper.make_tensor_value_info(*each) for each in ends] for ends in (takes, gives))
    model = helper.make_model(
        helper.make_graph(nodes, "step", ins, outs), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    steps = StepRun(GraphRun(model.SerializeToString(), threads=1), 0)
    steps.begin(2)
    vector = np.zeros(2, np.float32)
    for _ in range(3):
        vector, loss = steps.step(vector, {}, rate=0.0, weight_decay=0.0, draws={})
    assert (vector.tolist(), loss) == ([6.0, 6.0], 3.0)


class Momentum(Plain):
    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01)


def test_a_tasks_own_momentum_is_captured_with_its_own_rate(tmp_path: Path) -> None:
    graphs, settings = captured(Momentum(), tmp_path)
    assert (graphs.states, graphs.rate, graphs.weight_decay) == (1, 0.02, 0.01)
    agree(*both(settings, tmp_path))


class Frozen(Plain):
    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        model[0].requires_grad_(False)
        return model

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        guess = model(x).argmax(1)
        return {"hits": shoal.mean((guess == y).sum(), y.numel(), better="higher")}


def test_a_frozen_base_goes_in_from_its_file(tmp_path: Path) -> None:
    _, settings = captured(Frozen(), tmp_path)
    assert settings.base
    agree(*both(settings, tmp_path))


class Noisy(Plain):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 3))

    def collate(self, rows: Any, *, training: bool) -> Any:
        x, y = rows
        return (x + 0.1 * torch.randn_like(x) if training else x), y


def test_dropout_and_noise_are_drawn_from_the_leases_seed(tmp_path: Path) -> None:
    graphs, settings = captured(Noisy(), tmp_path)
    assert [draw.kind for draw in graphs.draws] == ["normal", "uniform"]
    assert not graphs.evaluation_draws
    shared = SharedVectors.create(settings.layout.size)
    trainer = OnnxTrainer(settings, shared)
    updates = []
    for epoch, batch in ((0, 0), (0, 1), (0, 0)):
        trainer.train(epoch, [batch])
        updates.append(shared.update.copy())
    shared.close()
    assert np.array_equal(updates[0], updates[2])
    assert not np.array_equal(updates[0], updates[1])


# Refused by name -------------------------------------------------------------------------------------


class Loops(Plain):
    def train(self, model: nn.Module, batches: Any, lease: Any) -> None:
        """A loop of its own."""


class Reads(Plain):
    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        x, y = batch
        return self.loss(model(x), y) * (1 + lease.epoch)


class Branches(Plain):
    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        x, y = batch
        output = model(x)
        return self.loss(output * 2 if output.sum() > 0 else output, y)


class Counts(Plain):
    def correct(self, output: Tensor, y: Tensor) -> int:
        return int((output.argmax(1) == y).sum())


class Draws(Plain):
    def collate(self, rows: Any, *, training: bool) -> Any:
        x, y = rows
        return (x * float(np.random.random()) if training else x), y


class Sorts(Plain):
    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.svdvals(output).sum()


class Nadam(Plain):
    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.NAdam(model.parameters())


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (Loops, "loop of its own"),
        (Reads, "lease.epoch"),
        (Branches, "the step cannot be captured"),
        (Counts, "the evaluation cannot be captured"),
        (Draws, "numpy or random"),
        (Sorts, "svd"),
        (Nadam, "NAdam: SGD, Adam"),
    ],
)
def test_what_cannot_be_captured_is_named(task: type[Task], why: str, tmp_path: Path) -> None:
    with pytest.raises(Unportable, match=why):
        captured(task(), tmp_path, lease_batches=32)


def test_plans_that_a_graph_cannot_follow_are_named(tmp_path: Path) -> None:
    with pytest.raises(Unportable, match="accumulate = 2"):
        captured(Plain(), tmp_path, accumulate=2, lease_batches=4)
    with pytest.raises(Unportable, match="bfloat16"):
        captured(Plain(), tmp_path, precision="bfloat16")


def test_a_wrong_lowering_is_found_before_a_job_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "aten.tanh.default", TABLE["aten.sigmoid.default"])
    with pytest.raises(Unportable, match="differs from PyTorch's"):
        captured(Plain(), tmp_path)


# What a device checks --------------------------------------------------------------------------------


def test_a_device_that_computes_otherwise_does_not_train(tmp_path: Path) -> None:
    graphs, settings = captured(Plain(), tmp_path)
    wrong = dataclasses.replace(graphs, proof=dataclasses.replace(graphs.proof, change=graphs.proof.change * 1.1))
    with (tmp_path / "graphs").open("wb") as file:
        wrong.write(file)
    shared = SharedVectors.create(settings.layout.size)
    with pytest.raises(Misuse, match="known batch"):
        OnnxTrainer(settings, shared)
    broken = dataclasses.replace(graphs, train=graphs.train[:-1])
    with (tmp_path / "graphs").open("wb") as file:
        broken.write(file)
    with pytest.raises(Corrupt):
        OnnxTrainer(settings, shared)
    with pytest.raises(Misuse, match="no graphs"):
        OnnxTrainer(dataclasses.replace(settings, graphs=""), shared)
    shared.close()
