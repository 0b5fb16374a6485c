"""A process's options, written once: the fields of a frozen dataclass give its command line, both ways.

``to_argv`` writes what differs from the defaults, and ``parse`` reads it again. Knows neither agents nor managers.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from shoal.errors import Misuse

_Options = TypeVar("_Options")

#: The help of an option that is for tests only.
HIDDEN = argparse.SUPPRESS


def described(text: str, *, flag: str = "", choices: Sequence[str] = ()) -> dict[str, Any]:
    """Return the metadata of a field. ``flag``: what the option is called, if not as its field."""
    return {"help": text, "flag": flag, "choices": tuple(choices)}


def option(default: Any, text: str, *, flag: str = "", choices: Sequence[str] = ()) -> Any:
    """Return a field with a default; see ``described``."""
    return dataclasses.field(default=default, metadata=described(text, flag=flag, choices=choices))


def parse(options: type[_Options], argv: Sequence[str], *, program: str, purpose: str) -> _Options:
    """Read a command line. Ends the process with a usage message if it is wrong, as commands do."""
    parser = argparse.ArgumentParser(prog=program, description=purpose)
    kinds = typing.get_type_hints(options)
    written: Any = options
    for field in dataclasses.fields(written):
        _add(parser, field, kinds[field.name])
    return options(**vars(parser.parse_args(argv)))


def to_argv(options: Any) -> list[str]:
    """Return the command line that gives these options. Fields whose default is drawn at the start are always said."""
    words: list[str] = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.default is not dataclasses.MISSING and value == field.default:
            continue
        flag, text = _flag(field), str(value)
        if value is True:
            words.append(flag)
        else:
            # A value that begins with a dash would be read as an option.
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return words


def check_choices(options: Any) -> None:
    """Raise Misuse if a field holds what its option does not take."""
    for field in dataclasses.fields(options):
        value, choices = getattr(options, field.name), field.metadata["choices"]
        if choices and value not in choices:
            raise Misuse(f"{_flag(field)} is one of {', '.join(choices)}, not {value!r}")


def _add(parser: argparse.ArgumentParser, field: dataclasses.Field[Any], kind: Any) -> None:
    told: dict[str, Any] = {"dest": field.name, "help": field.metadata["help"]}
    if kind is bool:
        parser.add_argument(_flag(field), action="store_true", **told)
        return
    if field.metadata["choices"]:
        told["choices"] = field.metadata["choices"]
    parser.add_argument(_flag(field), type=_kind_of(kind), **told, **_default(field))


def _flag(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata["flag"]) or f"--{field.name.replace('_', '-')}"


def _kind_of(kind: Any) -> Any:
    """Return what reads a value of an option: ``Path`` for ``Path | None``."""
    if isinstance(kind, types.UnionType):
        (kind,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
    return kind


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    if field.default is not dataclasses.MISSING:
        return {"default": field.default}
    if field.default_factory is not dataclasses.MISSING:
        return {"default": field.default_factory()}
    return {"required": True}
