"""The Universal Scalability Law, fitted to rounds with noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.eddl.scaling import BatchTimes, Law, Scaling, fit
from shoal.errors import Misuse
from shoal.topology.saturation import FORGET_ROUNDS, GAINS, SATURATED, UNSURE, Round, gain_wanted


def law_s(workers: int, *, rate: float = 1.0, serial: float, pairwise: float) -> float:
    return (1 + serial * (workers - 1) + pairwise * workers * (workers - 1)) / rate


def exact(sizes: range, **parts: float) -> list[BatchTimes]:
    return [BatchTimes(workers=n, batch_s=law_s(n, **parts), variance=1e-6, rounds=20) for n in sizes]


def knee(curve: Callable[[int], float]) -> int:
    return next(n for n in range(1, 99) if (n + 1) / n * curve(n) / curve(n + 1) - 1 < gain_wanted(n))


def noisy(
    curve: Callable[[int], float], *, seed: int, noise: float, rounds: int, top: int, alike: float = 0.0
) -> Scaling:
    """Fed with rounds of 1 to ``top`` workers, or until it finds them enough."""
    chance = np.random.default_rng(seed)
    scaling, error = Scaling(), 0.0
    for workers in range(1, top + 1):
        for _ in range(rounds):
            error = alike * error + math.sqrt(1 - alike**2) * float(chance.normal())
            batch_s = curve(workers) * math.exp(noise * error)
            scaling.add(Round(workers=workers, batch_s=batch_s + 0.2, sync_s=0.3, wait_s=0.2))
    return scaling


def first_alarm(curve: Callable[[int], float], *, seed: int, noise: float, rounds: int, alike: float) -> int | None:
    chance = np.random.default_rng(seed)
    scaling, error = Scaling(), 0.0
    for workers in range(1, 17):
        for _ in range(rounds):
            error = alike * error + math.sqrt(1 - alike**2) * float(chance.normal())
            batch_s = curve(workers) * math.exp(noise * error)
            scaling.add(Round(workers=workers, batch_s=batch_s, sync_s=0.0))
        decision = scaling.decide()
        if decision.verdict == SATURATED:
            return decision.size
    return None


def test_a_law_without_noise_is_found_again() -> None:
    law = fit(exact(range(1, 9), rate=0.5, serial=0.2, pairwise=0.01))
    assert law.rate == pytest.approx(0.5)
    assert law.serial == pytest.approx(0.2)
    assert law.pairwise == pytest.approx(0.01)
    # √(0.8 / 0.01)
    assert law.peak == pytest.approx(math.sqrt(80))
    assert law.throughput(4) == pytest.approx(4 * 0.5 / (1 + 0.6 + 0.12))
    low, high = law.peak_between
    assert low <= law.peak <= high


def test_eddls_star_is_a_law_without_pairs() -> None:
    each_s = 0.46142
    measured = [BatchTimes(workers=n, batch_s=1 + n * each_s, variance=1e-8, rounds=20) for n in range(1, 17)]
    law = fit(measured)
    assert law.serial == pytest.approx(each_s / (1 + each_s))
    assert law.pairwise == pytest.approx(0.0, abs=1e-9)
    # One more than 6 is not worth it, as EDDL found (§6.4); a law of the first 4 sizes says so already.
    assert law.knee == 6
    assert fit(measured[:4]).knee == 6


def test_parts_stay_within_their_bounds() -> None:
    # Faster than n times as fast: σ would be negative.
    better = [BatchTimes(workers=n, batch_s=1 - 0.02 * n, variance=1e-6, rounds=20) for n in range(1, 9)]
    assert fit(better).serial == 0.0
    # Slower with every worker: σ would be above 1.
    worse = [BatchTimes(workers=n, batch_s=0.5 + 2.0 * (n - 1), variance=1e-6, rounds=20) for n in range(1, 9)]
    law = fit(worse)
    assert law.serial <= 1.0
    assert law.pairwise >= 0.0
    assert law.rate > 0


@pytest.mark.parametrize(("noise", "rounds", "alike"), [(0.02, 20, 0.0), (0.05, 20, 0.0), (0.05, 40, 0.5)])
@pytest.mark.parametrize(
    "curve",
    [
        lambda n: 1.0 + n * 0.46142,
        lambda n: 1.0 + n * 0.2,
        lambda n: law_s(n, serial=0.05, pairwise=0.015),
    ],
)
def test_the_knee_is_found_within_one_worker(
    curve: Callable[[int], float], noise: float, rounds: int, alike: float
) -> None:
    expected = knee(curve)
    found = [first_alarm(curve, seed=seed, noise=noise, rounds=rounds, alike=alike) for seed in range(100)]
    missed = [size for size in found if size is None or abs(size - expected) > 1]
    assert len(missed) <= 5


@pytest.mark.parametrize(("noise", "rounds", "alike"), [(0.02, 20, 0.0), (0.05, 20, 0.0), (0.05, 40, 0.5)])
@pytest.mark.parametrize("curve", [lambda n: 1.0 + n * 0.046142, lambda n: 1.0])
def test_no_alarm_where_workers_are_worth_it(
    curve: Callable[[int], float], noise: float, rounds: int, alike: float
) -> None:
    alarms = [first_alarm(curve, seed=seed, noise=noise, rounds=rounds, alike=alike) for seed in range(100)]
    assert sum(size is not None for size in alarms) <= 5


def test_the_peak_is_found_within_one_worker_and_its_interval_holds() -> None:
    # √(0.95 / 0.015) = 7.96.
    missed, outside = 0, 0
    for seed in range(100):
        law = noisy(lambda n: law_s(n, serial=0.05, pairwise=0.015), seed=seed, noise=0.03, rounds=40, top=14).law()
        assert law is not None
        missed += abs(law.peak - 7.96) > 1
        low, high = law.peak_between
        outside += not low <= 7.96 <= high
    assert missed <= 5
    assert outside <= 5


def test_without_a_peak_the_interval_is_open() -> None:
    law = noisy(lambda n: 1.0 + n * 0.2, seed=3, noise=0.03, rounds=30, top=8).law()
    assert law is not None
    low, high = law.peak_between
    assert high == math.inf
    assert low > 4
    assert "from" in law.reason


def test_a_decision_says_why_and_how_far_it_is_to_be_trusted() -> None:
    scaling = Scaling()
    assert scaling.decide().reason.endswith("3 sizes with 8 rounds each are needed to fit a law")
    scaling = noisy(lambda n: 1.0 + n * 0.46142, seed=0, noise=0.01, rounds=20, top=9)
    decision = scaling.decide()
    assert (decision.verdict, decision.size) == (SATURATED, 6)
    assert decision.reason.startswith("9 workers: one more gains 2.")
    assert decision.reason.endswith(": saturated (9 sizes from 1 to 9, 180 rounds: the law fits)")


def test_three_sizes_fit_any_law_and_that_is_said() -> None:
    law = noisy(lambda n: 1.0 + n * 0.1, seed=0, noise=0.01, rounds=20, top=3).law()
    assert law is not None
    assert law.confidence == "3 sizes from 1 to 3, 60 rounds: too few sizes to check whether the law holds"


def test_a_corner_is_no_law_and_that_is_said() -> None:
    law = noisy(lambda n: 1.0 if n <= 6 else n / 6.2, seed=0, noise=0.01, rounds=40, top=14).law()
    assert law is not None
    assert law.misfit > 2
    assert "the law fits badly" in law.confidence


def test_the_interval_goes_by_the_misfit_where_that_is_more_than_the_noise() -> None:
    off = [1.0, 1.3, 1.1, 1.6, 1.3, 1.9]
    noisy_sizes, sure_sizes = (
        [BatchTimes(workers=n, batch_s=t, variance=v, rounds=40) for n, t in enumerate(off, start=1)]
        for v in (1e-4, 1e-8)
    )
    told, surer = fit(noisy_sizes), fit(sure_sizes)
    assert told.misfit > 2
    # A hundred times less noise explains nothing: what is known of the law is the same.
    assert surer.misfit == pytest.approx(100 * told.misfit, rel=0.01)
    assert surer.gain(4).margin == pytest.approx(told.gain(4).margin, rel=0.01)


def test_what_was_measured_long_ago_is_forgotten() -> None:
    scaling = noisy(lambda n: 1.0 + n * 0.1, seed=0, noise=0.01, rounds=20, top=3)
    assert scaling.law() is not None
    for _ in range(FORGET_ROUNDS):
        scaling.add(Round(workers=3, batch_s=1.3, sync_s=0.0))
    assert scaling.law() is None


def test_it_answers_before_the_knee_is_reached() -> None:
    scaling = noisy(lambda n: 1.0 + n * 0.46142, seed=0, noise=0.01, rounds=40, top=5)
    law = scaling.law()
    assert law is not None
    assert law.knee in (5, 6, 7)
    assert scaling.decide().verdict in (GAINS, UNSURE)


def test_far_beyond_what_was_measured_there_is_no_knee() -> None:
    law = noisy(lambda n: 1.0 + n * 0.01, seed=0, noise=0.01, rounds=20, top=4).law()
    assert law is not None
    assert law.knee is None


def test_too_few_or_double_sizes_are_refused() -> None:
    one = BatchTimes(workers=1, batch_s=1.0, variance=0.0, rounds=9)
    for sizes in ([one], [one, one, one]):
        with pytest.raises(Misuse, match="different sizes"):
            fit(sizes)


def test_a_size_measured_too_briefly_does_not_count() -> None:
    scaling = noisy(lambda n: 1.0 + n * 0.1, seed=0, noise=0.01, rounds=20, top=3)
    scaling.add(Round(workers=4, batch_s=99.0, sync_s=0.0))
    law = scaling.law()
    assert law is not None
    assert law.sizes == (1, 2, 3)


def test_a_law_is_a_value() -> None:
    assert isinstance(fit(exact(range(1, 5), serial=0.1, pairwise=0.0)), Law)
    assert fit(exact(range(1, 5), serial=0.1, pairwise=0.0)) == fit(exact(range(1, 5), serial=0.1, pairwise=0.0)[::-1])


@given(st.floats(0.01, 100.0), st.floats(0.0, 1.0), st.floats(0.0, 0.2), st.integers(3, 20))
def test_a_law_is_found_again(rate: float, serial: float, pairwise: float, top: int) -> None:
    times_s = {n: (1 + serial * (n - 1) + pairwise * n * (n - 1)) / rate for n in range(1, top + 1)}
    law = fit([BatchTimes(workers=n, batch_s=t, variance=(1e-3 * t) ** 2, rounds=20) for n, t in times_s.items()])
    assert 0 <= law.serial <= 1
    assert law.pairwise >= 0
    for workers, batch_s in times_s.items():
        assert law.batch_s(workers) == pytest.approx(batch_s, rel=1e-4)
