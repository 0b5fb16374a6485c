"""Shares of tiles: in proportion to speed, late links counted, measured anew."""

from __future__ import annotations

import pytest

from shoal.errors import Misuse
from shoal.offload.shares import MeasuredExecutor, ends_s, measured, split


def executor(name: str, speed: float = 100.0, latency_s: float = 0.0, busy_s: float = 0.0) -> MeasuredExecutor:
    return MeasuredExecutor(name=name, operations_per_s=speed, latency_s=latency_s, busy_s=busy_s)


def test_twice_as_fast_gets_twice_as_many() -> None:
    assert split(12, [executor("b", 200), executor("a", 100)], operations_each=10) == {"a": 4, "b": 8}


def test_latency_and_work_at_hand_count() -> None:
    # 0.1 s a tile: 0.4 s late is four tiles behind.
    assert split(10, [executor("a"), executor("b", latency_s=0.4)], operations_each=10) == {"a": 7, "b": 3}
    assert split(10, [executor("a"), executor("b", busy_s=0.4)], operations_each=10) == {"a": 7, "b": 3}
    assert split(3, [executor("a"), executor("b", latency_s=5)], operations_each=10) == {"a": 3, "b": 0}


def test_nobody_and_nonsense_are_refused() -> None:
    with pytest.raises(Misuse, match="nobody"):
        split(3, [], operations_each=1)
    with pytest.raises(Misuse, match="one name"):
        split(3, [executor("a"), executor("a")], operations_each=1)
    with pytest.raises(Misuse, match="measure it"):
        executor("a", 0.0)


def test_a_slow_task_moves_the_next_split() -> None:
    slow = executor("a")
    for _ in range(20):
        slow = measured(slow, operations=100, took_s=2.0)
    assert slow.operations_per_s == pytest.approx(50, rel=0.01)
    counts = split(9, [slow, executor("b")], operations_each=10)
    assert counts == {"a": 3, "b": 6}
    assert ends_s(counts, [slow, executor("b")], operations_each=10) == pytest.approx(0.6, rel=0.01)


def test_one_stall_is_not_a_slow_device() -> None:
    assert measured(executor("a"), operations=100, took_s=2.0).operations_per_s > 70
