"""How often an executor is checked: less with every right result, always after a wrong one. Randomness is an argument.

Trust uses checks where they are worth most; it does not prove anything. If each result is checked with probability p,
an executor with k wrong results stays undetected with (1-p)^k. If a wrong result must never pass, use p = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shoal.errors import Misuse
from shoal.offload.verify import majority


@dataclass(frozen=True, kw_only=True, slots=True)
class SpotChecks:
    """The probability of a check: 1 at first, halved with every ``halved_every`` right results, down to ``least``."""

    #: 1 checks every result. With 1/16, 16 wrong results are detected with 64 %, 100 with 99.8 %.
    least: float = 1.0
    halved_every: int = 32
    #: Rounding cannot explain an error beyond its bound: once is enough.
    excluded_after: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1 or self.halved_every < 1 or self.excluded_after < 1:
            raise Misuse("spot checks: the least chance is above 0 and at most 1; the counts are at least 1")

    def chance(self, record: CheckRecord) -> float:
        """Return the probability that the next result of this executor is checked."""
        return max(self.least, 0.5 ** (record.held // self.halved_every))

    def checks(self, record: CheckRecord, *, draw: float) -> bool:
        """Whether to check the next result. ``draw`` is uniform from 0 to 1, and not known to the executor."""
        return draw < self.chance(record)

    def after(self, record: CheckRecord, *, held: bool, reason: str | None = None) -> CheckRecord:
        """Return the record of an executor after another check."""
        if held:
            return replace(record, held=record.held + 1, checked=record.checked + 1)
        caught = record.caught + 1
        return CheckRecord(
            held=0,
            checked=record.checked + 1,
            caught=caught,
            excluded=caught >= self.excluded_after,
            reason=reason,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRecord:
    """The checks of one executor so far."""

    #: Right results since the last wrong one: earned trust.
    held: int = 0
    checked: int = 0
    #: How often it was caught.
    caught: int = 0
    #: The broker gives it no further tasks.
    excluded: bool = False
    #: How it was caught last.
    reason: str | None = None


def unseen(chance: float, *, lies: int) -> float:
    """Return (1-p)^k, the probability that ``lies`` wrong results all stay undetected."""
    return float((1.0 - chance) ** lies)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """The outcome of replicas of one task: the accepted value, the executors that differ, and the reason."""

    #: None if no value is accepted: the task is computed at home or by others.
    value: np.ndarray | None
    liars: tuple[str, ...]
    reason: str


def settle(results: Mapping[str, np.ndarray], *, holds: Callable[[np.ndarray], bool] | None = None) -> Settled:
    """Compare replicas by executor. If all are equal, accept them; else the check decides, or without one the majority.

    The majority fails if most of the executors collude: with 3 from a pool where one in 5 is malicious, in 1 task of
    10. The check, ``holds``, succeeds as long as one of them is honest.
    """
    if not results:
        raise Misuse("no replica has come back yet: there is nothing to settle")
    names = sorted(results)
    vote = majority([results[name] for name in names])
    if vote.value is not None and not vote.differ:
        return Settled(value=vote.value, liars=(), reason=f"{len(names)} of {len(names)} agree")
    if holds is not None:
        honest = [name for name in names if holds(results[name])]
        liars = tuple(name for name in names if name not in honest)
        if not honest:
            return Settled(value=None, liars=liars, reason="none of the replicas is the product")
        told = majority([results[name] for name in honest])
        # Several may be within rounding of each other on different processors: the first by name is as good.
        value = told.value if told.value is not None else results[honest[0]]
        return Settled(value=value, liars=liars, reason=f"replicas differ; the check holds for {len(honest)}")
    if vote.value is None:
        return Settled(value=None, liars=(), reason=f"{len(names)} replicas, and no answer has more than half")
    return Settled(
        value=vote.value,
        liars=tuple(names[place] for place in vote.differ),
        reason=f"{len(vote.agree)} of {len(names)} agree",
    )
