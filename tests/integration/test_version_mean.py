"""The mean of versions with real agents: what is evaluated is what is pulled, and it is the mean that plain PyTorch
gives."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from benchmarks.exactness_ema import DECAY, accuracy_of, trained
from benchmarks.exactness_ema_task import Noisy
from shoal.scheduling.batches import batch_indices, epoch_order
from shoal.trainer.steps import build_model

BATCH, EPOCHS, RATE, EMA = 64, 2, 0.5, 0.9

AVERAGED = """
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
import shoal

class Averaged(shoal.Task):
    def model(self):
        model = nn.ModuleDict({"net": nn.Linear(4, 2)})
        model["ema"] = AveragedModel(model["net"]).requires_grad_(False)
        return model
    def examples(self, split):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        return x.numpy(), (x[:, 0] > 0).long().numpy()
    def step(self, model, batch, lease):
        x, y = batch
        model["ema"].update_parameters(model["net"])
        return nn.functional.cross_entropy(model["net"](x), y)
    def metrics(self, model, batch):
        x, y = batch
        return {"accuracy": shoal.mean((model["ema"](x).argmax(1) == y).sum(), len(y))}
"""


@pytest.mark.timeout(600)
def test_two_agents_report_the_accuracy_of_the_model_that_is_pulled() -> None:
    result = trained(0, ema=DECAY)
    assert result.accuracy == pytest.approx(accuracy_of(result.model(), Noisy()), abs=1e-3)


@pytest.mark.timeout(600)
def test_the_pulled_model_is_the_mean_of_the_versions_of_plain_pytorch() -> None:
    task = Noisy()
    plan = shoal.Plan(batch_size=BATCH, learning_rate=RATE, momentum=0.0, ema=EMA)
    pulled = shoal.fit(task, workers=1, until=shoal.epochs(EPOCHS), plan=plan, progress=False).model()

    model, (x, y) = build_model(task, plan.seed), task.examples("train")
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    versions: list[dict[str, torch.Tensor]] = []
    for epoch in range(EPOCHS):
        for batch in range(-(-len(x) // BATCH)):
            rows = batch_indices(epoch_order(len(x), seed=plan.seed, epoch=epoch), batch, BATCH)
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows]))
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            versions.append(copy.deepcopy(model.state_dict()))
    weights = np.array([EMA**age for age in range(len(versions))])[::-1]
    for name, value in pulled.state_dict().items():
        if not value.is_floating_point():
            continue
        stacked = np.array([version[name].double().numpy() for version in versions])
        expected = np.tensordot(weights, stacked, 1) / weights.sum()
        # Buffers too: running means are averaged like weights.
        np.testing.assert_allclose(value.numpy(), expected, atol=2e-4, err_msg=name)
        # A bias before BatchNorm has no gradient, and never moves.
        moved = np.abs(versions[-1][name].numpy() - expected).max()
        assert moved > 1e-3 or name == "0.bias", f"{name} is as good as the newest version's: the test shows nothing"


@pytest.mark.timeout(600)
def test_a_mean_inside_the_model_is_refused_by_shoal_check(tmp_path: Path) -> None:
    (tmp_path / "averaged.py").write_text(AVERAGED)
    command = [sys.executable, "-m", "shoal.cli.main", "check", "averaged.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode != 0
    assert "changed ema.module.weight, ema.module.bias, ema.n_averaged" in " ".join(done.stderr.split())
    assert "set ema = 0.999 in the plan" in " ".join(done.stderr.split())
