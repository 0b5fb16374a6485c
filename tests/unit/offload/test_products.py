"""The seam: what a product takes, and what a report tells."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.offload_at_home import AtHome
from shoal.errors import Misuse
from shoal.offload.products import Report


def test_at_home_multiplies_and_counts() -> None:
    ticks = iter([1.0, 1.5, 2.0, 2.25])
    home = AtHome(clock=lambda: next(ticks))
    left, right = np.ones((2, 3), np.float32), np.full((3, 4), 2.0, np.float32)
    np.testing.assert_array_equal(home.multiply(left, right, secret="both", name="a"), np.full((2, 4), 6.0))
    home.multiply(left[:1], right, secret="none", name="b")
    assert home.report == Report(products=2, operations_home=24 + 12, seconds=0.75)
    assert home.report.home_share == 1.0


def test_a_report_adds_up() -> None:
    report = Report(bytes_out=3, bytes_in=4, operations_home=1, operations_away=3)
    assert (report.bytes_moved, report.home_share) == (7, 0.25)
    assert Report().home_share == 0.0


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (np.ones((2, 3)), np.ones((3, 2), np.float32), "left is float64"),
        (np.ones((2, 3), np.float32), np.ones(3, np.float32), r"right is float32 of shape \(3,\)"),
        (np.ones((2, 3), np.float32), np.ones((2, 2), np.float32), "the inner sizes differ"),
    ],
)
def test_what_is_no_product_is_refused(left: np.ndarray, right: np.ndarray, text: str) -> None:
    with pytest.raises(Misuse, match=text):
        AtHome().multiply(left, right, secret="none", name="x")
