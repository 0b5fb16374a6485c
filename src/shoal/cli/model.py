"""`shoal model`: what a job has learned, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Job
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.runtime.operator import Operator

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def model() -> None:
    """Fetch a trained model."""


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

    if output.is_dir():
        raise Misuse(f"{output} is a directory: name a file, such as {output / 'model.safetensors'}")
    if not output.absolute().parent.is_dir():
        raise Misuse(f"there is no directory {output.absolute().parent}: make it, or name another file")

    async def fetch(operator: Operator) -> str:
        found = pick_job(await operator.status(), job).job
        await operator.pull_model(found, output)
        return found

    found = with_operator(home, fetch)
    console.say(f"Wrote the model of {found} to {output}, {bytes_text(output.stat().st_size)}.")
