"""`shoal check`: try a task on this machine, before a cluster gets it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.exits import Exit
from shoal.cli.options import DEFAULT_HOME, Home, Json, TaskArguments
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.plan import Plan
    from shoal.trainer.check import TaskCheck


#: A share of the most values that a job can train, above which ``check`` warns.
_NEAR_LIMIT = 0.5


def check(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task's file or folder, as for `shoal train`.")],
    arguments: TaskArguments = None,
    plan: Annotated[
        list[str] | None, typer.Option("--plan", metavar="KEY=VALUE", help="A number of the plan; may be repeated.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Examples of this machine's own, for a task with local data."),
    ] = None,
    portable: Annotated[
        bool, typer.Option("--portable", help="Say whether devices without PyTorch could train it, too.")
    ] = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Try a task here: prove that a lease is a pure function, and show what crosses the network and what is measured.

    Example:  `shoal check examples/mnist`

    Examples that stay on the devices:  `shoal check examples/activity --data recordings/device-1`

    Where a device is lost, another trains its lease again and must get the same update. A task whose plan says
    inner_state = 'kept' does not claim that, and is only shown.
    """
    import asyncio

    from shoal.cli import screen
    from shoal.cli.commands.train import overrides, pairs_of
    from shoal.runtime.paths import Paths
    from shoal.trainer.check import check_task
    from shoal.trainer.find_script import find_task_or_script
    from shoal.trainer.package import laid_over, make_ready, plan_from
    from shoal.trainer.portable.capturing import capture_ready

    path, entry = find_task_or_script(task)
    changes = overrides(workers="", until={}, numbers={}, pairs=plan or ())
    kwargs = pairs_of(arguments or (), option="--set")
    tell = screen.Teller(screen.err())

    async def run(out: Path) -> tuple[TaskCheck, Plan, str]:
        ready = await make_ready(path, entry, out=out, kwargs=kwargs, plan=changes, on_progress=tell)
        whole = plan_from(laid_over(ready.prepared.plan, changes))
        tell("training one lease three times, in two processes")
        found = await check_task(ready, whole, local_folder=str(data.absolute()) if data else "")
        with tempfile.TemporaryDirectory(prefix="shoal-graphs-") as folder:
            engines = (await capture_ready(ready, whole, folder=Path(folder))).told if portable else ""
        return found, whole, engines

    with _prepared_in(Paths(home).prepared, data) as out:
        found, whole, engines = asyncio.run(run(out))
    claims = whole.inner_state == "fresh"
    told = _told(found, whole) | ({"portable": engines} if portable else {})
    if json:
        screen.print_json(told)
    else:
        for name, value in _lines(told):
            screen.out().print(f"  {name:<11} {value}", soft_wrap=True, highlight=False)
    raise typer.Exit(Exit.OK if found.is_pure or not claims else Exit.FAILED)


@contextmanager
def _prepared_in(kept: Path, data: Path | None) -> Iterator[Path]:
    """Where the task is prepared. A task may hold out examples of the folder too: such a set is kept from jobs."""
    from shoal.data.local import LOCAL_VARIABLE

    if data is None:
        yield kept
        return
    if not data.is_dir():
        raise Misuse(f"there is no folder {data}: --data names a folder of examples, as a device has one")
    before = os.environ.get(LOCAL_VARIABLE)
    os.environ[LOCAL_VARIABLE] = str(data.absolute())
    try:
        with tempfile.TemporaryDirectory(prefix="shoal-check-") as out:
            yield Path(out)
    finally:
        os.environ.pop(LOCAL_VARIABLE)
        if before is not None:
            os.environ[LOCAL_VARIABLE] = before


def _told(found: TaskCheck, plan: Plan) -> dict[str, Any]:
    from shoal.learning.figures import value
    from shoal.learning.layout import SIZE_MAX
    from shoal.roles.leader.memory_needed import memory_needed

    needed = memory_needed(plan, values=found.layout.size)
    return {
        "pure": found.is_pure,
        "claims_pure": plan.inner_state == "fresh",
        "differs": found.differs,
        "trained_tensors": len(found.layout.entries),
        "trained_values": found.layout.size,
        "update_bytes": 4 * found.layout.size,
        "trained_values_max": SIZE_MAX,
        "base_bytes": found.base_bytes,
        "leader_memory_bytes": needed.leader_bytes,
        "device_memory_bytes": needed.device_bytes,
        "batch_s": found.batch_s,
        "engine": found.engine,
        "metrics": {each.name: value(each) for each in found.judged.metrics} if found.judged else {},
    }


def _lines(told: dict[str, Any]) -> list[tuple[str, str]]:
    pure = "yes: the same lease gave the same bytes, in another process and after another lease"
    if not told["pure"]:
        unclaimed = "" if told["claims_pure"] else " (its plan keeps state, and does not claim it)"
        pure = f"no: {told['differs']}{unclaimed}"
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in told["metrics"].items() if value is not None)
    update = f"{told['trained_values']:,} values in {told['trained_tensors']} tensors, {told['update_bytes']:,} bytes"
    share = told["trained_values"] / told["trained_values_max"]
    if share > _NEAR_LIMIT:
        update += f"; warning: {share:.0%} of the {told['trained_values_max']:,} values that one job can train"
    leader, device = told["leader_memory_bytes"] / 1e6, told["device_memory_bytes"] / 1e6
    return [
        ("pure", pure),
        ("an update", update),
        ("memory", f"leader {leader:,.0f} MB, each device {device:,.0f} MB and what a batch of yours takes"),
        ("frozen", f"{told['base_bytes']:,} bytes, sent once to each device" if told["base_bytes"] else "nothing"),
        ("a batch", f"{told['batch_s'] * 1000:.0f} ms with {told['engine']}"),
        ("metrics", metrics or "none: no examples are held out"),
        *([("portable", told["portable"])] if "portable" in told else []),
    ]
