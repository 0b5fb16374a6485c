"""A plan that is simulated once for each of several seeds, and its result as values."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shoal.data.partition import Partition
from shoal.errors import Misuse
from shoal.learning.algorithm import Algorithm
from shoal.learning.estimate import Estimate
from shoal.plan import Plan
from shoal.sim.algorithms import named
from shoal.sim.fault_text import write
from shoal.sim.faults import Fault
from shoal.sim.fleet_file import FleetFile
from shoal.sim.garbage import collected_seldom
from shoal.sim.local_devices import DividedSet, divide
from shoal.sim.outcome import Outcome, Point
from shoal.sim.real import close, simulated_job, why_not
from shoal.sim.study import Glance, Study, simulate
from shoal.trainer.package import ReadyTask, laid_over, plan_from
from shoal.version import __version__
from shoal.wire.encoding import to_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a series is of, apart from its plan: the same for all plans that are compared."""

    devices: int
    profile: str | FleetFile = "pi4-lan"
    seeds: tuple[int, ...] = (0,)
    partition: Partition | None = None
    faults: tuple[Fault, ...] = ()
    train: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedSeries:
    """One plan, simulated for each seed. The seed draws the fleet, the first model, the order of examples and the
    partition, so series of the same seeds differ by their plans only."""

    name: str
    #: With the first seed.
    plan: Plan
    setting: Setting
    #: SHA-256 of the task's code.
    bundle: str
    #: By seed, in order.
    outcomes: tuple[Outcome, ...]
    divided: tuple[DividedSet | None, ...]
    #: The algorithm's class and a hash of its code. Empty if it has none.
    algorithm: str = ""

    @property
    def metric(self) -> str:
        """The metric that compares: the plan's, else accuracy where there is one, else loss."""
        if self.plan.judged_by:
            return self.plan.judged_by
        evaluated = [outcome for outcome in self.outcomes if outcome.evaluations]
        return "accuracy" if all(outcome.accuracy is not None for outcome in evaluated) else "loss"

    def finals(self, metric: str = "") -> list[float | None]:
        """Return the metric of the last evaluation, by seed: None where the job failed, or was not evaluated by it.

        A job that diverges may have been good before: its last evaluation is not what the plan gives.
        """
        name = metric or self.metric
        return [last_of(outcome, name) if outcome.state == "finished" else None for outcome in self.outcomes]

    def final(self, metric: str = "") -> Estimate | None:
        """Return the mean of ``finals`` over the seeds that have a result, or None if no seed has one."""
        found = [value for value in self.finals(metric) if value is not None]
        return Estimate.of(found) if found else None

    def lacking(self, metric: str = "") -> dict[int, str]:
        """Return the seeds that ``final`` leaves out, each with the reason."""
        pairs = zip(self.setting.seeds, self.outcomes, self.finals(metric), strict=True)
        return {
            seed: f"{outcome.state}: {outcome.reason}" if outcome.state != "finished" else "not evaluated"
            for seed, outcome, value in pairs
            if value is None
        }

    def has(self, metric: str) -> bool:
        """Whether any evaluation has this metric."""
        return any(value_of(point, metric) is not None for outcome in self.outcomes for point in outcome.evaluations)

    def is_lower_better(self, metric: str) -> bool:
        return metric == "loss" or any(metric in outcome.lower for outcome in self.outcomes)

    def estimate(self, of: Callable[[Outcome], float]) -> Estimate:
        return Estimate.of([of(outcome) for outcome in self.outcomes])

    def curve(self, metric: str = "") -> list[tuple[int, float, Estimate]]:
        """Return the evaluations that every seed has: version, mean virtual second, and the metric. Without seeds that
        failed, where others did not."""
        name = metric or self.metric
        finished = [outcome for outcome in self.outcomes if outcome.state == "finished"]
        chosen = finished or self.outcomes
        by_version = [{point.version: point for point in outcome.evaluations} for outcome in chosen]
        shared = sorted(set.intersection(*(set(points) for points in by_version)))
        found: list[tuple[int, float, Estimate]] = []
        for version in shared:
            points = [points[version] for points in by_version]
            values = [value for point in points if (value := value_of(point, name)) is not None]
            if len(values) == len(points):
                found.append((version, float(np.mean([point.at_s for point in points])), Estimate.of(values)))
        return found

    def to_plain(self) -> dict[str, Any]:
        """Return the series for a file of results. ``hash`` is over everything that the seeds decide."""
        profile = self.setting.profile
        decided = {
            "name": self.name,
            "plan": to_json(self.plan),
            "bundle": self.bundle,
            "algorithm": self.algorithm,
            "devices": self.setting.devices,
            # The fleet's own hash: where its file is decides nothing.
            "profile": profile if isinstance(profile, str) else profile.sha256,
            "partition": str(self.setting.partition) if self.setting.partition is not None else "",
            "faults": write(self.setting.faults),
            "seeds": [
                {
                    "seed": seed,
                    "rows": divided.sha256 if divided is not None else "",
                    "state": str(outcome.state),
                    "versions": outcome.rounds,
                    "seconds": outcome.seconds,
                    "bytes_up": outcome.bytes_up,
                    "bytes_down": outcome.bytes_down,
                    "took_part": outcome.took_part,
                    "refused": outcome.refused,
                    "evaluations": [asdict(point) for point in outcome.evaluations],
                }
                for seed, outcome, divided in zip(self.setting.seeds, self.outcomes, self.divided, strict=True)
            ],
        }
        text = json.dumps(decided, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        limits = [limits_of(outcome, profile) for outcome in self.outcomes]
        return {**decided, "hash": digest, "limits": limits, "made_with": made_with()}


def limits_of(outcome: Outcome, profile: str | FleetFile) -> dict[str, Any]:
    """Return what limited a simulated job and what it cost, as plain values."""
    plain = outcome.to_plain()
    found = {name: plain[name] for name in ("waited", "reasons", "leases_expired", "crashes", "energy_wh")}
    if not isinstance(profile, str) and (cost := profile.cost(outcome)):
        found["cost"] = {**cost, "currency": profile.currency}
    return found


def value_of(point: Point, metric: str) -> float | None:
    """Return a metric of an evaluation, or None if the evaluation lacks it."""
    plain = {"accuracy": point.accuracy, "loss": point.loss}
    return plain[metric] if metric in plain else point.metrics.get(metric)


def last_of(outcome: Outcome, metric: str) -> float | None:
    return value_of(outcome.evaluations[-1], metric) if outcome.evaluations else None


def made_with() -> dict[str, str]:
    """Return the releases and the processor that a result depends on: others may round differently."""
    from importlib.metadata import PackageNotFoundError, version

    def known(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return ""

    return {
        "shoal": __version__,
        "torch": known("torch"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadySeed:
    """A plan with its task made ready for one seed, and the rows of its devices."""

    seed: int
    task: ReadyTask
    plan: Plan
    divided: DividedSet | None


def made_ready(values: Mapping[str, Any], setting: Setting, ready_of: Callable[[int], ReadyTask]) -> list[ReadySeed]:
    """Make a plan ready for each seed. Raises Misuse for what cannot be simulated, before anything is."""
    found: list[ReadySeed] = []
    for seed in setting.seeds:
        task = ready_of(seed)
        plan = plan_from(laid_over(task.prepared.plan, {**values, "seed": seed}))
        divided = None
        if setting.partition is not None and plan.data == "local":
            divided = divide(task, setting.partition, devices=setting.devices, seed=seed)
        if (why := why_not(task, plan, train=setting.train, divided=divided)) is not None:
            raise Misuse(why)
        found.append(ReadySeed(seed=seed, task=task, plan=plan, divided=divided))
    return found


def played(
    ready: ReadySeed,
    setting: Setting,
    *,
    algorithm: Algorithm | None = None,
    look: Callable[[Glance], object] = lambda glance: None,
) -> Outcome:
    """Simulate a plan for one seed."""
    job = simulated_job(ready.task, ready.plan, train=setting.train, divided=ready.divided, algorithm=algorithm)
    study = Study(job=job, devices=setting.devices, profile=setting.profile, seed=ready.seed, faults=setting.faults)
    try:
        with collected_seldom():
            return simulate(study, look=look)
    finally:
        close(job)


def series_of(
    name: str,
    readies: Sequence[ReadySeed],
    setting: Setting,
    outcomes: Sequence[Outcome],
    *,
    algorithm: Algorithm | None = None,
) -> SeedSeries:
    """Return what the seeds of a plan gave as one series."""
    return SeedSeries(
        name=name,
        plan=readies[0].plan,
        setting=setting,
        bundle=hashlib.sha256(readies[0].task.bundle).hexdigest(),
        outcomes=tuple(outcomes),
        divided=tuple(ready.divided for ready in readies),
        algorithm=named(algorithm) if algorithm is not None else "",
    )
