"""`shoal model`: what a job has learned, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.exits import Exit, exit_for_state
from shoal.cli.options import DEFAULT_HOME, Home, Job, Json, check_output
from shoal.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.cli.kept import Line
    from shoal.runtime.operator import Operator
    from shoal.wire.messages import JobView

#: Each look costs the manager an answer.
EVERY_LEAST_S = 0.5

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def model() -> None:
    """Fetch a trained model (`pull`), or keep a file at the best version while a job goes on (`follow`)."""


@app.command()
def pull(
    job: Job,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "model.safetensors"
    ),
    home: Home = DEFAULT_HOME,
) -> None:
    """Fetch a job's newest durable model as a safetensors file, while it trains or after.

    Example:  `shoal model pull mnist-3fa2 -o model.safetensors`
    """
    from shoal.cli import console
    from shoal.cli.pick import pick_job
    from shoal.cli.reach import with_operator
    from shoal.cli.words import bytes_text

    check_output(output)

    async def fetch(operator: Operator) -> str:
        found = pick_job(await operator.status(), job).job
        await operator.pull_model(found, output)
        return found

    found = with_operator(home, fetch)
    console.say(f"Wrote the model of {found} to {output}, {bytes_text(output.stat().st_size)}.")


@app.command()
def follow(
    job: Job,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to keep.")] = Path(
        "model.safetensors"
    ),
    every: Annotated[str, typer.Option(metavar="SPAN", help="How often to look, such as 10s, 5m or 1h.")] = "10s",
    newest: Annotated[
        bool, typer.Option("--newest", help="Take every newer version, not only better ones: for data that drift.")
    ] = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Keep a file at the best version of a job so far, until the job ends or Ctrl-C.

    Example:  `shoal model follow readings-3fa2 -o model.safetensors --every 10s`

    The file is replaced in one step: whoever opens it finds a whole model. With `--json`, one object a line.
    """
    import asyncio

    from shoal.cli import console
    from shoal.cli.kept import KeptFile, keep
    from shoal.cli.pick import pick_job
    from shoal.cli.reach import operator_of, with_operator
    from shoal.cli.words import parse_span

    every_s = parse_span(every)
    if every_s < EVERY_LEAST_S:
        raise Misuse(f"--every {every} is too often: let it be {EVERY_LEAST_S:g}s or more")
    check_output(output)

    async def find(operator: Operator) -> str:
        return pick_job(await operator.status(), job).job

    kept = KeptFile(job=with_operator(home, find), path=output, newest=newest, tell=_teller(json=json))
    try:
        # A connection for each look: whoever follows for months renews its certificate in between.
        view = asyncio.run(keep(kept, lambda: operator_of(home), every_s=every_s))
    except KeyboardInterrupt:
        console.say(f"Left: {output} {kept.stands}; the job goes on.")
        raise typer.Exit(Exit.INTERRUPTED) from None
    raise typer.Exit(end_of(view))


def end_of(view: JobView) -> Exit:
    """A job without an end of its own does not fail by being stopped."""
    return Exit.OK if view.state == "stopped" and view.plan.until.endless else exit_for_state(view.state)


def _teller(*, json: bool) -> Callable[[Line], None]:
    from shoal.cli import console
    from shoal.cli.plain_json import to_plain
    from shoal.cli.words import clean

    def tell(line: Line) -> None:
        if json:
            console.print_json(to_plain(line))
        else:
            print(clean(line.text), flush=True)

    return tell
