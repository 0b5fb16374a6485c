"""The crew: who is idle in which order, who is trusted, and who is shown."""

from __future__ import annotations

from shoal.roles.leader.workers import VIEWS_MAX, VIOLATIONS_MAX, WorkerRecord, Workers
from shoal.roles.machine import Machine
from shoal.states import WorkerState


def test_first_ready_first_served() -> None:
    crew = Workers(Machine(), job="digits")
    for node in ("c", "a", "b"):
        crew.make_idle(crew.add(node))
    a = crew.get("a")
    assert a is not None
    crew.make_busy(a, WorkerState.WORKING)
    assert [member.node for member in crew.idle()] == ["c", "b"]
    crew.make_idle(a)
    assert [member.node for member in crew.idle()] == ["c", "b", "a"]
    assert crew.nodes() == ["a", "b", "c"]


def test_those_left_out_are_counted_until_they_go() -> None:
    crew = Workers(Machine(), job="digits")
    bad, good = crew.add("bad"), crew.add("good")
    for _ in range(VIOLATIONS_MAX + 2):
        crew.on_violation(bad, "not finite")
    assert (len(crew), crew.trusted) == (2, 1)
    assert bad.offence == "not finite"
    assert crew.any_healthy()
    good.is_failing = True
    assert not crew.any_healthy()
    crew.remove("bad")
    assert (len(crew), crew.trusted) == (1, 1)


def test_a_large_crew_shows_those_in_trouble_first() -> None:
    crew = Workers(Machine(), job="digits")
    for number in range(VIEWS_MAX + 100):
        crew.add(f"n{number:04}").durations_s.append(1.0)
    slow, failing = crew.get("n0250"), crew.get("n0290")
    assert slow is not None
    assert failing is not None
    slow.durations_s.append(9.0)
    failing.failures = 1
    views = crew.views(typical_s=1.0)
    assert len(views) == VIEWS_MAX
    assert [view.node for view in views[:3]] == ["n0290", "n0250", "n0000"]
    # The median of 1 and 9.
    assert views[1].slowness == 5.0


def test_what_is_shown_of_a_pace_follows_within_a_few_leases() -> None:
    member = WorkerRecord(node="a")
    member.durations_s.extend([1.0] * 9)
    member.trainings_s.extend([0.5] * 9)
    for _ in range(2):
        member.durations_s.append(2.0)
        member.trainings_s.append(1.0)
    view = member.view(typical_s=1.0)
    assert (view.lease_s, view.train_s, view.slowness) == (2.0, 1.0, 2.0)


def test_who_is_set_aside_gets_nothing_wherever_it_is() -> None:
    crew = Workers(Machine(), job="digits")
    here = crew.add("here")
    crew.make_idle(here)
    crew.set_aside("here", "set aside: it broke the model")
    crew.set_aside("away", "set aside: it broke the model")
    assert crew.trusted == 0
    assert crew.first_in_line() is None
    assert crew.take_outcasts() == [here]
    assert crew.add("away").why_left_out == "set aside: it broke the model"
    crew.remove("here")
    assert crew.add("here").left_out
