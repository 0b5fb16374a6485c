"""Metrics as named sums that add up over batches, devices and leases.

Every metric is a few sums, and its figure is a formula over them. So parts that were measured separately, in any order,
give the same figure as all examples together; a mean of means would not. The kinds are a closed set, because the leader
computes them and runs no code of a task:

    mean        total, weight                         total / weight
    ratio       numerator, denominator                numerator / denominator
    f1          true and false positives, false negatives    2 tp / (2 tp + fp + fn)
    confusion   C * C counts, a row per label, a column per prediction    the mean of each class's F1 (macro F1)
    histogram   counts of positives and of negatives by bins of their score    the area under the ROC curve (AUC)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shoal.errors import Misuse
from shoal.until import METRIC_NAME_MAX_CHARS, is_metric_name

#: Metrics of one evaluation, sums of one metric, and sums of all of them: an envelope has room for these.
METRICS_MAX = 32
SUMS_MAX = 4096
SUMS_TOTAL_MAX = 16384

#: Figures besides the loss that the training code of one lease may log.
LOGGED_MAX = 8

#: The largest valid sum: merging sums below it cannot overflow.
SUM_MAX = 1e100

#: Classes of a confusion: their square is the most sums that one metric may have.
CLASSES_MAX = 64

#: Elements of one example that a metric may count, such as the pixels of a segmentation.
ELEMENTS_MAX = 1 << 24

#: Bins of a histogram.
BINS = 1024

#: Kind -> how many sums it has, or None if that depends on the metric (``shape_problem``).
KINDS: dict[str, int | None] = {"mean": 2, "ratio": 2, "f1": 3, "confusion": None, "histogram": 2 * BINS}

#: Kinds whose sums are counts.
_COUNTS = ("f1", "confusion", "histogram")

#: A metric with one of these words in its name is better when it is lower.
_LOWER = frozenset(("loss", "losses", "error", "errors", "mae", "mse", "rmse", "mape", "perplexity", "ppl", "nll"))
_LOWER_ENDS = ("loss", "error")

#: A histogram with one of these names is reported as average precision, any other as AUC.
AVERAGE_PRECISION = frozenset(("ap", "average_precision"))

#: The metrics of a classifier. The accuracy, the share of correct examples, is shown in percent and has a statistical
#: test.
ACCURACY, LOSS = "accuracy", "loss"


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricSum:
    """A metric's sums over some examples. ``problem`` checks them, because a trainer may return any number."""

    name: str
    kind: str
    sums: tuple[float, ...]
    #: Whether lower is better.
    lower: bool = False


def lower_is_better(name: str) -> bool:
    """Whether lower is better, by the words in a metric's name: it is for a loss or an error, and for no other."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return any(word in _LOWER or word.endswith(_LOWER_ENDS) for word in words)


def judged_sums(*, examples: float, loss_sum: float, correct: float) -> tuple[MetricSum, ...]:
    """Return the two metrics of a classifier: its accuracy and its mean loss."""
    return (
        MetricSum(name=ACCURACY, kind="mean", sums=(float(correct), float(examples))),
        MetricSum(name=LOSS, kind="mean", sums=(float(loss_sum), float(examples)), lower=True),
    )


def name_in_training(name: str) -> str:
    """Return the name of a figure that training code logged, to tell it from those of an evaluation."""
    return f"train/{name}"


# Bounds ---------------------------------------------------------------------------------------------------


def problem(metric: MetricSum) -> str | None:
    """Return why a metric is invalid, or None if it is valid."""
    return shape_problem(metric) or value_problem(metric)


def shape_problem(metric: MetricSum) -> str | None:
    """Return why a metric's name, kind or number of sums is invalid, or None."""
    if not is_metric_name(metric.name):
        return f"a metric's name has 1 to {METRIC_NAME_MAX_CHARS} printable characters, not {metric.name[:80]!r}"
    if metric.kind not in KINDS:
        return f"metric {metric.name} is of kind {metric.kind[:40]!r}; there is: {', '.join(KINDS)}"
    many, wanted = len(metric.sums), KINDS[metric.kind]
    if metric.kind == "confusion" and not (many == math.isqrt(many) ** 2 and 4 <= many <= SUMS_MAX):
        return f"metric {metric.name} has {many} counts, which are not the square of 2 to {CLASSES_MAX} classes"
    if wanted is not None and many != wanted:
        return f"metric {metric.name} has {many} sums; a {metric.kind} has {wanted}"
    return None


