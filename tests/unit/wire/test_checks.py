"""What is checked before an update is merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.wire.checks import check_told, dense
from shoal.wire.messages import Update


def update(*values: float, dtype: str = "float32", **changes: Any) -> Update:
    given: dict[str, Any] = {"job": "a", "term": 1, "lease": 1, "version": 1, "examples": 4}
    tensors = {"delta": np.array(values, dtype=dtype)}
    return Update(**{**given, "tensors": tensors, **changes})


def check(sent: Update, size: int = 2) -> np.ndarray:
    check_told(sent, examples_max=4)
    return dense("delta", sent.tensors, size=size)


def test_a_good_update_is_passed_on_without_a_copy() -> None:
    sent = update(1.5, -2)
    assert check(sent) is sent.tensors["delta"]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (update(np.nan, 1), "1 values that are not finite: try a lower learning rate"),
        (update(np.inf, -np.inf), "2 values that are not finite"),
        (update(1e6, 1e6), r"norm is 1\.41e\+06; the maximum is 1e\+06"),
        # Its square overflows float32, and still no value is infinite.
        (update(3e38, 1), "norm is inf; the maximum is"),
        (update(1), r"the update is float32 \(1,\); the model is float32 \(2,\)"),
        (update(1, 2, 3), r"\(3,\)"),
        (update(1, 2, dtype="float64"), "the update is float64"),
        (update(tensors={"delta": np.zeros((2, 1), np.float32)}), r"\(2, 1\)"),
        (update(tensors={}), r"one tensor named delta, not \[\]"),
        (update(tensors={"weights": np.zeros(2, np.float32)}), r"not \['weights'\]"),
        (update(1, 2, examples=0), r"Update\.examples is 0; the lease has 4"),
        (update(1, 2, examples=5), r"Update\.examples is 5; the lease has 4"),
        (update(1, 2, examples=-1), r"Update\.examples is -1"),
        (update(1, 2, loss_sum=float("inf")), "the training loss is not finite"),
    ],
)
def test_a_bad_one_is_refused_with_the_reason(sent: Update, told: str) -> None:
    with pytest.raises(PeerViolation, match=told):
        check(sent)


def test_one_bad_value_among_many_is_found() -> None:
    delta = np.zeros(100_000, np.float32)
    delta[77_777] = np.nan
    with pytest.raises(PeerViolation, match="1 values that are not finite"):
        check(update(tensors={"delta": delta}), delta.size)
