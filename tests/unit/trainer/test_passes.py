"""Several passes over the examples of a lease: what a plain loop over the same batches gives."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from shoal.scheduling.batches import epoch_order, mix
from shoal.trainer.flat import read_into
from shoal.trainer.importer import make_task
from shoal.trainer.own_lease import passes_over
from shoal.trainer.placement import place
from shoal.trainer.protocol import TrainerSettings, TrainResult
from shoal.trainer.shared import SharedVectors
from shoal.trainer.steps import TorchTrainer, build_model

pytestmark = pytest.mark.timeout(120)

TASK = """
import numpy as np
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Linear(4, 3)

    def examples(self, split):
        chance = np.random.default_rng(3)
        return chance.normal(size=(40, 4)).astype(np.float32), chance.integers(0, 3, 40)
"""

Learn = Callable[..., tuple[TrainResult, np.ndarray]]


@pytest.fixture
def learn(tmp_path: Path) -> Iterator[Learn]:
    (tmp_path / "task.py").write_text(TASK)
    with contextlib.ExitStack() as stack:

        def learned(passes: int, examples: int) -> tuple[TrainResult, np.ndarray]:
            task = make_task(tmp_path, "task:Sample", {})
            placed = place(task, build_model(task, 0))
            settings = TrainerSettings(
                bundle_dir=str(tmp_path),
                entry="task:Sample",
                train=(),
                layout=placed.layout,
                seed=0,
                batch_size=16,
                learning_rate=0.1,
                is_local=True,
                passes=passes,
                share_labels=True,
            )
            settings = TrainerSettings.from_message(json.loads(json.dumps(settings.to_message())))
            shared = SharedVectors.create(settings.layout.size, 0)
            stack.callback(shared.close)
            trainer = TorchTrainer(settings, shared)
            read_into(shared.model, {name: each for name, (each, _) in placed.shared.items()}, placed.layout)
            result = trainer.learn(0, 7, examples)
            return result, shared.update.copy()

        yield learned


def _by_hand(passes: int, examples: int) -> tuple[np.ndarray, float]:
    """Train in a plain loop. Return the change of the model and the mean loss."""
    chance = np.random.default_rng(3)
    x = torch.from_numpy(chance.normal(size=(40, 4)).astype(np.float32))
    y = torch.from_numpy(chance.integers(0, 3, 40))
    torch.manual_seed(mix(0) >> 1)
    model = nn.Linear(4, 3)
    before = torch.cat([each.detach().flatten().clone() for each in model.parameters()])
    # All forty are new, and the newest come first.
    first = np.arange(40)[::-1][:examples]
    losses: list[float] = []
    for number in range(passes):
        order = first[epoch_order(examples, seed=mix(0, 0, 7), epoch=number)] if number else first
        for start in range(0, examples, 16):
            rows = torch.from_numpy(order[start : start + 16].copy())
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            losses.append(loss.item() * len(rows))
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for each in model.parameters():
                    each -= 0.1 * each.grad
    after = torch.cat([each.detach().flatten() for each in model.parameters()])
    return (after - before).numpy(), sum(losses) / (passes * examples)


@pytest.mark.parametrize(("passes", "examples"), [(1, 40), (3, 40), (5, 20)])
def test_a_lease_of_several_passes_is_that_of_a_plain_loop(learn: Learn, passes: int, examples: int) -> None:
    result, update = learn(passes, examples)
    change, loss = _by_hand(passes, examples)
    np.testing.assert_allclose(update, change, atol=2e-6)
    assert result.examples == examples
    assert result.loss_sum / examples == pytest.approx(loss, rel=1e-5)
    assert sum(result.labels) == examples, "labels are counted once"


def test_each_pass_has_every_example_once_in_another_order() -> None:
    chosen = np.arange(100, 150)
    passes = list(passes_over(chosen, 3, 16, seeds=(1, 2, 3)))
    assert [len(batches) for batches in passes] == [4, 4, 4]
    orders = [tuple(np.concatenate(batches).tolist()) for batches in passes]
    assert all(sorted(order) == chosen.tolist() for order in orders)
    assert orders[0] == tuple(chosen.tolist()), "the first is the lease's own order"
    assert len(set(orders)) == 3
