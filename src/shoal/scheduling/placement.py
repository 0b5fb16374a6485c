"""Which node should lead a job: the one that would spend the least time on it (EDDL §4.4). Pure functions.

The paper names the conditions - spare processor, spare bandwidth, reachable by the others - and leaves open how to
weight them. Here they are one number: the seconds that a node would spend in a round per byte of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Checking and merging an update: two passes over it on a small core.
MERGE_S_PER_BYTE = 1.5e-9

#: A busy processor still gives a new process this share of its time.
SPARE_LEAST = 0.1

#: Assumed for a link that was never measured: Ethernet of 100 Mb/s.
LINK_ASSUMED_BYTES_PER_S = 12.5e6

#: Smaller ratios are noise: of several candidates that are about equal, the first is chosen.
ABOUT_EQUAL = 1.25

#: A role moves only for at least this ratio: a move costs every worker the transfer of a model.
WORTH_MOVING = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    node: str
    cpus: int
    #: Processes that want to run, per CPU.
    load: float
    #: 0 if unknown.
    link_bytes_per_s: float = 0.0


def spare_cpu(candidate: Candidate) -> float:
    """Return the share of one processor that merging would get: it runs in one thread."""
    return min(1.0, max(SPARE_LEAST, candidate.cpus * (1.0 - candidate.load)))


def leading_s_per_byte(candidate: Candidate, *, workers: int) -> float:
    """Return the leader's seconds per round and byte of the model: each worker receives it and answers (EDDL §4.1)."""
    link = candidate.link_bytes_per_s or LINK_ASSUMED_BYTES_PER_S
    return max(1, workers) * (2 / link + MERGE_S_PER_BYTE / spare_cpu(candidate))


def best_placed(candidates: Sequence[Candidate], *, workers: int) -> Candidate | None:
    """Return the first candidate that is about as good as the best."""
    if not candidates:
        return None
    least_s = min(leading_s_per_byte(candidate, workers=workers) for candidate in candidates)
    good = (c for c in candidates if leading_s_per_byte(c, workers=workers) <= ABOUT_EQUAL * least_s)
    return next(good)


def is_worth_moving(candidate: Candidate, *, leader: Candidate, workers: int) -> bool:
    """Return whether this candidate is enough better than the current leader for a move to pay."""
    there_s = leading_s_per_byte(candidate, workers=workers)
    return leading_s_per_byte(leader, workers=workers) >= WORTH_MOVING * there_s
