"""Each baseline trains in the simulator, and does what its paper says where that is quickly seen."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from baselines.__main__ import LINES_MOST, NAMES, QUICK, row_of
from baselines.dinh import DIMENSION, Synthetic, TwoDigits, synthetic_rows
from baselines.krum import Krum
from baselines.pfedme import envelope_steps
from baselines.power_of_choice import PowerOfChoice
from baselines.published import crossing, is_inside
from baselines.trimmed_mean import TrimmedMean
from shoal.learning.algorithm import WaitingDevice
from shoal.learning.estimate import Estimate

pytestmark = pytest.mark.timeout(600)

HAS_MNIST = (Path(os.environ.get("SHOAL_DATA", "/nowhere")) / "mnist").is_dir()


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(place))
        yield place


#: One for each kind of algorithm: a task only, the three methods. The nightly set trains the others.
IN_FULL = ("scaffold", "fednova", "median", "power_of_choice")


@pytest.mark.skipif(not HAS_MNIST, reason="SHOAL_DATA has no MNIST")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full if name in IN_FULL else pytest.mark.nightly) for name in NAMES],
)
def test_a_baseline_learns(name: str) -> None:
    row = row_of(name, importlib.import_module(f"baselines.{name}").BASELINE, QUICK, progress=False)
    assert row["finished"]
    assert row["lines"] <= LINES_MOST
    # Krum takes one update, of a device that has few classes.
    assert row["accuracy"] > (0.2 if name == "krum" else 0.4)


def test_no_baseline_is_longer_than_it_may_be() -> None:
    folder = Path(importlib.import_module("baselines").__file__ or "").parent
    assert len(NAMES) == 13
    for name in NAMES:
        assert len((folder / f"{name}.py").read_text().splitlines()) <= LINES_MOST


def test_krum_and_the_trimmed_mean_leave_out_a_liar() -> None:
    rng = np.random.default_rng(1)
    updates = rng.normal(1.0, 0.1, (10, 5)).astype(np.float32)
    updates[3] = 1e6
    for algorithm in (Krum(), TrimmedMean()):
        change, _ = algorithm.merge(updates, [], {})
        assert np.abs(change - 1).max() < 1


def test_power_of_choice_takes_those_with_the_highest_loss() -> None:
    devices = [WaitingDevice(node=f"w{i}", examples=10, loss=float(i), trained_from=0) for i in range(6)]
    chosen = PowerOfChoice().choose(devices, 3, np.random.default_rng(0))
    assert list(chosen) == ["w5", "w4", "w3"], "all six are drawn"
    unknown = WaitingDevice(node="new", examples=10)
    assert PowerOfChoice().choose([*devices[:5], unknown], 3, np.random.default_rng(0))[0] == "new"


def test_pfedme_does_what_a_loop_by_hand_does() -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 2, bias=False)
    batches = [(torch.randn(5, 3), torch.randint(0, 2, (5,))) for _ in range(4)]
    own = shared = net.weight.detach().numpy().astype(np.float64)
    for x, y in batches:
        for _ in range(5):
            scores = np.exp(x.numpy() @ own.T)
            wrong = scores / scores.sum(1, keepdims=True) - np.eye(2)[y.numpy()]
            own = own - 0.1 * (wrong.T @ x.numpy() / len(x) + 15.0 * (own - shared) + 0.001 * own)
        shared = shared - 0.01 * 15.0 * (shared - own)
    envelope_steps(net, iter(batches), SimpleNamespace(rate=0.01, log=lambda *told: None), pull=15.0, own_rate=0.1)
    assert net.weight.detach().numpy() == pytest.approx(shared, abs=1e-6)


def test_a_curve_crosses_between_two_versions() -> None:
    assert crossing([(1, 0.5), (2, 0.9), (3, 0.7), (4, 1.0)], 0.95) == pytest.approx(3.5)
    assert crossing([(1, 0.5), (2, 0.9)], 0.95) is None


def test_a_figure_counts_only_inside_an_interval_that_says_something() -> None:
    near = Estimate.of([98.0, 100.0, 103.0])
    assert is_inside(100.0, near)
    assert not is_inside(110.0, near)
    assert not is_inside(100.0, Estimate.of([60.0, 100.0, 140.0])), "half of it is as long as the figure itself"
    assert not is_inside(100.0, Estimate.of([100.0]))


@pytest.mark.full
def test_the_synthetic_set_is_the_published_one() -> None:
    """The paper says how many examples its devices have: between 250 and 25,810."""
    rows = synthetic_rows(0.5)
    counts = [len(labels) for _, labels in rows]
    assert (min(counts), max(counts), len(counts)) == (250, 25_810, 100)
    task = Synthetic(seed=3)
    train, test = task.examples("train"), task.examples("test")
    assert len(train["y"]) + len(test["y"]) == sum(counts)
    assert train["x"].shape[1] == DIMENSION
    assert np.bincount(test["device"])[0] == counts[0] - int(0.9 * counts[0])


@pytest.mark.full
@pytest.mark.skipif(not HAS_MNIST, reason="SHOAL_DATA has no MNIST")
def test_mnist_is_divided_as_it_was_for_the_paper() -> None:
    """The paper says how many examples devices have: between 1,165 and 3,834, of two digits."""
    task = TwoDigits()
    train, test = task.examples("train"), task.examples("test")
    counts = np.bincount(train["device"])
    assert (counts.min(), counts.max(), len(counts)) == (1165, 3834, 20)
    for device in range(20):
        digits = set(train["y"][train["device"] == device])
        assert digits == {device % 10, (device + 1) % 10}
    shared = {row.tobytes() for row in train["x"]} & {row.tobytes() for row in test["x"]}
    assert len(shared) > 1000, "the code took each device's examples from the first one on"
