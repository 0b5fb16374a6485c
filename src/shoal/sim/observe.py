"""The values that observers of a simulation get: every event that a role handled, and every fault in the world."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from shoal.roles.actions import Action
from shoal.roles.events import Event


class Step(NamedTuple):
    """A role handled an event and decided."""

    at_s: float
    node: str
    #: ``manager``, ``leader``, ``aggregator`` or ``worker``.
    role: str
    #: Empty for the manager.
    job: str
    event: Event
    actions: list[Action]


class Mark(NamedTuple):
    """An event that no role decided: a crash, a broken connection, a write that became durable."""

    at_s: float
    node: str
    kind: str
    facts: Mapping[str, Any] = MappingProxyType({})


class Observer(Protocol):
    """Sees everything and changes only itself."""

    def step(self, step: Step) -> None: ...

    def mark(self, mark: Mark) -> None: ...


def announce(observers: Iterable[Observer], mark: Mark) -> None:
    for observer in observers:
        observer.mark(mark)
