"""The search of benchmarks.own_rows for rows that left their device, and how it divides digits among devices."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.own_rows import digits_of, found_rows

pytestmark = pytest.mark.timeout(120)


def test_a_picture_is_found_at_any_place_and_half_of_one_is_not() -> None:
    rng = np.random.default_rng(3)
    owned = [(rng.integers(0, 256, (20, 28, 28), dtype=np.uint8), np.zeros(20)) for _ in range(2)]
    (one, _), (other, _) = owned
    # Of a picture that is blank but for its last row, that row is looked for.
    other[4, :27] = 0
    for shift in range(9):
        content = bytes(shift) + one[5].tobytes() + b"and" + other[4].tobytes() + one[7].tobytes()[:700]
        assert found_rows(iter([b"", content, rng.bytes(1000)]), owned) == 2
    assert found_rows(iter([one[7].tobytes()[:-1], b"1234567", rng.bytes(100_000)]), owned) == 0


def test_no_two_devices_have_a_row_in_common() -> None:
    owned = digits_of(3, made_up=True)
    pictures = [picture.tobytes() for x, _ in owned for picture in x]
    assert len(pictures) == len(set(pictures)) == 16_000
    shares = [np.bincount(y, minlength=10) / len(y) for _, y in owned]
    assert max(np.abs(shares[0] - share).max() for share in shares[1:]) > 0.1
