"""The figure of a metric: a formula over its sums. Numpy, for tables of counts and bins of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shoal.learning.metrics import AVERAGE_PRECISION, BINS, MetricSum


def value(metric: MetricSum) -> float | None:
    """Return a metric's figure, or None if it has none yet, like the mean of no examples."""
    match metric.kind:
        case "mean" | "ratio":
            figure = _quotient(metric.sums[0], metric.sums[1])
        case "f1":
            figure = _f1(*metric.sums)
        case "confusion":
            figure = _macro_f1(metric.sums)
        case "histogram" if metric.name.lower() in AVERAGE_PRECISION:
            figure = average_precision(metric.sums)
        case "histogram":
            figure = area_under_curve(metric.sums)
        case _:
            figure = None
    return figure if figure is not None and math.isfinite(figure) else None


def _quotient(above: float, below: float) -> float | None:
    return above / below if below else None


def _f1(true_positives: float, false_positives: float, false_negatives: float) -> float | None:
    return _quotient(2 * true_positives, 2 * true_positives + false_positives + false_negatives)


def _macro_f1(counts: Sequence[float]) -> float | None:
    """The mean F1 of the classes that occur, as label or as prediction."""
    classes = math.isqrt(len(counts))
    table = np.asarray(counts, dtype=np.float64).reshape(classes, classes)
    right, labels, predicted = np.diagonal(table), table.sum(axis=1), table.sum(axis=0)
    occurs = labels + predicted > 0
    if not occurs.any():
        return None
    return float((2 * right[occurs] / (labels + predicted)[occurs]).mean())


def area_under_curve(counts: Sequence[float]) -> float | None:
    """The share of pairs of a positive and a negative in which the positive scores higher; half of a tie.

    Scores of one bin are ties, so it differs from the exact AUC by at most half of the share of pairs that lie in one
    bin.
    """
    positives, negatives = _halves(counts)
    below = np.cumsum(negatives) - negatives
    return _quotient(float(positives @ (below + negatives / 2)), float(positives.sum() * negatives.sum()))


def average_precision(counts: Sequence[float]) -> float | None:
    """The sum of (recall - recall before) * precision, from the highest bin down."""
    positives, negatives = _halves(counts)
    found, wrong = np.cumsum(positives[::-1]), np.cumsum(negatives[::-1])
    flagged = found + wrong
    precision = np.divide(found, flagged, out=np.zeros(BINS), where=flagged > 0)
    return _quotient(float(positives[::-1] @ precision), float(positives.sum()))


def _halves(counts: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    both = np.asarray(counts, dtype=np.float64)
    return both[:BINS], both[BINS:]


# Bins of scores -------------------------------------------------------------------------------------------


def _edges() -> np.ndarray:
    """The same borders for every model, so that counts of any two devices add up: fine where scores usually lie.

    Probabilities have 320 bins from 0 to 1, logits a bin each 0.1 from -16 to 16, and the rest follows a scale of equal
    ratios from 1e-8 to 1e8, for errors of any size.
    """
    shares = np.arange(321) / 320
    logits = np.arange(-160, 161) / 10
    ratios = np.geomspace(1e-8, 1e8, 196)
    return np.unique(np.concatenate([shares, logits, ratios, -ratios]))


_EDGES: np.ndarray = _edges()
assert _EDGES.size == BINS - 1, _EDGES.size


def bins_of(scores: np.ndarray) -> np.ndarray:
    """The bin of each score: a score that is not lower is in a bin that is not lower."""
    return np.searchsorted(_EDGES, scores, side="right")


def histogram_of(scores: np.ndarray, is_positive: np.ndarray) -> tuple[float, ...]:
    """The sums of a histogram: counts of positives by bins, then of negatives."""
    place = bins_of(scores)
    positives = np.bincount(place[is_positive], minlength=BINS)
    negatives = np.bincount(place[~is_positive], minlength=BINS)
    return tuple(np.concatenate([positives, negatives]).astype(np.float64).tolist())
