"""The leader, as stories: workers come, work, fail, lie and leave; the model moves, is saved, and the job ends.

The job has four batches of one example each. The model is two zeros, there is no momentum, and a worker's update for
any batch is [1, 1] unless a story says otherwise: so version n of the model is [n, n].
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from leader_story import Story

from shoal.learning.metrics import MetricSum
from shoal.plan import Until
from shoal.roles.actions import Action, Record, Save, Send, SetTimer
from shoal.roles.events import Liveness, PeerChanged, Received, Saved, SaveFailed, StopRequested, TimerFired
from shoal.roles.leader.checkpointing import RETRY_S
from shoal.roles.leader.leases import LEASE_GRACE_S, TICK_S
from shoal.roles.leader.suspicion import BATCH_FAILURES_MAX
from shoal.roles.leader.training_state import EVALUATIONS_KEPT, TRAINED, VELOCITY
from shoal.scheduling.ledger import Lease
from shoal.wire.limits import UPLOAD_BUDGET_BYTES
from shoal.wire.messages import (
    Evaluated,
    Failed,
    Finished,
    Go,
    HandOver,
    JobSpec,
    Offer,
    Progress,
    Ready,
    Release,
    Released,
    SteppedDown,
    Update,
    UpdateRefused,
    Wait,
    Work,
    mean_number,
)

Start = Callable[..., Story]


@pytest.fixture
def begin(make_spec: Callable[..., JobSpec]) -> Start:
    """Start a leader whose first save is done. What a job's plan says otherwise is given here."""

    def start(*, term: int = 1, size: int = 2, saved: Save | None = None, **spec: Any) -> Story:
        story = Story(make_spec(**spec), term=term, size=size, saved=saved)
        if saved is None:
            story.happens(Saved(version=0))
        return story

    return start


# Workers come --------------------------------------------------------------------------------------


def test_a_leader_saves_its_first_version_before_anything_else(make_spec: Callable[..., JobSpec]) -> None:
    story = Story(make_spec())
    assert story.save().version == 0
    assert SetTimer(name="tick", after_s=TICK_S) in story.actions
    assert story.records("job.started") == ["2 parameters, 4 batches per epoch"]
    assert story.progress.state == "waiting"
    assert story.progress.reason == "no worker has connected yet"


def test_a_ready_worker_gets_a_batch_and_the_model_in_one_message(begin: Start) -> None:
    story = begin()
    story.ready("a")
    work = story.work("a")
    assert (work.kind, work.batches, work.version, work.epoch, work.term) == ("train", (0,), 0, 0, 1)
    assert work.tensors["model"].tolist() == [0.0, 0.0]
    assert work.credit
    assert work.deadline_s > 60
    assert story.records("device.joined") == ["a ready"]
    assert story.progress.state == "training"


def test_a_lease_names_the_rate_of_its_version_where_a_schedule_does(begin: Start) -> None:
    story = begin()
    story.ready("a")
    assert story.work("a").rate == 0.0, "the plan's"
    story = begin(learning_rate=0.4, schedule="warmup 4")
    for version in range(3):
        story.ready("a")
        assert (story.work("a").version, story.work("a").rate) == (version, pytest.approx(0.1 * (version + 1)))
        story.update("a", story.work("a"), 0.1, 0.1)
    story = begin(outer="adam", schedule="warmup 4")
    story.ready("a")
    assert story.work("a").rate == 0.0, "an adaptive step goes so far itself"


def test_a_worker_that_holds_the_model_is_not_sent_it_again(begin: Start) -> None:
    story = begin()
    story.says("a", Ready(job="digits", holds_term=1, holds_version=0))
    assert not story.work("a").tensors
    story.says("b", Ready(job="digits", holds_term=7, holds_version=0))
    assert story.work("b").tensors, "a version of another term is another model"
    story.says("c", Ready(job="digits", holds_term=0, holds_version=0))
    assert not story.work("c").tensors, "the first model is the same under every leader"


def test_too_few_workers_wait_and_are_told_why(begin: Start) -> None:
    story = begin(workers_min=3)
    story.ready("a", "b")
    assert [wait.reason for wait in story.told("a", Wait)] == ["1 of 3 required devices connected"]
    assert [wait.reason for wait in story.told("b", Wait)] == ["2 of 3 required devices connected"]
    assert story.progress.state == "waiting"
    story.tick(2.0)
    assert [wait.reason for wait in story.told("a", Wait)] == ["2 of 3 required devices connected"]
    story.tick(2.0)
    assert not story.told("a", Wait), "the same reason is said once"
    story.ready("c")
    assert [story.work(node).batches for node in ("a", "b", "c")] == [(0,), (1,), (2,)]


def test_joining_in_the_middle_of_a_round_gives_a_batch_of_the_version_in_progress(begin: Start) -> None:
    story = begin()
    story.ready("a")
    of_a = story.work("a")
    story.ready("b")
    of_b = story.work("b")
    assert (of_b.version, of_b.batches) == (0, (1,))
    story.update("a", of_a)
    assert story.progress.version == 0, "the round waits for b"
    assert not story.told("a", Work), "a contributes once to a version"
    story.update("b", of_b, 3, 3)
    # The mean of [1, 1] and [3, 3].
    assert story.model == [2.0, 2.0]
    assert {story.work(node).version for node in ("a", "b")} == {1}


def test_joining_when_nothing_is_free_means_waiting_for_the_end_of_the_epoch(begin: Start) -> None:
    story = begin(examples=1)
    story.ready("a")
    of_a = story.work("a")
    story.ready("b")
    assert story.actions == [Record(kind="device.joined", reason="b ready", job="digits")]
    story.tick(2.0)
    assert [wait.reason for wait in story.told("b", Wait)] == ["the end of epoch 1 waits for a"]
    story.update("a", of_a)
    assert story.told("a", Work) or story.told("b", Work), "the next epoch has begun"


def test_joining_after_the_last_epoch_is_told_that_it_is_over(begin: Start) -> None:
    story = begin(until=Until(epochs=1))
    story.epoch("a")
    story.ready("b")
    assert [wait.reason for wait in story.told("b", Wait)] == ["the job is over; its last version is being saved"]
    story.happens(Saved(version=4))
    assert [node for node in ("a", "b") if story.told(node, Finished)] == ["a", "b"]


# Workers go ----------------------------------------------------------------------------------------


def test_a_worker_that_leaves_politely_returns_its_batch_at_once(begin: Start) -> None:
    story = begin(examples=2)
    story.ready("a", "b")
    of_a, of_b = story.work("a"), story.work("b")
    story.update("b", of_b)
    story.lost("a", "left: shutting down")
    assert story.records("worker.lost") == ["a: left: shutting down"]
    assert story.records("lease.returned") == ["lease 1 was taken back: a is lost; its batches go to other devices"]
    assert story.model == [1.0, 1.0], "the round goes on without it"
    assert story.work("b").batches == of_a.batches


def test_a_suspect_worker_keeps_its_lease(begin: Start) -> None:
    story = begin()
    story.ready("a")
    work = story.work("a")
    story.happens(PeerChanged(node="a", state=Liveness.SUSPECT, reason="silent for 3.0 s"))
    assert story.records("worker.suspected") == ["a: silent for 3.0 s"]
    assert story.progress.workers[0].reason == "silent for 3.0 s"
    story.happens(PeerChanged(node="a", state=Liveness.ALIVE, reason="back"))
    story.update("a", work)
    assert story.model == [1.0, 1.0]


def test_an_update_of_a_lost_worker_comes_too_late_and_it_works_on(begin: Start) -> None:
    story = begin()
    story.ready("a", "b")
    of_a = story.work("a")
    story.lost("a")
    story.update("a", of_a)
    (refused,) = story.told("a", UpdateRefused)
    assert refused.reason == "lease 1 was taken back: a is lost; its batches go to other devices"
    assert not refused.is_copy
    assert story.work("a").lease == 3
    assert story.model == [0.0, 0.0]


