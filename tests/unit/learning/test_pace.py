"""When the model moves."""

from __future__ import annotations

import pytest

from shoal.errors import Misuse
from shoal.learning.pace import PACES, Buffered, Sync
from shoal.plan import CHOICES


def test_a_worker_contributes_once_to_a_version() -> None:
    pace = Sync()
    assert pace.may_start(contributed_to=-1, version=0)
    assert not pace.may_start(contributed_to=3, version=3)
    assert pace.may_start(contributed_to=3, version=4)


def test_the_model_moves_when_every_lease_is_in_or_given_up() -> None:
    pace = Sync()
    assert pace.should_step(merged=1, outstanding=0)
    assert not pace.should_step(merged=5, outstanding=1)
    # Everyone was lost: there is nothing to step with.
    assert not pace.should_step(merged=0, outstanding=0)


def test_half_a_round_is_no_version() -> None:
    assert not Sync().takes_the_rest(merged=3)


def test_a_buffer_fills_whoever_is_out_and_nobody_waits() -> None:
    pace = Buffered(3)
    assert pace.may_start(contributed_to=7, version=7)
    assert not pace.should_step(merged=2, outstanding=0)
    assert pace.should_step(merged=3, outstanding=5)
    assert pace.takes_the_rest(merged=1)
    assert not pace.takes_the_rest(merged=0)


def test_each_asynchronous_update_is_a_version() -> None:
    pace = PACES["async"](8)
    assert pace.should_step(merged=1, outstanding=7)
    assert not pace.should_step(merged=0, outstanding=7)


def test_a_plans_buffer_is_what_the_buffered_pace_takes() -> None:
    assert not PACES["buffered"](8).should_step(merged=7, outstanding=1)
    assert PACES["buffered"](8).should_step(merged=8, outstanding=1)
    with pytest.raises(Misuse, match="at least one update, not 0"):
        Buffered(0)


def test_every_pace_a_plan_may_name_exists() -> None:
    # ``auto`` is none of its own: it chooses among them.
    assert (*PACES, "auto") == CHOICES["pace"]
