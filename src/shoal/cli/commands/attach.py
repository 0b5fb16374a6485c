"""`shoal attach`: watch a job until it ends, or leave it running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from shoal.cli.exits import Exit, exit_for_state
from shoal.cli.options import DEFAULT_HOME, Home, JobOrLatest, Json

if TYPE_CHECKING:
    from shoal.cli.job_history import Story
    from shoal.runtime.operator import Operator


def attach(job: JobOrLatest = "", home: Home = DEFAULT_HOME, json: Json = False) -> None:
    """Watch a job: progress, accuracy, who is slow and why. Ctrl-C leaves it running.

    Example:  `shoal attach mnist-3fa2`
    """
    from shoal.cli.connect import with_operator
    from shoal.cli.select_job import pick_job

    found = ""

    async def watch(operator: Operator) -> Story:
        nonlocal found
        found = pick_job(await operator.jobs_called(job), job).job
        return await watch_job(operator, found, to_stderr=json)

    try:
        story = with_operator(home, watch)
    except KeyboardInterrupt:
        raise left(found) from None
    finish(story, json=json)


async def watch_job(operator: Operator, job: str, *, to_stderr: bool) -> Story:
    """Follow a job on the terminal; with results promised as JSON, standard output is kept for them."""
    from shoal.cli import screen
    from shoal.cli.follow import follow

    terminal = screen.err() if to_stderr else screen.out()
    note = f"Ctrl-C leaves; the job goes on. Return with: shoal attach {job}"
    return await follow(lambda after_event: operator.status(job, after_event), job, console=terminal, note=note)


def left(job: str) -> typer.Exit:
    """What to say and raise when a person leaves a job."""
    from shoal.cli import screen

    if job:
        screen.say(
            f"Left job {job}; leaving does not stop it. Return with: shoal attach {job}   "
            f"Stop it with: shoal jobs stop {job}"
        )
    return typer.Exit(Exit.INTERRUPTED)


def finish(story: Story, *, json: bool, is_pulled: bool = False) -> None:
    """Say how a followed job ended, and end with the code that says the same."""
    from shoal.cli import screen

    if json:
        screen.print_json(outcome(story))
    elif story.state == "finished" and not is_pulled:
        screen.say(f"Fetch the model with: shoal model pull {story.job_id} -o model.safetensors")
    raise typer.Exit(exit_for_state(story.state))


def outcome(story: Story) -> dict[str, Any]:
    """How a job ended, as plain values."""
    from shoal.cli.render.plain_json import to_plain

    names = ("accuracy", "loss", "seconds", "version", "durable_version", "bytes_up", "bytes_down", "refused")
    told = {name: getattr(story.progress, name) if story.progress else None for name in names}
    told["metrics"] = {metric.name: metric.value for metric in story.progress.metrics} if story.progress else {}
    workers = len(story.progress.workers) if story.progress else 0
    plain: dict[str, Any] = to_plain(
        {"job": story.job_id, "state": story.state, "reason": story.reason, **told, "workers": workers}
    )
    return plain