def test_asking_for_work_gives_up_what_one_held(begin: Start) -> None:
    story = begin()
    story.ready("a")
    story.ready("a")
    assert story.records("lease.returned") == ["lease 1 was given up: a asked for new work"]
    assert story.work("a").batches == (0,)
    assert story.work("a").lease == 2


def test_a_lease_expires_and_its_batch_goes_to_someone_else(begin: Start) -> None:
    story = begin(lease_s=10.0, examples=2)
    story.ready("a", "b")
    of_a, of_b = story.work("a"), story.work("b")
    assert of_a.deadline_s == 10.0
    story.update("b", of_b)
    story.tick(10.0 + LEASE_GRACE_S - 0.01)
    assert not story.records("lease.expired"), "its last word may still be on the way"
    story.tick(0.01)
    assert story.records("lease.expired") == ["lease 1 of a: no update in 12.0 s"]
    assert story.model == [1.0, 1.0]
    assert story.work("b").batches == (0,)
    late = next(view for view in story.progress.workers if view.node == "a")
    assert (late.state, late.reason) == ("late", "no update for lease 1 in 12.0 s; its batches went to others")
    story.update("a", of_a)
    (refused,) = story.told("a", UpdateRefused)
    assert refused.reason == "lease 1 expired after 12.0 s; its batches were given out again"
    assert story.progress.refused == 1


def paced(story: Story, *nodes: str, lease_s: float = 0.5) -> dict[str, Work]:
    """Each has returned three leases and has another: the leader knows how long one takes."""
    story.ready(*nodes)
    held = {node: story.work(node) for node in nodes}
    for _ in range(3):
        story.now_s += lease_s
        heard: list[Action] = []
        for node in nodes:
            heard += story.update(node, held[node])
        story.actions = heard
        held = {node: story.work(node) for node in nodes}
    return held


def test_a_worker_with_a_pace_is_not_waited_for_much_longer(begin: Start) -> None:
    story = begin(lease_s=10.0, examples=40)
    held = paced(story, "a", "b")
    assert held["a"].deadline_s == 10.0, "its trainer has the time it had"
    story.now_s += 0.6
    story.update("b", held["b"])
    story.tick(0.3)
    assert not story.records("lease.expired")
    story.tick(0.11)
    assert story.records("lease.expired") == [f"lease {held['a'].lease} of a: no update in 1.0 s"]
    story.update("a", held["a"])
    assert story.told("a", UpdateRefused)
    # That was too soon for it: the next is waited for twice as long, until it comes in time.
    again, theirs = story.leader._training.ledger.leases()
    assert {again.worker, theirs.worker} == {"a", "b"}
    (ours,) = story.leader._training.ledger.held_by("a")
    assert ours.deadline_s - ours.issued_s == 2.0


def test_when_nobody_returns_anything_all_are_waited_for(begin: Start) -> None:
    # The network, or the machine they are all on, paused for two seconds.
    story = begin(lease_s=10.0, examples=40)
    held = paced(story, "a", "b", "c")
    for _ in range(4):
        story.tick(0.5)
        assert not story.records("lease.expired")
    for node in ("a", "b", "c"):
        story.update(node, held[node])
        assert not story.told(node, UpdateRefused)
    assert story.leader.version == 4


def test_all_are_waited_for_eight_times_as_long_and_no_longer(begin: Start) -> None:
    story = begin(lease_s=10.0, examples=40)
    paced(story, "a", "b", "c")
    waited_s = 0.0
    while not story.records("lease.expired"):
        story.tick(0.1)
        waited_s += 0.1
    assert waited_s == pytest.approx(8 * 0.5, abs=0.2)


def test_one_of_several_that_are_late_is_given_up_once_another_returns(begin: Start) -> None:
    story = begin(lease_s=10.0, examples=40)
    held = paced(story, "a", "b", "c")
    story.tick(1.1)
    assert not story.records("lease.expired")
    story.update("b", held["b"])
    story.tick(0.51)
    assert len(story.records("lease.expired")) == 2, "a and c are late, and b shows that it could be done"


def test_a_device_that_is_alone_keeps_its_lease(begin: Start) -> None:
    # Nobody else could take it.
    story = begin(lease_s=10.0, examples=40)
    held = paced(story, "a")
    story.tick(2.9)
    assert not story.records("lease.expired")
    story.update("a", held["a"])
    assert story.leader.version == 4


def test_a_leader_that_stood_still_hears_what_waits_before_any_lease_runs_out(begin: Start) -> None:
    story = begin(lease_s=10.0, examples=40)
    held = paced(story, "a", "b")
    story.now_s += 60.0
    story.happens(TimerFired(name="tick", late_s=59.5))
    assert story.records("leader.paused") == ["its process stood still for 59.5 s; every lease is extended by that"]
    assert not story.records("lease.expired")
    for node in ("a", "b"):
        story.update(node, held[node])
        assert not story.told(node, UpdateRefused)
    held = {node: story.work(node) for node in ("b",)}
    story.now_s += 60.0
    story.happens(TimerFired(name="tick"))
    assert story.records("lease.expired"), "where it did not, they are late"


def test_those_who_are_done_do_not_wait_for_a_tick(begin: Start) -> None:
    story = begin(lease_s=10.0, examples=80)
    story.ready("a", "b")
    for _ in range(3):
        ours, theirs = story.work("a"), story.work("b")
        story.now_s += 0.4
        story.update("a", ours)
        story.update("b", theirs)
    ours = story.work("a")
    story.now_s += 0.4
    story.update("a", ours)
    (timer,) = [action for action in story.actions if isinstance(action, SetTimer)]
    assert timer.name == "late"
    assert timer.after_s == pytest.approx(0.4)
    story.now_s += 0.4
    story.happens(TimerFired(name="late"))
    assert story.records("lease.expired") == ["lease 8 of b: no update in 0.8 s"]
    assert story.work("a").version == 4, "the round went on without the other"


def test_when_too_few_are_left_the_others_are_told(begin: Start) -> None:
    story = begin(workers_min=2)
    story.ready("a", "b")
    of_b = story.work("b")
    story.lost("a")
    story.update("b", of_b)
    assert story.progress.state == "waiting"
    story.tick(2.0)
    assert [wait.reason for wait in story.told("b", Wait)] == ["1 of 2 required devices connected"]


# Updates that are not merged -----------------------------------------------------------------------


def test_a_duplicate_is_refused_with_the_reason(begin: Start) -> None:
    story = begin()
    story.ready("a")
    work = story.work("a")
    story.update("a", work)
    current = story.work("a")
    story.update("a", work)
    (refused,) = story.told("a", UpdateRefused)
    assert refused.reason == "lease 1 was merged already: a duplicate"
    assert refused.is_copy
    assert refused.holds == current.lease, "if that was lost on its way, the worker must know"
    assert not story.told("a", Work), "it has a lease"
    assert story.model == [1.0, 1.0]
    story.update("a", current)
    assert story.model == [2.0, 2.0]


def test_an_update_of_another_term_is_refused_under_its_own_term(begin: Start) -> None:
    story = begin(term=3)
    story.ready("a")
    story.update("a", story.work("a"), term=2)
    (refused,) = story.told("a", UpdateRefused)
    assert refused.reason == "made under term 2; this leader's term is 3"
    # Lease numbers begin anew with each term: under 3 this would name the lease it now holds.
    assert (refused.term, refused.lease) == (2, 1)
    assert story.progress.version == 0


def test_a_failure_of_another_term_is_not_a_worker_that_is_ready(begin: Start) -> None:
    story = begin(term=3)
    story.says("a", Failed(job="digits", term=2, lease=1, reason="x"))
    assert story.actions == []


def test_someone_elses_lease_is_refused(begin: Start) -> None:
    story = begin()
    story.ready("a", "b")
    of_a = story.work("a")
    story.update("b", of_a)
    (refused,) = story.told("b", UpdateRefused)
    assert refused.reason == "lease 1 belongs to a, not to b"
    assert story.records("update.rejected") == ["b: lease 1 belongs to a, not to b"]


