"""What a task measures itself by: sums of a batch, from torch tensors, numpy arrays or numbers. Imports no torch.

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
    #: ``lower`` or ``higher``; empty: as the metric's name says.
    better: str = ""


def mean(total: Any, weight: Any, better: str = "") -> Sums:
    """A mean: the sum of some values, and how many they are (or what they weigh)."""
    return _sums("mean", (total, weight), better)


def ratio(numerator: Any, denominator: Any, better: str = "") -> Sums:
    """One sum over another."""
    return _sums("ratio", (numerator, denominator), better)


def f1(true_positives: Any, false_positives: Any, false_negatives: Any, better: str = "") -> Sums:
    """2 tp / (2 tp + fp + fn), from counts."""
    return _sums("f1", (true_positives, false_positives, false_negatives), better)


def confusion(predicted: Any, labels: Any, classes: int, better: str = "") -> Sums:
    """How often each label was taken for each class; told as the mean F1 of the classes. Both are class numbers of one
    shape; where a label is below 0 (such as -100) it is left out."""
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
    """The area under the ROC curve, from binned scores: the higher, the likelier positive. A label is 0 or 1."""
    values, truths = _array(scores, "scores").reshape(-1), _array(labels, "labels").reshape(-1)
    if values.shape != truths.shape:
        raise Misuse(f"shoal.auc got {values.size} scores and {truths.size} labels: give one score an example")
    if values.dtype.kind not in "fiub" or np.isnan(values).any():
        raise Misuse("shoal.auc got a score that is not a number")
    if not np.isin(truths, (0, 1)).all():
        raise Misuse("shoal.auc takes labels that are 0 or 1")
    return _said(Sums("histogram", histogram_of(values.astype(np.float64), truths.astype(bool)), better))


def named(metrics: Any, *, where: str = "metrics") -> tuple[MetricSum, ...]:
    """What a task's ``metrics`` gave for a batch, as sums with their names. ``where`` names it in errors."""
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
            f"{where} gave {type(sums).__name__} for {name[:80]!r}; a figure of one batch does not add up with others:"
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
    """Leave sums as the tensors that they are, for a graph that is to compute them. Only a capture asks for it."""
    token = _unread.set(True)
    try:
        yield
    finally:
        _unread.reset(token)


def _number(value: Any, kind: str) -> float:
    """A number, or a tensor or array that holds one."""
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
    """What a tensor, an array or a list holds. A tensor may be on a GPU, and of a type that numpy has not."""
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
