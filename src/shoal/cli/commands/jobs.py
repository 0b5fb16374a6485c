"""`shoal jobs`: list jobs, show one with its reasons, stop one, let another node lead one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Job, Json

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.runtime.operator import Operator
    from shoal.wire.messages import ActView, JobView, Status

app = typer.Typer(rich_markup_mode="markdown")


@app.callback(invoke_without_command=True)
def jobs(
    context: typer.Context,
    ended: Annotated[bool, typer.Option("--ended", help="List all ended jobs by page, the latest first.")] = False,
    page: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Which page of --ended to list.", show_default=True)
    ] = 1,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """List open jobs and the latest that ended; `show` one with its reasons, `stop` one, or `transfer` it to another
    leader.

    Example:  `shoal jobs`  or  `shoal jobs --ended --page 2`
    """
    from shoal.cli.connect import status_to_list

    ended = ended or page > 1
    told = status_to_list(context, home, json=json, part="jobs", ended_page=page if ended else 0)
    if told is None:
        return
    from shoal.cli import screen
    from shoal.cli.first_screen import page_line, unlisted_line
    from shoal.cli.render.tables import jobs_table

    terminal = screen.out()
    if told.jobs:
        terminal.print(jobs_table(told.jobs, width=terminal.width))
    elif not ended:
        screen.say("No jobs yet. Start one with: shoal train TASK")
    if line := page_line(told, page) if ended else unlisted_line(told.ended_unlisted):
        terminal.print(line, style="dim", soft_wrap=True)


@app.command()
def show(
    job: Job,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where the task's code failed on devices, in full.")
    ] = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Show one job: its plan, its evaluations, its latest decisions and their reasons.

    Example:  `shoal jobs show mnist-3fa2 --traceback`
    """
    from shoal.cli import screen
    from shoal.cli.connect import ask_job, with_operator
    from shoal.cli.render.plain_json import to_plain

    if traceback:
        _show_tracebacks(job, home, json=json)
        return

    async def ask(operator: Operator) -> tuple[JobView, Status, list[ActView]]:
        view, told = await ask_job(operator, job)
        return view, told, await operator.acts(view.job)

    view, told, acts = with_operator(home, ask)
    if json:
        plain = {"job": view, "evaluations": told.evaluations, "events": told.events, "acts": acts}
        screen.print_json(to_plain(plain))
    else:
        _print(view, told, acts)


def _show_tracebacks(job: str, home: Path, *, json: bool) -> None:
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import clean
    from shoal.cli.render.plain_json import to_plain
    from shoal.cli.render.view import clock_text
    from shoal.cli.select_job import pick_job

    async def ask(operator: Operator) -> tuple[str, Status]:
        found = pick_job(await operator.jobs_called(job), job).job
        return found, await operator.status(found, tracebacks=True)

    found, told = with_operator(home, ask)
    if json:
        screen.print_json(to_plain(told.events))
        return
    if not told.events:
        screen.say(f"No traceback of {found} is kept: its code did not fail on a device")
    terminal = screen.out()
    for event in told.events:
        terminal.print(f"{clock_text(event.at_s)}  {clean(event.reason)}", soft_wrap=True)
        for line in event.traceback.rstrip().split("\n"):
            # Peers choose this text: the spaces before a line are kept, and nothing else that does not print.
            terminal.print("    " + "".join(each if each.isprintable() else " " for each in line), soft_wrap=True)
        terminal.print()


def _print(view: JobView, told: Status, acts: list[ActView]) -> None:
    from shoal.cli import screen
    from shoal.cli.render.format import count_text
    from shoal.cli.render.tables import acts_table, evaluations_table, events_table, jobs_table, plan_table

    terminal = screen.out()
    terminal.print(jobs_table((view,), width=terminal.width))
    sizes = f"{view.train_examples:,} training and {view.test_examples:,} held-out examples"
    if view.plan.data == "local":
        sizes = f"examples are the devices' own, {view.test_examples:,} are held out here"
    terminal.print(
        f"\n{count_text(view.model_size)} numbers in the model, {sizes}\n" if view.model_size else f"\n{sizes}\n"
    )
    terminal.print(plan_table(view.plan))
    if acts:
        terminal.print()
        terminal.print(acts_table(acts))
    if told.evaluations:
        terminal.print()
        terminal.print(evaluations_table(told.evaluations))
    if told.events:
        terminal.print()
        terminal.print(events_table(told.events))


@app.command()
def stop(
    job: Job,
    reason: Annotated[str, typer.Option(help="Why, for the record.", show_default=False)] = "",
    home: Home = DEFAULT_HOME,
) -> None:
    """Stop a job; its newest model is saved and stays available.

    Example:  `shoal jobs stop mnist-3fa2`
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.select_job import pick_job

    async def ask(operator: Operator) -> str:
        found = pick_job(await operator.jobs_called(job), job).job
        await operator.stop(found, reason)
        return found

    found = with_operator(home, ask)
    screen.say(f"Stopping {found}: its last version is being saved. Fetch it with: shoal model pull {found}")


@app.command()
def transfer(
    job: Job,
    to: Annotated[str, typer.Option(metavar="NODE", help="The node that shall lead it; else the best placed.")] = "",
    home: Home = DEFAULT_HOME,
) -> None:
    """Let another node lead a job. The one that does finishes its round first: nothing is lost, no worker restarts.

    Example:  `shoal jobs transfer mnist-3fa2 --to attic-pi4`
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.select_job import pick_job

    async def ask(operator: Operator) -> tuple[str, str]:
        found = pick_job(await operator.jobs_called(job), job).job
        return found, await operator.transfer(found, to)

    found, told = with_operator(home, ask)
    screen.say(f"{found}: {told}. Watch it with: shoal jobs show {found}")


@app.command(name="rm")
def remove(job: Job, home: Home = DEFAULT_HOME) -> None:
    """Remove an ended job: its record, its checkpoints, its published versions, and what it alone is made of.

    Example:  `shoal jobs rm mnist-3fa2`
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import clean
    from shoal.cli.select_job import pick_job

    async def ask(operator: Operator) -> str:
        return await operator.remove_job(pick_job(await operator.jobs_called(job), job).job)

    screen.say(clean(with_operator(home, ask)))
