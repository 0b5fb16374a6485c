"""Leases of several simulated devices, trained as one stack: the same bits as one by one."""

from __future__ import annotations

import dataclasses
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.trainer import steps
from shoal.trainer.stacked import ModelStack, _layers

sys.path.insert(0, str(Path(__file__).parent))
from experiments_task import Blobs, Wide

pytestmark = pytest.mark.timeout(240)

PLAN = shoal.Plan(
    data="local",
    pace="sync",
    workers_min=8,
    cohort=6,
    sampling="uniform",
    epoch_leases=12,
    lease_batches=2,
    batch_size=8,
    learning_rate=0.1,
    momentum=0.0,
    local_epochs=2,
    until=shoal.epochs(2),
)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(place))
        yield place


def test_a_simulation_is_the_same_with_stacks_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    calls: list[int] = []
    train = ModelStack.train

    def counted(self: ModelStack, start: Any, leases: Any, *, rate: float) -> Any:
        calls.append(len(leases))
        return train(self, start, leases, rate=rate)

    monkeypatch.setattr(ModelStack, "train", counted)
    for verdict in (True, False, None):
        with monkeypatch.context() as patch:
            if verdict is not None:
                # Whatever the trial says: it depends on the load of this machine.
                patch.setattr(steps.TorchTrainer, "_gains", lambda self, leases, says=verdict: says and len(leases) > 1)
            calls.clear()
            faults = "crash(w2, at=round(2), restart_s=1)\nhang(w3, at=round(3))"
            series = shoal.simulate(Wide(), devices=8, partition="iid", plan=PLAN, faults=faults, progress=False)
            found.append((series.to_plain()["hash"], list(calls)))
    (stacked, sizes), (single, none), (tried, _) = found
    assert stacked == single == tried
    assert max(sizes) > 1
    assert none == []


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.Linear(3, 2), [""]),
        (
            nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(3, 2), nn.Tanh()), nn.Linear(2, 2)),
            ["0.", "1.0.", "1.1.", "2."],
        ),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout()), None),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), None),
        (nn.GELU(approximate="tanh"), None),
        (nn.Flatten(0), None),
        (Custom(), None),
        (nn.LazyLinear(2), None),
    ],
)
def test_only_models_whose_layers_are_known_are_stacked(model: nn.Module, names: list[str] | None) -> None:
    layers = _layers(model, "")
    assert (None if layers is None else [name for name, _ in layers]) == names


class OwnStep(Blobs):
    def step(self, model: nn.Module, batch: Any, lease: Any) -> torch.Tensor:
        return super().step(model, batch, lease) * 2


class OwnLoss(Blobs):
    @staticmethod
    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return output.square().mean()


class PlainCrossEntropy(Blobs):
    loss = staticmethod(nn.functional.cross_entropy)


@pytest.mark.parametrize(
    ("task", "changes", "is_stacked"),
    [
        (Blobs, {}, True),
        (PlainCrossEntropy, {}, True),
        (OwnStep, {}, False),
        (OwnLoss, {}, False),
        (Blobs, {"weight_decay": 0.1}, False),
        (Blobs, {"clip_gradient": 1.0}, False),
        (Blobs, {"accumulate": 2}, False),
        (Blobs, {"inner_state": "kept"}, False),
        (Blobs, {"share_labels": True}, False),
        (Blobs, {"inner": "adagrad"}, False),
    ],
)
def test_only_plain_steps_are_stacked(task: type[Blobs], changes: dict[str, Any], is_stacked: bool) -> None:
    @dataclasses.dataclass
    class Settings:
        inner: str = "sgd"
        inner_state: str = "fresh"
        weight_decay: float = 0.0
        clip_gradient: float = 0.0
        accumulate: int = 1
        precision: str = "float32"
        compile: bool = False
        share_labels: bool = False

    made = task()
    assert (ModelStack.of(made, made.model(), Settings(**changes)) is not None) is is_stacked  # type: ignore[arg-type]


def test_a_stack_takes_the_steps_that_each_model_would() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    layers = _layers(model, "")
    assert layers is not None
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    leases = [[(torch.randn(4, 3, 4), torch.randint(0, 3, (4,))) for _ in range(3)] for _ in range(5)]
    after, losses = ModelStack(layers).train(start, leases, rate=0.1)
    for number, lease in enumerate(leases):
        model.load_state_dict(start)
        for (x, y), told in zip(lease, losses[number], strict=True):
            model.zero_grad()
            value = nn.functional.cross_entropy(model(x), y)
            value.backward()
            assert value.item() == pytest.approx(told, rel=1e-6)
            with torch.no_grad():
                for each in model.parameters():
                    assert each.grad is not None
                    each.sub_(each.grad, alpha=0.1)
        for name, each in model.named_parameters():
            np.testing.assert_allclose(after[name][number].numpy(), each.detach().numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have other libraries for products")
@pytest.mark.parametrize("inner", [None, 20])
@pytest.mark.parametrize("batch", [3, 8, 10, 27, 32])
def test_a_stack_has_the_bits_of_single_models(inner: int | None, batch: int) -> None:
    """By PyTorch's own gradient of a stacked product they differ, also for large layers."""
    torch.manual_seed(batch)
    head = nn.Linear(inner or 784, 10)
    model = nn.Sequential(nn.Linear(784, inner), nn.ReLU(), head) if inner else nn.Sequential(head)
    layers = _layers(model, "")
    assert layers is not None
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    leases = [[(torch.rand(batch, 784), torch.randint(0, 10, (batch,))) for _ in range(3)] for _ in range(6)]
    after, _ = ModelStack(layers).train(start, leases, rate=0.1)
    for number, lease in enumerate(leases):
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in lease:
            optimiser.zero_grad()
            shoal.Task.loss(model(x), y).backward()
            optimiser.step()
        for name, each in model.named_parameters():
            assert torch.equal(after[name][number], each.detach()), name
