"""The benchmark of robust plans: its lies are those it names, and its cost is of the leader's own parts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.sealed import helped_cost, sealed_cost
from benchmarks.trust import (
    ATTACKS,
    BACKDOORS,
    DEVICES,
    LIARS,
    SHAPES,
    SIZE,
    cost,
    first_model,
    leases,
    lies,
    parts_differ,
    predicted,
    stamped,
)
from benchmarks.trust_led import LedSum, summary
from shoal.compress.codec import Codec


def sent() -> np.ndarray:
    return (1 + np.random.default_rng(0).standard_normal((DEVICES, 30))).astype(np.float32)


@pytest.mark.parametrize("attack", [*ATTACKS, *BACKDOORS, "tailored"])
def test_a_lie_is_of_the_liars_alone(attack: str) -> None:
    made = lies(attack, sent(), np.random.default_rng(1))
    assert made.shape == (LIARS, 30)
    assert np.isfinite(made).all()


def test_lies_are_what_they_are_called() -> None:
    updates, rng = sent(), np.random.default_rng(1)
    honest = updates[LIARS:]
    np.testing.assert_allclose(lies("x-10", updates, rng), -10 * updates[:LIARS])
    np.testing.assert_allclose(lies("ipm", updates, rng)[0], -0.5 * honest.mean(0), rtol=1e-5)
    np.testing.assert_allclose(lies("alie", updates, rng)[3], honest.mean(0) - 1.5 * honest.std(0), rtol=1e-5)
    far = lies("min-max", updates, rng)[0]
    apart = max(float(((one - other) ** 2).sum()) for one in honest for other in honest)
    assert max(float(((one - far) ** 2).sum()) for one in honest) <= apart * 1.001


def test_a_step_against_the_gradient_lowers_the_loss() -> None:
    rng = np.random.default_rng(2)
    model, images = first_model(rng), rng.standard_normal((2, 8, 784)).astype(np.float32)
    labels = rng.integers(0, 10, (2, 8))
    assert model.size == SIZE == sum(int(np.prod(shape)) for shape in SHAPES)
    for _ in range(60):
        model = model + leases(model, images, labels, 0.1).mean(0)
    assert (predicted(model, images.reshape(-1, 784)) == labels.ravel()).mean() > 0.9
    assert (stamped(images) != images).sum() <= 2 * 8 * 9


def test_costs_are_ratios_and_parts_give_the_weights_of_the_whole() -> None:
    told = cost(devices=6, values=5000, times=1)
    assert told["nearest_to_mean"] == pytest.approx(told["nearest_ms"] / told["mean_ms"])
    assert parts_differ(sent()) <= 1e-6


def test_a_sealed_sum_is_exact_and_hardly_larger() -> None:
    none, lost = sealed_cost(12, 50_000), sealed_cost(12, 50_000, lost=0.25)
    assert none.exact
    assert lost.exact
    # Seals are of a fixed size, here of a small vector.
    assert 1.0 < none.bytes_ratio < 1.03


def test_bytes_to_a_target_are_of_words_and_of_what_opens_them() -> None:
    found = {("dense", 0): (10, 4000), ("led5%+ef", 0): (20, 100), ("led10%+ef", 0): (15, 200)}
    told = summary(found)
    assert told["led5_bytes"] == 20 * 100 / (10 * 4000)
    assert told["led10_bytes"] == 15 * 200 / (10 * 4000)
    assert isinstance(told["led5_bytes_with_seals"], float)
    assert told["led5_bytes_with_seals"] > told["led5_bytes"]
    assert told["led5_versions"] == [20]


def test_what_led_sums_leave_out_stays_on_devices() -> None:
    """The target of this task is a sum: it arrives, if late. A value that the bound cuts is lost: here one of 50."""
    made = LedSum(Codec.parse("led10%+ef"), 50, seed=0)
    updates = np.random.default_rng(0).normal(0, 0.02, (8, 50)).astype(np.float32)
    arrived = made.mean(updates)
    assert np.count_nonzero(arrived) == 5
    for _ in range(60):
        arrived = arrived + made.mean(np.zeros_like(updates))
    off = np.abs(arrived - updates.mean(0))
    assert np.count_nonzero(off > 1e-3) <= 1


def test_a_sum_that_a_helper_opens_is_exact_and_costs_a_device_one_mask() -> None:
    helped, among = helped_cost(12, 50_000), sealed_cost(12, 50_000)
    assert helped.exact
    assert helped.device_ms < among.device_ms
