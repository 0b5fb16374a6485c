"""A job whose devices fail does not look well anywhere, and jobs that ended leave the first screen."""

from __future__ import annotations

import io

from rich.console import Console
from statuses import JOB, job, node, progress, status

from shoal.cli.exits import Check
from shoal.cli.first_screen import ENDED_SHOWN_S, headlines, on_first_screen
from shoal.cli.health import health_of
from shoal.cli.job_history import Story
from shoal.cli.render.plain import PlainLines
from shoal.cli.render.tables import jobs_table, nodes_table
from shoal.cli.standing import standing
from shoal.states import JobState
from shoal.wire.messages import JobView, NodeView

TROUBLE = "4 of 4 devices fail: RuntimeError: no, at Late.loss (late.py:17)"
STALLED = job(trouble=TROUBLE, failing=4, stalled=True)
SOME = job(trouble="1 of 4 devices fail: out of memory", failing=1)


def printed(what: object) -> str:
    console = Console(file=io.StringIO(), width=240)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def listed(view: JobView) -> str:
    return printed(jobs_table((view,), width=240))


def test_a_job_none_of_whose_devices_works_is_stalled() -> None:
    assert (standing(STALLED).state, standing(STALLED).reason) == ("stalled", TROUBLE)
    assert "● stalled" in listed(STALLED)
    assert TROUBLE in listed(STALLED)


def test_a_list_says_trouble_and_not_who_leads() -> None:
    assert "led by" not in listed(job())
    assert "out of memory" in listed(SOME)
    assert "● training" in listed(SOME)


def test_a_list_of_devices_says_trouble_and_nothing_of_those_that_are_well() -> None:
    def row(view: NodeView) -> str:
        return printed(nodes_table((view,)))

    assert "connected" not in row(node("a", reason="connected"))
    assert "fails in one: no" in row(node("a", reason="connected", trouble="fails in one: no"))
    assert "restarted" in row(node("a", reason="restarted"))


def test_a_check_does_not_call_it_well() -> None:
    health = health_of(status(STALLED))
    assert (health.verdict, JOB in health.sentence, TROUBLE in health.sentence) == (Check.TROUBLE, True, True)
    assert health_of(status(SOME)).verdict is Check.ATTENTION
    assert health_of(status(job())).verdict is Check.WELL


def test_a_log_tells_of_trouble_once() -> None:
    story, lines = Story(JOB), PlainLines()
    told = []
    again = job(trouble=SOME.trouble.replace("1 of 4", "2 of 4"), failing=2)
    for number, view in enumerate((job(), SOME, again, job())):
        told += lines.lines(story, story.take(status(view, events=(), evaluations=())), 0.1 * number)
    assert told == ["training", f"trouble: {SOME.trouble}"]


def test_several_jobs_have_a_headline_each() -> None:
    waits = job(job="two", progress=progress(state="waiting", reason="1 of 2 required devices connected"))
    (first, second, third) = headlines((STALLED, waits, job(job="three")))
    assert first == (True, f"{JOB} does not progress: {TROUBLE}")
    assert second == (False, "two is waiting: 1 of 2 required devices connected")
    assert third[1].startswith("three is training on 2 devices, epoch ")
    assert headlines((job(),)) == [], "its row says the same"
    assert len(headlines((SOME,))) == 1


def test_jobs_that_ended_leave_the_first_screen() -> None:
    def over(name: str, since_s: float) -> JobView:
        return job(job=name, state=JobState.FINISHED, since_s=since_s)

    old, older, fresh = over("old", ENDED_SHOWN_S + 1), over("older", 9e4), over("fresh", 5.0)
    assert on_first_screen((older, old, fresh, job())) == (fresh, job())
    assert on_first_screen((older, old)) == (old,), "the latest stays"
    unknown = over("unknown", -1.0)
    assert on_first_screen((over("before", -1.0), unknown)) == (unknown,)
