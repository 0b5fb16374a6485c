"""Similarity of labels: what holds of any counts, and of the weight that follows from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.learning.similarity import (
    LabelMemory,
    boosted,
    capped_counts,
    distribution,
    noisy_counts,
    overlap,
)
from shoal.learning.staleness import adaptive, exponential, inverse, tail_begins

CLASSES = 4

counts = st.lists(st.integers(0, 10_000), min_size=CLASSES, max_size=CLASSES).map(np.array)
some_counts = counts.filter(lambda drawn: drawn.sum() > 0)
shares = st.floats(0, 1)


def test_the_papers_example() -> None:
    assert distribution(np.array([1, 2, 0, 0])).tolist() == [1 / 3, 2 / 3, 0, 0]


def test_two_labels_of_ten_against_all_ten() -> None:
    # 2 · √(1/2 · 1/10)
    memory = LabelMemory(classes=10)
    memory.seen(np.full(10, 100))
    assert memory.similarity(np.array([50, 50, 0, 0, 0, 0, 0, 0, 0, 0])) == pytest.approx(0.4472, abs=1e-4)


@given(some_counts, some_counts)
def test_overlap_is_between_0_and_1_and_the_same_both_ways(first: np.ndarray, second: np.ndarray) -> None:
    p, q = distribution(first), distribution(second)
    assert 0 <= overlap(p, q) <= 1
    assert overlap(p, q) == overlap(q, p)
    assert overlap(p, p) == pytest.approx(1)


@given(some_counts, st.integers(2, 100))
def test_only_shares_count(drawn: np.ndarray, times: int) -> None:
    memory = LabelMemory(classes=CLASSES)
    memory.seen(drawn)
    assert memory.similarity(times * drawn) == pytest.approx(1)


@given(counts)
def test_all_are_alike_while_nothing_was_seen(drawn: np.ndarray) -> None:
    assert LabelMemory(classes=CLASSES).similarity(drawn) == 1


def test_an_update_without_counts_is_neither_raised_nor_remembered() -> None:
    memory = LabelMemory(classes=CLASSES)
    memory.seen(np.array([1, 2, 3, 4]))
    nothing = np.zeros(CLASSES)
    assert memory.similarity(nothing) == 1
    memory.seen(nothing)
    assert memory.counts.tolist() == [1, 2, 3, 4]


@given(st.lists(some_counts, min_size=1, max_size=8), some_counts)
def test_a_memory_that_forgets_nothing_is_the_sum(past: list[np.ndarray], drawn: np.ndarray) -> None:
    memory = LabelMemory(classes=CLASSES)
    for one in past:
        memory.seen(one)
    assert memory.similarity(drawn) == pytest.approx(overlap(distribution(drawn), distribution(np.sum(past, axis=0))))


def test_a_label_that_everyone_had_long_ago_is_news_again() -> None:
    old, new = np.array([100, 0, 0, 0]), np.array([0, 100, 0, 0])
    forgets, keeps = LabelMemory(classes=CLASSES, decay=0.9), LabelMemory(classes=CLASSES)
    for memory in (forgets, keeps):
        for _ in range(50):
            memory.seen(old)
        for _ in range(50):
            memory.seen(new)
    assert keeps.similarity(old) == pytest.approx(np.sqrt(0.5))
    # 0.9⁵⁰ of all that counts.
    assert forgets.similarity(old) == pytest.approx(np.sqrt(0.9**50 / (1 + 0.9**50)), rel=1e-6)


@given(shares, shares)
def test_a_weight_is_at_least_the_damping_and_at_most_1(damping: float, similarity: float) -> None:
    weight = boosted(damping, similarity)
    assert damping <= weight <= 1
    assert boosted(damping, 1.0) == damping
    # FLeet eq. 3, min(1, Λ / sim), with the floor of the released code: nothing is raised more than tenfold.
    assert weight == min(1.0, damping / max(0.1, similarity))
    assert boosted(damping, 0.0) == min(1.0, damping / 0.1)


@given(st.integers(0, 60), shares, shares)
def test_the_less_alike_the_more_it_weighs(staleness: int, one: float, other: float) -> None:
    damping = exponential(staleness, threshold=24)
    less, more = sorted((one, other))
    assert boosted(damping, less) >= boosted(damping, more)


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.floats(0, 1_000))
def test_the_exponential_never_grows_with_staleness_and_ends_at_the_threshold(
    one: int, other: int, threshold: float
) -> None:
    # FLeet §2.3: Λ(τ) = e^(-βτ) with Λ(T/2) = 1/(T/2 + 1); the released code clamps τ at T.
    sooner, later = sorted((one, other))
    weight = exponential(later, threshold=threshold)
    assert exponential(sooner, threshold=threshold) >= weight
    assert weight >= (1 + threshold / 2) ** -2 * (1 - 1e-9) > 0
    if later >= threshold:
        assert weight == pytest.approx((1 + threshold / 2) ** -2)


@given(st.integers(0, 10_000), st.floats(0, 1_000), shares)
def test_the_released_rule_raises_outliers_only(staleness: int, threshold: float, similarity: float) -> None:
    # FLeet's released code, getDampen, policy 4: τ > 1.5 T is divided by max(0.1, sim).
    damped = exponential(staleness, threshold=threshold)
    weight = adaptive(staleness, threshold=threshold, similarity=similarity)
    assert weight == (boosted(damped, similarity) if staleness > 1.5 * threshold else damped)
    assert damped <= weight <= min(1.0, 10.001 * damped)


@given(st.lists(st.integers(0, 30), min_size=51, max_size=200), st.integers(31, 10_000), st.integers(0, 49))
def test_fewer_stragglers_than_half_do_not_carry_the_threshold_away(
    usual: list[int], late: int, stragglers: int
) -> None:
    # The breakdown point of median and MAD: 30 is the most that either can be, whatever stragglers do.
    assert tail_begins([*usual, *[late] * stragglers]) <= 30 + 3 * 1.4826 * 30
    assert tail_begins(usual) >= 3


def test_figure_9_a_straggler_of_a_new_class_counts() -> None:
    # τ = 48 where T = 12. As printed e^(-0.3243·48) is 2e-7; DynSGD gives 1/49, and so does the clamp.
    memory = LabelMemory(classes=10)
    memory.seen(np.array([0, *[100] * 9]))
    assert adaptive(48, threshold=12, similarity=1.0) == pytest.approx(inverse(48))
    rare = memory.similarity(np.array([100] + [0] * 9))
    assert adaptive(48, threshold=12, similarity=rare) == pytest.approx(10 / 49)


@given(counts, st.floats(0.1, 5), st.integers(0, 2**32))
def test_noise_leaves_counts_counts_and_repeats_by_seed(drawn: np.ndarray, epsilon: float, seed: int) -> None:
    one, same = (noisy_counts(drawn, epsilon=epsilon, generator=np.random.default_rng(seed)) for _ in range(2))
    assert np.array_equal(one, same)
    assert one.shape == drawn.shape
    assert one.min() >= 0


@given(counts, st.floats(0.01, 5), st.integers(0, 2**32), st.integers(0, 10))
def test_capped_counts_are_never_more_than_the_examples(
    drawn: np.ndarray, epsilon: float, seed: int, unlabelled: int
) -> None:
    most = int(drawn.sum()) + unlabelled
    noisy = noisy_counts(drawn, epsilon=epsilon, generator=np.random.default_rng(seed))
    capped = capped_counts(noisy, most=most)
    assert capped.sum() <= most
    assert capped.min() >= 0
    if noisy.sum() <= most:
        assert np.array_equal(capped, noisy)


def test_noise_is_as_wide_as_epsilon_says() -> None:
    # Discrete Laplace: Pr(0) = (1 - a) / (1 + a) and variance 2a / (1 - a)², where a = e^-ε.
    far = np.full(200_000, 1_000)
    a = np.exp(-0.5)
    noise = noisy_counts(far, epsilon=0.5, generator=np.random.default_rng(1)) - far
    assert noise.mean() == pytest.approx(0, abs=0.03)
    assert noise.var() == pytest.approx(2 * a / (1 - a) ** 2, rel=0.02)
    assert (noise == 0).mean() == pytest.approx((1 - a) / (1 + a), rel=0.02)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(Misuse, match="of no examples"):
        distribution(np.zeros(3))
    with pytest.raises(Misuse, match="none below 0"):
        distribution(np.array([2, -1]))
    with pytest.raises(Misuse, match="cannot be compared"):
        overlap(np.ones(1), np.ones(2) / 2)
    with pytest.raises(Misuse, match="counts of 2 classes, where 4"):
        LabelMemory(classes=4).seen(np.ones(2))
    with pytest.raises(Misuse, match="a decay is above 0"):
        LabelMemory(classes=4, decay=0.0)
    with pytest.raises(Misuse, match="an epsilon"):
        noisy_counts(np.ones(3), epsilon=0.0, generator=np.random.default_rng(0))
    with pytest.raises(Misuse, match="a similarity"):
        boosted(0.5, 1.5)
