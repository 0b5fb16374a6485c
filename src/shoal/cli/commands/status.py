"""`shoal status`: the cluster at a glance, or one job."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Json

if TYPE_CHECKING:
    from shoal.runtime.operator import Operator
    from shoal.wire.messages import Status


def status(
    job: Annotated[
        str, typer.Argument(metavar="[JOB]", help="Show this job alone, with its latest events.", show_default=False)
    ] = "",
    check: Annotated[
        bool,
        typer.Option("--check", help="Say in one sentence whether all is well, and by the exit code: see below."),
    ] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="Show the latest ended jobs too, also those that ended long ago.")
    ] = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Show the cluster and its jobs, or one job with its devices and latest events.

    Example:  `shoal status`  or  `shoal status mnist-3fa2 --json`

    With `--check` the exit code is 0: all well; 1: attention, a job waits or a device is lost; 2: trouble, a job failed
    within the hour (or the job that is named, ever); 3: the manager cannot be reached; 4: the cluster refused.
    """
    from shoal.cli import screen
    from shoal.cli.connect import ask_job, with_operator
    from shoal.cli.drift import drift_of
    from shoal.cli.render.plain_json import to_plain

    async def ask(operator: Operator) -> tuple[str, Status]:
        if not job:
            return "", await operator.status()
        view, told = await ask_job(operator, job)
        return view.job, told

    found, told = with_operator(home, ask)
    if check:
        raise typer.Exit(_check(found, told, json=json))
    if json:
        plain = to_plain(told)
        if found:
            plain["drift"] = to_plain(drift_of(told.evaluations))
        screen.print_json(plain)
    elif found:
        _print_job(found, told)
    else:
        _print_cluster(told, shows_all=all_)


def _check(job: str, told: Status, *, json: bool) -> int:
    from shoal.cli import screen
    from shoal.cli.health import health_of

    health = health_of(told, job=job)
    if json:
        screen.print_json({"check": health.verdict.name.lower(), "sentence": health.sentence})
    else:
        print(health.sentence, flush=True)
    return int(health.verdict)


def _print_job(job: str, told: Status) -> None:
    from shoal.cli import screen
    from shoal.cli.job_history import Story
    from shoal.cli.render.sealed import members_note
    from shoal.cli.render.view import render

    terminal = screen.out()
    story = Story(job)
    story.take(told)
    terminal.print(render(story, width=terminal.width, height=max(terminal.height, 30)))
    for view in told.jobs:
        if view.job == job and view.plan.inner_state == "kept":
            kept = "each device keeps the state of its optimiser, so a lost lease is trained as a new one"
            terminal.print(f"not replayable: {kept}", style="dim")
        if view.job == job and (note := members_note(view.plan, is_led_by_manager=view.leader == told.manager)):
            terminal.print(f"members: {note}", style="dim", soft_wrap=True)
    _print_discarded(told)


def _print_discarded(told: Status) -> None:
    """Versions that were trained and are not kept: nobody should have to look for that in a log."""
    from shoal.cli import screen
    from shoal.cli.render.format import clean

    for view in told.jobs:
        if view.discarded:
            screen.out().print(f"{clean(view.job)} discarded {clean(view.discarded, 300)}", style="yellow")


def _print_cluster(told: Status, *, shows_all: bool = False) -> None:
    from shoal.cli import screen
    from shoal.cli.first_screen import headlines, on_first_screen, unlisted_line
    from shoal.cli.render.format import clean, plural
    from shoal.cli.render.tables import jobs_table

    terminal = screen.out()
    states = Counter(node.state for node in told.nodes)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    managers = {node.manager for node in told.nodes} | {job.manager for job in told.jobs}
    managers.discard("")
    at = f" at {plural(len(managers), 'manager')}" if managers else ""
    terminal.print(
        f"cluster {clean(told.cluster)}: {plural(len(told.nodes), 'node')}{f' ({counted})' if counted else ''}{at}"
    )
    if not told.nodes:
        terminal.print("Add a device with the join line that `shoal up` printed.", style="dim")
    if told.executors:
        terminal.print(f"pool: {_pool_text(told)}")
        for executor in (executor for executor in told.executors if executor.caught):
            told_why = f"  {clean(executor.node)} gets no further tasks: {clean(executor.reason, 300)}"
            terminal.print(told_why, style="red")
    jobs = told.jobs if shows_all else on_first_screen(told.jobs)
    for is_trouble, line in headlines(jobs):
        terminal.print(line, style="red" if is_trouble else "", soft_wrap=True)
    if jobs:
        terminal.print(jobs_table(jobs, width=terminal.width))
        if line := unlisted_line(told.ended_unlisted + len(told.jobs) - len(jobs)):
            terminal.print(line, style="dim", soft_wrap=True)
        _print_discarded(told)
    else:
        terminal.print("No jobs yet. Start one with: shoal train TASK", style="dim")


def _pool_text(told: Status) -> str:
    """Who multiplies for others, in one line."""
    from shoal.cli.render.format import plural, rate_text

    ready = [executor for executor in told.executors if executor.state == "ready"]
    states = Counter(executor.state for executor in told.executors)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    together = sum(executor.multiply_adds_per_s for executor in ready)
    done = sum(executor.tasks for executor in told.executors)
    count = plural(len(told.executors), "executor")
    return f"{count} ({counted}), {rate_text(together)} operations/s, {done:,} tasks done"
