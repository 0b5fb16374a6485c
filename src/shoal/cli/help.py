"""The help of a command: what most people need on a screen or two, the rest behind ``--help-all``.

Reads a command's declarations by the attributes that all releases of click have. docs/cli.md is written from the same
declarations, and has every option.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

#: Options declared with this panel are for few people: ``--help`` only counts them.
RARE = "More options"

#: Shows every option. Taken out of the arguments by `shoal.cli.main`.
ALL = "--help-all"

_WIDTH_MAX = 100
#: Where descriptions begin, unless all names are shorter.
_NAMES_MAX = 24
_INDENT = 2
#: What the names of commands, and the space behind them, take of a line.
_COMMANDS = 11


def install(command: Any, *, shows_all: bool) -> None:
    """Let a command, and all below it, print its help by this module."""
    command.format_help = lambda context, formatter: _write(command, context, formatter, shows_all=shows_all)
    for below in getattr(command, "commands", {}).values():
        install(below, shows_all=shows_all)


def _write(command: Any, context: Any, formatter: Any, *, shows_all: bool) -> None:
    is_plain = not sys.stdout.isatty()
    for line in help_lines(command, context, shows_all=shows_all, width=_width()):
        formatter.write(f"{line if is_plain else _styled(line)}\n")


def help_lines(command: Any, context: Any, *, shows_all: bool, width: int) -> Iterator[str]:
    """Yield the lines of the help."""
    path = context.command_path
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.get_params(context) if each.param_type_name == "option" and not each.hidden]
    shown = [each for each in options if shows_all or not is_rare(each)]
    below = {name: each for name, each in getattr(command, "commands", {}).items() if not each.hidden}
    more = ["COMMAND"] if below else []
    yield f"Usage: {' '.join([path, '[OPTIONS]', *map(_argument_name, arguments), *more])}"
    for paragraph in _paragraphs(command.help or ""):
        yield ""
        yield from textwrap.wrap(paragraph, width, break_on_hyphens=False)
    if arguments:
        yield from _table("Arguments", [(_argument_name(each), _described(each)) for each in arguments], width)
    for panel in dict.fromkeys(getattr(each, "rich_help_panel", None) or "Commands" for each in below.values()):
        rows = [
            (name, _short(next(_paragraphs(each.help or ""), ""), width - _INDENT - _COMMANDS))
            for name, each in below.items()
            if (getattr(each, "rich_help_panel", None) or "Commands") == panel
        ]
        yield from _table(panel, rows, width)
    yield from _table("Options", [(_option_name(each), _described(each)) for each in shown], width)
    if rare := len(options) - len(shown):
        yield ""
        yield f"{rare} more option{'s' if rare > 1 else ''}: {path} {ALL}"
    if epilogue := (command.epilog or "").strip():
        yield ""
        yield from (part for line in epilogue.splitlines() if line for part in _wrapped(line, width))


def is_rare(option: Any) -> bool:
    return getattr(option, "rich_help_panel", None) == RARE


def _table(title: str, rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    if not rows:
        return
    names = min(_NAMES_MAX, max(len(name) for name, _ in rows))
    begin = _INDENT + names + 2
    yield ""
    yield f"{title}:"
    for name, text in rows:
        lines = textwrap.wrap(text, max(20, width - begin), break_on_hyphens=False) or [""]
        head = " " * _INDENT + name
        if len(name) > names:
            yield head
        else:
            yield f"{head:<{begin}}{lines.pop(0)}".rstrip()
        yield from (" " * begin + line for line in lines)


def _option_name(option: Any) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        names += "/" + ", ".join(option.secondary_opts)
    return names if _is_flag(option) else f"{names} {_value_name(option)}"


def _argument_name(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _is_flag(option: Any) -> bool:
    return bool(getattr(option, "is_flag", False) or getattr(option, "count", False))


def _value_name(option: Any) -> str:
    if option.metavar:
        return str(option.metavar)
    # Releases of typer differ in where they keep the choices.
    choices = getattr(getattr(option, "type", None), "choices", None)
    annotation = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    if choices or get_origin(annotation) is Literal:
        return "|".join(map(str, choices or get_args(annotation)))
    return str(option.name).rpartition("_")[2].upper()


def _described(parameter: Any) -> str:
    """The text of an option, with its default and its variable."""
    notes = [note for note in (_default(parameter), _variable(parameter)) if note]
    text = " ".join((getattr(parameter, "help", "") or "").split())
    return f"{text} [{'; '.join(notes)}]" if notes else text


def _default(parameter: Any) -> str:
    told = getattr(parameter, "show_default", None)
    if isinstance(told, str):
        return f"default: {told}"
    value = parameter.default
    if told is False or callable(value) or value is None or value in ("", False, True, (), []):
        return ""
    return f"default: {value:g}" if isinstance(value, float) else f"default: {value}"


def _variable(parameter: Any) -> str:
    found = parameter.envvar
    return f"or {found if isinstance(found, str) else found[0]}" if found else ""


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", textwrap.dedent(text).strip()):
        if paragraph:
            yield " ".join(paragraph.split())


def _short(text: str, width: int) -> str:
    """Return the first sentence of a command's help, or as many of its clauses as fit into a line."""
    first = text.partition(". ")[0].rstrip(".")
    # A list behind a colon goes as a whole.
    for end in (r"[:;] | \(", r", "):
        while len(first) > width and (ends := list(re.finditer(end, first))):
            first = first[: ends[-1].start()]
    return first


def _wrapped(line: str, width: int) -> Iterable[str]:
    plain = line.replace("`", "").removeprefix("-").rstrip()
    mark = re.match(r" *\d+ +", plain)
    return textwrap.wrap(plain, width, subsequent_indent=" " * (mark.end() if mark else 0))


def _width() -> int:
    return max(40, min(_WIDTH_MAX, shutil.get_terminal_size().columns))


def _styled(line: str) -> str:
    """A line for a terminal: titles and names stand out."""
    if re.fullmatch(r"[A-Z][\w ]*:", line):
        return f"\x1b[1m{line}\x1b[0m"
    return re.sub(r"^( {2})(-\S.*?|[a-z][\w-]*)(?=  |$)", "\\1\x1b[36m\\2\x1b[0m", line)
