"""`shoal new`: write a first project to train and to change."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Template(StrEnum):
    """What a project can begin with; each is a folder of ``shoal.cli.templates``."""

    DIGITS = "digits"
    IMAGES = "folder-of-images"
    CSV = "csv"
    LORA = "lora"
    LOCAL = "local-data"
    SCRIPT = "script"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The folder to make; its name is the project's.")],
    template: Annotated[Template, typer.Option("--from", help="What to begin with.")] = Template.DIGITS,
) -> None:
    """Write a first project: a task, its plan, a test, a README and some data to start with.

    Example:  `shoal new first --from digits`, then `python first/train.py`

    Everything in it is yours to change, and nothing of it is read by Shoal but what you name.
    """
    from shoal.cli.new_project import write_project

    folder = write_project(Path(name), template.value)
    print(f"{folder} has a project made from {template.value}. Train it on this machine, and test it:")
    print(f"  python {folder / 'train.py'}")
    print(f"  python {folder / 'test_task.py'}")
    print(f"{folder / 'README.md'} says what to change, and how to train it on your devices.")
