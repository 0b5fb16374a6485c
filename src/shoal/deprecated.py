"""Keys, commands and messages that a later release takes away, and the warning that says so. Knows none of their code.

docs/deprecations.md has the rule and the same list.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal


class DeprecatedWarning(FutureWarning):
    """Something a person wrote works in this release, and no longer in the one that the text names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deprecated:
    """What is deprecated, what to write instead, and from which release on it is refused."""

    kind: Literal["plan key", "command", "option", "message"]
    name: str
    instead: str
    since: str
    ends: str

    @property
    def told(self) -> str:
        return f"the {self.kind} {self.name!r} is deprecated and ends with Shoal {self.ends}: write {self.instead}"


NESTEROV = Deprecated(kind="plan key", name="nesterov", instead="outer = 'nesterov'", since="0.1.0", ends="0.2.0")

#: Every entry, oldest first. An entry leaves the list in the release that it names.
DEPRECATED = (NESTEROV,)


def warn_of(entry: Deprecated, *, callers: int) -> None:
    """Warn the person who wrote it, ``callers`` calls above the caller of this function."""
    warnings.warn(entry.told, DeprecatedWarning, stacklevel=2 + callers)
