"""Who should lead a job: the node that would spend the least time on it (EDDL §4.4). Pure functions.

The paper names the conditions - spare processor, spare bandwidth, reachable by the others - and leaves open how to
weigh them. Here they are one number: the seconds a node would spend on each byte of the model in a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Checking and merging an update: two passes over it on a small core.
MERGE_S_PER_BYTE = 1.5e-9

#: A busy processor still gives a new process some of its time.
SPARE_LEAST = 0.1

#: A node whose link nobody has measured is taken to be on Ethernet of 100 Mb/s.
LINK_ASSUMED_BYTES_PER_S = 12.5e6

#: Differences smaller than this are noise: the first of several about equal candidates is taken.
ABOUT_EQUAL = 1.25

#: A role is moved for no less than this: a move costs every worker a model.
WORTH_MOVING = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    node: str
    cpus: int
    #: Processes that want to run, per CPU.
    load: float
    #: 0: not known.
    link_bytes_per_s: float = 0.0


def spare_cpu(candidate: Candidate) -> float:
    """The share of one processor that merging would get: it runs in one thread."""
    return min(1.0, max(SPARE_LEAST, candidate.cpus * (1.0 - candidate.load)))


def leading_s_per_byte(candidate: Candidate, *, workers: int) -> float:
    """Seconds that a round takes its leader per byte of the model: each worker is sent it, and answers (EDDL §4.1)."""
    link = candidate.link_bytes_per_s or LINK_ASSUMED_BYTES_PER_S
    return max(1, workers) * (2 / link + MERGE_S_PER_BYTE / spare_cpu(candidate))


def best_placed(candidates: Sequence[Candidate], *, workers: int) -> Candidate | None:
    """The first candidate that is about as good as the best."""
    if not candidates:
        return None
    least_s = min(leading_s_per_byte(candidate, workers=workers) for candidate in candidates)
    good = (c for c in candidates if leading_s_per_byte(c, workers=workers) <= ABOUT_EQUAL * least_s)
    return next(good)


def is_worth_moving(candidate: Candidate, *, leader: Candidate, workers: int) -> bool:
    """Whether this one is placed so much better than who leads now that a move pays."""
    there_s = leading_s_per_byte(candidate, workers=workers)
    return leading_s_per_byte(leader, workers=workers) >= WORTH_MOVING * there_s
