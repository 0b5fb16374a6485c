"""What grows while a process lives: its memory and its open files, from samples of them. Pure.

A process that was started again is another one, and counts from its start. Of each, the median of the second quarter of
its life is compared with that of the last one: in the first quarter it fills what it keeps. Like is compared with like:
a device that leads holds a connection to each worker, so its samples are compared with others of when it led.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

#: Of a quarter, at least this share is of one kind, or nothing is said of that kind.
_SHARE_OF_A_QUARTER = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A process at one moment."""

    at_s: float
    who: str
    pid: int
    rss_mb: float
    fds: int
    #: It led the job then, or was the one of several managers that had it: either has a connection to each device.
    leads: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """From the second quarter to the last, of one process."""

    who: str
    led: bool
    lived_s: float
    #: In the last quarter.
    rss_mb: float
    rss_percent: float
    fds: float


def lives(samples: Iterable[Sample]) -> list[list[Sample]]:
    """The samples of each process, oldest first."""
    found: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        found.setdefault((sample.who, sample.pid), []).append(sample)
    return [sorted(life, key=lambda sample: sample.at_s) for life in found.values()]


def growth(life: Sequence[Sample], *, led: bool = False) -> Growth | None:
    """While it led, or while it did not; None if that was too little of either quarter."""
    began_s, ended_s = life[0].at_s, life[-1].at_s
    quarter_s = (ended_s - began_s) / 4
    seconds = [each for each in life if began_s + quarter_s <= each.at_s < began_s + 2 * quarter_s]
    lasts = [each for each in life if each.at_s >= began_s + 3 * quarter_s]
    second, last = ([each for each in quarter if each.leads == led] for quarter in (seconds, lasts))
    if not second or not last or min(len(second) / len(seconds), len(last) / len(lasts)) < _SHARE_OF_A_QUARTER:
        return None
    before_mb, after_mb = median(each.rss_mb for each in second), median(each.rss_mb for each in last)
    return Growth(
        who=life[0].who,
        led=led,
        lived_s=ended_s - began_s,
        rss_mb=after_mb,
        rss_percent=100 * (after_mb / before_mb - 1),
        fds=median(each.fds for each in last) - median(each.fds for each in second),
    )


def growths(samples: Iterable[Sample], *, at_least_s: float) -> list[Growth]:
    """Of each process that lived so long, while it led and while it did not."""
    long = [life for life in lives(samples) if life[-1].at_s - life[0].at_s >= at_least_s]
    found = [growth(life, led=led) for life in long for led in (False, True)]
    return [each for each in found if each is not None]
