"""When the model moves. Pure rules over counts; one class a pace."""

from __future__ import annotations

from typing import Protocol


class Pace(Protocol):
    def may_start(self, *, contributed_to: int, version: int) -> bool:
        """May a worker whose last update was made against ``contributed_to`` start on ``version`` now?"""
        ...

    def should_step(self, *, merged: int, outstanding: int) -> bool:
        """Is it time to turn what was merged into the next version?"""
        ...


class Sync:
    """Every lease of a version returns, or is given up, before the next version (EDDL §4.3, the default)."""

    def may_start(self, *, contributed_to: int, version: int) -> bool:
        return contributed_to < version

    def should_step(self, *, merged: int, outstanding: int) -> bool:
        return merged > 0 and outstanding == 0


PACES: dict[str, type[Sync]] = {"sync": Sync}
