"""`shoal run`: run the training loop of a script on the cluster, or in processes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.options import (
    DEFAULT_HOME,
    Detach,
    Endless,
    Epochs,
    Home,
    Json,
    Minutes,
    PlanKeys,
    UntilAccuracy,
    UntilMetric,
    Workers,
)
from shoal.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shoal.cli.job_history import Story
    from shoal.runtime.operator import Operator


def run(
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A Python file whose training loop goes through `shoal.worker`.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENTS]", help="For the script; its options stand after `--`."),
    ] = None,
    workers: Workers = "",
    local: Annotated[
        int, typer.Option(metavar="N", min=0, help="Not on the cluster: on N agents, on this machine, for this run.")
    ] = 0,
    until_accuracy: UntilAccuracy = None,
    until: UntilMetric = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    endless: Endless = False,
    plan: PlanKeys = None,
    name: Annotated[str, typer.Option(help="What to call the job.", show_default="the script's file")] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the model here, as a safetensors file."),
    ] = None,
    detach: Detach = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Run a script's own training loop on many devices: it trains there, and Shoal puts the models together.

    Example:  `shoal run train.py --workers 2:8 --epochs 5 -- --lr 0.001`

    Each device runs the script, with its own data. An epoch is `epoch_leases` leases (`--plan epoch_leases=20`). The
    state of the optimiser stays on each device: a lease of such a loop is not replayable.
    """
    import asyncio

    from shoal.cli import screen
    from shoal.cli.commands.attach import finish, left
    from shoal.cli.commands.train import ends_typed, overrides
    from shoal.trainer.find_script import find_script

    if detach and (local or output):
        raise Misuse("--detach leaves the job to the cluster: it goes with neither --local nor --output")
    if local and workers:
        raise Misuse("--local N says how many agents there are: leave --workers out")
    folder, entry = find_script(script)
    ends = ends_typed(until_accuracy=until_accuracy, epochs=epochs, minutes=minutes, endless=endless, until=until or ())
    chosen = overrides(workers=f"{local}:{local}" if local else workers, until=ends, numbers={}, pairs=plan or ())
    _check(chosen)
    title = name or Path(script).stem
    started = ""

    async def start() -> Story | None:
        nonlocal started
        async with _operator(home, local) as operator:
            tell = screen.Teller(screen.err())
            ready = await operator.prepare(
                folder, entry, name=title, kwargs={"argv": arguments or []}, plan=chosen, on_progress=tell
            )
            started = await operator.submit(ready, plan=chosen, on_progress=tell)
            screen.say(f"Job {started} is queued.")
            return None if detach else await _followed(operator, started, output, json=json)

    try:
        story = asyncio.run(start())
    except KeyboardInterrupt:
        raise left("" if local else started) from None
    if story is not None:
        finish(story, json=json, is_pulled=bool(local or output))
    elif json:
        screen.print_json({"job": started})
    else:
        print(started)


def _check(chosen: dict[str, Any]) -> None:
    """Refuse what a loop of somebody's own cannot be."""
    for key, only in (("data", "local"), ("inner_state", "kept")):
        if chosen.get(key, only) != only:
            raise Misuse(f"--plan {key}={chosen[key]}: the loop of a script has {key} = {only!r}; see docs/loops.md")


def _operator(home: Path, local: int) -> Any:
    """An operator of the home's cluster, or of one that lives as long as this run."""
    from contextlib import asynccontextmanager

    from shoal.cli.connect import operator_of
    from shoal.runtime.local import LocalCluster
    from shoal.runtime.operator import Operator

    @asynccontextmanager
    async def of_this_machine() -> AsyncIterator[Operator]:
        async with LocalCluster(workers=local) as cluster, Operator.open(cluster.home) as operator:
            yield operator

    return of_this_machine() if local else operator_of(home)


async def _followed(operator: Operator, job: str, output: Path | None, *, json: bool) -> Story:
    """Watch the job to its end, and fetch its model if that was asked for."""
    from shoal.cli import screen
    from shoal.cli.commands.attach import watch_job

    story = await watch_job(operator, job, to_stderr=json)
    if output is not None and story.state == "finished":
        await operator.pull_model(job, output)
        screen.say(f"The model is in {output}.")
    return story
