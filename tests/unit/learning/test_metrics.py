import math
from dataclasses import replace

import pytest

from shoal.errors import Misuse
from shoal.learning import figures
from shoal.learning.figures import value
from shoal.learning.metrics import BINS, MetricSum, lower_is_better, merge, merge_all, problem, problem_of_all


def of(kind, *sums, name="m", lower=False):
    return MetricSum(name=name, kind=kind, sums=tuple(map(float, sums)), lower=lower)


def test_figures_of_each_kind():
    assert value(of("mean", 6, 4)) == 1.5
    assert value(of("ratio", 3, -2)) == -1.5
    # 2 * 6 / (2 * 6 + 1 + 3)
    assert value(of("f1", 6, 1, 3)) == 0.75
    # Labels 0: 3 right, 1 taken for 1. Labels 1: 2 right. F1 of 0: 6 / (4 + 3); of 1: 4 / (2 + 3).
    assert value(of("confusion", 3, 1, 0, 2)) == pytest.approx((6 / 7 + 4 / 5) / 2)


def test_a_class_that_never_occurs_does_not_count():
    assert value(of("confusion", 3, 0, 0, 0, 2, 0, 0, 0, 0)) == 1.0


@pytest.mark.parametrize("metric", [of("mean", 0, 0), of("ratio", 1, 0), of("f1", 0, 0, 0), of("confusion", *[0] * 4)])
def test_nothing_measured_has_no_figure(metric):
    assert problem(metric) is None
    assert value(metric) is None


def test_an_auc_and_an_average_precision_by_hand():
    counts = [0.0] * (2 * BINS)
    counts[10] = counts[20] = 1.0  # positives
    counts[BINS + 15] = counts[BINS + 20] = 1.0  # negatives
    # Pairs: (10, 15) lost, (10, 20) lost, (20, 15) won, (20, 20) a tie.
    assert value(of("histogram", *counts, name="auc")) == 1.5 / 4
    # From above: bin 20 has 1 of 2 right (recall 1/2), bin 15 none, bin 10 has 2 of 4 (recall 1).
    assert value(of("histogram", *counts, name="ap")) == pytest.approx(0.5 * 0.5 + 0.5 * 0.5)


def test_a_histogram_of_one_class_has_no_auc():
    assert value(of("histogram", *[1.0] * BINS, *[0.0] * BINS)) is None


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        (of("mean", 1, 2, name=""), "1 to 64 printable"),
        (of("mean", 1, 2, name="x" * 65), "1 to 64 printable"),
        (of("mean", 1, 2, name="a\x1b[2J"), "1 to 64 printable"),
        (of("median", 1, 2), "kind 'median'"),
        (of("mean", 1), "has 1 sums; a mean has 2"),
        (of("f1", 1, 2), "has 2 sums; a f1 has 3"),
        (of("confusion", 1, 2, 3), "not the square"),
        (of("confusion", *[1] * 65 * 65), "not the square"),
        (of("histogram", *[1] * 8), "has 8 sums"),
        (of("mean", math.nan, 2), "not finite"),
        (of("mean", math.inf, 2), "not finite"),
        (of("mean", 1e101, 2, name="loss"), "a loss of 1e\\+101"),
        (of("mean", 1, -1), "a weight below 0"),
        (of("f1", 1, -1, 2), "a count below 0"),
        (of("mean", 3, 2, name="accuracy"), "an accuracy of 3 right of 2"),
        (of("mean", -1, 2, name="accuracy"), "an accuracy of -1 right of 2"),
    ],
)
def test_what_cannot_be(metric, why):
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(problem(metric))


def test_bounds_of_all_metrics_together():
    assert problem_of_all([of("mean", 1, 2, name=str(n)) for n in range(32)]) is None
    assert "33 metrics" in problem_of_all([of("mean", 1, 2, name=str(n)) for n in range(33)])
    assert problem_of_all([of("mean", 1, 2), of("mean", 1, 2)]) == "two metrics have the same name"
    large = [of("confusion", *[1] * 4096, name=str(n)) for n in range(5)]
    assert problem_of_all(large[:4]) is None
    assert "16,384 sums" in problem_of_all(large)


@pytest.mark.parametrize(
    "name",
    ["loss", "val_loss", "CrossEntropyLoss", "mae", "test-rmse", "error", "perplexity", "nll", "mape of a", "mse"],
)
def test_names_of_which_less_is_better(name):
    assert lower_is_better(name)


@pytest.mark.parametrize("name", ["accuracy", "f1", "auc", "maestro", "recall", "iou", "glossary"])
def test_names_of_which_more_is_better(name):
    assert not lower_is_better(name)


def test_what_does_not_add_up_is_not_merged():
    for other in (of("ratio", 1, 2), of("mean", 1, 2, lower=True), of("mean", 1, 2, name="other")):
        with pytest.raises(Misuse):
            merge(of("mean", 1, 2), other)
    with pytest.raises(Misuse, match="4 sums here and 9 there"):
        merge(of("confusion", *[1] * 4), of("confusion", *[1] * 9))


def test_parts_need_not_have_the_same_metrics():
    a, b = of("mean", 1, 2, name="a"), of("mean", 5, 1, name="b")
    assert merge_all([(a,), (b, a), ()]) == (replace(a, sums=(2.0, 4.0)), b)


def test_the_bins_of_a_score():
    assert figures.bins_of([-math.inf, -1e-9, 0.0, math.inf]).tolist()[0] == 0
    assert figures.bins_of([math.inf]).tolist() == [BINS - 1]
