"""The reference of docs/cli.md: every command, its arguments and options, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

HEAD = """\
# Command line

Written by `python tools/tasks.py reference` from the commands themselves; a test holds it to them. In a terminal,
`shoal COMMAND --help` has the options that most people need, and `shoal COMMAND --help-all` has all of them.
"""


def written() -> str:
    """The page."""
    import typer

    from shoal.cli.main import app

    root = typer.main.get_command(app)
    parts = [HEAD]
    for words, command in _commands(root, ("shoal",)):
        parts.append("\n".join(_section(words, command)))
    return "\n".join(parts)


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", {})
    if not below or len(words) > 1:
        yield words, command
    for name, each in below.items():
        if not each.hidden:
            yield from _commands(each, (*words, name))


def _section(words: tuple[str, ...], command: Any) -> Iterator[str]:
    is_group = bool(getattr(command, "commands", None))
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and "--help" not in each.opts]
    yield f"{'##' if len(words) == 2 else '###'} `{' '.join(words)}`"
    yield ""
    yield _prose(command.help or "")
    yield ""
    if is_group:
        return
    usage = " ".join([*words, *(["[OPTIONS]"] if options else []), *(_metavar(each) for each in arguments)])
    yield from (f"`{usage}`", "")
    rows = [(f"`{_metavar(each)}`", each) for each in arguments]
    rows += [(", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts)), each) for each in options]
    if rows:
        yield from ("| | default | meaning |", "|---|---|---|")
        for shown, each in rows:
            yield f"| {shown} | {_default(each)} | {_cell(getattr(each, 'help', '') or '')} |"
        yield ""


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _default(parameter: Any) -> str:
    value = parameter.default
    if callable(value) or value in (None, "", (), [], False):
        return ""
    text = str(value)
    # A home is the person's own, and differs from machine to machine.
    return "" if text.startswith("/") else f"`{text}`"


def _prose(text: str) -> str:
    return re.sub(r"[ \t]+", " ", text).strip()


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()
