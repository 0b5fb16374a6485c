"""The features of Shoal, and how the core finds them. The core imports no feature: it asks here.

A feature is a package above the core. Its module ``feature`` describes it with one ``Feature``; everything it provides
is named as text and imported when the core first asks for it, so a process pays only for the features it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

from shoal.errors import Misuse

#: The packages to look in.
FEATURES = ("shoal.flock", "shoal.offload", "shoal.exporter", "shoal.browser")

#: The kinds of things that features provide: fields of ``Feature``.
Kind = Literal["command", "manager_pool", "agent_pool", "agent_metrics", "tab_door"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """What one feature provides. Each value is ``module:name``; None: nothing of the kind."""

    name: str
    #: Its group of commands, a ``typer.Typer``.
    command: str | None = None
    #: Makes the pool of a cluster: the manager's side and an agent's (``runtime.pool``).
    manager_pool: str | None = None
    agent_pool: str | None = None
    #: Serves the metrics of an agent (``runtime.agent_usage``).
    agent_metrics: str | None = None
    #: Lets tabs of browsers in, beside a manager (``runtime.tab_door``).
    tab_door: str | None = None


@cache
def described() -> tuple[Feature, ...]:
    """All features, in order."""
    return tuple(import_module(f"{package}.feature").FEATURE for package in FEATURES)


def provided(kind: Kind, *, by: str | None = None) -> Any:
    """What the feature of this name provides; without a name, the first feature that provides such a thing."""
    for feature in described():
        where: str | None = getattr(feature, kind)
        if where is not None and by in (None, feature.name):
            module, _, name = where.partition(":")
            return getattr(import_module(module), name)
    raise Misuse(f"no feature provides a {kind}" if by is None else f"there is no {kind} of a feature {by!r}")
