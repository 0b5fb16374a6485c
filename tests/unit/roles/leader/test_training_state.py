"""The course of a training with an adaptive outer step: what one optimiser would do, through restarts and ways back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import Corrupt
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.leader.training_state import SECOND, TRAINED, TrainingState
from shoal.roles.machine import Machine
from shoal.sim.jobs import bare_spec
from shoal.trainer.flat import layout_of, read_into, write_from
from shoal.wire.messages import Update

WORKERS = ("w1", "w2", "w3")
COUNT, BATCH = 90, 10
#: An update is rounded to the numbers of the model it moves: the larger the rate, the less of a gradient is lost.
PLAN = Plan(
    batch_size=BATCH,
    learning_rate=1.0,
    outer="adamw",
    outer_rate=3e-3,
    weight_decay=0.1,
    until=Until(epochs=99),
)


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    chance = np.random.default_rng(7)
    x = chance.normal(size=(COUNT, 6)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy((x[:, 0] * x[:, 1] > 0).astype(np.int64))


def network() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def first_model(layout: Layout) -> np.ndarray:
    model = np.empty(layout.size, np.float32)
    read_into(model, network(), layout)
    model.flags.writeable = False
    return model


def state_of(plan: Plan) -> TrainingState:
    layout = layout_of(network())
    return TrainingState(Machine(), bare_spec("job", plan, examples=COUNT), layout, first_model(layout))


def update_of(model: np.ndarray, rows: slice, plan: Plan) -> tuple[np.ndarray, float]:
    """What a worker makes of one batch, by plain SGD, and its loss."""
    trained, (x, y), layout = network(), examples(), layout_of(network())
    write_from(model.copy(), trained, layout)
    optimiser = torch.optim.SGD(trained.parameters(), lr=plan.learning_rate, weight_decay=plan.worker_weight_decay)
    loss = nn.functional.cross_entropy(trained(x[rows]), y[rows])
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    after = np.empty(layout.size, np.float32)
    read_into(after, trained, layout)
    return after - model, loss.item() * (rows.stop - rows.start)


def play_round(training: TrainingState, plan: Plan) -> list[slice]:
    """One version of three workers' batches; which examples it was made of."""
    if training.ledger.finished:
        training.ledger.next_epoch()
    leases = [
        training.ledger.lease(
            10 * training.version + number, worker, count=1, version=training.version, now_s=0.0, deadline_s=60.0
        )
        for number, worker in enumerate(WORKERS)
    ]
    taken = []
    for lease in leases:
        assert lease is not None
        rows = slice(lease.batches[0] * BATCH, (lease.batches[0] + 1) * BATCH)
        delta, loss_sum = update_of(training.model, rows, plan)
        update = Update(job="job", term=1, lease=lease.id, version=lease.version, examples=BATCH, loss_sum=loss_sum)
        training.merge(lease, update, delta)
        taken.append(rows)
    training.advance()
    return taken


OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=3e-3, betas=(0.9, 0.999), weight_decay=0.1),
    "adam": lambda weights: torch.optim.Adam(weights, lr=3e-3, betas=(0.9, 0.999), weight_decay=0.1),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=3e-3, eps=1e-8, weight_decay=0.1),
}


