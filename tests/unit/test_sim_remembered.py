"""What a simulated manager remembers of the store, for when the store goes back in time."""

from __future__ import annotations

from dataclasses import replace

from dst.managers.remembered import SimRemembered
from shoal.plan import Plan
from shoal.roles.manager.cluster_state import JobRecord
from shoal.sim.jobs import bare_spec
from shoal.states import JobState


def test_a_manager_remembers_the_jobs_that_it_saw_end() -> None:
    remembered = SimRemembered()
    first, second = (JobRecord(spec=bare_spec(name, Plan(), examples=8)) for name in ("first", "second"))
    remembered.on_kept(first)
    remembered.on_kept(replace(first, state=JobState.STOPPED))
    remembered.on_kept(second)
    assert (list(remembered.ended), list(remembered.open)) == (["first"], ["second"])
