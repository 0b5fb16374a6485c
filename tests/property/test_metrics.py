"""Sums that were measured apart, in any order and any parts, give the figure of the whole."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.learning import figures
from shoal.learning.figures import value
from shoal.learning.metrics import BINS, MetricSum, merge, merge_all, problem

#: Whole numbers add up exactly in any order.
WHOLE = st.integers(0, 1 << 30).map(float)
COUNTED = {"mean": 2, "ratio": 2, "f1": 3, "confusion": 9}


@st.composite
def parts(draw, sums=WHOLE):
    kind = draw(st.sampled_from(sorted(COUNTED)))
    rows = draw(st.lists(st.tuples(*[sums] * COUNTED[kind]), min_size=1, max_size=6))
    return [MetricSum(name="m", kind=kind, sums=row) for row in rows]


@given(parts(), st.randoms())
def test_any_order_and_any_brackets_give_the_whole(some, random):
    whole = merge_all([(part,) for part in some])[0]
    assert whole.sums == tuple(np.sum([part.sums for part in some], axis=0))
    heap = list(some)
    while len(heap) > 1:
        random.shuffle(heap)
        heap.append(merge(heap.pop(), heap.pop()))
    assert heap[0] == whole
    assert value(heap[0]) == value(whole)


@given(parts(st.floats(-1e9, 1e9)))
def test_fractions_add_up_but_for_rounding(some):
    forth, back = merge_all([(part,) for part in some])[0], merge_all([(part,) for part in reversed(some)])[0]
    assert forth.sums == pytest.approx(back.sums, rel=1e-12, abs=1e-3)
    assert len(some) != 2 or merge(*some) == merge(some[1], some[0])


@given(parts(st.floats(allow_nan=True, allow_infinity=True)))
def test_what_can_be_has_a_finite_figure_or_none(some):
    for metric in some:
        if problem(metric) is None:
            figure = value(metric)
            assert figure is None or np.isfinite(figure)


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=40))
def test_bins_keep_the_order_of_all_floats(scores):
    places = figures.bins_of(np.sort(scores))
    assert (np.diff(places) >= 0).all()
    assert places.min() >= 0
    assert places.max() < BINS


def exact_auc(scores, labels):
    positives, negatives = scores[labels], scores[~labels]
    above = (positives[:, None] > negatives).sum() + (positives[:, None] == negatives).sum() / 2
    return above / (len(positives) * len(negatives))


@given(
    st.lists(st.tuples(st.floats(allow_nan=False), st.booleans()), min_size=2, max_size=60).filter(
        lambda rows: len({label for _, label in rows}) == 2
    )
)
def test_an_auc_is_off_by_no_more_than_its_ties(rows):
    scores, labels = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    sums = figures.histogram_of(scores, labels)
    error = abs(figures.area_under_curve(sums) - exact_auc(scores, labels))
    assert error <= auc_error_max(sums) + 1e-12


@given(
    st.integers(0, 1 << 32),
    st.sampled_from(["probabilities", "logits", "errors", "wide"]),
    st.floats(0.0, 2.0),
    st.sampled_from([1e-6, 1e-3, 1.0, 1e4]),
)
def test_an_auc_of_usual_scores_is_within_half_a_percent(seed, form, gap, scale):
    random = np.random.default_rng(seed)
    labels = random.random(1000) < 0.4
    raw = random.normal(size=1000) + gap * labels
    scores = {
        "probabilities": 1 / (1 + np.exp(-raw)),
        "logits": 3 * raw,
        "errors": scale * np.exp(raw),
        "wide": 100 * raw,
    }[form]
    sums = figures.histogram_of(scores, labels)
    # The bound for scores of usual scales: within 0.005 of the exact figure.
    assert abs(figures.area_under_curve(sums) - exact_auc(scores, labels)) < 0.005


def auc_error_max(counts: Sequence[float]) -> float:
    """Half of the share of pairs that lie in one bin: no order within the bins moves the AUC by more."""
    positives, negatives = figures._halves(counts)
    return figures._quotient(float(positives @ negatives) / 2, float(positives.sum() * negatives.sum())) or 0.0
