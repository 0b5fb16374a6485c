"""Which job a person means. Pure: looks at a Status, asks nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.render.format import clean
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.wire.messages import JobView, Status

_NAMED_MAX = 5


def pick_job(status: Status, wanted: str) -> JobView:
    """The job with this id, start of an id, or name; with no text, the newest that runs, else the newest."""
    jobs = status.jobs
    if not jobs:
        raise Misuse("this cluster has no jobs yet: start one with `shoal train TASK`")
    if not wanted:
        return next((job for job in reversed(jobs) if job.state.is_open), jobs[-1])
    exact = [job for job in jobs if job.job == wanted]
    if exact:
        return exact[0]
    starts = [job for job in jobs if job.job.startswith(wanted)]
    # Names repeat, as a person trains the same task again: the newest is meant.
    named = [job for job in jobs if job.name == wanted][-1:]
    match starts or named:
        case [job]:
            return job
        case []:
            raise Misuse(f"there is no job {clean(wanted, 80)!r}; there is {_listed(jobs)}")
    raise Misuse(f"{clean(wanted, 80)!r} is the start of several jobs: {_listed(tuple(starts))}")


def _listed(jobs: tuple[JobView, ...]) -> str:
    shown = ", ".join(f"{job.job} ({clean(job.name, 30)})" for job in jobs[: -_NAMED_MAX - 1 : -1])
    return shown + (f" and {len(jobs) - _NAMED_MAX} more" if len(jobs) > _NAMED_MAX else "")
