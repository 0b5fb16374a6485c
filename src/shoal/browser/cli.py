"""`shoal browser`: what tabs of browsers need beside the manager."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, hand_home_to_subcommand

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def browser(home: Home = DEFAULT_HOME) -> None:
    """Let tabs of browsers train; `runtime` brings the engine.

    Example:  `shoal browser runtime`, then `shoal up --browser http://127.0.0.1:7075`
    """
    hand_home_to_subcommand(home)


@app.command()
def runtime(
    package: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The npm package of onnxruntime-web, or a folder that npm unpacked it to.",
            show_default="fetched from npm's registry",
        ),
    ] = None,
    home: Home = DEFAULT_HOME,
) -> None:
    """Bring ONNX Runtime for browsers into the manager's home, once. Its files are known by their hashes.

    Example:  `shoal browser runtime`
    """
    from shoal.browser.engine_files import VERSION, install
    from shoal.cli import screen

    screen.say(f"onnxruntime-web {VERSION} is in {install(home, package)}")
