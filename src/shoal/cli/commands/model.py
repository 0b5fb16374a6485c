"""`shoal model`: what a job has learned, as a file; and which version of it is served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.exits import Exit, exit_for_state
from shoal.cli.options import DEFAULT_HOME, Home, Job, Json, check_output
from shoal.errors import Misuse
from shoal.states import JobState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.cli.model_follower import FollowLine
    from shoal.runtime.operator import Operator
    from shoal.wire.messages import JobView, VersionList

#: Each look costs the manager an answer.
EVERY_LEAST_S = 0.5

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def model() -> None:
    """Fetch a trained model (`pull`, `export`), keep a file at what a job serves (`follow`), say which version that is.

    `versions` lists what was published; `publish` serves the newest version, `rollback` an earlier one again.
    """


@app.command()
def pull(
    job: Job,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "model.safetensors"
    ),
    version: Annotated[
        int | None, typer.Option(metavar="VERSION", help="A published version, see `shoal model versions`.", min=1)
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest durable version, whatever is served.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="With the frozen tensors, which are not trained.")] = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Fetch a job's model as a safetensors file, while it trains or after: what it serves, else its newest version.

    Example:  `shoal model pull mnist-3fa2 -o model.safetensors`
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import bytes_text
    from shoal.cli.select_job import pick_job

    check_output(output)
    if version and newest:
        raise Misuse("--version and --newest are two different models: say one of them")

    async def fetch(operator: Operator) -> str:
        found = pick_job(await operator.jobs_called(job), job).job
        await operator.pull_model(found, output, version=version or 0, newest=newest, whole=whole)
        return found

    found = with_operator(home, fetch)
    screen.say(f"Wrote the model of {found} to {output}, {bytes_text(output.stat().st_size)}.")


@app.command()
def export(
    job: Job,
    to: Annotated[str, typer.Option("--to", metavar="FORM", help="onnx, pt2 (torch.export) or executorch.")],
    output: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = None,
    task: Annotated[
        str, typer.Option(metavar="TASK", help="Your own code of the task, such as examples/mnist; else the job's.")
    ] = "",
    inputs: Annotated[
        str, typer.Option(metavar="NAMES", help="Which tensors of a dict batch enter the model, such as ids,mask.")
    ] = "",
    version: Annotated[
        int | None, typer.Option(metavar="VERSION", help="A published version, see `shoal model versions`.", min=1)
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest durable version, whatever is served.")] = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Write a job's model in another form, and check the file: it is run on the held-out examples beside the model.

    Example:  `shoal model export mnist-3fa2 --to onnx`

    Where its outputs differ by more than a thousandth there is no file, and the exit code is 1. The job's code runs
    here if an operator of this cluster signed it, confined as on a device.
    """
    import tempfile

    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import bytes_text, clean
    from shoal.cli.render.plain_json import to_plain
    from shoal.cli.select_job import pick_job
    from shoal.trainer.exporting import SUFFIXES, ExportDiffers, TaskFiles, export_model

    if to not in SUFFIXES:
        raise Misuse(f"--to {to}: there is {', '.join(SUFFIXES)}; `shoal model pull` writes safetensors")
    if version and newest:
        raise Misuse("--version and --newest are two different models: say one of them")
    with tempfile.TemporaryDirectory(prefix="shoal-export-") as folder:
        model = Path(folder) / "model.safetensors"

        async def fetch(operator: Operator) -> tuple[str, TaskFiles]:
            found = pick_job(await operator.jobs_called(job), job).job
            await operator.pull_model(found, model, version=version or 0, newest=newest)
            return found, await operator.task_files(found, task)

        check_output(output or Path(f"model{SUFFIXES[to]}"))
        found, files = with_operator(home, fetch)
        target = output or Path(f"{found}{SUFFIXES[to]}")
        named = tuple(filter(None, inputs.split(",")))
        try:
            made = export_model(model, files, to=to, out=target, inputs=named, tell=screen.Teller(screen.err()))
        except ExportDiffers as error:
            screen.say(clean(f"No file was written: {error}"), style="red")
            raise typer.Exit(Exit.FAILED) from None
    if json:
        screen.print_json(to_plain(made))
        return
    batch = "any number of examples at once" if not made.batch else f"{made.batch} example at a time"
    screen.say(
        f"Wrote the model of {found} to {target}, {bytes_text(made.size_bytes)}. It takes {', '.join(made.inputs)}, "
        f"{batch}. On {made.examples:,} held-out examples its largest difference is {made.difference:.1e} of the "
        "model's largest output."
    )


