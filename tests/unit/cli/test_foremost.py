"""Which events a view with little room shows."""

from __future__ import annotations

from statuses import event, status

from shoal.cli.foremost import foremost
from shoal.cli.job_history import EVENTS_KEPT, Story
from shoal.wire.messages import EventView


def kinds(events: list[EventView]) -> list[str]:
    return [each.kind for each in events]


def test_routine_events_do_not_scroll_a_fault_away() -> None:
    routine = [event(seq, "job.evaluated") for seq in range(3, 40)]
    shown = foremost([event(1, "device.joined"), event(2, "device.lost"), *routine], 5)
    assert [each.seq for each in shown] == [1, 2, 37, 38, 39]


def test_many_faults_leave_half_of_the_room_to_other_events() -> None:
    notes = [event(seq, "device.joined") for seq in range(1, 9)]
    faults = [event(seq, "update.rejected") for seq in range(9, 30)]
    shown = foremost([*notes, *faults, event(30, "job.finished")], 7)
    assert kinds(shown) == ["device.joined"] * 3 + ["update.rejected"] * 3 + ["job.finished"]
    assert [each.seq for each in shown] == [6, 7, 8, 27, 28, 29, 30]


def test_faults_take_the_room_that_others_leave() -> None:
    faults = [event(seq, "lease.failed") for seq in range(1, 9)]
    assert [each.seq for each in foremost([*faults, event(9, "epoch.done")], 4)] == [6, 7, 8, 9]
    assert foremost(faults, 0) == []
    assert foremost(faults, 8) == faults


def test_a_story_keeps_a_fault_through_a_long_training() -> None:
    story = Story(job_id=status().jobs[0].job)
    story.take(status(events=(event(1, "device.lost"),)))
    for seq in range(2, EVENTS_KEPT + 50):
        story.take(status(events=(event(seq, "epoch.done"),)))
    assert len(story.events) == EVENTS_KEPT
    assert story.events[0].kind == "device.lost"
    assert story.events[-1].seq == story.last_event