@pytest.mark.parametrize(
    ("values", "changes", "told"),
    [
        ((float("nan"), 1), {}, "the update has 1 values that are not finite: try a lower learning rate"),
        ((1, 2, 3), {}, "the update is float32 (3,); the model is float32 (2,)"),
        ((1, 1), {"version": 9}, "made against version 9; lease 1 was for 0"),
        ((1, 1), {"examples": 2}, "Update.examples is 2; the lease has 1"),
        ((1e9, 1), {}, "the update's norm is 1e+09; the maximum is 1e+06"),
    ],
)
def test_a_bad_update_is_refused_and_its_sender_named(
    begin: Start, values: tuple[float, ...], changes: dict[str, Any], told: str
) -> None:
    story = begin()
    story.ready("a", "b")
    story.update("a", story.work("a"), *values, **changes)
    (refused,) = story.told("a", UpdateRefused)
    assert refused.reason == told
    assert story.records("update.rejected") == [f"a: {told}"]
    assert story.model == [0.0, 0.0]
    assert story.progress.workers[0].failures == 1
    assert story.work("a").batches == (0,), "once is not enough to be left out"


def test_the_last_batch_may_be_short_and_weighs_what_it_holds(begin: Start) -> None:
    story = begin(examples=3, batch_size=2)
    story.ready("a", "b")
    of_a, of_b = story.work("a"), story.work("b")
    story.update("b", of_b, examples=2)
    assert story.told("b", UpdateRefused)[0].reason == "Update.examples is 2; the lease has 1"
    of_b = story.work("b")
    story.update("a", of_a, 1, 1, examples=2)
    story.update("b", of_b, 4, 4, examples=1)
    # (2·1 + 1·4) / 3
    assert story.model == [2.0, 2.0]


def test_three_bad_updates_and_a_worker_is_left_out(begin: Start) -> None:
    story = begin()
    story.ready("a", "b")
    work, of_b = story.work("a"), story.work("b")
    for _ in range(2):
        story.update("a", work, float("nan"), 0)
        work = story.work("a")
    story.update("a", work, float("nan"), 0)
    assert not story.told("a", Work)
    (wait,) = story.told("a", Wait)
    assert wait.reason.startswith("left out after 3 refused updates: the update has 1 values that are not finite")
    story.ready("a")
    assert not story.told("a", Work)
    for _ in range(50):
        story.tick()
        assert not story.told("a", Wait), "the reason is said once and does not grow"
    story.update("b", of_b)
    assert story.model == [1.0, 1.0], "the others work on"
    assert len(story.progress.workers[0].reason) <= 200


def test_a_worker_left_out_does_not_count_towards_the_least_number(begin: Start) -> None:
    story = begin(workers_min=2)
    story.ready("a", "b")
    work = story.work("a")
    for _ in range(3):
        story.update("a", work, float("nan"), 0)
        work = next(iter(story.told("a", Work)), work)
    assert story.progress.reason == "1 of 2 required devices connected"


def test_when_nobody_is_left_who_may_train_the_job_fails(begin: Start) -> None:
    # Every update of a run that diverges looks like this: without an end, the job would wait for ever.
    story = begin()
    story.ready("a")
    for _ in range(3):
        story.update("a", story.work("a"), float("nan"), 0)
    assert story.progress.state == "closing"
    assert story.progress.reason.startswith("no worker is left that may train: a was refused 3 times, last for the")
    story.happens(Saved(version=0))
    assert story.progress.state == "failed"


# Failures ------------------------------------------------------------------------------------------


def test_a_failed_batch_goes_to_someone_else_at_once(begin: Start) -> None:
    story = begin()
    story.ready("a", "b")
    of_a, of_b = story.work("a"), story.work("b")
    story.update("b", of_b)
    story.fail("a", of_a.lease)
    assert story.records("lease.failed") == ["a: out of memory"]
    assert story.model == [1.0, 1.0]
    assert story.work("b").batches == (0,)
    assert not story.told("a", Work), "it says Ready once its trainer is back"
    story.ready("a")
    assert story.work("a").batches == (2,)


def test_a_batch_that_fails_four_times_fails_the_job(begin: Start) -> None:
    story = begin()
    for _ in range(BATCH_FAILURES_MAX):
        assert story.progress.state != "closing"
        story.ready("a")
        story.fail("a", story.work("a").lease, "IndexError: task.py:7")
    assert story.progress.state == "closing"
    assert story.progress.reason == "batch 0 of epoch 1 failed 4 times, last on a: IndexError: task.py:7"


def test_one_broken_device_among_good_ones_does_not_fail_the_job(begin: Start) -> None:
    story = begin()
    story.ready("good")
    of_good = story.work("good")
    for _ in range(3 * BATCH_FAILURES_MAX):
        story.ready("bad")
        story.fail("bad", story.work("bad").lease)
    assert story.progress.state == "training"
    story.update("good", of_good)
    assert story.work("good").batches == (1,), "what failed there is done here"


def test_a_batch_that_fails_on_one_device_after_the_other_fails_the_job(begin: Start) -> None:
    story = begin(examples=1)
    for node in ("a", "b", "c", "d"):
        story.ready(node)
        story.fail(node, story.work(node).lease)
    assert "failed 4 times, last on d" in story.progress.reason


def test_the_longest_reason_a_worker_may_give_still_fits_what_is_said_of_it(begin: Start) -> None:
    story = begin()
    for _ in range(BATCH_FAILURES_MAX):
        story.ready("a")
        story.fail("a", story.work("a").lease, "x" * 4096)
    story.ready("b")
    story.happens(Saved(version=0))
    assert story.told("a", Finished)


def test_a_device_that_cannot_prepare_shows_why(begin: Start) -> None:
    story = begin()
    story.fail("a", 0, "no space left on device")
    (view,) = story.progress.workers
    assert (view.state, view.reason, view.failures) == ("failing", "no space left on device", 1)


def test_a_late_word_of_failure_does_not_idle_a_worker_that_works(begin: Start) -> None:
    story = begin(lease_s=1.0)
    story.ready("a")
    of_a = story.work("a")
    story.tick(5.0)
    story.fail("a", of_a.lease)
    story.ready("a")
    again = story.work("a")
    story.fail("a", of_a.lease)
    story.update("a", again)
    assert story.model == [1.0, 1.0]


# Credits -------------------------------------------------------------------------------------------

#: Two updates of this model fill the memory a leader lends to uploads.
LARGE = UPLOAD_BUDGET_BYTES // 4 // 2


def offer(story: Story, node: str, work: Work) -> None:
    story.says(node, Offer(job="digits", term=1, lease=work.lease, size_bytes=4 * LARGE))


def test_more_workers_than_capacity_offer_first_and_go_in_turn(begin: Start) -> None:
    story = begin(size=LARGE)
    story.ready("a", "b")
    assert story.work("a").credit
    story.ready("c", "d")
    of_c, of_d = story.work("c"), story.work("d")
    assert not of_c.credit
    story.ready("a", "b")
    of_a, of_b = story.work("a"), story.work("b")
    offer(story, "a", of_a)
    assert story.told("a", Go) == [Go(job="digits", term=1, lease=of_a.lease)]
    offer(story, "b", of_b)
    assert story.told("b", Go)
    offer(story, "c", of_c)
    offer(story, "d", of_d)
    assert story.actions == [], "two are on their way"
    view = next(view for view in story.progress.workers if view.node == "d")
    assert view.reason == "2 updates wait to be taken"
    offer(story, "a", of_a)
    assert story.told("a", Go), "its first Go was lost with a session"
    story.lost("a")
    assert story.told("c", Go), "its place is free"
    story.fail("b", of_b.lease)
    assert story.told("d", Go)


