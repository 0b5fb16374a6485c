"""The document that viewers hold: the sentence first, every field of the contract, no null, little that moves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from statuses import JOB, evaluation, event, job, node, progress, status, worker

from shoal.console.devices import coarse_s
from shoal.console.flows import Flows
from shoal.console.patch import diff
from shoal.console.state import JOBS_SHOWN, JobDetails, Look, state_of
from shoal.plan import Plan, Until
from shoal.states import JobState
from shoal.wire.messages import Facts, PublishedView, ServedView, Status, TopologyView, VersionList

AT_S = 1_790_000_050.0
TORCH = Facts(host="board", arch="aarch64", cpus=4, memory_mb=1024, torch="2.13")


def told(given: Status, **values: Any) -> dict[str, Any]:
    return state_of(Look(status=given, at_s=AT_S, **values))


def sentence(given: Status, *events: Any) -> tuple[str, str]:
    cluster = told(given, details={JOB: JobDetails(events=events)})["cluster"]
    return cluster["tone"], cluster["sentence"]


def devices(**first: Any) -> tuple[Any, ...]:
    one = {"job": JOB, "facts": TORCH} | first
    return (node("device-1", **one), node("device-2", job=JOB, facts=TORCH))


# Sentences ------------------------------------------------------------------------------------------------------


def test_when_all_is_well_the_sentence_says_how_good_the_job_is() -> None:
    tone, said = sentence(status(nodes=devices()))
    assert tone == "ok"
    assert said == "2 devices are alive; mnist is at 96.77 %; it is training with 2 workers"


def test_a_lost_device_is_named_with_the_reason_and_what_was_done() -> None:
    lost = devices(state="lost", reason="connection closed, no reconnect within 1.5 s", job="")
    happened = (
        event(40, "device.lost", "device-1: connection closed, no reconnect within 1.5 s"),
        event(42, "lease.returned", "lease 85 was taken back: device-1 is lost; its batches go to other devices"),
    )
    tone, said = sentence(status(nodes=lost), *happened)
    assert tone == "trouble"
    assert said.startswith(
        "device-1 is lost: connection closed, no reconnect within 1.5 s; mnist continues on 1 device. "
    )
    assert said.endswith("lease 85 was taken back: device-1 is lost; its batches go to other devices")


BROKEN = "RuntimeError: no scale, at Sensors.loss (sensors.py:17)"


def failure(seq: int, device: int, *, ago_s: float = 5.0) -> Any:
    return type(event(1))(seq=seq, at_s=AT_S - ago_s, kind="lease.failed", reason=f"device-{device}: {BROKEN}")


def test_a_job_whose_every_device_fails_is_trouble_and_says_what_to_do() -> None:
    failing = progress(workers=tuple(worker(number, state="failing", reason=BROKEN) for number in (1, 2)))
    state = told(status(job(progress=failing), nodes=devices()))
    cluster, training = state["cluster"], state["jobs"][JOB]
    assert cluster["tone"] == "trouble"
    assert cluster["sentence"] == (
        f"mnist fails on all 2 of its devices (device-1 and device-2): {BROKEN}."
        f" Mend what it names, stop this job with `shoal jobs stop {JOB}` and submit it again"
    )
    assert (training["tone"], training["state"], training["sentence"]) == ("trouble", "failing", cluster["sentence"])
    assert [state["nodes"][f"device-{number}"]["fails"] for number in (1, 2)] == [BROKEN, BROKEN]


def test_devices_that_fail_again_and_again_fail_also_while_they_try_once_more() -> None:
    happened = [failure(number, device) for number, device in enumerate((1, 2, 1, 2))]
    assert sentence(status(nodes=devices()), *happened)[0] == "trouble"
    # Once each is what a device recovers from, and what is long ago is over.
    assert sentence(status(nodes=devices()), *happened[:2])[0] == "ok"
    old = [failure(number, device, ago_s=600.0) for number, device in enumerate((1, 2, 1, 2))]
    assert sentence(status(nodes=devices()), *old)[0] == "ok"


def test_a_job_that_no_device_can_prepare_is_trouble() -> None:
    why = "2 of 2 devices cannot prepare it: FileNotFoundError: /models/llama"
    waiting = job(progress=progress(state="waiting", reason="0 of at least 2 workers", workers=()), trouble=why)
    stalled = type(waiting)(**(_fields(waiting) | {"failing": 2, "stalled": True}))
    nodes = (node("device-1", facts=TORCH, trouble="cannot prepare mnist: FileNotFoundError: /models/llama"),)
    state = told(status(stalled, nodes=nodes))
    assert state["cluster"]["tone"] == state["jobs"][JOB]["tone"] == "trouble"
    assert state["cluster"]["sentence"].startswith(f"mnist does not train: {why}. Mend")
    assert "FileNotFoundError" in state["nodes"]["device-1"]["fails"]
    some = job(trouble="1 of 3 devices cannot prepare it: no disk", failing=1)
    tone, said = sentence(status(some, nodes=devices()))
    assert tone == "attention"
    assert said == "2 devices are alive; mnist is at 96.77 %; 1 of 3 devices cannot prepare it: no disk"


def test_where_some_devices_fail_the_others_go_on() -> None:
    one = progress(workers=(worker(1, state="failing", reason="--device cuda: no CUDA here"), worker(2)))
    tone, said = sentence(status(job(progress=one), nodes=devices()))
    assert tone == "attention"
    assert said == (
        "2 devices are alive; mnist is at 96.77 %; device-1 fails: --device cuda: no CUDA here; one goes on"
    )


def test_of_several_jobs_the_worst_is_told_and_each_has_its_sentence() -> None:
    failing = progress(workers=(worker(2, state="failing", reason=BROKEN),))
    nodes = (node("device-1", job=JOB, facts=TORCH), node("device-2", job="sensors-1", facts=TORCH))
    well = job(progress=progress(workers=(worker(1),)))
    ill = job(job="sensors-1", name="sensors", progress=failing)
    state = told(status(well, ill, nodes=nodes))
    assert state["cluster"]["tone"] == "trouble"
    assert state["cluster"]["sentence"].startswith(f"sensors fails on its only device, device-2: {BROKEN}. Mend")
    assert state["cluster"]["sentence"].endswith("; 1 other job is open")
    assert state["jobs"][JOB]["tone"] == "ok"
    assert state["jobs"][JOB]["sentence"] == "mnist is at 96.77 %; it is training with 1 worker"
    both = told(status(well, job(job="second-1", name="second", progress=progress()), nodes=nodes))["cluster"]
    assert (both["tone"], both["sentence"]) == ("ok", "2 devices are alive; 2 jobs train, and none is in trouble")


def test_a_device_that_left_long_ago_is_no_news() -> None:
    lost = devices(state="lost", reason="left", job="")
    old = event(1, "device.lost", "device-1: left")
    tone, _ = sentence(status(nodes=lost), type(old)(seq=1, at_s=AT_S - 3600, kind=old.kind, reason=old.reason))
    assert tone == "ok"


@pytest.mark.parametrize(
    ("values", "tone", "words"),
    [
        ({"state": "suspect", "reason": "silent for 3 s"}, "attention", "device-1 is suspect: silent for 3 s"),
        ({"standing": "pending"}, "attention", "`shoal nodes approve device-1`"),
    ],
)
def test_what_wants_a_person_is_said(values: dict[str, Any], tone: str, words: str) -> None:
    found, said = sentence(status(nodes=devices(**values)))
    assert found == tone
    assert words in said


def test_a_job_that_failed_lately_comes_first() -> None:
    failed = job(state=JobState.FAILED, reason="the loss is not a number", since_s=5.0)
    tone, said = sentence(status(failed, nodes=devices(state="lost")))
    assert (tone, said) == ("trouble", "mnist failed: the loss is not a number")


def test_a_job_that_failed_last_is_told_for_a_day() -> None:
    def told_after(since_s: float, *later: Any) -> tuple[str, str]:
        failed = job(state=JobState.FAILED, reason="the loss is not a number", since_s=since_s)
        return sentence(status(failed, *later, nodes=devices(job="")))

    assert told_after(9000.0) == (
        "attention",
        "2 devices are alive, and no job is open; mnist failed 2 h 30 min ago: the loss is not a number",
    )
    assert told_after(90_000.0)[0] == "ok"
    assert told_after(9000.0, job(job="next-1", state=JobState.FINISHED, since_s=60.0))[0] == "ok"


def test_an_unreachable_manager_is_told_with_what_is_known_of_its_job() -> None:
    look = {"unanswered_s": 12.0, "unanswered_why": "connection refused", "since_s": 12.0}
    cluster = told(status(nodes=devices()), **look)["cluster"]
    assert (cluster["manager"], cluster["since_s"], cluster["tone"]) == ("unreachable", 12.0, "trouble")
    assert cluster["sentence"].startswith(
        "the manager has not answered for 12 s (connection refused); the job's leader"
    )
    nothing = state_of(Look(status=None, at_s=AT_S, unanswered_s=3.0, since_s=3.0))
    assert (nothing["nodes"], nothing["jobs"]) == ({}, {})


def test_a_job_says_what_stands_in_its_way() -> None:
    waiting = job(progress=progress(state="waiting", reason="2 of 3 required devices connected"))
    assert told(status(waiting))["jobs"][JOB]["sentence"] == (
        "mnist is at 96.77 %; it is waiting: 2 of 3 required devices connected"
    )
    drifting = JobDetails(evaluations=[evaluation(1, 0.95), evaluation(2, 0.80)])
    said = told(status(nodes=devices()), details={JOB: drifting})["jobs"][JOB]
    assert said["tone"] == "attention"
    assert "drift: 80.0 % lately, 95.0 % at its best" in said["sentence"]


# Devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reason", "does", "why"),
    [
        ("working", "", "train", "trains a lease"),
        ("delivering", "", "upload", "its update is on its way"),
        ("evaluating", "", "evaluate", "evaluates a version"),
        ("waiting", "others finish the round", "wait", "others finish the round"),
        ("late", "lease 3 expired", "wait", "late: lease 3 expired"),
        ("failing", "out of memory", "wait", "failing: out of memory"),
        ("dancing", "", "wait", "waits for a lease"),
    ],
)
def test_what_a_worker_does_and_why(state: str, reason: str, does: str, why: str) -> None:
    training = job(progress=progress(workers=(worker(1, state=state, reason=reason),)))
    seen = told(status(training, nodes=devices()))["nodes"]
    assert (seen["device-1"]["does"], seen["device-1"]["why"], seen["device-1"]["role"]) == (does, why, "worker")
    assert (seen["device-2"]["does"], seen["device-2"]["why"]) == ("prepare", "has not reached the leader yet")


def test_why_a_device_is_idle() -> None:
    full = job(plan=Plan(until=Until(epochs=1), workers_max=2))
    given = status(
        full,
        nodes=(
            node("bare"),
            node("room", facts=Facts(is_hub=True)),
            node("hall", facts=Facts(is_hub=True), job=JOB),
            node("spare", facts=TORCH),
            node("tired", facts=TORCH, standing="drained", reason="finishes its lease and gets no other"),
            node("manager", facts=TORCH),
            node("gone", state="lost", reason="left", facts=TORCH),
        ),
    )
    seen = {name: (each["does"], each["role"], each["why"]) for name, each in told(given)["nodes"].items()}
    assert seen == {
        "bare": ("idle", "", "has no PyTorch: it can lead, not train"),
        "room": ("idle", "hub", "a hub: no job with a tree needs it"),
        "hall": ("lead", "hub", "a hub: sums up updates of others"),
        "spare": ("idle", "spare", "spare: mnist takes at most 2"),
        "tired": ("idle", "", "finishes its lease and gets no other"),
        "manager": ("lead", "leader", "leads mnist"),
        "gone": ("lost", "", "left"),
    }


def test_a_second_without_news_is_a_small_patch() -> None:
    many = tuple(node(f"device-{number}", heard_s=0.1, load=0.42, memory_free_mb=641) for number in range(300))
    later = tuple(node(each.node, heard_s=0.9, load=0.44, memory_free_mb=655) for each in many)
    assert diff(told(status(nodes=many)), told(status(nodes=later))) == {}


def test_a_silence_is_told_coarsely() -> None:
    assert [coarse_s(span_s) for span_s in (0.0, 4.9, 5.2, 59.9, 61.0, 3599.0, 3661.0)] == [0, 0, 5, 59, 60, 3590, 3660]


# The rest of the contract -----------------------------------------------------------------------------------------


def test_a_job_has_every_part_of_the_contract() -> None:
    choices = (TopologyView(topology="star", batch_s=2.2), TopologyView(topology="shard", batch_s=1.8, chosen=True))
    moving = progress(topology="shard over 2 of 2 workers", topology_reason="the leader's link is narrow")
    moving = type(moving)(**{**_fields(moving), "alternatives": choices})
    served = ServedView(version=31, sha256="0" * 64, reason="better", hold="rolled back", verdict="not better")
    versions = VersionList(job=JOB, versions=(PublishedView(version=31, number=2, accuracy=0.9, at_s=5.0, reason="b"),))
    details = JobDetails(
        events=[event(number) for number in range(300)],
        evaluations=[evaluation(number, 0.9) for number in range(1, 700)],
        versions=versions,
        served=served,
    )
    given = status(job(plan=Plan(until=Until(epochs=2), topology="auto"), progress=moving), nodes=devices())
    seen = told(given, details={JOB: details})["jobs"][JOB]
    assert (seen["name"], seen["state"], seen["leader"], seen["term"]) == ("mnist", "training", "manager", 1)
    assert seen["progress"]["version"] == 412
    assert seen["progress"]["examples_per_s"] == 3158.0
    assert seen["metrics"]["accuracy"] == {"value": 0.9677, "lower": False}
    assert seen["workers"] == ["device-1", "device-2"]
    assert (seen["topology"]["kind"], seen["topology"]["why"]) == ("shard", "the leader's link is narrow")
    assert ["device-1", "device-2", None] in seen["topology"]["edges"]
    assert [(each["topology"], each["chosen"]) for each in seen["choices"]] == [("star", False), ("shard", True)]
    assert seen["plan_changed"] == ["topology", "until"]
    assert seen["plan"]["until"] == "2 epochs"
    assert (len(seen["evaluations"]), len(seen["events"])) == (500, 200)
    assert seen["events"][-1]["seq"] == 299
    assert seen["evaluations"][-1]["metrics"] == {"accuracy": 0.9, "loss": 0.2}
    assert seen["versions"][0]["version"] == 31
    assert seen["served"] == {"version": 31, "reason": "better", "hold": "rolled back", "verdict": "not better"}


def test_no_object_holds_a_null_and_json_can_say_it_all() -> None:
    odd = progress(train_loss=float("inf"), rounds_per_s=float("inf"), accuracy=None, loss=None)
    document = told(status(job(progress=odd), job(job="queued-1", progress=None), nodes=devices()))
    json.dumps(document, allow_nan=False)

    def check(value: Any) -> None:
        if isinstance(value, dict):
            assert None not in value.values(), value
            for each in value.values():
                check(each)

    check(document)


def test_of_many_jobs_the_open_ones_and_the_newest_are_shown() -> None:
    old = [job(job=f"old-{number:02}", state=JobState.FINISHED) for number in range(50)]
    seen = told(status(job(job="first-running"), *old))["jobs"]
    assert len(seen) == JOBS_SHOWN
    assert "first-running" in seen
    assert "old-49" in seen
    assert "old-00" not in seen


def test_flows_are_rates_of_counters() -> None:
    flows = Flows()
    for second in range(20):
        moved = progress(workers=(worker(1, bytes_up=1000 * second, bytes_down=4000 * second),))
        flows.take(status(job(progress=moved)), float(second))
    up, down = flows.rates(JOB, "device-1")
    assert up == pytest.approx(1000, rel=0.05)
    assert down == pytest.approx(4000, rel=0.05)
    flows.take(status(job(progress=progress(workers=(worker(1, bytes_up=0, bytes_down=0),)))), 21.0)
    assert flows.rates(JOB, "device-1") == (0.0, 0.0), "a new leader counts from nothing"
    flows.take(status(job(state=JobState.FINISHED)), 22.0)
    assert flows.rates(JOB, "device-1") == (0.0, 0.0)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
