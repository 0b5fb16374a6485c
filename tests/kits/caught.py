"""Deliberate bugs, and whether a story finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from shoal.sim.invariants import Violation


def is_caught(mutant: Callable[[], AbstractContextManager[Any]], stories: Sequence[Callable[[], None]]) -> bool:
    """Whether any of these stories fails while the bug is there."""
    with mutant():
        for story in stories:
            try:
                story()
            except (Violation, AssertionError):
                return True
    return False
