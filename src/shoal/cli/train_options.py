"""The options of `shoal train` that no other command has."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.help import RARE

Where = Annotated[
    str | None,
    typer.Option(
        metavar="TEST",
        help="Only devices with these labels and facts, such as 'room in (3, 4) and memory_mb > 900'.",
        show_default=False,
    ),
]

BatchSize = Annotated[int | None, typer.Option(metavar="N", help="Examples in one step of one device.")]

LearningRate = Annotated[float | None, typer.Option(metavar="X", help="The size of a step.")]

Momentum = Annotated[float | None, typer.Option(metavar="X", help="How much of the last step is kept.")]

Work = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Who trains what: leased (to the first ready), fixed (shares), sized (to a budget).",
        rich_help_panel=RARE,
    ),
]

BudgetS = Annotated[
    float | None,
    typer.Option(metavar="S", help="Seconds that one lease of sized work may take of a device.", rich_help_panel=RARE),
]

Start = Annotated[
    str,
    typer.Option(
        metavar="FILE|FOLDER|JOB|JOB@VERSION",
        help="Begin with the tensors of this model that fit: a safetensors file, a Hugging Face folder or a job.",
        show_default=False,
    ),
]

Portable = Annotated[
    bool,
    typer.Option(
        "--portable", help="Capture the training step for devices without PyTorch, too.", rich_help_panel=RARE
    ),
]

Shared = Annotated[
    str,
    typer.Option(
        metavar="SET",
        help="Train on the approved entries of this shared set, which the task reads by `shoal.data.shared()`.",
        show_default=False,
    ),
]

StartWhen = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Wait until the set of --shared has this many approved entries.", show_default="1"
    ),
]
