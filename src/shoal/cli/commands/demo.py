"""`shoal demo`: a whole cluster on this machine for less than a minute."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.exits import Exit
from shoal.errors import Misuse

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.cli.job_history import Story

_WORKERS_MAX = 16
_EPOCHS = 5
#: How long the first file of MNIST is waited for.
_PATIENCE_S = 8.0


def demo(
    workers: Annotated[int, typer.Option(min=1, max=_WORKERS_MAX, help="How many devices to start here.")] = 4,
    target: Annotated[float, typer.Option(metavar="SHARE", help="Train until this share is right.")] = 0.97,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON at the end.")] = False,
) -> None:
    """Train handwritten digits on a leader and four devices, all on this machine, in under a minute.

    It downloads MNIST (11 MB) the first time. Without a network it trains made-up digits, and says so.

    Example:  `shoal demo`
    """
    import asyncio

    from shoal.cli import screen
    from shoal.plan import Until

    if importlib.util.find_spec("torch") is None:
        raise Misuse("the demo trains, and PyTorch is not installed: pip install 'torch>=2.11'")
    until = Until(accuracy=target, epochs=_EPOCHS)
    terminal = screen.err() if json else screen.out()
    began_s = time.monotonic()
    made_up = not _has_mnist(terminal)
    plan = {"until": until, "workers_min": workers, "workers_max": workers}
    story = asyncio.run(_run(terminal, workers, plan, made_up=made_up))
    seconds = time.monotonic() - began_s
    _summarise(terminal, story, seconds=seconds, made_up=made_up)
    if json:
        told = result(story, seconds=seconds, workers=workers, target=target)
        screen.print_json(told | {"data": "made-up digits" if made_up else "MNIST"})
    raise typer.Exit(Exit.OK if reached(story, target) else Exit.FAILED)


def _has_mnist(terminal: Console) -> bool:
    """Fetch MNIST if it is not here, or say that made-up digits are trained instead, and why."""
    from shoal.cli.screen import Teller
    from shoal.data.digits import fetch_mnist
    from shoal.data.files import data_dir

    tell = Teller(terminal)
    if missing := fetch_mnist(patience_s=_PATIENCE_S):
        tell(f"MNIST cannot be downloaded: {missing}")
        tell(f"training made-up digits instead; for MNIST, put its four .gz files into {data_dir() / 'mnist'}")
    return not missing


async def _run(terminal: Console, workers: int, plan: dict[str, Any], *, made_up: bool) -> Story:
    from importlib.resources import files

    from shoal.cli.connect import operator_of
    from shoal.cli.follow import follow
    from shoal.cli.screen import Teller
    from shoal.runtime.local import LocalCluster

    tell = Teller(terminal)
    task = Path(str(files("shoal.trainer") / "demo_task.py"))
    tell(f"starting a manager and {workers} devices on this machine")
    async with LocalCluster(workers=workers) as cluster, operator_of(cluster.home) as operator:
        job = await operator.prepare_and_submit(
            str(task), name="digits", kwargs={"made_up": made_up}, plan=plan, on_progress=tell
        )
        note = "Ctrl-C ends the demo"
        return await follow(lambda after: operator.status(job, after), job, console=terminal, note=note, every_s=0.25)


def reached(story: Story, target: float) -> bool:
    accuracy = story.progress.accuracy if story.progress else None
    return story.state == "finished" and accuracy is not None and accuracy >= target


def result(story: Story, *, seconds: float, workers: int, target: float) -> dict[str, Any]:
    """What `--json` prints: how good, how long, how many, and how the job ended."""
    from shoal.cli.commands.attach import outcome

    told = outcome(story)
    return {
        "accuracy": told["accuracy"],
        "seconds": round(seconds, 2),
        "workers": workers,
        "target": target,
        "reached": reached(story, target),
        "training_seconds": told["seconds"],
        "job": told,
    }


def _summarise(terminal: Console, story: Story, *, seconds: float, made_up: bool) -> None:
    from rich.text import Text

    from shoal.cli.render.format import bytes_text, clean, plural, share_text, span_text
    from shoal.cli.render.view import devices_of

    progress = story.progress
    if progress is None or story.state != "finished":
        terminal.print(f"\nThe demo did not finish: {clean(story.reason)}", style="red", soft_wrap=True)
        return
    workers = devices_of(story)
    total = sum(worker.batches for worker in workers) or 1
    shares = ", ".join(f"{worker.node} {worker.batches / total:.0%}" for worker in workers)
    moved = f"{bytes_text(progress.bytes_up)} up and {bytes_text(progress.bytes_down)} down"
    held_out = story.job.test_examples if story.job is not None else 0
    kind = "made-up digits (not MNIST)" if made_up else "digits"
    lines = (
        ("accuracy", f"{share_text(progress.accuracy)} of {held_out:,} {kind} nobody trained on"),
        ("time", f"{span_text(progress.seconds)} of training, {span_text(seconds)} in all"),
        ("traffic", f"{moved}, {plural(progress.version, 'version')} of the model"),
        ("work", shares),
    )
    terminal.print()
    for label, text in lines:
        terminal.print(Text.assemble((f"  {label:<10}", "dim"), clean(text)), soft_wrap=True)
    terminal.print()
    steps = (
        ("shoal up", "on an always-on machine; it prints a line"),
        ("shoal join …", "that line, on each device"),
        ("shoal train TASK", "your own task, such as examples/mnist"),
    )
    terminal.print("  Now with real devices:")
    for command, text in steps:
        terminal.print(Text.assemble("    ", (f"{command:<18}", "bold green"), (text, "dim")), soft_wrap=True)