@app.command()
def follow(
    job: Job,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to keep.")] = Path(
        "model.safetensors"
    ),
    every: Annotated[str, typer.Option(metavar="SPAN", help="How often to look, such as 10s, 5m or 1h.")] = "10s",
    newest: Annotated[
        bool, typer.Option("--newest", help="Take every newer version, whatever is published: for data that drift.")
    ] = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Keep a file at the version that a job serves, until the job ends or Ctrl-C.

    Example:  `shoal model follow readings-3fa2 -o model.safetensors --every 10s`

    The file is replaced in one step: a program that opens it finds a whole model. A version that is rolled back goes
    from it too. With `--json`, one object a line.
    """
    import asyncio

    from shoal.cli import screen
    from shoal.cli.connect import operator_of, with_operator
    from shoal.cli.model_follower import KeptFile, keep
    from shoal.cli.render.format import parse_span
    from shoal.cli.select_job import pick_job

    every_s = parse_span(every)
    if every_s < EVERY_LEAST_S:
        raise Misuse(f"--every {every} is too often: let it be {EVERY_LEAST_S:g}s or more")
    check_output(output)

    async def find(operator: Operator) -> str:
        return pick_job(await operator.jobs_called(job), job).job

    kept = KeptFile(job=with_operator(home, find), path=output, newest=newest, tell=_teller(json=json))
    try:
        # A connection for each look: an operator that follows for months renews its certificate in between.
        view = asyncio.run(keep(kept, lambda: operator_of(home), every_s=every_s))
    except KeyboardInterrupt:
        screen.say(f"Left: {output} {kept.stands}; the job goes on.")
        raise typer.Exit(Exit.INTERRUPTED) from None
    raise typer.Exit(end_of(view))


@app.command()
def versions(job: Job, home: Home = DEFAULT_HOME, json: Json = False) -> None:
    """List the published versions of a job that are kept: how each was judged, when and why it was published.

    Example:  `shoal model versions readings-3fa2`
    """
    import time

    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import clean
    from shoal.cli.render.plain_json import to_plain
    from shoal.cli.render.tables import versions_table
    from shoal.cli.select_job import pick_job

    async def ask(operator: Operator) -> VersionList:
        return await operator.versions(pick_job(await operator.jobs_called(job), job).job)

    told = with_operator(home, ask)
    if json:
        screen.print_json(to_plain(told))
    elif told.versions:
        screen.out().print(versions_table(told, now_s=time.time()))
        for text in filter(None, (told.served.hold, told.served.verdict) if told.served else ()):
            screen.say(clean(text))
    else:
        screen.say(
            f"Nothing of {told.job} is published yet. `shoal model publish {told.job}` serves its newest version."
        )


@app.command()
def publish(
    job: Job,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    home: Home = DEFAULT_HOME,
) -> None:
    """Serve the newest durable version of a job from now on, however good it is. Ends what a rollback held back.

    Example:  `shoal model publish readings-3fa2`
    """
    _command(home, job, lambda operator, found: operator.publish(found, reason))


@app.command()
def rollback(
    job: Job,
    to: Annotated[int | None, typer.Option(metavar="VERSION", help="Which; else the one before.", min=1)] = None,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    until_better: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Publish again by itself once one is surely this good.")
    ] = None,
    home: Home = DEFAULT_HOME,
) -> None:
    """Serve an earlier version of a job again. Nothing is published by itself then, until `shoal model publish`.

    Example:  `shoal model rollback readings-3fa2 --to 31 --until-better 0.95`
    """
    if until_better is not None and not 0 < until_better <= 1:
        raise Misuse(f"--until-better {until_better:g} is a share between 0 and 1: write 0.95 for 95 %")
    _command(
        home,
        job,
        lambda operator, found: operator.roll_back(found, to or 0, reason=reason, until_accuracy=until_better),
    )


def _command(home: Path, job: str, ask: Callable[[Operator, str], Awaitable[str]]) -> None:
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import clean
    from shoal.cli.select_job import pick_job

    async def asked(operator: Operator) -> str:
        found = pick_job(await operator.jobs_called(job), job).job
        return f"{found}: {await ask(operator, found)}."

    screen.say(clean(with_operator(home, asked)))


def end_of(view: JobView) -> Exit:
    """A job without an end of its own does not fail by being stopped."""
    return Exit.OK if view.state is JobState.STOPPED and view.plan.until.endless else exit_for_state(view.state)


def _teller(*, json: bool) -> Callable[[FollowLine], None]:
    from shoal.cli import screen
    from shoal.cli.render.format import clean
    from shoal.cli.render.plain_json import to_plain

    def tell(line: FollowLine) -> None:
        if json:
            screen.print_json(to_plain(line))
        else:
            print(clean(line.text), flush=True)

    return tell
