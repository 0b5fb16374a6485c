"""Recent versions as changes: whoever holds one of them is brought to the newest, or gets the whole model."""

from __future__ import annotations

import numpy as np

from shoal.roles.leader.changes import Changes
from shoal.wire.limits import MESSAGE_TENSORS_MAX


def change(value: int, size: int = 10) -> np.ndarray:
    return np.full(size, value % 256, dtype=np.uint8)


def of(versions: range, *, whole_bytes: int = 100) -> Changes:
    changes = Changes(whole_bytes=whole_bytes)
    for version in versions:
        changes.add(version, change(version))
    return changes


def test_what_lies_between_is_told_version_by_version() -> None:
    told = of(range(1, 5)).since(1, 4)
    assert told is not None
    assert {name: array[0] for name, array in told.items()} == {"2": 2, "3": 3, "4": 4}
    assert list(told) == ["2", "3", "4"]


def test_changes_that_are_longer_than_the_model_are_not_kept() -> None:
    changes = of(range(1, 30))
    assert changes.since(20, 29) is not None
    assert changes.since(19, 29) is None, "ten of them are as long as the model"


def test_a_version_that_is_not_the_newest_or_to_come_has_none() -> None:
    changes = of(range(1, 5))
    assert changes.since(4, 4) is None
    assert changes.since(5, 4) is None
    assert changes.since(2, 3) is None


def test_where_a_version_is_missing_nothing_before_it_is_of_use() -> None:
    changes = of(range(1, 4))
    changes.add(5, change(5))
    assert changes.since(3, 5) is None
    assert changes.since(4, 5) is not None
    changes.clear()
    assert changes.since(4, 5) is None


def test_no_message_carries_more_of_them_than_a_message_may() -> None:
    changes = of(range(1, 400), whole_bytes=1 << 20)
    assert changes.since(399 - MESSAGE_TENSORS_MAX, 399) is not None
    assert changes.since(398 - MESSAGE_TENSORS_MAX, 399) is None
