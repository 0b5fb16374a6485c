"""Options that several commands share, so that they are spelled and explained the same everywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.help import RARE
from shoal.errors import Misuse

DEFAULT_HOME = Path("~/.shoal")


def _expanded(home: Path) -> Path:
    return home.expanduser()


Home = Annotated[
    Path,
    typer.Option(
        "--home",
        metavar="DIR",
        envvar="SHOAL_HOME",
        callback=_expanded,
        help="Where Shoal keeps keys, jobs and models on this machine.",
    ),
]


def hand_home_to_subcommand(home: Path) -> None:
    """Make `shoal jobs --home DIR stop JOB` mean the same as `shoal jobs stop JOB --home DIR`."""
    os.environ["SHOAL_HOME"] = str(home)


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]

LogFormat = Annotated[
    str,
    typer.Option(
        "--log-format",
        metavar="text|json",
        help="Log one line a decision for people, or one JSON object (or SHOAL_LOG=json).",
        show_default="text",
        rich_help_panel=RARE,
    ),
]

Job = Annotated[
    str,
    typer.Argument(metavar="JOB", help="A job's id, the start of it, or its name.", show_default=False),
]

JobOrLatest = Annotated[
    str,
    typer.Argument(
        metavar="[JOB]",
        help="A job's id, the start of it, or its name; without it, the one that runs.",
        show_default=False,
    ),
]

UntilAccuracy = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="End at this share of held-out examples right, such as 0.98."),
]

UntilMetric = Annotated[
    list[str] | None,
    typer.Option(
        "--until",
        metavar="CONDITION",
        help="End at a metric's figure (f1>=0.9, mae<=2) or on a plateau (plateau(loss,5)); may be repeated.",
    ),
]

Epochs = Annotated[int | None, typer.Option(metavar="N", help="End after using every example N times.")]

Workers = Annotated[
    str, typer.Option(metavar="MIN:MAX", help="How many devices at least and at most.", show_default=False)
]

Minutes = Annotated[float | None, typer.Option(metavar="M", help="End after M minutes.")]

Endless = Annotated[bool, typer.Option("--endless", help="Go on until it is stopped.")]

PlanKeys = Annotated[
    list[str] | None,
    typer.Option("--plan", metavar="KEY=VALUE", help="Any other number of the plan; may be repeated."),
]

Detach = Annotated[bool, typer.Option("--detach", "-d", help="Start the job and return at once.")]

TaskArguments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="An argument of the task's constructor; may be repeated."),
]

Pace = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="When the model moves: sync, buffered, async or auto.", show_default=False),
]

Codec = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="What of an update is sent: dense, bf16, or such as top1%+ef+4bit.", show_default=False
    ),
]

Topology = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Where updates meet: star, tree, shard or auto.", show_default=False),
]

Aggregators = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Aggregators of a tree; else about √ of the workers.",
        show_default=False,
        rich_help_panel=RARE,
    ),
]


_SIZES = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size_bytes(text: str, *, option: str) -> int:
    """A size as a person writes it, such as 20GB or 500 MB."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]B)", text.strip().upper())
    if found is None:
        raise Misuse(f"{option} {text!r} is not a size: write a number and a unit, such as 500MB or 20GB")
    size = int(float(found[1]) * _SIZES[found[2]])
    if size < 1:
        raise Misuse(f"{option} {text!r} leaves no room at all: write a larger size, such as 20GB")
    return size


def check_home(home: Path) -> None:
    """Refuse a home in which nothing can be written, before anything is done that cannot be done twice."""
    import tempfile

    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise Misuse(unusable(error, str(home))) from None


def unusable(error: OSError, path: str) -> str:
    """Return what to tell a person whose files cannot be used by this user, or on this disk."""
    return (
        f"cannot write in {path} ({error.strerror or error}). Make it writable for this user, or keep Shoal's files in"
        " another folder: --home DIR, or the variable SHOAL_HOME"
    )


def check_output(file: Path) -> None:
    """A file that a model is to be written to: said before anything is fetched."""
    if file.is_dir():
        raise Misuse(f"{file} is a directory: name a file, such as {file / 'model.safetensors'}")
    if not file.absolute().parent.is_dir():
        raise Misuse(f"there is no directory {file.absolute().parent}: make it, or name another file")
