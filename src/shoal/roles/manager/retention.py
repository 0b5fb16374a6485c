"""How long ended jobs are kept, and which of their files go when a disk quota is reached. Open jobs always stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.errors import Misuse

#: A job that ended is kept for this long at least: somebody may be about to fetch its model.
KEEP_LEAST_S = 3600.0

_DAY_S = 86400.0
_UNITS_S = {"h": 3600.0, "d": _DAY_S, "w": 7 * _DAY_S}


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepJobs:
    """Which ended jobs are kept: those that ended lately, or the latest ones."""

    #: As the operator wrote it.
    text: str
    #: Seconds that a job is kept after its end, unless there is a count.
    age_s: float = 0.0
    #: How many are kept, or None if their age decides.
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> KeepJobs:
        """Read ``90d``, ``12h``, ``8w``, or a number of jobs."""
        found = re.fullmatch(r"([0-9]{1,9})\s*([hdw]?)", text.strip().lower())
        if found is None:
            raise Misuse(f"--keep-jobs {text!r}: write a time such as 90d, 12h or 8w, or how many jobs, such as 500")
        number, unit = int(found[1]), found[2]
        if not unit:
            return cls(text=found[1], count=number)
        if number * _UNITS_S[unit] < KEEP_LEAST_S:
            raise Misuse(f"--keep-jobs {text!r}: an ended job is kept for an hour at least, so write 1h or more")
        return cls(text=f"{number}{unit}", age_s=number * _UNITS_S[unit])

    def why_not(self, age_s: float) -> str:
        """Return why a job that ended this long ago is not kept."""
        days = age_s / _DAY_S
        ago = f"{days:,.0f} days" if days >= 2 else f"{age_s / 3600.0:,.0f} hours"
        rule = f"--keep-jobs {self.text} keeps"
        if self.count is not None:
            return f"it ended {ago} ago, and {rule} only the latest {self.count:,}"
        return f"it ended {ago} ago, and {rule} no job for longer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Eviction:
    """Files of one ended job that go."""

    job: str
    #: Its checkpoints; otherwise the code and data that it alone is made of.
    checkpoints: bool
    size_bytes: int


def evictions(
    over_bytes: int, *, checkpoints: Mapping[str, int], contents: Mapping[str, int]
) -> tuple[list[Eviction], int]:
    """Return which files go to free this many bytes, and how many bytes are still too many then.

    Checkpoints go before code and data: a job that has neither can still be looked at, but one without its code cannot
    be exported. Jobs come in the order in which they ended.
    """
    chosen: list[Eviction] = []
    for sizes, is_checkpoints in ((checkpoints, True), (contents, False)):
        for job, size_bytes in sizes.items():
            if over_bytes <= 0:
                return chosen, 0
            if size_bytes > 0:
                chosen.append(Eviction(job=job, checkpoints=is_checkpoints, size_bytes=size_bytes))
                over_bytes -= size_bytes
    return chosen, max(0, over_bytes)


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
