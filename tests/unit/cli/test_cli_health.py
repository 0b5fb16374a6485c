"""Whether all is well, in one sentence; and lines of a journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.exits import Check, Exit
from shoal.cli.health import health_of
from shoal.cli.journal_lines import event_json, event_line, in_order, last_lines, names_node, own_logs
from shoal.plan import Plan
from shoal.states import JobState
from shoal.wire.messages import EventView, JobView, NodeView, Progress, Status


def job(name: str, state: JobState = JobState.RUNNING, **told: Any) -> JobView:
    return JobView(**{"job": name, "name": name, "state": state, "plan": Plan(), "term": 1, "since_s": 99.0, **told})


def trains(name: str, state: str = "training", reason: str = "") -> JobView:
    told = Progress(job=name, term=1, state=state, reason=reason)
    return job(name, progress=told, heard_s=0.5, leader="attic")


def status(*jobs: JobView, nodes: tuple[NodeView, ...] = ()) -> Status:
    return Status(cluster="home", manager="manager", jobs=jobs, nodes=nodes)


ALIVE = NodeView(node="attic", state="alive")
LOST = NodeView(node="cellar", state="lost", reason="silent for 12.0 s")


@pytest.mark.parametrize(
    ("told", "verdict", "sentence"),
    [
        (status(), Check.WELL, "all well: 0 devices alive, 0 open jobs"),
        (status(trains("a"), nodes=(ALIVE,)), Check.WELL, "all well: 1 device alive, 1 open job"),
        (status(job("a", JobState.FINISHED)), Check.WELL, "all well: 0 devices alive, 0 open jobs"),
        (status(nodes=(ALIVE, LOST)), Check.ATTENTION, "attention: cellar is lost (silent for 12.0 s)"),
        (
            status(trains("a", "waiting", "1 of 2 required devices connected")),
            Check.ATTENTION,
            "attention: a waits for 1 min 39 s (1 of 2 required devices connected)",
        ),
        (
            status(job("a", JobState.QUEUED, reason="no device is free")),
            Check.ATTENTION,
            "attention: a waits for 1 min 39 s (no device is free)",
        ),
        (
            status(job("a", JobState.FAILED, reason="it diverged"), nodes=(LOST,)),
            Check.TROUBLE,
            "trouble: a failed (it diverged); cellar is lost (silent for 12.0 s)",
        ),
    ],
)
def test_one_sentence_and_a_code(told: Status, verdict: Check, sentence: str) -> None:
    health = health_of(told)
    assert (health.verdict, health.sentence) == (verdict, sentence)


def test_where_there_are_several_managers_the_one_that_has_it_is_named() -> None:
    lost = replace(LOST, manager="b.lan:7070")
    on_its_way = NodeView(node="shed", state="elsewhere", manager="b.lan:7070")
    waits = replace(trains("a", "waiting", "no worker"), manager="c.lan:7070")
    assert health_of(status(waits, nodes=(lost, on_its_way))).sentence == (
        "attention: a waits for 1 min 39 s at c.lan:7070 (no worker); cellar is lost at b.lan:7070 (silent for 12.0 s)"
    )
    failed = job("a", JobState.FAILED, reason="it diverged", manager="c.lan:7070")
    assert health_of(status(failed)).sentence == "trouble: a failed at c.lan:7070 (it diverged)"
    assert health_of(status(nodes=(on_its_way,))).verdict is Check.WELL


def test_what_is_no_reason_to_look() -> None:
    held = NodeView(node="shed", state="lost", standing="revoked")
    old = job("old", JobState.FAILED, since_s=3601.0)
    begins = job("new", JobState.QUEUED, since_s=2.0)
    assert health_of(status(old, begins, nodes=(held,))).verdict is Check.WELL


def test_a_job_that_is_named_may_have_failed_long_ago() -> None:
    told = status(job("old", JobState.FAILED, since_s=1e6, reason="it diverged"), trains("a"), nodes=(LOST,))
    assert health_of(told, job="old").verdict is Check.TROUBLE
    assert health_of(told, job="a").sentence == "all well: a is training"


def test_many_devices_are_not_all_named() -> None:
    nodes = tuple(NodeView(node=f"pi-{i}", state="lost", reason="cut") for i in range(9))
    assert health_of(status(nodes=nodes)).sentence.endswith("pi-2 is lost (cut), and 6 more")


def test_a_silent_leader_asks_for_attention() -> None:
    told = Progress(job="a", term=1, state="training")
    view = job("a", progress=told, heard_s=60.0, leader="attic")
    assert health_of(status(view)).sentence.startswith("attention: a is silent for 1 min 00 s (last report of attic")


def test_an_unreachable_manager_has_a_code_of_its_own() -> None:
    assert Exit.UNREACHABLE not in set(Check)


# Lines -----------------------------------------------------------------------------------------------------


def event(reason: str, *, seq: int = 1, at_s: float = 1.5, kind: str = "device.lost") -> EventView:
    return EventView(seq=seq, at_s=at_s, kind=kind, reason=reason)


def test_an_event_is_a_line_of_the_managers_log() -> None:
    told = event("pi-1: silent\n2026-01-01T00:00:00Z ERROR forged")
    assert event_line(told, job="mnist-1") == (
        "1970-01-01T00:00:01.500Z WARNING [mnist-1] device.lost: pi-1: silent 2026-01-01T00:00:00Z ERROR forged"
    )
    assert event_json(event("lease 4 of pi-1", kind="lease.expired"), job="mnist-1", cluster="home") == {
        "ts": "1970-01-01T00:00:01.500Z",
        "level": "warning",
        "event": "lease.expired",
        "cluster": "home",
        "job": "mnist-1",
        "lease": 4,
        "reason": "lease 4 of pi-1",
        "seq": 1,
    }


@pytest.mark.parametrize(
    ("reason", "is_named"),
    [
        ("pi-1: silent", True),
        ("lease 4 of pi-1 after 2.0 s", True),
        ("workers: pi-10, pi-1.", True),
        ("pi-10 is lost", False),
        ("api-1 is lost", False),
    ],
)
def test_an_event_names_a_device_whole(reason: str, is_named: bool) -> None:
    assert names_node(event(reason), "pi-1") is is_named


def test_events_of_several_journals_come_as_they_happened() -> None:
    first, second, third = event("a", at_s=1.0, seq=9), event("b", at_s=2.0), event("c", at_s=2.0, seq=2)
    assert in_order([("x", third), ("x", second), ("", first)]) == [("", first), ("x", second), ("x", third)]


def test_a_devices_own_log_where_it_lies_here(tmp_path: Path) -> None:
    home, default = tmp_path / "home", tmp_path / "default"
    kept = default / "logs" / "mnist-1"
    for folder in (home, kept):
        folder.mkdir(parents=True)
        (folder / "pi-1.log").write_text("one\ntwo\x1b[2J\nthree\n")
    assert list(own_logs(home, default, "pi-1")) == [home / "pi-1.log", kept / "pi-1.log"]
    assert list(own_logs(home, default, "pi-2")) == []
    assert last_lines(home / "pi-1.log", 2) == ["two [2J", "three"]
    assert last_lines(home / "pi-1.log", 9) == ["one", "two [2J", "three"]


def test_the_end_of_a_large_log_is_found_without_reading_it_all(tmp_path: Path) -> None:
    file = tmp_path / "pi-1.log"
    file.write_text("".join(f"line {i:07}\n" for i in range(200_000)))
    assert last_lines(file, 2) == ["line 0199998", "line 0199999"]
