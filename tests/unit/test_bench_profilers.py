"""The profilers that ours is compared with, on small numbers that can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.iprof import IProf, passive_aggressive
from benchmarks.maui import Maui
from shoal.errors import Misuse
from shoal.scheduling.profile.features import Features
from shoal.scheduling.profile.sizing import FIRST_EXAMPLES, Profiler


def device(name: str = "a", *, kind: str = "", mhz: float | None = None) -> Features:
    return Features(device=name, kind=kind, frequency_sum_mhz=mhz)


@pytest.mark.parametrize("profiler", [Maui(), IProf()])
def test_before_anything_is_known_a_task_is_small(profiler: Profiler) -> None:
    sizing = profiler.decide(device(), 3.0)
    assert sizing.examples == FIRST_EXAMPLES
    assert "no device was measured" in sizing.reason
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(Misuse, match="budget"):
            profiler.decide(device(), bad)
        with pytest.raises(Misuse, match="took"):
            profiler.observed(device(), 10, bad)
    with pytest.raises(Misuse, match="took"):
        profiler.observed(device(), 0, 1.0)


def test_maui_has_one_slope_for_all() -> None:
    maui = Maui()
    maui.observed(device("quick"), 100, 1.0)
    maui.observed(device("slow"), 100, 3.0)
    # (100 · 1 + 100 · 3) / (100² + 100²) = 0.02.
    assert maui.decide(device("quick"), 1.0).examples == maui.decide(device("slow"), 1.0).examples == 50
    assert maui.decide(device(), 1.0).reason == "0.02 s per example (warm: one slope for all devices, of 2 tasks)"


# I-Prof --------------------------------------------------------------------------------------------------


def test_a_passive_aggressive_step_ends_at_the_edge_of_epsilon() -> None:
    x, theta = np.array([3.0, 4.0]), np.array([0.0, 1.0])
    # xᵀθ = 4; towards 10 with ε = 1: f = 5, θ += 5/25 · x = (0.6, 1.8), and xᵀθ = 9.
    stepped = passive_aggressive(theta, x, 10.0, epsilon=1.0)
    np.testing.assert_allclose(stepped, [0.6, 1.8])
    assert float(x @ stepped) == pytest.approx(9.0)
    # Downward: towards 0, f = 3, and xᵀθ = 1.
    assert float(x @ passive_aggressive(theta, x, 0.0, epsilon=1.0)) == pytest.approx(1.0)
    # Within ε it is passive.
    np.testing.assert_array_equal(passive_aggressive(theta, x, 4.5, epsilon=1.0), theta)


def taught(*, as_published: bool) -> IProf:
    """Slopes on a line: 0.04 at 2 GHz, 0.02 at 6 GHz; it meets zero at 10 GHz."""
    iprof = IProf(as_published=as_published)
    for name, mhz, slope in (("a", 2000.0, 0.04), ("b", 4000.0, 0.03), ("c", 6000.0, 0.02)):
        iprof.observed(device(name, mhz=mhz), 100, 100 * slope)
    return iprof


def test_as_published_a_quick_device_is_asked_for_endless_work() -> None:
    nearly_ten = device("new", mhz=9999.0)
    assert taught(as_published=True).decide(nearly_ten, 3.0).examples > 500_000
    assert taught(as_published=True).decide(device("new", mhz=15_000.0), 3.0).examples == 1
    # Mended: never less than half the least slope seen, 0.01.
    sizing = taught(as_published=False).decide(nearly_ten, 3.0)
    assert sizing.examples == 300
    assert "raised to half the least ever seen" in sizing.reason


def test_epsilon_as_published_is_a_different_share_on_every_device() -> None:
    """0.1 ms: a device of 0.05 ms an example never learns that it got twice as slow. As a share it does."""
    sizes = {}
    for as_published in (True, False):
        iprof = IProf(as_published=as_published)
        for _ in range(3):
            iprof.observed(device(), 1000, 0.05)
        before = iprof.decide(device(), 1.0).examples
        iprof.observed(device(), 1000, 0.10)
        sizes[as_published] = before / iprof.decide(device(), 1.0).examples
    assert sizes[True] == 1.0
    assert sizes[False] == pytest.approx(1.9, rel=0.01), "to within 5 % of twice"


def test_iprof_has_a_model_for_each_kind_of_device() -> None:
    iprof = taught(as_published=False)
    first = iprof.decide(device("x", kind="pi 4", mhz=6000.0), 3.0)
    assert "cold: least squares over 3 devices" in first.reason
    assert "temperature unknown" in first.reason
    iprof.observed(device("x", kind="pi 4", mhz=6000.0), 100, 6.0)
    for name in ("x", "another of its kind"):
        sizing = iprof.decide(device(name, kind="pi 4", mhz=6000.0), 3.0)
        # To within 5 % of the 0.06 that it took.
        assert sizing.examples == int(3.0 / (0.06 * 0.95))
        assert "warm: model of pi 4" in sizing.reason
