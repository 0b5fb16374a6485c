"""What a late update is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal import plan
from shoal.errors import Misuse
from shoal.learning.partial import Partial
from shoal.learning.staleness import (
    PER_PARAMETER,
    SIMILAR,
    STALENESS,
    WEIGHT_MIN,
    Lateness,
    damping,
    exponential,
    inverse,
    none,
    root,
    threshold_of,
)


def test_each_rule_at_three_versions_late() -> None:
    assert none(3) == 1.0
    assert inverse(3) == 0.25
    assert root(3) == 0.5
    # T = 12: β = ln(7)/6 = 0.3243, e^(-3β) = 7^(-1/2).
    assert exponential(3, threshold=12.0) == pytest.approx(1 / math.sqrt(7))


def test_the_damping_of_fleets_two_distributions() -> None:
    # D1 = N(6, 2): T = 12; D2 = N(12, 4): T = 24 (FLeet §3.2).
    assert damping(12.0) == pytest.approx(0.3243, abs=5e-5)
    assert damping(24.0) == pytest.approx(0.2137, abs=5e-5)


def test_the_exponential_meets_the_inverse_at_half_the_threshold() -> None:
    # FLeet Figure 9: 0.14 at τ = 6.
    assert exponential(6, threshold=12.0) == pytest.approx(inverse(6)) == pytest.approx(1 / 7)
    assert exponential(3, threshold=12.0) > inverse(3)
    assert exponential(9, threshold=12.0) < inverse(9)


def test_where_nobody_was_late_the_exponential_is_the_limit() -> None:
    assert damping(0.0) == 1.0
    assert damping(1e-9) == pytest.approx(1.0)


def test_a_very_late_update_still_has_a_weight_that_a_partial_takes() -> None:
    weight = exponential(10**6, threshold=12.0)
    assert weight == WEIGHT_MIN
    Partial(1).add(np.ones(1, dtype=np.float32), weight=weight)


def test_no_update_comes_from_the_future() -> None:
    for rule in STALENESS.values():
        with pytest.raises(Misuse, match="version to come"):
            rule(-1, threshold=12.0)


def test_a_threshold_is_a_finite_number_of_versions() -> None:
    for threshold in (-1.0, math.inf, math.nan):
        with pytest.raises(Misuse, match="number of versions"):
            damping(threshold)


def test_the_threshold_is_a_percentile_of_what_was_seen() -> None:
    assert threshold_of(range(101), share=0.5) == 50.0
    assert threshold_of([4]) == 4.0
    with pytest.raises(Misuse, match="no past updates"):
        threshold_of([])
    with pytest.raises(Misuse, match="above 0"):
        threshold_of([1], share=0.0)


def test_the_exponential_begins_as_the_inverse_until_staleness_is_known() -> None:
    lateness = Lateness(share=1.0)
    for _ in range(49):
        lateness.seen(12)
    assert lateness.threshold is None
    assert lateness.weight("exponential", 3) == inverse(3)
    lateness.seen(12)
    assert lateness.threshold == 12.0
    assert lateness.weight("exponential", 3) == exponential(3, threshold=12.0)
    assert lateness.weight("root", 3) == root(3)


def test_old_staleness_is_forgotten() -> None:
    lateness = Lateness(share=1.0)
    lateness.seen(500)
    for _ in range(1000):
        lateness.seen(2)
    assert lateness.threshold == 2.0


def test_a_rule_that_does_not_exist_is_named() -> None:
    with pytest.raises(Misuse, match="'linear': use one of none, inverse, root, exponential"):
        Lateness().weight("linear", 1)


def test_how_late_updates_are_is_told() -> None:
    lateness = Lateness()
    assert (lateness.typical, lateness.worst) == (0.0, 0)
    for staleness in (0, 1, 1, 9):
        lateness.seen(staleness)
    assert (lateness.typical, lateness.worst) == (1.0, 9)


def test_every_rule_a_plan_may_name_exists() -> None:
    assert (*STALENESS, PER_PARAMETER, SIMILAR) == plan.STALENESS
    late = Lateness()
    assert late.weight(SIMILAR, 3) == late.weight("exponential", 3), "labels are weighed elsewhere"
    assert Lateness().weight(PER_PARAMETER, 5) == 1.0, "what is late in it is weighed place by place"
