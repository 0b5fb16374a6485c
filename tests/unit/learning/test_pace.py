"""When the model moves."""

from __future__ import annotations

from shoal.learning.pace import PACES, Sync
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


def test_every_pace_a_plan_may_name_exists() -> None:
    assert tuple(PACES) == CHOICES["pace"]
