"""Values checked before they are merged: layout, finite, norm. Pure; raises what the sender did wrong."""

from __future__ import annotations

import math

import numpy as np

from shoal.errors import BadValues, PeerViolation
from shoal.learning.metrics import logged_problem
from shoal.wire.limits import LOSS_SUM_MAX, SECONDS_MAX, UPDATE_NORM_MAX
from shoal.wire.messages import Tensors, Update


def check_told(update: Update, *, examples_max: int) -> None:
    """What an update says of itself, whichever way its tensors go."""
    if not 0 < update.examples <= examples_max:
        raise PeerViolation(f"an update over {update.examples} examples; the lease holds {examples_max}")
    if not math.isfinite(update.loss_sum):
        raise BadValues("a training loss that is not finite: try a lower learning rate")
    # These are added up or averaged with others of their kind, and no sum of them may overflow.
    if not -LOSS_SUM_MAX <= update.loss_sum <= LOSS_SUM_MAX:
        raise BadValues(f"a training loss of {update.loss_sum:.3g}: try a lower learning rate")
    if not 0 <= update.train_s <= SECONDS_MAX:
        raise PeerViolation(f"a training that took {update.train_s:g} s")
    if update.logged and (found := logged_problem(update.logged, examples=update.examples)) is not None:
        raise PeerViolation(f"a training that logged {found}")


def flat(name: str, tensors: Tensors, *, size: int) -> np.ndarray:
    """The one tensor there is: float32, as long as it should be."""
    if list(tensors) != [name]:
        raise PeerViolation(f"a dense update is one tensor named {name}, not {sorted(tensors)[:4]}")
    array = tensors[name]
    if array.dtype != np.float32 or array.shape != (size,):
        raise PeerViolation(f"an update of {array.dtype} {array.shape}; the model is float32 ({size},)")
    return array


def dense(name: str, tensors: Tensors, *, size: int) -> np.ndarray:
    """The one tensor there is, finite and of a norm that can be."""
    return dense_with_norm(name, tensors, size=size)[0]


def dense_with_norm(name: str, tensors: Tensors, *, size: int) -> tuple[np.ndarray, float]:
    """As ``dense``, and its norm."""
    delta = flat(name, tensors, size=size)
    # One pass over memory answers both questions: any NaN or infinity makes the square sum not finite.
    norm = norm_of(delta)
    if norm > UPDATE_NORM_MAX:
        bad = int(np.count_nonzero(~np.isfinite(delta)))
        if bad:
            raise BadValues(f"an update with {bad} values that are not finite: try a lower learning rate")
        raise BadValues(f"an update of norm {norm:.3g}, at most {UPDATE_NORM_MAX:.3g} is merged")
    return delta, norm


def norm_of(values: np.ndarray) -> float:
    """The Euclidean norm; infinite where a value is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        squared = float(np.dot(values, values))
    return math.sqrt(squared) if math.isfinite(squared) else math.inf