def test_an_update_that_waits_for_its_turn_does_not_age(begin: Start) -> None:
    story = begin(size=LARGE, lease_s=10.0)
    story.ready("a", "b", "c")
    story.ready("a", "b", "c")
    leases = {node: story.work(node) for node in ("a", "b", "c")}
    for node, work in leases.items():
        offer(story, node, work)
    story.tick(13.0)
    assert [reason.split()[3].rstrip(":") for reason in story.records("lease.expired")] == ["a", "b"]
    assert story.told("c", Go), "an hour in the queue is not its fault"
    story.tick(11.0)
    assert not story.records("lease.expired"), "its time runs since it was told to go"
    story.tick(1.0)
    assert story.records("lease.expired") == [f"lease {leases['c'].lease} of c: no update in 25.0 s"]


def test_an_offer_for_a_lease_that_ended_is_refused(begin: Start) -> None:
    story = begin()
    story.ready("a")
    work = story.work("a")
    story.update("a", work)
    story.says("a", Offer(job="digits", term=1, lease=work.lease, size_bytes=8))
    assert [refused.reason for refused in story.told("a", UpdateRefused)] == ["lease 1 was merged already: a duplicate"]


# Epochs and evaluations ----------------------------------------------------------------------------


def test_an_epoch_applies_every_batch_once(begin: Start) -> None:
    story = begin(until=Until(epochs=2))
    story.ready("a")
    for _ in range(4):
        story.update("a", story.work("a"))
    # One worker, one batch a version: the first epoch is saved as it ends, with its history.
    first, work = story.save(), story.work("a")
    assert first.version == 4
    story.happens(Saved(version=4))
    for _ in range(4):
        story.update("a", work)
        work = next(iter(story.told("a", Work)), work)
    assert story.model == [8.0, 8.0]
    rows = [(row.epoch, row.batch, row.version) for row in (*first.applied, *story.save().applied)]
    assert rows == [(epoch, batch, 4 * epoch + batch + 1) for epoch in (0, 1) for batch in range(4)]


def test_evaluation_is_leased_and_its_result_decides(begin: Start) -> None:
    story = begin(test=1500, until=Until(accuracy=0.9, epochs=5))
    story.ready("a", "b")
    for _ in range(2):
        of_a, of_b = story.work("a"), story.work("b")
        story.update("a", of_a)
        story.update("b", of_b)
    assert story.records("epoch.done") == ["epoch 1: 4 batches, version 2"]
    assert story.progress.state == "evaluating"
    of_a, of_b = story.work("a"), story.work("b")
    assert [(work.kind, work.batches, work.version) for work in (of_a, of_b)] == [
        ("evaluate", (0,), 2),
        ("evaluate", (1,), 2),
    ]
    story.evaluated("a", of_a, correct=900)
    story.evaluated("b", of_b, correct=300, examples=500)
    # 1200 of 1500.
    assert story.records("job.evaluated") == [
        "epoch 1: accuracy 80.00 %, loss 0.001333 (version 2, 1,500 held-out examples)"
    ]
    assert story.progress.accuracy == 0.8
    work = story.work("a")
    assert (work.kind, work.epoch) == ("train", 1), "the goal is not reached: it goes on"
    assert not work.tensors, "it evaluated this very version"


def test_the_goal_is_reached(begin: Start) -> None:
    story = begin(test=1000, until=Until(accuracy=0.9))
    story.epoch("a")
    story.evaluated("a", story.work("a"), correct=950)
    assert story.records("end.decided") == ["finished: reached 95.00%, the goal was 90.00%"]
    # The version was being saved while it was evaluated. What the evaluation decided is saved after.
    story.happens(Saved(version=4))
    save = story.save()
    assert save.state["ending"] == ["finished", "reached 95.00%, the goal was 90.00%"]
    assert [view.accuracy for view in save.evaluations] == [0.95]
    story.happens(Saved(version=4))
    assert story.ended


def test_the_mean_of_versions_is_what_workers_evaluate_and_never_what_they_train_on(begin: Start) -> None:
    story = begin(test=1500, ema=0.5, until=Until(epochs=2))
    story.ready("a")
    for _ in range(4):
        story.update("a", story.work("a"))
    # Versions 1 to 4 are n ones, weighed by 1/8, 1/4, 1/2 and 1: (1/8 + 2/4 + 3/2 + 4) / (15/8) = 49/15.
    work = story.work("a")
    assert (work.kind, work.version) == ("evaluate", mean_number(4))
    assert work.tensors["model"].tolist() == pytest.approx([49 / 15, 49 / 15])
    saved = story.save()
    assert saved.tensors[TRAINED].tolist() == [4.0, 4.0]
    story.evaluated("a", work, correct=900)
    work = story.work("a")
    assert (work.kind, work.version) == ("evaluate", mean_number(4))
    assert not work.tensors, "it holds the mean"
    # A worker that lost its connection says which model it holds.
    story.says("a", Ready(job="digits", holds_term=1, holds_version=mean_number(4)))
    assert not story.work("a").tensors
    story.evaluated("a", story.work("a"), correct=300, examples=500)
    assert story.progress.accuracy == pytest.approx(1200 / 1500)
    assert [text.partition("(")[2][:10] for text in story.records("job.evaluated")] == ["version 4,"]
    work = story.work("a")
    assert (work.kind, work.version) == ("train", 4)
    assert work.tensors["model"].tolist() == [4.0, 4.0], "training goes on from the newest version"
    after = begin(test=1500, ema=0.5, until=Until(epochs=2), term=2, saved=saved)
    after.ready("b")
    assert after.work("b").tensors["model"].tolist() == pytest.approx([49 / 15, 49 / 15])
    assert after.model == [4.0, 4.0]


def test_the_epochs_are_done(begin: Start) -> None:
    story = begin(until=Until(epochs=1))
    story.epoch("a")
    assert story.records("end.decided") == ["finished: 1 of 1 epochs"]


def test_the_last_epoch_is_evaluated_whatever_its_turn(begin: Start) -> None:
    story = begin(test=1000, evaluate_every_epochs=10, until=Until(epochs=1))
    story.epoch("a")
    story.evaluated("a", story.work("a"), correct=500)
    assert story.progress.accuracy == 0.5
    assert story.progress.state == "closing"


def test_an_evaluation_lease_that_is_lost_is_done_by_another(begin: Start) -> None:
    story = begin(test=1000, until=Until(epochs=1))
    story.epoch("a")
    assert story.work("a").kind == "evaluate"
    story.ready("b")
    assert not story.told("b", Work)
    story.lost("a")
    story.evaluated("b", story.work("b"), correct=1)
    assert story.progress.state == "closing"


def test_impossible_results_are_refused_and_counted(begin: Start) -> None:
    story = begin(test=1000, until=Until(epochs=1))
    story.epoch("a")
    work = story.work("a")
    story.evaluated("a", work, correct=1001)
    (refused,) = story.told("a", UpdateRefused)
    assert refused.reason == "an accuracy of 1001 right of 1000"
    story.evaluated("a", work, correct=1)
    assert story.told("a", UpdateRefused)[0].reason.startswith("lease 5 was refused: an accuracy of 1001 right")
    story.lost("a")
    story.says("b", Evaluated(job="digits", term=1, lease=77, version=4, examples=1))
    assert story.told("b", UpdateRefused)[0].reason == "lease 77 is not known to this leader"


def test_an_evaluation_that_always_fails_fails_the_job(begin: Start) -> None:
    story = begin(test=1000, until=Until(epochs=3))
    story.epoch("a")
    for _ in range(BATCH_FAILURES_MAX):
        story.fail("a", story.work("a").lease, "diverged")
        story.ready("a")
    assert story.progress.state == "closing"
    assert story.leader._ending.decided == ("failed", "batch 0 of epoch 2 failed 4 times, last on a: diverged")


def test_failures_of_an_evaluation_are_not_held_against_batches_of_the_same_number(begin: Start) -> None:
    story = begin(test=1000, until=Until(epochs=3))
    story.epoch("a")
    for _ in range(BATCH_FAILURES_MAX - 1):
        story.fail("a", story.work("a").lease)
        story.ready("a")
    story.evaluated("a", story.work("a"), correct=1)
    assert story.work("a").batches == (0,)
    story.fail("a", story.work("a").lease)
    assert story.progress.state == "training"


