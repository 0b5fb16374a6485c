"""When devices without work come again: spread, and in order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.scheduling.check_in import CheckIns

WEEK_S = 7 * 86400.0


def test_a_crowd_that_came_at_once_returns_so_many_a_second() -> None:
    check_ins = CheckIns(every_s=100.0, most_s=WEEK_S, per_s=5)
    seconds = Counter(int(check_ins.appoint(now_s=0.0, draw=0.5)) for _ in range(23))
    assert seconds == {100: 5, 101: 5, 102: 5, 103: 5, 104: 3}


def test_a_later_device_is_not_behind_the_crowd_once_that_is_over() -> None:
    check_ins = CheckIns(every_s=100.0, most_s=WEEK_S, per_s=1)
    for _ in range(10):
        check_ins.appoint(now_s=0.0, draw=0.0)
    assert check_ins.appoint(now_s=50.0, draw=0.0) == 100.0


@given(
    st.floats(min_value=1.0, max_value=WEEK_S),
    st.lists(
        st.tuples(st.floats(min_value=0.0, max_value=5000.0), st.floats(min_value=0, max_value=0.999)), max_size=80
    ),
)
def test_nobody_is_told_to_come_at_once_or_never_and_no_second_is_crowded(
    every_s: float, calls: list[tuple[float, float]]
) -> None:
    check_ins, now_s, seconds = CheckIns(every_s=every_s, most_s=WEEK_S, per_s=3), 0.0, Counter[int]()
    for later_s, draw in calls:
        now_s += later_s
        come_s = check_ins.appoint(now_s=now_s, draw=draw)
        assert 0 < come_s <= WEEK_S
        if 1.0 < come_s < WEEK_S:
            # The sum may be rounded over the end of its second.
            seconds[int(now_s + come_s + 1e-6)] += 1
    assert all(count <= 4 for count in seconds.values())


@pytest.mark.parametrize("every_s", [0.0, -1.0, WEEK_S + 1])
def test_never_is_refused(every_s: float) -> None:
    with pytest.raises(Misuse):
        CheckIns(every_s=every_s, most_s=WEEK_S)


def test_a_clock_may_begin_below_zero() -> None:
    check_ins = CheckIns(every_s=2.0, most_s=WEEK_S)
    assert 1.0 <= check_ins.appoint(now_s=-80.5, draw=0.5) <= 3.0
