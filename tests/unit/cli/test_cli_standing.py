"""How a job stands, why and since when: the same in every command, and never green for a job that waits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from statuses import JOB, job, progress, status, story_of
from test_cli_follow import FINISHED, followed

from shoal.cli.render.tables import jobs_table
from shoal.cli.render.view import STATE_STYLES, render
from shoal.cli.select_job import pick_job
from shoal.cli.standing import SILENT_S, JobStanding, since_text, standing, without_manager
from shoal.errors import Unreachable
from shoal.states import JobState
from shoal.wire.messages import JobView

SHORT = "1 of 2 required devices connected"
WAITS = job(since_s=185.0, progress=progress(state="waiting", reason=SHORT))


def table(view: JobView, *, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(jobs_table((view,), width=width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drawn(view: JobView, *, note: str = "", unanswered_s: float = 0.0, width: int = 120) -> str:
    story = story_of(status(view))
    story.unanswered_s = unanswered_s
    console = Console(file=io.StringIO(), width=width)
    console.print(render(story, width=width, height=30, note=note))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_job_that_waits_is_shown_so_in_the_list_and_in_the_picture() -> None:
    for width in (80, 160):
        listed = table(WAITS, width=width)
        assert "● waiting" in listed
        assert "3 min 05 s" in listed
        assert all(word in listed for word in SHORT.split())
        assert "running" not in listed
    assert f"● waiting for 3 min 05 s  {SHORT}" in drawn(WAITS)
    assert STATE_STYLES["waiting"] != STATE_STYLES["training"]


def test_the_leader_says_how_a_job_stands_while_it_runs() -> None:
    assert standing(job()) == JobStanding(state="training", since_s=84.0)
    assert standing(job(state=JobState.STOPPING, reason="enough")).state == "stopping"
    over = standing(job(state=JobState.FINISHED, reason="reached 98 %", since_s=5.0))
    assert (over.state, since_text(over)) == ("finished", "5.0 s ago")


def test_the_last_word_of_a_leader_that_is_not_heard_does_not_count() -> None:
    silent = standing(job(leader="pi2", heard_s=SILENT_S + 20))
    assert silent == JobStanding(
        state="silent", reason="last report of pi2: 30 s ago (training)", since_s=SILENT_S + 20
    )
    away = standing(job(leader="pi2", heard_s=-1.0, since_s=-1.0))
    assert away.state == "silent"
    assert "has sent nothing since the manager started" in away.reason
    assert since_text(away) == ""
    # Another leads it since, and has not reported: what the one before said is over.
    follows = standing(job(leader="pi3", term=2, reason="led by pi3: placed best of 3 devices"))
    assert follows.state == "waiting"
    assert "waiting for the first report from pi3" in follows.reason


@pytest.mark.parametrize("state", ["silent", "unknown", "waiting", "queued"])
def test_only_work_is_green(state: str) -> None:
    assert STATE_STYLES[state] == "yellow"


def test_attach_says_what_is_so_while_the_manager_does_not_answer() -> None:
    on_device = job(leader="pi2")
    assert without_manager(on_device, manager="manager") == "the job was led by pi2, which may go on"
    told = without_manager(job(), manager="manager")
    assert "it resumes from saved version 400 when the manager returns" in told
    assert "starts when the manager is back" in without_manager(
        job(state=JobState.QUEUED, leader=""), manager="manager"
    )
    _, printed = followed([status(), Unreachable("connection refused"), FINISHED])
    assert "goes on without us" not in printed
    assert "the manager does not answer; the job's leader is on the manager's machine" in printed
    _, printed = followed([status(on_device), Unreachable("connection refused"), FINISHED])
    assert "the manager does not answer; the job was led by pi2, which may go on. Asking again" in printed


def test_the_picture_is_not_green_while_the_manager_does_not_answer() -> None:
    note = f"the manager does not answer; {without_manager(job(), manager='manager')}. Asking again (12 s)"
    text = drawn(job(), note=note, unanswered_s=12.0, width=80)
    assert "● unknown for 12 s  the manager does not answer" in text
    assert "training for" not in text
    # None of it is cut off at the usual width.
    assert " ".join(note.split()) in " ".join(text.split())
    assert len(text.splitlines()) <= 30


def test_a_job_that_is_stopping_is_not_over() -> None:
    assert [state for state in JobState if state.is_open] == ["queued", "running", "stopping"]
    assert not story_of(status(job(state=JobState.STOPPING))).ended
    stopping, older = job(job="mnist-2222", state=JobState.STOPPING), job(job="mnist-3333", state=JobState.FINISHED)
    assert pick_job(status(stopping, older), "").job == "mnist-2222"
    story, printed = followed([status(job(state=JobState.STOPPING, reason="stopped by the operator")), FINISHED])
    assert story.state == "finished", "a job that is being saved is watched until it is over"
    assert story.job_id == JOB
    assert "stopping: stopped by the operator" in printed


def test_what_was_discarded_is_said_under_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cli.commands.status import _print_cluster

    _print_cluster(status(job(discarded="40 versions (4 to 43) that pi2 made under term 1 out of reach: why")))
    printed = " ".join(capsys.readouterr().out.split())
    assert "discarded 40 versions (4 to 43) that pi2 made under term 1 out of reach: why" in printed
