"""Checks of a peer's values before they are merged: layout, finite, norm."""

from __future__ import annotations

import math

import numpy as np

from shoal.errors import BadValues, PeerViolation
from shoal.learning.metrics import logged_problem
from shoal.wire.limits import JOULES_MAX, LOSS_SUM_MAX, SECONDS_MAX, UPDATE_NORM_MAX
from shoal.wire.messages import Tensors, Update


def check_told(update: Update, *, examples_max: int) -> None:
    """Check an update's own figures. Its tensors are checked where they arrive."""
    if not 0 < update.examples <= examples_max:
        raise PeerViolation(f"Update.examples is {update.examples}; the lease has {examples_max}")
    if not math.isfinite(update.loss_sum):
        raise BadValues("the training loss is not finite: try a lower learning rate")
    # The leader sums these with other devices' figures, and the sums must not overflow.
    if not -LOSS_SUM_MAX <= update.loss_sum <= LOSS_SUM_MAX:
        raise BadValues(f"the training loss is {update.loss_sum:.3g}: try a lower learning rate")
    if not 0 <= update.train_s <= SECONDS_MAX:
        raise PeerViolation(f"Update.train_s is {update.train_s:g}; it must be 0 to {SECONDS_MAX:g}")
    if not 0 <= update.joules <= JOULES_MAX:
        raise PeerViolation(f"Update.joules is {update.joules:g}; it must be 0 to {JOULES_MAX:g}")
    if update.logged and (found := logged_problem(update.logged, examples=update.examples)) is not None:
        raise PeerViolation(f"Update.logged is not usable: {found}")


def flat(name: str, tensors: Tensors, *, size: int) -> np.ndarray:
    """Return the only tensor, a float32 vector of this size."""
    if list(tensors) != [name]:
        raise PeerViolation(f"a dense update is one tensor named {name}, not {sorted(tensors)[:4]}")
    array = tensors[name]
    if array.dtype != np.float32 or array.shape != (size,):
        raise PeerViolation(f"the update is {array.dtype} {array.shape}; the model is float32 ({size},)")
    return array


def dense(name: str, tensors: Tensors, *, size: int) -> np.ndarray:
    """Return the only tensor, whose values are finite and whose norm is within the limit."""
    return dense_with_norm(name, tensors, size=size)[0]


def dense_with_norm(name: str, tensors: Tensors, *, size: int) -> tuple[np.ndarray, float]:
    """Return the tensor of ``dense`` and its norm."""
    delta = flat(name, tensors, size=size)
    # One pass over memory does both checks: any NaN or infinity makes the sum of squares not finite.
    norm = norm_of(delta)
    if norm > UPDATE_NORM_MAX:
        bad = int(np.count_nonzero(~np.isfinite(delta)))
        if bad:
            raise BadValues(f"the update has {bad} values that are not finite: try a lower learning rate")
        raise BadValues(f"the update's norm is {norm:.3g}; the maximum is {UPDATE_NORM_MAX:.3g}")
    return delta, norm


def norm_of(values: np.ndarray) -> float:
    """Return the Euclidean norm, or infinity if a value is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        squared = float(np.dot(values, values))
    return math.sqrt(squared) if math.isfinite(squared) else math.inf
