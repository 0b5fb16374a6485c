"""What is wrong with a job and with a device, in one sentence each."""

from __future__ import annotations

from shoal.plan import Plan, Until
from shoal.roles.manager.preparation import Unprepared
from shoal.roles.manager.trouble import NO_TROUBLE, job_trouble, node_troubles
from shoal.states import JobState
from shoal.wire.messages import JobView, NodeView, Progress, Released, WorkerView

RAISED = "FileNotFoundError: '/base/model.safetensors', at Pre.model (pre.py:9)"


def progress(*workers: WorkerView, state: str = "training", reason: str = "") -> Progress:
    return Progress(job="j", term=1, state=state, reason=reason, workers=workers)


def at(node: str, state: str, reason: str = "") -> WorkerView:
    return WorkerView(node=node, state=state, reason=reason)


def unprepared(reason: str = RAISED, *, until_s: float = 40.0) -> Unprepared:
    return Unprepared(reason=reason, by_task=True, times=1, until_s=until_s)


def test_a_job_whose_devices_work_is_not_in_trouble() -> None:
    assert job_trouble(progress(at("a", "working"), at("b", "waiting")), {}) == NO_TROUBLE
    assert job_trouble(None, {}) == NO_TROUBLE
    waits = progress(state="waiting", reason="0 of 1 required devices connected")
    assert job_trouble(waits, {}) == NO_TROUBLE, "a job that waits is not in trouble yet"


def test_devices_that_fail_are_counted_with_those_that_were_let_go() -> None:
    found = job_trouble(progress(at("a", "working"), at("b", "failing", RAISED)), {"c": unprepared()})
    assert (found.failing, found.stalled) == (2, False)
    assert found.sentence == f"2 of 3 devices fail: {RAISED}"


def test_a_job_is_stalled_if_every_device_fails() -> None:
    found = job_trouble(progress(state="waiting", reason="0 of 1"), {"a": unprepared(), "b": unprepared()})
    assert (found.failing, found.stalled) == (2, True)
    assert found.sentence == f"2 of 2 devices cannot prepare it: {RAISED}"
    alone = job_trouble(progress(at("a", "failing", "ValueError: no, at T.loss (t.py:3)")), {})
    assert alone.sentence == "a fails: ValueError: no, at T.loss (t.py:3)"
    assert alone.stalled


def test_a_device_that_prepared_the_job_after_all_is_not_counted() -> None:
    assert job_trouble(progress(at("a", "ready")), {"a": unprepared()}) == NO_TROUBLE


def test_other_reasons_are_named_with_their_devices() -> None:
    found = job_trouble(None, {"a": unprepared(), "b": unprepared(), "c": unprepared("no CUDA here")})
    assert found.sentence == f"3 of 3 devices cannot prepare it: {RAISED}; c for another reason"


def test_a_leader_that_trains_gives_a_reason_only_if_something_is_wrong() -> None:
    found = job_trouble(progress(at("a", "working"), reason="every device fails again and again: x"), {})
    assert found.sentence == "every device fails again and again: x"
    assert found.failing


def test_what_is_wrong_with_each_device() -> None:
    jobs = [("one", progress(at("a", "failing", "x"), at("b", "working")), {"c": unprepared(until_s=52.0)})]
    told = {"a": "fails in one: x", "c": f"cannot prepare one: {RAISED}; tries again in 12 s"}
    assert node_troubles(jobs, now_s=40.0) == told


def test_a_trouble_and_a_failure_are_told_as_long_as_a_reason() -> None:
    long = "FileNotFoundError: " + "/models/llama" * 30
    view = JobView(job="a-1", name="a", state=JobState.RUNNING, plan=Plan(until=Until(epochs=1)), trouble=long)
    assert view.trouble == long
    assert NodeView(node="a", state="alive", trouble=long).trouble == long
    assert Released(job="a-1", term=1, node="b", failure=long).failure == long