# Time ----------------------------------------------------------------------------------------------


def test_when_time_is_over_the_last_version_is_evaluated(begin: Start) -> None:
    story = begin(test=1000, until=Until(seconds=30))
    story.ready("a", "b")
    of_a, of_b = story.work("a"), story.work("b")
    story.update("a", of_a)
    story.update("b", of_b)
    of_a, of_b = story.work("a"), story.work("b")
    story.update("a", of_a)
    story.tick(30.0)
    # What a had sent belongs to the last version; b's work is taken back.
    assert story.records("end.decided") == ["the time limit of 30 s is over"]
    assert story.model == [2.0, 2.0]
    work = story.work("a")
    assert (work.kind, work.version) == ("evaluate", 2)
    story.update("b", of_b)
    assert story.told("b", UpdateRefused)[0].reason == f"lease {of_b.lease} was taken back: the job's time is over"
    assert story.progress.version == 2, "the model does not move under its evaluation"
    story.evaluated("a", work, correct=500)
    assert story.leader._ending.decided == ("finished", "the time limit of 30 s is over")
    assert story.progress.state == "closing"


def test_the_last_evaluation_does_not_wait_for_workers_who_may_never_come(begin: Start) -> None:
    story = begin(test=1000, until=Until(seconds=30))
    story.ready("a")
    story.update("a", story.work("a"))
    story.tick(30.0)
    assert story.progress.state == "evaluating"
    story.lost("a")
    story.tick()
    assert story.progress.state == "closing"


def test_the_last_evaluation_may_fail_without_failing_the_job(begin: Start) -> None:
    story = begin(test=1000, until=Until(seconds=30))
    story.ready("a")
    story.update("a", story.work("a"))
    story.tick(30.0)
    for _ in range(BATCH_FAILURES_MAX):
        story.ready("a")
        story.fail("a", story.work("a").lease)
    assert story.leader._ending.decided == ("finished", "the time limit of 30 s is over")
    assert story.progress.state == "closing"


def test_time_over_with_nobody_there_ends_at_once(begin: Start) -> None:
    story = begin(test=1000, until=Until(seconds=30))
    story.tick(29.0)
    assert story.progress.state == "waiting"
    story.tick(1.0)
    assert story.progress.state == "closing"


# Durable, then said --------------------------------------------------------------------------------


def test_finished_is_said_only_when_the_last_version_is_durable(begin: Start) -> None:
    story = begin(until=Until(epochs=1))
    story.epoch("a")
    save = story.save()
    assert save.version == 4
    assert save.state["ending"] == ["finished", "1 of 1 epochs"]
    assert not story.told("a", Finished)
    story.tick()
    assert story.saves() == 0, "it is being written"
    assert story.progress.state == "closing"
    story.happens(Saved(version=4))
    assert story.told("a", Finished) == [Finished(job="digits", reason="1 of 1 epochs")]
    (report,) = story.told("home", Progress)
    assert (report.state, report.version, report.durable_version) == ("finished", 4, 4)
    assert story.ended
    assert story.tick() == []


def test_a_save_that_fails_is_tried_again(begin: Start) -> None:
    story = begin(until=Until(epochs=1))
    story.epoch("a")
    first = story.save()
    story.happens(SaveFailed(version=4, reason="no space left on device"))
    assert story.records("save.failed") == ["version 4: no space left on device; trying again"]
    assert not story.ended
    story.now_s += RETRY_S
    story.tick()
    assert story.save().applied == first.applied
    story.happens(Saved(version=4))
    assert story.ended


def test_an_end_decided_during_a_save_waits_for_a_save_of_its_own(begin: Start) -> None:
    story = begin(checkpoint_every_s=1.0)
    story.ready("a")
    story.now_s += 2.0
    story.update("a", story.work("a"))
    assert story.save().version == 1
    story.happens(StopRequested(reason="stopped by the operator"))
    assert story.saves() == 0
    story.happens(Saved(version=1))
    assert story.save().state["ending"] == ["stopped", "stopped by the operator"]
    assert not story.ended
    story.happens(Saved(version=1))
    assert story.ended
    assert story.progress.state == "stopped"


def test_versions_are_saved_when_due_and_not_each(begin: Start) -> None:
    story = begin(checkpoint_every_s=10.0, examples=100)
    story.ready("a")
    story.update("a", story.work("a"))
    assert story.saves() == 0
    story.now_s += 10.0
    story.update("a", story.work("a"))
    assert story.save().version == 2
    assert story.progress.durable_version == 0
    work = story.work("a")
    story.happens(Saved(version=2))
    assert story.progress.durable_version == 2
    story.update("a", work)
    assert story.work("a").durable_version == 2
    assert story.saves() == 0


def test_what_is_saved_does_not_change_while_it_is_written(begin: Start) -> None:
    story = begin(checkpoint_every_s=0.0)
    story.ready("a")
    story.update("a", story.work("a"))
    tensors = story.save().tensors
    for _ in range(2):
        story.update("a", story.work("a"))
    assert tensors["w"].tolist() == [1.0, 1.0]
    assert story.model == [3.0, 3.0]


# After a crash -------------------------------------------------------------------------------------


def test_a_leader_that_returns_continues_with_a_ledger_that_matches_its_model(begin: Start) -> None:
    before = begin(momentum=0.5, checkpoint_every_s=0.0)
    before.ready("a")
    before.update("a", before.work("a"))
    saved = before.save()
    before.update("a", before.work("a"))
    # v = 1 then 0.5·1 + 1 = 1.5: the second step was never saved.
    assert before.model == [2.5, 2.5]

    after = begin(momentum=0.5, term=2, saved=saved)
    assert after.records("job.resumed") == ["from saved version 1, epoch 1, 1 of 4 batches applied, term 2"]
    assert after.model == [1.0, 1.0]
    assert after.progress.durable_version == 1
    after.ready("a")
    work = after.work("a")
    assert (work.batches, work.version, work.term) == ((1,), 1, 2), "the lost batch is trained again"
    after.update("a", work)
    assert after.model == [2.5, 2.5], "the momentum came back with the model"


def test_a_crash_before_the_evaluation_is_over_evaluates_again(begin: Start) -> None:
    before = begin(test=1000, until=Until(epochs=2))
    before.epoch("a")
    after = begin(test=1000, until=Until(epochs=2), term=2, saved=before.save())
    after.ready("a")
    work = after.work("a")
    assert (work.kind, work.version) == ("evaluate", 4)
    after.evaluated("a", work, correct=500)
    assert after.work("a").kind == "train"
    resumed = begin(test=1000, until=Until(epochs=2), term=3, saved=after.save())
    resumed.ready("a")
    assert resumed.work("a").kind == "train", "this version was evaluated"
    assert resumed.progress.accuracy == 0.5


def test_a_crash_after_the_end_was_saved_ends_again(begin: Start) -> None:
    before = begin(until=Until(epochs=1))
    before.epoch("a")
    after = begin(until=Until(epochs=1), term=2, saved=before.save())
    assert after.save().version == 4
    after.happens(Saved(version=4))
    assert after.ended
    assert after.progress.state == "finished"


def test_time_spent_before_a_crash_counts(begin: Start) -> None:
    before = begin(until=Until(seconds=30), checkpoint_every_s=0.0)
    before.ready("a")
    before.now_s += 20.0
    before.update("a", before.work("a"))
    after = begin(until=Until(seconds=30), term=2, saved=before.save())
    after.tick(9.0)
    assert after.progress.seconds == 29.0
    after.tick(1.0)
    assert after.progress.state == "closing"


def test_the_checkpoint_holds_the_model_by_name_and_the_momentum(begin: Start) -> None:
    story = begin(until=Until(epochs=1))
    story.epoch("a")
    save = story.save()
    assert sorted(save.tensors) == [VELOCITY, "w"]
    assert json.loads(json.dumps(save.state)) == save.state


# What people see, and what it costs ----------------------------------------------------------------


