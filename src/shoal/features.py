"""The features of Shoal, and how the core finds them. The core imports no feature: it asks here.

A feature is a package above the core. It describes itself with one ``Feature``, which an entry point of the group
``shoal.features`` names, so that any installed distribution can bring one. Everything that a feature provides is named
as text and imported when the core first asks for it, so a process pays only for the features it uses.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from shoal.errors import Misuse

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)

GROUP = "shoal.features"

#: Shoal's own features, as pyproject.toml registers them, and first in this order. A checkout that is not installed has
#: no entry points, and one that was installed before has older ones: both get these.
OWN = {
    "flock": "shoal.flock.feature:FEATURE",
    "offload": "shoal.offload.feature:FEATURE",
    "exporter": "shoal.exporter.feature:FEATURE",
    "browser": "shoal.browser.feature:FEATURE",
    "console": "shoal.console.feature:FEATURE",
}

#: The kinds of things that features provide: fields of ``Feature``.
Kind = Literal["command", "manager_pool", "agent_pool", "agent_metrics", "tab_door"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """What one feature provides. Each value is ``module:name``, or None if it provides nothing of the kind."""

    #: That of its entry point.
    name: str
    #: Its command: a ``typer.Typer`` with several, or a function that is one.
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
    """Return all features: Shoal's own in their order, then the others by name. One that cannot be read is skipped."""
    found: dict[str, Feature] = {}
    for point in _points():
        if point.name in found:
            skip(point.name, f"another feature has this name, and this one is {point.value}")
            continue
        try:
            feature = point.load()
        # Code of others: whatever it raises, the other features and the core work without it.
        except (Exception, SystemExit) as error:
            skip(point.name, f"{point.value} cannot be imported ({type(error).__name__}: {error})")
            continue
        if not isinstance(feature, Feature) or feature.name != point.name:
            skip(point.name, f"{point.value} is not a Feature of this name")
            continue
        found[point.name] = feature
    return tuple(found.values())


def _points() -> Iterator[EntryPoint]:
    # It takes 2 MB, and an agent that uses no feature never asks.
    from importlib.metadata import EntryPoint, entry_points

    for name, value in OWN.items():
        yield EntryPoint(name=name, value=value, group=GROUP)
    own = set(OWN.items())
    others = (point for point in entry_points(group=GROUP) if (point.name, point.value) not in own)
    yield from sorted(others, key=lambda point: (point.name, point.value))


def skip(name: str, reason: str) -> None:
    """Report that a feature is not used."""
    log.warning("the feature %s is skipped: %s", name, reason)


def provided(kind: Kind, *, by: str | None = None) -> Any:
    """Return what the feature of this name provides; without a name, that of the first that provides such a thing."""
    for feature in described():
        where: str | None = getattr(feature, kind)
        if where is not None and by in (None, feature.name):
            module, _, name = where.partition(":")
            return getattr(import_module(module), name)
    raise Misuse(f"no feature provides a {kind}" if by is None else f"there is no {kind} of a feature {by!r}")
