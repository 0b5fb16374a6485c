"""Following a job: lines where there is no terminal, patience with a manager that restarts, the code it ends with."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Sequence

import pytest
from rich.console import Console
from statuses import JOB, evaluation, event, job, progress, status, worker

from shoal.cli.commands.attach import outcome
from shoal.cli.commands.demo import reached, result
from shoal.cli.follow import follow
from shoal.cli.job_history import News, Story
from shoal.cli.render.plain import PlainLines
from shoal.errors import Unreachable
from shoal.states import JobState, LeaderPhase
from shoal.wire.messages import Status


def followed(answers: Sequence[Status | Exception], **options: float) -> tuple[Story, str]:
    """Follow a job whose cluster gives these answers, the last of them for ever."""
    asked: list[int] = []

    async def ask(after_event: int) -> Status:
        asked.append(after_event)
        answer = answers[min(len(asked), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    console = Console(file=io.StringIO(), width=100)
    story = asyncio.run(follow(ask, JOB, console=console, every_s=0.001, settle_s=0.0, **options))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return story, console.file.getvalue()


FINISHED = status(
    job(state=JobState.FINISHED, reason="reached 98.10%", progress=progress(state=JobState.FINISHED, accuracy=0.981)),
    events=(event(1), event(2, "epoch.done", "epoch 2: done")),
    evaluations=(evaluation(1, 0.9677), evaluation(2, 0.981)),
)


def test_a_job_is_followed_to_its_end() -> None:
    story, printed = followed([status(), status(), FINISHED])
    assert story.state == "finished"
    assert printed.splitlines() == [
        "device.joined: device-1 is ready",
        "epoch 1: accuracy 96.77 %, loss 0.2, version 59, 10 s",
        "training",
        "epoch 2: accuracy 98.10 %, loss 0.2, version 118, 20 s",
        "finished: reached 98.10%",
    ]


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        (JobState.FINISHED, "40 of 40 epochs", "finished: 40 of 40 epochs, accuracy 92.40 %"),
        (JobState.FINISHED, "reached 92.40%, the goal was 92.00%", "finished: reached 92.40%, the goal was 92.00%"),
        (JobState.STOPPED, "stopped by operator", "stopped: stopped by operator, accuracy 92.40 %"),
        (JobState.FAILED, "the loss is not finite", "failed: the loss is not finite"),
    ],
)
def test_the_last_line_says_how_good_the_model_is(state: JobState, reason: str, told: str) -> None:
    ended = job(state=state, reason=reason, progress=progress(state=LeaderPhase.ENDED, accuracy=0.924))
    _, printed = followed([status(ended)])
    assert printed.splitlines()[-1] == told


def test_the_last_line_of_a_job_that_was_never_evaluated_has_no_figure() -> None:
    ended = job(state=JobState.STOPPED, reason="stopped by operator", progress=None)
    _, printed = followed([status(ended)])
    assert printed.splitlines()[-1] == "stopped: stopped by operator"


def test_a_manager_that_restarts_is_waited_for() -> None:
    gone = Unreachable("connection refused")
    story, printed = followed([status(), gone, gone, gone, FINISHED])
    assert story.state == "finished"
    assert printed.count("the manager does not answer") == 1


def test_a_manager_that_stays_away_is_given_up() -> None:
    began_s = time.monotonic()
    with pytest.raises(Unreachable, match=r"no answer for .*connection refused"):
        followed([status(), Unreachable("connection refused")], give_up_after_s=0.02)
    assert time.monotonic() - began_s < 2.0


def test_the_live_picture_is_drawn_on_a_terminal() -> None:
    async def ask(after_event: int) -> Status:
        return FINISHED

    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
    asyncio.run(follow(ask, JOB, console=console, every_s=0.001, settle_s=0.0))
    assert isinstance(console.file, io.StringIO)
    assert "╭─" in console.file.getvalue()
    assert "98.10 %" in console.file.getvalue()


def test_progress_without_news_is_told_at_most_every_five_seconds() -> None:
    lines, story, nothing = PlainLines(), Story(JOB), News()
    news = story.take(status())
    assert lines.lines(story, news, 0.0)
    assert lines.lines(story, nothing, 4.9) == []
    assert lines.lines(story, nothing, 5.0) == [
        "epoch 2: 546/938 batches, 2 workers, 3.2k examples/s, 0 B up, 0 B down"
    ]
    story.take(status(job(progress=progress(version=413, batches_applied=550))))
    assert lines.lines(story, nothing, 9.9) == []
    assert len(lines.lines(story, nothing, 10.0)) == 1
    # Where nothing moved, there is nothing to tell.
    assert lines.lines(story, nothing, 60.0) == []


def test_outcomes_are_plain_values() -> None:
    story, _ = followed([FINISHED])
    told = outcome(story)
    assert told["state"] == "finished"
    assert told["accuracy"] == 0.981
    assert told["workers"] == 2
    shown = result(story, seconds=12.345, workers=4, target=0.97)
    assert (shown["accuracy"], shown["seconds"], shown["workers"], shown["reached"]) == (0.981, 12.35, 4, True)


def test_a_demo_that_misses_its_target_has_not_reached_it() -> None:
    story, _ = followed([FINISHED])
    assert not reached(story, 0.99)
    failed, _ = followed([status(job(state=JobState.FAILED, reason="no", progress=None))])
    assert not reached(failed, 0.5)
    assert outcome(failed)["accuracy"] is None


def test_a_workers_share_survives_odd_names() -> None:
    story, _ = followed([status(job(state=JobState.STOPPED, progress=progress(workers=(worker(1),))))])
    assert outcome(story)["state"] == "stopped"
