"""Figures that papers publish, measured again: ``python -m baselines --published``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

import shoal
from baselines.base import Mnist
from shoal.learning.estimate import Estimate


class TwoNN(Mnist):
    """McMahan's 2NN: two hidden layers of 200, 199,210 parameters."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """A row of Table 1 of McMahan et al. 2017: versions until the 2NN is right on 97 % of the test set, with the
    training set divided among 100 devices, one local epoch and batches of 10."""

    #: The part of devices that train for each version. The paper's 0 is one device of 100.
    share: float
    versions: int
    learning_rate: float
    partition: str = "iid"

    @property
    def name(self) -> str:
        return f"FedAvg, 2NN, {self.partition}, B = 10, C = {self.share:g}: versions to 97 %"


#: The paper took the best of a grid of learning rates for each row, and does not say which. ``python -m baselines
#: --rates`` tries RATES with another seed than those that are measured; it was run for the first two rows.
FIGURES = (
    PublishedFigure(share=0.01, versions=316, learning_rate=0.1),
    PublishedFigure(share=0.1, versions=87, learning_rate=0.2),
    PublishedFigure(share=0.2, versions=77, learning_rate=0.1),
    PublishedFigure(share=0.5, versions=75, learning_rate=0.1),
    PublishedFigure(share=1.0, versions=70, learning_rate=0.1),
    PublishedFigure(share=0.1, versions=664, learning_rate=0.1, partition="pathological(2)"),
)
RATES = (0.05, 0.1, 0.2)
RATE_SEED = 100

TARGET = 0.97
#: Times the paper's.
VERSIONS_MOST = 3


def crossing(points: Sequence[tuple[int, float]], target: float) -> float | None:
    """Return where a curve reaches the target as the paper reads it: the best value so far, and straight lines between
    points. None if it does not."""
    before_version, before = 0.0, 0.0
    for version, value in points:
        best = max(before, value)
        if best >= target:
            return before_version + (version - before_version) * (target - before) / (best - before)
        before_version, before = version, best
    return None


def is_inside(value: float, estimate: Estimate) -> bool:
    """Whether a value lies in an interval. A single seed has none."""
    return estimate.half is not None and abs(value - estimate.mean) <= estimate.half


def best_rate(figure: PublishedFigure, *, progress: bool = True) -> dict[str, Any]:
    """Try every learning rate with one seed. Return the versions that each took, and the fastest."""
    took = {
        rate: measured(replace(figure, learning_rate=rate), (RATE_SEED,), progress=progress)["here"][0]
        for rate in RATES
    }
    reached = {rate: versions for rate, versions in took.items() if versions is not None}
    return {"figure": figure.name, "versions": took, "best": min(reached, key=reached.__getitem__, default=None)}


def measured(figure: PublishedFigure, seeds: Sequence[int], *, progress: bool = True) -> dict[str, Any]:
    """Train until the target for each seed, and compare with the paper."""
    cohort = round(100 * figure.share)
    plan = shoal.Plan(
        data="local",
        pace="sync",
        workers_min=100,
        workers_max=100,
        cohort=cohort if cohort < 100 else 0,
        sampling="uniform" if cohort < 100 else "",
        epoch_leases=cohort,
        lease_batches=60,
        batch_size=10,
        learning_rate=figure.learning_rate,
        momentum=0.0,
        until=shoal.Until(accuracy=TARGET, epochs=VERSIONS_MOST * figure.versions),
    )
    series = shoal.simulate(
        TwoNN(),
        devices=100,
        partition=figure.partition,
        plan=plan,
        seeds=tuple(seeds),
        name=figure.name,
        progress=progress,
    )
    found = []
    for outcome in series.outcomes:
        points = [(point.version, point.accuracy) for point in outcome.evaluations if point.accuracy is not None]
        found.append(crossing(points, TARGET))
    reached = [each for each in found if each is not None]
    estimate = Estimate.of(reached) if len(reached) == len(found) else None
    return {
        "figure": figure.name,
        "paper": figure.versions,
        "here": [None if each is None else round(each, 1) for each in found],
        "interval": estimate.to_plain() if estimate is not None else None,
        "is_inside": estimate is not None and is_inside(figure.versions, estimate),
        "hash": series.to_plain()["hash"],
    }