@pytest.mark.parametrize("outer", OPTIMISERS)
def test_three_workers_of_one_batch_each_are_one_optimiser_on_all_of_them(outer: str) -> None:
    plan = replace(PLAN, outer=outer, momentum=0.0 if outer == "adagrad" else 0.9)
    training, alone, (x, y) = state_of(plan), network(), examples()
    optimiser = OPTIMISERS[outer](alone.parameters())
    for _ in range(24):
        rows = torch.cat([torch.arange(part.start, part.stop) for part in play_round(training, plan)])
        optimiser.zero_grad()
        nn.functional.cross_entropy(alone(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    expected = np.empty_like(training.model)
    read_into(expected, alone, layout_of(alone))
    assert np.abs(training.model - expected).max() < 1e-5
    # The comparison could fail: it went much further, and without the decay elsewhere.
    assert np.abs(training.model - first_model(layout_of(alone))).max() > 1e-2
    without = state_of(plain := replace(plan, weight_decay=0.0))
    for _ in range(24):
        play_round(without, plain)
    assert np.abs(training.model - without.model).max() > 1e-4


@pytest.mark.parametrize("outer", ["adamw", "yogi", "adagrad", "nesterov"])
@pytest.mark.parametrize("codec_down", ["dense", "top30%"])
def test_a_leader_goes_on_from_a_checkpoint_as_if_it_had_never_ended(outer: str, codec_down: str) -> None:
    plan = replace(PLAN, outer=outer, outer_rate=0.01, codec_down=codec_down, schedule="warmup 5 cosine 20")
    first = state_of(plan)
    for _ in range(4):
        play_round(first, plan)
    tensors, state = first.snapshot()
    second = state_of(plan)
    second.restore(tensors={name: array.copy() for name, array in tensors.items()}, state=state)
    for _ in range(3):
        play_round(first, plan)
        play_round(second, plan)
        assert second.model.tobytes() == first.model.tobytes()
    assert second.version == first.version == 7


def test_a_checkpoint_without_the_squares_is_none_of_an_adaptive_step() -> None:
    training = state_of(PLAN)
    play_round(training, PLAN)
    tensors, state = training.snapshot()
    del tensors[SECOND]
    with pytest.raises(Corrupt, match="lacks the squares of gradients that 'adamw' divides by"):
        state_of(PLAN).restore(tensors=tensors, state=state)
    # One that follows the mean needs none, and says none.
    plain = state_of(Plan(batch_size=BATCH))
    tensors, state = plain.snapshot()
    assert SECOND not in tensors
    assert "outer_steps" not in state
    plain.restore(tensors=tensors, state=state)


def test_going_back_takes_the_outer_state_back_too() -> None:
    training = state_of(PLAN)
    play_round(training, PLAN)
    training.on_found_good()
    good = (training.model, training.velocity, training.second, training.outer_steps)
    kept = [array.copy() for array in good[:3]]
    play_round(training, PLAN)
    assert training.outer_steps == 2
    assert not np.array_equal(training.second, kept[1])
    training.go_back()
    assert training.version == 3
    assert (training.model, training.velocity, training.second, training.outer_steps) == good
    assert all(np.array_equal(array, before) for array, before in zip(good[:3], kept, strict=True))


@pytest.mark.parametrize("codec_down", ["dense", "top30%"])
def test_the_mean_of_versions_goes_on_from_a_checkpoint_bit_for_bit(codec_down: str) -> None:
    plan = replace(PLAN, codec_down=codec_down, ema=0.9)
    first = state_of(plan)
    expected = []
    for _ in range(4):
        play_round(first, plan)
        expected.append(first.model.astype(np.float64))
    weights = np.array([0.9**age for age in (3, 2, 1, 0)])
    assert first.mean is not None
    np.testing.assert_allclose(first.mean, weights @ np.array(expected) / weights.sum(), atol=1e-6)
    tensors, state = first.snapshot()
    # Whoever reads the model out of a checkpoint gets the mean.
    given = np.concatenate([tensors[entry.name].ravel() for entry in layout_of(network()).entries])
    assert given.tobytes() == first.mean.tobytes() != first.model.tobytes()
    second = state_of(plan)
    second.restore(tensors={name: array.copy() for name, array in tensors.items()}, state=state)
    for _ in range(3):
        play_round(first, plan)
        play_round(second, plan)
        assert second.model.tobytes() == first.model.tobytes()
        assert second.mean is not None
        assert first.mean is not None
        assert second.mean.tobytes() == first.mean.tobytes()


def test_training_does_not_read_the_mean_of_versions() -> None:
    plain, averaged = state_of(PLAN), state_of(replace(PLAN, ema=0.9))
    for _ in range(3):
        play_round(plain, PLAN)
        play_round(averaged, PLAN)
    assert averaged.model.tobytes() == plain.model.tobytes()
    assert plain.mean is None
    assert TRAINED not in plain.snapshot()[0]


def test_a_checkpoint_without_what_the_mean_is_made_of_is_refused() -> None:
    plan = replace(PLAN, ema=0.9)
    training = state_of(plan)
    play_round(training, plan)
    tensors, state = training.snapshot()
    del tensors[TRAINED]
    with pytest.raises(Corrupt, match="lacks the model that the exponential mean of versions is made of"):
        state_of(plan).restore(tensors=tensors, state=state)


def test_going_back_takes_the_state_of_an_algorithm_back_too() -> None:
    training = state_of(replace(PLAN, algorithm="rules:Counting merge"))
    assert training.asked is not None
    training.asked.state = {"made": np.ones(1, np.float32)}
    training.on_found_good()
    training.asked.state = {"made": np.full(1, 2, np.float32)}
    training.go_back()
    assert training.asked.state["made"].tolist() == [1]


def test_going_back_takes_the_mean_of_versions_back_too() -> None:
    plan = replace(PLAN, ema=0.9)
    training = state_of(plan)
    play_round(training, plan)
    play_round(training, plan)
    training.on_found_good()
    good = training.snapshot()
    play_round(training, plan)
    training.go_back()
    again = training.snapshot()
    assert all(np.array_equal(array, again[0][name]) for name, array in good[0].items())
    assert again[1]["mean_weight"] == good[1]["mean_weight"] == pytest.approx(1.9)
