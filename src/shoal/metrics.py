"""The metrics of a task: sums over a batch, from torch tensors, numpy arrays or numbers. Imports no torch.

def metrics(self, model, batch):
    x, y = batch
    guess = model(x).argmax(1)
    return {"f1": shoal.f1(((guess == 1) & (y == 1)).sum(), ((guess == 1) & (y == 0)).sum(),
                           ((guess == 0) & (y == 1)).sum()),
            "mae": shoal.mean((guess - y).abs().sum(), len(y))}
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import Misuse
from shoal.learning.figures import histogram_of
from shoal.learning.metrics import CLASSES_MAX, METRICS_MAX, MetricSum, lower_is_better, shape_problem

_BETTER = ("", "lower", "higher")
_unread: ContextVar[bool] = ContextVar("unread", default=False)


@dataclass(frozen=True, slots=True)
class Sums:
    """A metric's sums over a batch, before it has a name."""

    kind: str
    sums: tuple[float, ...]
    #: ``lower`` or ``higher``. Empty to decide by the metric's name.
    better: str = ""


def mean(total: Any, weight: Any, better: str = "") -> Sums:
    """Return the sums of a mean: the sum of some values, and their number (or weight)."""
    return _sums("mean", (total, weight), better)


def ratio(numerator: Any, denominator: Any, better: str = "") -> Sums:
    """Return the sums of a ratio: one sum over another."""
    return _sums("ratio", (numerator, denominator), better)


def f1(true_positives: Any, false_positives: Any, false_negatives: Any, better: str = "") -> Sums:
    """Return the sums of an F1 score, 2 tp / (2 tp + fp + fn), from counts."""
    return _sums("f1", (true_positives, false_positives, false_negatives), better)


def confusion(predicted: Any, labels: Any, classes: int, better: str = "") -> Sums:
    """Count how often each class was predicted for each label. Shoal reports the mean F1 of the classes.

    Both are class numbers of one shape. Labels below 0 (such as -100) are left out."""
    if type(classes) is not int or not 2 <= classes <= CLASSES_MAX:
        raise Misuse(f"shoal.confusion takes 2 to {CLASSES_MAX} classes, not {classes!r}")
    guesses, truths = _array(predicted, "predicted"), _array(labels, "labels")
    if guesses.shape != truths.shape:
        raise Misuse(
            f"shoal.confusion got predictions of shape {list(guesses.shape)} and labels of {list(truths.shape)}:"
            " give the class of each, such as output.argmax(1)"
        )
    if guesses.dtype.kind not in "iub" or truths.dtype.kind not in "iub":
        raise Misuse("shoal.confusion takes class numbers, not fractions: give output.argmax(1)")
    guesses, truths = guesses.reshape(-1).astype(np.int64), truths.reshape(-1).astype(np.int64)
    counted = truths >= 0
    guesses, truths = guesses[counted], truths[counted]
    if guesses.size and not (guesses.min() >= 0 and max(guesses.max(), truths.max()) < classes):
        raise Misuse(f"shoal.confusion got a class outside 0 to {classes - 1}")
    counts = np.bincount(truths * classes + guesses, minlength=classes * classes)
    return _said(Sums("confusion", tuple(counts.astype(np.float64).tolist()), better))


def auc(scores: Any, labels: Any, better: str = "") -> Sums:
    """Return the sums of the area under the ROC curve, from binned scores. A higher score means more likely positive.
    A label is 0 or 1."""
    values, truths = _array(scores, "scores").reshape(-1), _array(labels, "labels").reshape(-1)
    if values.shape != truths.shape:
        raise Misuse(f"shoal.auc got {values.size} scores and {truths.size} labels: give one score per example")
    if values.dtype.kind not in "fiub" or np.isnan(values).any():
        raise Misuse("shoal.auc got a score that is not a number")
    if not np.isin(truths, (0, 1)).all():
        raise Misuse("shoal.auc takes labels that are 0 or 1")
    return _said(Sums("histogram", histogram_of(values.astype(np.float64), truths.astype(bool)), better))


def named(metrics: Any, *, where: str = "metrics") -> tuple[MetricSum, ...]:
    """Return the result of a task's ``metrics`` for a batch as named sums. ``where`` names the method in errors."""
    if not isinstance(metrics, Mapping):
        raise Misuse(f"{where} gave {type(metrics).__name__}; it must give a dict of names and sums, as {_EXAMPLE}")
    if len(metrics) > METRICS_MAX:
        raise Misuse(f"{where} gave {len(metrics)} metrics, at most {METRICS_MAX} are counted")
    return tuple(_with_name(name, sums, where) for name, sums in metrics.items())


_EXAMPLE = '{"mae": shoal.mean(total, weight)}'


def _with_name(name: object, sums: object, where: str) -> MetricSum:
    if not isinstance(name, str):
        raise Misuse(f"{where} gave a metric whose name is {type(name).__name__}, not a str")
    if not isinstance(sums, Sums):
        raise Misuse(
            f"{where} gave {type(sums).__name__} for {name[:80]!r}; figures of single batches cannot be added up:"
            f" give sums, as {_EXAMPLE}"
        )
    lower = sums.better == "lower" if sums.better else lower_is_better(name)
    metric = MetricSum(name=name, kind=sums.kind, sums=sums.sums, lower=lower)
    if (found := shape_problem(metric)) is not None:
        raise Misuse(f"{where}: {found}")
    return metric


def _sums(kind: str, values: tuple[Any, ...], better: str) -> Sums:
    return _said(Sums(kind, tuple(_number(value, kind) for value in values), better))


def _said(sums: Sums) -> Sums:
    if sums.better not in _BETTER:
        raise Misuse(f"better is 'lower' or 'higher', not {sums.better!r}")
    return sums


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Keep sums as tensors within this block, for a graph that will compute them. Only a capture needs this."""
    token = _unread.set(True)
    try:
        yield
    finally:
        _unread.reset(token)


def _number(value: Any, kind: str) -> float:
    """Return the number in a value: a number, or a tensor or array that holds one."""
    if _unread.get():
        return value  # type: ignore[no-any-return]
    item = getattr(value, "item", None)
    try:
        return float(item() if item is not None else value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        what = type(value).__name__ if shape is None else f"values of shape {list(shape)}"
        raise Misuse(f"shoal.{kind} takes numbers, not {what}: sum them up with .sum()") from None


def _array(values: Any, name: str) -> np.ndarray[Any, Any]:
    """Return the values of a tensor, an array or a list. A tensor may be on a GPU, and of a type that numpy lacks."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        try:
            return np.asarray(values.numpy())
        except TypeError:
            return np.asarray(values.float().numpy())
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise Misuse(f"{name} are numbers, not {array.dtype}")
    return array
