"""Classes of messages that are small in memory: an agent has hundreds of them, and most it never uses."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


def slim(kind: type[_Kind]) -> type[_Kind]:
    """Decorate a frozen dataclass with slots, so that it shares what refuses changes with all others.

    ``dataclass`` writes these methods anew for each class, and they hold the class as it was without slots: 5 kB that
    nobody uses.
    """
    changed: Any = kind
    changed.__setattr__ = _refuse_change
    changed.__delattr__ = _refuse_removal
    # Of the class without slots. This one's objects have no such thing.
    if "__weakref__" in changed.__dict__:
        del changed.__weakref__
    return kind


def _refuse_change(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_removal(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