def value_problem(metric: MetricSum) -> str | None:
    """Return why a metric's numbers are invalid, or None."""
    if not all(map(math.isfinite, metric.sums)):
        return f"{_a(metric.name)} that is not finite: try a lower learning rate"
    if any(abs(number) > SUM_MAX for number in metric.sums):
        return f"{_a(metric.name)} of {max(metric.sums, key=abs):.3g}: try a lower learning rate"
    if metric.kind in _COUNTS and min(metric.sums) < 0:
        return f"{_a(metric.name)} with a count below 0"
    if metric.kind == "mean" and metric.sums[1] < 0:
        return f"{_a(metric.name)} with a weight below 0"
    if metric.name == ACCURACY and metric.kind in ("mean", "ratio") and not 0 <= metric.sums[0] <= metric.sums[1]:
        return f"an accuracy of {metric.sums[0]:g} right of {metric.sums[1]:g}"
    return None


def problem_of_all(metrics: Sequence[MetricSum]) -> str | None:
    """Return why these are not valid metrics of one evaluation, or None."""
    return shapes_problem(metrics) or values_problem(metrics)


def shapes_problem(metrics: Sequence[MetricSum]) -> str | None:
    """Return why these do not have the shape of one evaluation's metrics, or None. A message with such metrics is
    refused."""
    if len(metrics) > METRICS_MAX:
        return f"there are {len(metrics)} metrics; the maximum is {METRICS_MAX}"
    if len({metric.name for metric in metrics}) != len(metrics):
        return "two metrics have the same name"
    if sum(len(metric.sums) for metric in metrics) > SUMS_TOTAL_MAX:
        return f"the metrics have more than {SUMS_TOTAL_MAX:,} sums together"
    return next((found for metric in metrics if (found := shape_problem(metric)) is not None), None)


def values_problem(metrics: Sequence[MetricSum]) -> str | None:
    """Return why the numbers of metrics are invalid, or None. The device that sent them is at fault, or the model."""
    return next((found for metric in metrics if (found := value_problem(metric)) is not None), None)


def logged_problem(metrics: Sequence[MetricSum], *, examples: int) -> str | None:
    """Return why these are not valid figures of a lease's training code, or None."""
    if len(metrics) > LOGGED_MAX:
        return f"there are {len(metrics)} figures; the maximum is {LOGGED_MAX}"
    if any(metric.kind != "mean" or metric.lower for metric in metrics):
        return "a figure is not a mean"
    if not all(is_metric_name(name_in_training(metric.name)) for metric in metrics):
        return "a figure has a name that is too long"
    return problem_of_all(metrics) or weight_problem(metrics, examples=examples)


def weight_problem(metrics: Sequence[MetricSum], *, examples: int) -> str | None:
    """Return why metrics cannot be over this many examples, or None. A device must not outweigh others by a false
    weight."""
    most = float(examples) * ELEMENTS_MAX
    for metric in metrics:
        weight = metric.sums[1] if metric.kind == "mean" else sum(metric.sums) if metric.kind in _COUNTS else 0.0
        if weight > most:
            return f"metric {metric.name} weighs {weight:.3g} over {examples} examples"
    return None


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# Merging --------------------------------------------------------------------------------------------------


def difference(a: MetricSum, b: MetricSum) -> str | None:
    """Return why two sums of one name cannot be added up, or None."""
    if a.kind != b.kind:
        return f"metric {a.name} is a {a.kind} here and a {b.kind} there"
    if len(a.sums) != len(b.sums):
        return f"metric {a.name} has {len(a.sums)} sums here and {len(b.sums)} there"
    if a.lower != b.lower:
        return f"metric {a.name} is better lower here and higher there"
    return None


def merge(a: MetricSum, b: MetricSum) -> MetricSum:
    """Return the metric over the examples of both."""
    if a.name != b.name or (why := difference(a, b)) is not None:
        raise Misuse(why if a.name == b.name else f"metrics {a.name} and {b.name} do not add up")
    return replace(a, sums=tuple(mine + theirs for mine, theirs in zip(a.sums, b.sums, strict=True)))


def merge_all(parts: Iterable[Sequence[MetricSum]]) -> tuple[MetricSum, ...]:
    """Return the metrics over all parts, merged by name, in the order in which they first occur."""
    merged: dict[str, MetricSum] = {}
    for part in parts:
        for metric in part:
            mine = merged.get(metric.name)
            merged[metric.name] = metric if mine is None else merge(mine, metric)
    return tuple(merged.values())


def add_logged(known: dict[str, MetricSum], logged: Sequence[MetricSum]) -> None:
    """Add logged figures to the known ones, by name."""
    for metric in logged:
        if (mine := known.get(metric.name)) is not None:
            known[metric.name] = merge(mine, metric)
        elif len(known) < LOGGED_MAX:
            known[metric.name] = metric
