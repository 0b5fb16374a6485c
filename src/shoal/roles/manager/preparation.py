"""Devices that could not prepare a job: how long each is spared, and when no device is left that could. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Seconds before a device is given a job again that it could not prepare: the first time, and at most.
AGAIN_S = 30.0
AGAIN_MAX_S = 900.0

#: A device that was lost this recently may come back and prepare the job.
MAY_RETURN_S = 600.0

#: Parts of a reason that differ from device to device: quoted texts, paths, addresses and numbers.
_OWN = re.compile(r"'[^']*'|\"[^\"]*\"|\S*/\S*|0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unprepared:
    """A device that its leader let go because it could not prepare the job."""

    reason: str
    #: The task's code raised. Otherwise the device lacked a connection, a disk or the like.
    by_task: bool
    #: How often in a row its leader let it go for that.
    times: int
    #: It is not given the job again before this.
    until_s: float


def noted(before: Unprepared | None, *, reason: str, by_task: bool, now_s: float) -> Unprepared:
    """Return the note on a device that failed (again): each time it is spared twice as long."""
    times = 1 if before is None else before.times + 1
    until_s = now_s + min(AGAIN_MAX_S, AGAIN_S * 2.0 ** min(times - 1, 16))
    return Unprepared(reason=reason, by_task=by_task, times=times, until_s=until_s)


def kind_of(reason: str) -> str:
    """Return the reason without what differs between devices that fail alike."""
    return _OWN.sub("*", reason)


def why_hopeless(unprepared: Mapping[str, Unprepared], able: Iterable[str]) -> str | None:
    """Return why a job has to fail that no device can prepare, or None if one may.

    ``able``: every device that the job may be given to, now or soon. The job fails if all of them failed, several times
    each, in the task's code, and alike. A device that failed for want of a connection, or for a reason of its own, may
    yet prepare the job.
    """
    kinds: set[str] = set()
    count, last = 0, None
    for node in able:
        last = unprepared.get(node)
        if last is None or not last.by_task:
            return None
        count += 1
        kinds.add(kind_of(last.reason))
        if len(kinds) > 1:
            return None
    if last is None:
        return None
    who = "the only device" if count == 1 else f"each of {count} devices"
    return f"no device can prepare it: {last.reason} (on {who}, several times)"
