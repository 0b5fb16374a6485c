"""Workers join one by one on the simulated network: the leader says when more of them bring nothing, and not before."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from benchmarks.saturation import FAST_MBIT, SLOW_MBIT, SMALLER, grow, throughput
from shoal.topology.saturation import GAINS, SATURATED, gain_wanted


@pytest.fixture(scope="module")
def knee() -> int:
    """Where the throughput of crews that stay as they are stops being worth one more."""
    sizes = range(4, 10)
    rates = [throughput(size, pace="sync", rate_mbit=SLOW_MBIT, rounds=40) for size in sizes]
    gains = [more / fewer - 1 for fewer, more in pairwise(rates)]
    return next(size for size, gain in zip(sizes, gains, strict=False) if gain < gain_wanted(size))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in (2, 3))])
def test_the_knee_at_100_mbit_is_found_within_one_worker(seed: int, knee: int) -> None:
    watch = grow(pace="sync", rate_mbit=SLOW_MBIT, seed=seed, smaller=SMALLER)
    assert watch.progress is not None
    assert watch.progress.saturation == SATURATED
    assert abs(watch.progress.saturated_at - knee) <= 1
    (told,) = watch.told
    assert told == watch.progress.saturation_reason
    assert re.match(rf"saturated at (about )?{watch.progress.saturated_at} workers: one more (than \d )?gains ", told)
    # EDDL's l + 2nS/B, within a tenth.
    assert watch.progress.round_s == pytest.approx(1.0 + watch.here * 0.4614, rel=0.1)
    assert watch.progress.sync_s == pytest.approx(watch.progress.round_s - 1.0, rel=0.1)


def test_there_is_none_at_1000_mbit() -> None:
    watch = grow(pace="sync", rate_mbit=FAST_MBIT, seed=1, smaller=SMALLER, top=10)
    assert watch.told == []
    assert watch.progress is not None
    assert watch.progress.saturation == GAINS
    assert watch.progress.saturated_at == 0


@pytest.mark.full
def test_where_nobody_waits_it_is_found_too_but_later() -> None:
    # The link is full with 4.3 leases a second, which seven to nine workers come near to.
    watch = grow(pace="async", rate_mbit=SLOW_MBIT, seed=1, smaller=SMALLER, rounds=80)
    assert watch.progress is not None
    assert watch.progress.saturation == SATURATED
    assert 7 <= watch.progress.saturated_at <= 9


@pytest.mark.full
def test_devices_that_are_slower_are_not_mistaken_for_a_full_link() -> None:
    # Each that joins is slow: in the synchronous pace a round takes four times as long with the first of them.
    for pace in ("sync", "async"):
        watch = grow(pace=pace, rate_mbit=FAST_MBIT, seed=1, smaller=SMALLER, first=3, top=7, rounds=60, slow_from=4)
        assert watch.told == [], pace
