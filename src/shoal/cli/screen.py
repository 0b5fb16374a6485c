"""Where commands print: results to standard output, the rest to standard error. NO_COLOR is heeded by rich."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

#: Where no terminal says how wide it is: wide enough that a table's rows stay one line each for `grep`.
_PIPED_WIDTH = 160


def out() -> Console:
    return _console(stderr=False)


def err() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def say(text: str = "", style: str = "") -> None:
    """A line for a person, on standard error, so that standard output holds results alone."""
    err().print(text, style=style or None, soft_wrap=True)


class Teller:
    """Tells each step once: what reports progress often says the same again and again."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._last = ""

    def __call__(self, text: str) -> None:
        from shoal.cli.render.format import clean

        if text != self._last:
            self._screen.print(f"  {clean(text)}", style="dim", soft_wrap=True)
        self._last = text


def print_json(value: Any) -> None:
    """One JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)
