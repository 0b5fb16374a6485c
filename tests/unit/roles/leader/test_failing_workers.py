"""Workers that cannot prepare the job are let go; leases that fail on every worker again and again are told of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from leader_story import Story

from shoal.roles.events import Liveness, PeerChanged, StopRequested
from shoal.roles.leader.recurring import LOST_MAX, ROUNDS_MAX, Recurring
from shoal.roles.leader.workers import FETCH_TRIES, PREPARE_TRIES
from shoal.wire.messages import Failed, Finished, JobSpec, Ready, Released, Work

RAISED = "FileNotFoundError: '/base/model.safetensors', at Pre.model (pre.py:9)"


@pytest.fixture
def story(make_spec: Callable[..., JobSpec]) -> Story:
    return Story(make_spec(examples=40))


def unprepared(story: Story, node: str, *, traceback: str = "Traceback ...") -> list[Any]:
    return story.says(node, Failed(job="digits", term=1, lease=0, reason=RAISED, traceback=traceback))


def test_a_worker_that_cannot_prepare_is_let_go_with_the_reason(story: Story) -> None:
    for _ in range(PREPARE_TRIES - 1):
        unprepared(story, "a")
        assert story.told("home", Released) == []
    assert story.progress.workers[0].state == "failing"
    unprepared(story, "a")
    assert story.told("home", Released) == [Released(job="digits", term=1, node="a", failure=RAISED, by_task=True)]
    assert len(story.told("a", Finished)) == 1
    assert story.progress.workers == ()


def test_a_worker_that_cannot_fetch_has_a_minute(story: Story) -> None:
    for _ in range(FETCH_TRIES - 1):
        unprepared(story, "a", traceback="")
        assert story.told("home", Released) == []
    unprepared(story, "a", traceback="")
    assert [told.by_task for told in story.told("home", Released)] == [False]


def test_a_worker_that_prepares_between_failures_stays(story: Story) -> None:
    for _ in range(3):
        for _ in range(PREPARE_TRIES - 1):
            unprepared(story, "a")
        story.says("a", Ready(job="digits"))
        assert story.told("home", Released) == []


def test_a_manager_that_was_away_is_told_again(story: Story) -> None:
    for _ in range(PREPARE_TRIES):
        unprepared(story, "a")
    story.happens(PeerChanged(node="home", state=Liveness.LOST, reason="silent"))
    story.happens(PeerChanged(node="home", state=Liveness.ALIVE, reason="back"))
    assert [told.node for told in story.told("home", Released)] == ["a"]
    story.says("a", Ready(job="digits"))
    story.happens(PeerChanged(node="home", state=Liveness.ALIVE, reason="back"))
    assert story.told("home", Released) == [], "it came again"


def test_the_manager_may_end_a_job_as_failed(story: Story) -> None:
    story.happens(StopRequested(reason="no device can prepare it", is_failure=True))
    assert story.records("end.decided") == ["failed: no device can prepare it"]


# Leases that fail everywhere -------------------------------------------------------------------------------------


def fails(story: Story, node: str, number: int, *, works: int = 6, restart_s: float = 10.0) -> None:
    """A worker does some leases, fails in the next, and is back later."""
    story.says(node, Ready(job="digits"))
    for _ in range(works):
        story.now_s += 0.1
        story.update(node, story.work(node))
    work = story.told(node, Work)[0]
    reason = f"RuntimeError: call {number}, at Late.loss (late.py:17)"
    story.says(node, Failed(job="digits", term=1, lease=work.lease, reason=reason, traceback="Traceback ..."))
    story.now_s += restart_s


def test_a_loss_that_fails_again_and_again_is_told_and_ends_the_job(make_spec: Callable[..., JobSpec]) -> None:
    """Each trainer raises after some calls, and the next one does its batch: no batch fails twice."""
    story = Story(make_spec(examples=400))
    fails(story, "a", 1)
    assert story.progress.reason == ""
    fails(story, "a", 2)
    assert "leases fail on every device again and again (2 times each" in story.progress.reason
    assert "late.py:17" in story.progress.reason
    for number in range(3, ROUNDS_MAX + 1):
        assert story.records("end.decided") == []
        fails(story, "a", number)
    (ending,) = [each for each in story.leader._ending.decided or () if "again and again" in each]
    assert "at Late.loss (late.py:17)" in ending


def test_a_job_that_mostly_trains_goes_on(make_spec: Callable[..., JobSpec]) -> None:
    story = Story(make_spec(examples=4000))
    for number in range(2 * ROUNDS_MAX):
        fails(story, "a", number, works=20, restart_s=0.1)
    assert story.leader._ending.decided is None
    assert story.progress.reason == ""


def test_a_job_goes_on_while_one_device_does_not_fail() -> None:
    recurring = Recurring()
    for number in range(3 * ROUNDS_MAX):
        recurring.on_failed("a", "x", by_task=True, able=("a", "b"), now_s=10.0 * number)
    assert recurring.fatal(("a", "b"), now_s=1000.0) is None
    assert recurring.told(("a", "b"), now_s=300.0) == ""


def test_only_the_tasks_own_errors_end_a_job() -> None:
    recurring = Recurring()
    for number in range(3 * ROUNDS_MAX):
        recurring.on_failed("a", "killed", by_task=False, able=("a",), now_s=10.0 * number)
        recurring.on_back("a", now_s=10.0 * number + 10.0 * LOST_MAX + 1.0)
    assert recurring.fatal(("a",), now_s=300.0) is None
    assert "again and again" in recurring.told(("a",), now_s=300.0)
