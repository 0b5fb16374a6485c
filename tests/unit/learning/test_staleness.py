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
    Lateness,
    adaptive,
    damping,
    exponential,
    inverse,
    none,
    root,
    tail_begins,
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


def test_a_straggler_counts_as_an_update_at_the_threshold() -> None:
    # FLeet's released code clamps τ at T: e^(-12β) = (1/7)². As printed, e^(-48β) would be 7^-8, 2e-7.
    assert exponential(48, threshold=12.0) == exponential(12, threshold=12.0) == pytest.approx(1 / 49)


def test_only_outliers_are_raised_and_at_most_tenfold() -> None:
    # 1.5 · 12 = 18: the released code raises what is later.
    assert adaptive(18, threshold=12.0, similarity=0.2) == pytest.approx(1 / 49)
    assert adaptive(19, threshold=12.0, similarity=0.2) == pytest.approx(5 / 49)
    assert adaptive(48, threshold=12.0, similarity=0.0) == pytest.approx(10 / 49)
    assert adaptive(0, threshold=12.0, similarity=0.0) == 1.0


def test_where_nobody_was_late_the_exponential_is_the_limit() -> None:
    assert damping(0.0) == 1.0
    assert damping(1e-9) == pytest.approx(1.0)


def test_a_very_late_update_still_has_a_weight_that_a_partial_takes() -> None:
    weight = exponential(10**6, threshold=10.0**6)
    assert 0 < weight < 1e-11
    Partial(1).add(np.ones(1, dtype=np.float32), weight=weight)


def test_no_update_comes_from_the_future() -> None:
    for rule in STALENESS.values():
        with pytest.raises(Misuse, match="version to come"):
            rule(-1, threshold=12.0)


def test_a_threshold_is_a_finite_number_of_versions() -> None:
    for threshold in (-1.0, math.inf, math.nan):
        with pytest.raises(Misuse, match="number of versions"):
            damping(threshold)


def test_the_threshold_is_where_the_tail_begins() -> None:
    # Median 50, median distance to it 25.
    assert tail_begins(range(101)) == pytest.approx(50 + 3 * 1.4826 * 25)
    # All alike: a deviation of one version, so that one late update is not an outlier.
    assert tail_begins([0] * 100) == 3.0
    assert tail_begins([7]) == 10.0
    with pytest.raises(Misuse, match="no past updates"):
        tail_begins([])


@pytest.mark.parametrize(("mean", "deviation", "papers"), [(6.0, 2.0, 12.0), (12.0, 4.0, 24.0)])
def test_without_stragglers_the_threshold_is_the_papers(mean: float, deviation: float, papers: float) -> None:
    # D1 and D2, T = μ + 3σ (FLeet §3.2).
    drawn = np.random.default_rng(0).normal(mean, deviation, 1000)
    past = [max(0, round(float(late))) for late in drawn]
    assert tail_begins(past) == pytest.approx(papers, rel=0.15)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_stragglers_do_not_move_the_threshold_to_themselves(share: float) -> None:
    generator = np.random.default_rng(0)
    past = [max(0, round(float(late))) for late in generator.normal(6.0, 2.0, 1000)]
    stragglers = generator.random(1000) < share
    mixed = [48 if is_late else late for is_late, late in zip(stragglers, past, strict=True)]
    # 48 is an outlier: it lies beyond 1.5 T.
    assert 1.5 * tail_begins(mixed) < 48
    # The 99.7 % quantile of all, which was the threshold before, is the stragglers' own.
    assert float(np.quantile(mixed, 0.997)) == 48


def test_the_exponential_begins_as_the_inverse_until_staleness_is_known() -> None:
    lateness = Lateness()
    for _ in range(49):
        lateness.seen(9)
    assert lateness.threshold is None
    assert lateness.weight("exponential", 3) == inverse(3)
    assert lateness.weight(SIMILAR, 30, similarity=0.1) == inverse(30), "nobody knows yet who is an outlier"
    lateness.seen(9)
    assert lateness.threshold == 12.0
    assert lateness.weight("exponential", 3) == exponential(3, threshold=12.0)
    assert lateness.weight(SIMILAR, 30, similarity=0.1) == adaptive(30, threshold=12.0, similarity=0.1)
    assert lateness.weight("root", 3) == root(3)


@pytest.mark.parametrize("rule", [*STALENESS, PER_PARAMETER])
def test_labels_change_no_weight_under_another_rule(rule: str) -> None:
    lateness = Lateness()
    for _ in range(60):
        lateness.seen(6)
    assert lateness.weight(rule, 48, similarity=0.1) == lateness.weight(rule, 48)
    assert lateness.weight(SIMILAR, 48, similarity=0.1) > lateness.weight(SIMILAR, 48)


def test_old_staleness_is_forgotten() -> None:
    lateness = Lateness()
    for _ in range(501):
        lateness.seen(500)
    for _ in range(999):
        lateness.seen(2)
    assert lateness.threshold == 5.0


def test_a_rule_that_does_not_exist_is_named() -> None:
    with pytest.raises(Misuse, match="'linear': use one of none, inverse, root, exponential, similar"):
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
