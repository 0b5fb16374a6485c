"""The features of Shoal, and how the core finds them. The core imports no feature: it asks here, by name.

A feature is a package above the core. Its module ``feature`` describes it with one ``Feature``; everything it provides
is named as text and imported when the core first asks for it, so a process pays only for the features it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from shoal.errors import Misuse

#: The packages to look in.
FEATURES = ("shoal.flock",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """What a feature provides. Each value is ``module:name``; None: nothing of the kind."""

    name: str
    #: Its group of commands, a ``typer.Typer``.
    command: str | None = None


@cache
def feature(name: str) -> Feature:
    for package in FEATURES:
        found: Feature = import_module(f"{package}.feature").FEATURE
        if found.name == name:
            return found
    raise Misuse(f"there is no feature {name!r}")


def command(name: str) -> Any:
    """The commands of a feature."""
    return _load(name, feature(name).command)


def _load(name: str, where: str | None) -> Any:
    if where is None:
        raise Misuse(f"the feature {name!r} does not provide this")
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)