def reward(total: float, weight: float, **changes: Any) -> tuple[MetricSum, ...]:
    given: dict[str, Any] = {"name": "reward", "kind": "mean", "sums": (total, weight)}
    return (MetricSum(**given | changes),)


def test_figures_that_training_logs_come_with_the_next_evaluation(begin: Start) -> None:
    story = begin(test=1000)
    story.ready("a")
    story.update("a", story.work("a"), logged=reward(6.0, 1.0))
    story.update("a", story.work("a"), logged=reward(6.0, 3.0))
    story.epoch("a")
    story.evaluated("a", story.work("a"), correct=900)
    figures = {each.name: each.value for each in story.progress.metrics}
    # (6 + 6) over (1 + 3): a mean of the two means would be 4.
    assert figures == {"accuracy": 0.9, "loss": 0.001, "train/reward": 3.0}


@pytest.mark.parametrize(
    "logged",
    [
        reward(1.0, 1.0, lower=True),
        reward(1.0, 1.0, kind="ratio"),
        reward(1.0, -1.0),
        reward(1.0, 1e30),
        reward(1e101, 1.0),
        reward(1.0, 1.0, name="n" * 60),
        tuple(each for n in range(9) for each in reward(1.0, 1.0, name=str(n))),
    ],
)
def test_figures_that_cannot_be_are_refused_with_their_update(begin: Start, logged: tuple[MetricSum, ...]) -> None:
    story = begin()
    story.ready("a", "b")
    story.update("a", story.work("a"), logged=logged)
    assert "logged" in story.told("a", UpdateRefused)[0].reason
    assert story.leader.version == 0


def test_progress_tells_how_the_job_stands(begin: Start) -> None:
    story = begin()
    story.ready("a", "b")
    of_a, of_b = story.work("a"), story.work("b")
    story.now_s += 2.0
    story.update("a", of_a, loss_sum=1.0)
    story.now_s += 2.0
    story.update("b", of_b, loss_sum=2.0)
    progress = story.progress
    assert (progress.state, progress.version, progress.batches_applied, progress.batches_total) == ("training", 1, 2, 4)
    # (1 + 2) over two examples.
    assert progress.train_loss == 1.5
    assert progress.seconds == 4.0
    assert [view.lease_s for view in progress.workers] == [2.0, 4.0]
    # The median of 2 and 4 is 3.
    assert [view.slowness for view in progress.workers] == pytest.approx([2 / 3, 4 / 3])
    assert progress.bytes_down == 4 * 8, "the model of eight bytes went out twice to each"


def test_messages_that_are_not_for_a_leader_are_ignored(begin: Start) -> None:
    story = begin()
    assert story.says("a", Finished(job="digits", reason="")) == []
    assert story.says("a", Wait(job="digits", reason="")) == []


def test_evaluations_carried_in_the_state_are_bounded(begin: Start) -> None:
    story = begin(examples=1, test=1, until=Until(epochs=10**6), checkpoint_every_s=1e9)
    story.ready("a")
    for _ in range(EVALUATIONS_KEPT + 5):
        story.update("a", story.work("a"))
        story.evaluated("a", story.work("a"), correct=1, examples=1)
    assert len(story.leader._training.evaluations) == EVALUATIONS_KEPT
    assert story.leader._training.evaluations[-1].epoch == EVALUATIONS_KEPT + 5


