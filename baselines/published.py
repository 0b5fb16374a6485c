"""Figures that papers publish, measured again: which they are, how one is measured, and when it counts as reproduced.

A figure counts if it lies in the 95 % interval (Student's t) of three seeds here, and if that interval is narrower than
the figure itself by far: a wide one would hold anything. Both were chosen before anything was measured.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import shoal
from shoal.learning.estimate import Estimate
from shoal.sim.outcome import Outcome

ROOT = Path(__file__).resolve().parent.parent
#: Results of seeds that were measured at this code, so that a run that was stopped goes on where it was.
NOTES = ROOT / ".baselines"

SEEDS = (0, 1, 2)
#: An interval counts if half of it is at most this part of the figure.
HALF_MOST = 0.2
#: A run ends after this many times the paper's versions.
VERSIONS_MOST = 3


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    #: What ``--only`` calls it.
    name: str
    #: What is measured, and the table of which paper has it.
    of: str
    paper: float
    #: Makes the task for a seed.
    task: Callable[[int], shoal.Task]
    partition: str
    plan: Mapping[str, Any]
    devices: int = 100
    algorithm: type[shoal.Algorithm] | None = None
    #: The accuracy until which versions are counted, or None where the figure is the best accuracy of a run.
    target: float | None = None
    #: Why the figure here may differ, as far as it is known.
    why: str = ""

    def value(self, outcome: Outcome) -> float | None:
        points = [(each.version, each.accuracy) for each in outcome.evaluations if each.accuracy is not None]
        if self.target is not None:
            return crossing(points, self.target)
        return max((accuracy for _, accuracy in points), default=None)

    def at_rate(self, learning_rate: float) -> PublishedFigure:
        return replace(self, plan={**self.plan, "learning_rate": learning_rate})


def crossing(points: Iterable[tuple[int, float]], target: float) -> float | None:
    """Return where a curve reaches the target as McMahan et al. read it: the best value so far, and straight lines
    between points. None if it does not."""
    before_version, before = 0.0, 0.0
    for version, value in points:
        best = max(before, value)
        if best >= target:
            return before_version + (version - before_version) * (target - before) / (best - before)
        before_version, before = version, best
    return None


def is_inside(value: float, estimate: Estimate) -> bool:
    """Whether a value lies in an interval that says something. A single seed has none."""
    return estimate.half is not None and abs(value - estimate.mean) <= estimate.half <= HALF_MOST * abs(value)


def measured(figure: PublishedFigure, seeds: Sequence[int] = SEEDS, *, progress: bool = True) -> dict[str, Any]:
    """Measure a figure for each seed that was not measured before at this code, and compare with the paper."""
    found = []
    for seed in seeds:
        found.append(_noted(figure, seed, progress=progress))
        print(f"{figure.name}, seed {seed}: {found[-1]} (paper: {figure.paper:g})", file=sys.stderr, flush=True)
    reached = [each for each in found if each is not None]
    estimate = Estimate.of(reached) if len(reached) == len(found) else None
    return {
        "row": figure.name,
        "of": figure.of,
        "paper": figure.paper,
        "here": [None if each is None else round(each, 4) for each in found],
        "interval": estimate.to_plain() if estimate is not None else None,
        "is_inside": estimate is not None and is_inside(figure.paper, estimate),
        "why": figure.why,
    }


def best_rate(figure: PublishedFigure, rates: Sequence[float], seed: int, *, progress: bool = True) -> dict[str, Any]:
    """Try learning rates with one seed. Return the figure of each, and the rate that is best."""
    found = {rate: _noted(figure.at_rate(rate), seed, progress=progress) for rate in rates}
    reached = {rate: value for rate, value in found.items() if value is not None and math.isfinite(value)}
    pick = max if figure.target is None else min
    return {"row": figure.name, "found": found, "best": pick(reached, key=reached.__getitem__, default=None)}


def _noted(figure: PublishedFigure, seed: int, *, progress: bool) -> float | None:
    """Return the figure of one seed, from the notes of this code if it was measured before."""
    asked = json.dumps([figure.name, figure.partition, figure.devices, figure.target, dict(figure.plan)], default=str)
    key = hashlib.sha256(f"{_code()} {asked} {seed}".encode()).hexdigest()[:16]
    note = NOTES / f"{figure.name}-{seed}-{key}.json"
    if note.exists():
        value: float | None = json.loads(note.read_text())["value"]
        return value
    value = _simulated(figure, seed, progress=progress)
    NOTES.mkdir(exist_ok=True)
    part = note.with_suffix(".part")
    part.write_text(json.dumps({"asked": asked, "seed": seed, "value": value}))
    part.rename(note)
    return value


def _simulated(figure: PublishedFigure, seed: int, *, progress: bool) -> float | None:
    series = shoal.simulate(
        figure.task(seed),
        devices=figure.devices,
        algorithm=figure.algorithm() if figure.algorithm is not None else None,
        partition=figure.partition,
        plan=shoal.Plan(**{**COMMON, "workers_min": figure.devices, "workers_max": figure.devices, **figure.plan}),
        seeds=(seed,),
        name=figure.name,
        progress=progress,
    )
    return figure.value(series.outcomes[0])


#: What plans of all figures have in common: versions are counted as the papers count rounds.
COMMON: dict[str, Any] = {"data": "local", "pace": "sync", "momentum": 0.0}


def _code() -> str:
    """Return a digest of the code that decides the result of a run."""
    digest = hashlib.sha256()
    for path in sorted([*ROOT.glob("src/shoal/**/*.py"), *ROOT.glob("baselines/*.py")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