def test_an_update_costs_the_same_however_many_workers_there_are(begin: Start) -> None:
    """Counted in Python calls, so that it does not depend on the machine."""
    import sys

    def calls(workers: int) -> int:
        story = begin(examples=10_000)
        nodes = [f"n{number}" for number in range(workers)]
        story.ready(*nodes)
        works = {node: story.work(node) for node in nodes}
        count = 0

        def profile(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        delta = np.ones(2, dtype=np.float32)
        work = works[nodes[workers // 2]]
        message = Update(job="digits", term=1, lease=work.lease, version=0, examples=1, tensors={"delta": delta})
        event = Received(sender=nodes[workers // 2], message=message)
        sys.setprofile(profile)
        try:
            story.leader.handle(event, story.now_s)
        finally:
            sys.setprofile(None)
        return count

    assert calls(400) <= calls(10) + 20


# Handing over ----------------------------------------------------------------------------------------


def hand_over(story: Story, *, sender: str = "home", term: int = 1) -> list[Action]:
    return story.says(sender, HandOver(job="digits", term=term, reason="home is drained"))


def stepped_down(story: Story) -> list[str]:
    """What the manager was just told, if the leader stepped down; it ends then, and not otherwise."""
    words = [word.reason for word in story.told("home", SteppedDown)]
    assert bool(words) == story.ended
    return words


def test_a_leader_with_nothing_to_lose_steps_down_at_once(begin: Start) -> None:
    story = begin()
    hand_over(story)
    assert stepped_down(story) == ["handed over at version 0"]
    assert story.records("leader.resigned") == ["at version 0"]
    last, word = (action.message for action in story.actions if isinstance(action, Send))
    assert isinstance(last, Progress), "the manager weighs terms by their last reports"
    assert last.durable_version == 0
    assert word == SteppedDown(job="digits", term=1, reason="handed over at version 0", failed=False)
    assert story.tick() == [], "it is over"


@pytest.mark.parametrize("wrong", [{"sender": "a"}, {"term": 2}, {"term": 0}])
def test_only_the_manager_asks_the_leader_of_this_term_to_hand_over(begin: Start, wrong: dict[str, Any]) -> None:
    story = begin()
    assert hand_over(story, **wrong) == []
    story.ready("a")
    assert story.work("a")


def test_a_leader_waits_for_its_first_version_to_be_durable(make_spec: Callable[..., JobSpec]) -> None:
    story = Story(make_spec())
    hand_over(story)
    assert stepped_down(story) == []
    assert story.saves() == 0, "it is being saved already"
    story.happens(Saved(version=0))
    assert stepped_down(story) == ["handed over at version 0"]


def test_a_round_is_finished_made_durable_and_then_handed_over(begin: Start) -> None:
    story = begin(examples=8)
    story.ready("a", "b")
    of_a, of_b = story.work("a"), story.work("b")
    hand_over(story)
    assert story.actions == [], "both are at work"
    story.update("a", of_a)
    assert stepped_down(story) == []
    assert [wait.reason for wait in story.told("a", Wait)] == ["the job gets another leader: home is drained"]
    assert not story.told("a", Work)
    story.update("b", of_b, 3, 3)
    assert story.model == [2.0, 2.0], "what was trained counts"
    assert not story.told("a", Work)
    assert not story.told("b", Work)
    save = story.save()
    assert (save.version, len(save.applied)) == (1, 2)
    assert stepped_down(story) == [], "it is not durable yet"
    story.happens(Saved(version=1))
    assert stepped_down(story) == ["handed over at version 1"]
    successor = Story(story.leader._spec, term=2, saved=save)
    successor.ready("a")
    work = successor.work("a")
    assert (work.version, work.batches) == (1, (2,)), "the next begins where this one ended"


def test_a_leader_that_parts_uses_no_number_of_the_other_side(begin: Start) -> None:
    """Another leader made versions up to 8 beyond a cut. What this one hands over is newer, whatever it counted."""
    story = begin(examples=8)
    story.ready("a")
    lease = story.work("a")
    story.says("home", HandOver(job="digits", term=1, reason="a cut", version_least=9))
    story.update("a", lease)
    save = story.save()
    assert save.version == 9
    story.happens(Saved(version=9))
    assert stepped_down(story) == ["handed over at version 9"]


def test_who_comes_meanwhile_is_told_why_there_is_no_work(begin: Start) -> None:
    story = begin(examples=8)
    story.ready("a")
    hand_over(story)
    story.ready("b")
    assert [wait.reason for wait in story.told("b", Wait)] == ["the job gets another leader: home is drained"]
    assert story.progress.state == "waiting"
    assert story.progress.reason == "the job gets another leader: home is drained"
    story.tick(2.0)
    assert not story.told("b", Wait), "it was told already, and nothing else is true"
    shown = next(view for view in story.progress.workers if view.node == "b")
    assert shown.reason == "the job gets another leader: home is drained"


def test_a_lease_that_runs_out_or_is_lost_does_not_hold_up_a_hand_over(begin: Start) -> None:
    story = begin(examples=8, lease_s=10.0)
    story.ready("a", "b")
    of_b = story.work("b")
    hand_over(story)
    story.lost("a")
    assert stepped_down(story) == []
    story.tick(10.0 + LEASE_GRACE_S)
    assert stepped_down(story) == ["handed over at version 0"], "nobody returned anything"
    story.update("b", of_b)
    assert story.told("b", UpdateRefused)
    assert story.model == [0.0, 0.0]


def test_a_save_that_runs_is_waited_for_and_what_it_lacks_is_saved_then(begin: Start) -> None:
    story = begin(examples=8, checkpoint_every_s=1.0)
    story.ready("a")
    story.now_s += 2.0
    story.update("a", story.work("a"))
    assert story.save().version == 1
    # The next round began before that save is through.
    story.ready("a")
    work = story.work("a")
    hand_over(story)
    story.update("a", work)
    assert story.leader.version == 2
    assert story.saves() == 0
    story.happens(Saved(version=1))
    assert story.save().version == 2
    assert stepped_down(story) == []
    story.happens(Saved(version=2))
    assert stepped_down(story) == ["handed over at version 2"]


def test_a_save_that_fails_is_tried_again_at_the_next_tick(begin: Start) -> None:
    story = begin(examples=8)
    story.ready("a")
    work = story.work("a")
    hand_over(story)
    story.update("a", work)
    for _ in range(3):
        assert story.save().version == 1
        story.happens(SaveFailed(version=1, reason="the manager is out of reach"))
        assert story.saves() == 0, "a driver that fails at once would be asked for ever"
        assert stepped_down(story) == []
        story.tick()
    assert story.saves() == 1
    story.happens(Saved(version=1))
    assert stepped_down(story) == ["handed over at version 1"]


def test_an_evaluation_is_finished_before_the_hand_over(begin: Start) -> None:
    story = begin(examples=1, test=2000)
    story.ready("a", "b")
    story.update("a", story.work("a"))
    of_a, of_b = story.work("a"), story.work("b")
    assert (of_a.kind, of_b.kind) == ("evaluate", "evaluate")
    story.happens(Saved(version=1))
    hand_over(story)
    assert stepped_down(story) == []
    story.evaluated("a", of_a, correct=900)
    assert stepped_down(story) == []
    story.lost("b")
    again = story.work("a")
    assert (again.kind, again.batches) == ("evaluate", of_b.batches), "its parts are still lent"
    story.evaluated("a", again, correct=300)
    assert story.records("job.evaluated")
    save = story.save()
    assert [row["accuracy"] for row in save.state["evaluations"]] == [0.6]
    assert not story.told("a", Work)
    story.happens(Saved(version=1))
    assert stepped_down(story) == ["handed over at version 1"]


def test_the_end_of_an_epoch_is_evaluated_first_and_the_next_is_not_begun(begin: Start) -> None:
    story = begin(examples=1, test=1000)
    story.ready("a")
    work = story.work("a")
    hand_over(story)
    story.update("a", work)
    assert story.work("a").kind == "evaluate"
    story.evaluated("a", story.work("a"), correct=500)
    assert not story.told("a", Work)
    story.happens(Saved(version=1))
    assert story.save().version == 1, "with what the evaluation found"
    story.happens(Saved(version=1))
    assert stepped_down(story) == ["handed over at version 1"]


def test_an_epoch_without_evaluation_ends_in_a_hand_over(begin: Start) -> None:
    story = begin(examples=1)
    story.ready("a")
    work = story.work("a")
    hand_over(story)
    story.update("a", work)
    assert (story.leader.epoch, story.save().version) == (1, 1)
    assert not story.told("a", Work)
    story.happens(Saved(version=1))
    assert stepped_down(story) == ["handed over at version 1"]


def test_a_job_that_ends_meanwhile_ends(begin: Start) -> None:
    story = begin(examples=1, until=Until(epochs=1))
    story.ready("a")
    work = story.work("a")
    hand_over(story)
    story.update("a", work)
    assert story.progress.state == "closing"
    story.happens(Saved(version=1))
    assert story.ended
    assert not story.told("home", SteppedDown)
    (last,) = story.told("home", Progress)
    assert last.state == "finished"


def test_a_job_that_is_stopped_meanwhile_ends(begin: Start) -> None:
    story = begin(examples=8)
    story.ready("a")
    hand_over(story)
    story.happens(StopRequested(reason="enough"))
    assert story.progress.state == "closing"
    story.happens(Saved(version=0))
    assert story.ended
    assert not story.told("home", SteppedDown)
    hand_over(story)
    assert not story.told("home", SteppedDown)


def test_workers_who_are_wanted_back_are_let_go_of_before_the_hand_over(begin: Start) -> None:
    story = begin(examples=8)
    story.ready("a")
    work = story.work("a")
    story.says("home", Release(job="digits", node="a", reason="is drained"))
    hand_over(story)
    story.update("a", work)
    assert story.told("a", Finished)
    assert story.told("home", Released)
    story.happens(Saved(version=1))
    assert stepped_down(story) == ["handed over at version 1"]


# Cut off from the manager ------------------------------------------------------------------------------


def test_a_leader_that_cannot_save_waits_before_too_much_is_at_risk(
    begin: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.roles.leader.checkpointing.AT_RISK_MAX", 3)
    story = begin(examples=100, checkpoint_every_s=3600.0)
    story.ready("a")
    for _ in range(3):
        story.update("a", story.work("a"))
    assert story.leader.version == 3
    assert not story.told("a", Work)
    (wait,) = story.told("a", Wait) or [None]
    story.tick(2.0)
    # What holds everyone up is saved at once, whatever the plan says of saving.
    assert story.save().version == 3
    told = [*([wait] if wait else []), *story.told("a", Wait)]
    assert {each.reason for each in told} == {"3 batches are not durable yet: work goes on when they are"}
    assert story.progress.state == "waiting"
    story.happens(SaveFailed(version=3, reason="the manager is out of reach"))
    assert story.saves() == 0
    story.tick(0.1)
    assert story.saves() == 0, "it is not asked in every moment"
    story.tick(2.0)
    assert story.save().version == 3
    story.happens(Saved(version=3))
    story.tick()
    assert (story.work("a").version, story.work("a").batches) == (3, (3,))


# Nobody waits: the asynchronous and the buffered pace -------------------------------------------------


def test_an_asynchronous_update_makes_a_version_and_brings_its_worker_the_next(begin: Start) -> None:
    story = begin(pace="async")
    story.ready("a", "b")
    of_a = story.work("a")
    story.update("a", of_a)
    assert story.model == [1.0, 1.0], "it does not wait for b"
    again = story.work("a")
    assert (again.version, again.batches, again.tensors["model"].tolist()) == (1, (2,), [1.0, 1.0])


def test_a_late_update_is_damped_by_the_versions_made_meanwhile(begin: Start) -> None:
    story = begin(pace="async", examples=8)
    story.ready("a", "b")
    of_b = story.work("b")
    for _ in range(3):
        story.update("a", story.told("a", Work)[-1])
    story.update("b", of_b, 4, 8)
    # Three versions late: 1/√4 of it, also with nothing else in its version.
    assert story.model == [3.0 + 2.0, 3.0 + 4.0]
    assert (story.progress.version, story.progress.staleness, story.progress.staleness_max) == (4, 0.0, 3)
    assert story.work("b").version == 4


@pytest.mark.parametrize(("rule", "worth"), [("none", 1.0), ("inverse", 1 / 3), ("root", 3**-0.5)])
def test_a_plan_says_what_late_updates_are_worth(begin: Start, rule: str, worth: float) -> None:
    story = begin(pace="async", staleness=rule, examples=8)
    story.ready("a", "b")
    of_b = story.work("b")
    story.update("a", story.work("a"))
    story.update("a", story.work("a"))
    story.update("b", of_b)
    assert story.model == pytest.approx([2 + worth, 2 + worth])


def test_a_new_leader_has_seen_nobody_late_yet(begin: Start) -> None:
    first = begin(pace="async", staleness="exponential", examples=200, checkpoint_every_s=0.0)
    first.ready("a", "b")
    for _ in range(60):
        # By turns, so that each comes one version late but the first.
        for node in ("a", "b"):
            first.update(node, work_of(first.leader._training.ledger.held_by(node)[0]))
    assert first.leader._training.lateness.threshold == 4.0
    first.happens(Saved(version=1))
    second = begin(term=2, saved=first.save(), pace="async", staleness="exponential", examples=200)
    assert second.leader._training.lateness.threshold is None


def work_of(lease: Lease) -> Work:
    """What a worker was told of a lease that the story did not note."""
    lent = {name: getattr(lease, name) for name in ("version", "epoch", "batches")}
    return Work(job="digits", term=1, lease=lease.id, kind="train", deadline_s=1.0, **lent)


def test_a_buffer_takes_in_so_many_and_no_worker_waits_for_it(begin: Start) -> None:
    story = begin(pace="buffered", buffer=3, examples=8)
    story.ready("a", "b")
    of_b = story.work("b")
    story.update("a", story.work("a"), 3, 3)
    assert (story.progress.version, story.work("a").version) == (0, 0)
    assert not story.work("a").tensors, "it has that version"
    story.update("a", story.work("a"), 3, 3)
    assert story.progress.version == 0
    story.update("b", of_b, 6, 6)
    assert (story.progress.version, story.model) == (1, [4.0, 4.0])
    assert story.work("b").version == 1


def test_at_the_end_of_an_epoch_a_buffer_is_what_it_is(begin: Start) -> None:
    story = begin(pace="buffered", buffer=3)
    story.ready("a")
    for _ in range(3):
        story.update("a", story.work("a"))
    assert (story.progress.version, story.progress.epoch) == (1, 0)
    story.update("a", story.work("a"))
    assert (story.progress.version, story.progress.epoch) == (2, 1), "four batches are three and one"
    assert (story.work("a").epoch, story.work("a").version) == (1, 2)


def test_the_last_of_an_epoch_waits_for_who_is_out_and_not_for_the_lost(begin: Start) -> None:
    story = begin(pace="buffered", buffer=8, examples=2)
    story.ready("a", "b")
    story.update("a", story.work("a"))
    assert story.progress.version == 0, "b may still bring the other batch"
    assert not story.told("a", Work)
    story.lost("b")
    assert story.progress.version == 0, "its batch went to a"
    story.update("a", story.work("a"), 3, 3)
    assert (story.progress.version, story.model, story.progress.epoch) == (1, [2.0, 2.0], 1)


def test_a_buffer_does_not_wait_where_nobody_may_work(begin: Start) -> None:
    story = begin(pace="buffered", buffer=8, workers_min=2)
    story.ready("a", "b")
    story.update("a", story.work("a"))
    story.lost("a")
    assert story.progress.version == 0, "b has a lease"
    story.lost("b")
    assert (story.progress.version, story.model) == (1, [1.0, 1.0])
    assert story.progress.state == "waiting"


@pytest.mark.parametrize("pace", ["async", "buffered"])
def test_what_is_late_lost_or_doubled_is_refused_in_every_pace(begin: Start, pace: str) -> None:
    story = begin(pace=pace, buffer=2, lease_s=10.0, examples=8)
    story.ready("a", "b")
    of_a, of_b = story.work("a"), story.work("b")
    story.update("a", of_a)
    again = story.work("a")
    story.update("a", of_a)
    assert [refused.reason for refused in story.told("a", UpdateRefused)] == ["lease 1 was merged already: a duplicate"]
    story.tick(10.0 + LEASE_GRACE_S)
    assert len(story.records("lease.expired")) == 2
    before = story.progress.version
    story.update("b", of_b)
    assert [refused.reason for refused in story.told("b", UpdateRefused)] == [
        "lease 2 expired after 12.0 s; its batches were given out again"
    ]
    assert story.work("b").batches == of_b.batches
    assert story.progress.version == before
    story.update("a", again, version=again.version + 1)
    assert story.told("a", UpdateRefused)


def test_a_buffer_is_emptied_before_the_role_is_handed_over(begin: Start) -> None:
    story = begin(pace="buffered", buffer=8, examples=8)
    story.ready("a", "b")
    of_a, of_b = story.work("a"), story.work("b")
    story.update("a", of_a)
    story.update("a", story.work("a"))
    held = story.leader._training.ledger.held_by("a")[0]
    hand_over(story)
    assert not stepped_down(story)
    story.update("b", of_b)
    assert (story.progress.version, stepped_down(story)) == (0, []), "a has a lease"
    story.update("a", work_of(held))
    assert (story.progress.version, story.model) == (1, [1.0, 1.0])
    assert len(story.save().applied) == 4
    story.happens(Saved(version=1))
    assert stepped_down(story) == ["handed over at version 1"]


def test_a_stopped_job_keeps_what_its_buffer_holds(begin: Start) -> None:
    story = begin(pace="buffered", buffer=8, examples=8)
    story.ready("a", "b")
    story.update("a", story.work("a"))
    story.happens(StopRequested(reason="enough"))
    assert (story.save().version, len(story.save().applied), story.model) == (1, 1, [1.0, 1.0])


def test_a_stopped_round_is_not_a_version(begin: Start) -> None:
    story = begin(examples=8)
    story.ready("a", "b")
    story.update("a", story.work("a"))
    story.happens(StopRequested(reason="enough"))
    assert (story.save().version, story.model) == (0, [0.0, 0.0])


def test_time_is_over_and_the_buffer_is_evaluated_with_the_rest(begin: Start) -> None:
    story = begin(pace="buffered", buffer=3, examples=8, test=1000, until=Until(seconds=30.0))
    story.ready("a", "b")
    for _ in range(4):
        story.update("a", story.told("a", Work)[-1])
    assert story.progress.version == 1
    held = story.leader._training.ledger.held_by("a")[0]
    story.tick(31.0)
    assert story.progress.version == 2
    story.update("a", work_of(held))
    assert story.told("a", UpdateRefused)
    assert (story.work("a").kind, story.work("a").version) == ("evaluate", 2)


# As many as make a version ----------------------------------------------------------------------------------------


def test_no_more_than_a_cohort_work_for_a_version_and_the_others_are_next(begin: Start) -> None:
    story = begin(cohort=2)
    story.ready("a", "b", "c", "d")
    works = {node: story.work(node) for node in "ab"}
    assert not story.told("c", Work)
    story.update("a", works["a"])
    assert not story.told("a", Work)
    story.update("b", works["b"])
    assert [story.work(node).version for node in "cd"] == [1, 1]
    assert not story.told("a", Work)


@pytest.mark.parametrize("ends", ["lost", "late", "failed", "asks anew"])
def test_whoever_waits_longest_takes_the_place_of_one_of_a_cohort_that_fails(begin: Start, ends: str) -> None:
    story = begin(cohort=2, lease_s=3.0)
    story.ready("a", "b", "c", "d")
    lease = story.leader._training.ledger.held_by("b")[0].id
    match ends:
        case "lost":
            story.lost("b")
        case "late":
            story.tick(3.0 + LEASE_GRACE_S)
        case "failed":
            story.fail("b", lease)
        case _:
            story.ready("b")
    assert story.work("c").version == 0
    assert bool(story.told("d", Work)) == (ends == "late"), "then a is late too"
    assert not story.told("b", Work)


def test_workers_are_told_which_version_a_leader_went_on_from(begin: Start) -> None:
    story = begin()
    story.ready("a")
    assert story.work("a").began == 0
    story.update("a", story.work("a"))
    story.tick(after_s=60.0)
    saved = story.save()
    assert saved.version == 1
    again = begin(saved=saved, term=2)
    again.ready("a")
    assert again.work("a").began == 1
