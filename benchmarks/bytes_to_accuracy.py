"""The fewest bytes to an accuracy: AdaComp's task to 97.0 % on MNIST, counted in frames on the simulated wire.

The deployed roles train for real under a virtual clock. What each device sends and receives is counted by the network:
updates, versions, heartbeats, all of it, envelopes included; and the first model, which every device fetches. Not the
examples and the code, which a job needs whatever its plan. The leader's model is judged by the held-out examples after
each version (after every so many where an update is a version), and the first that reaches the goal ends a run, as in
the paper.

    best            20 devices, all in every round: long leases, sparse both ways, an outer step with momentum
    feedback        the same with error feedback: what a device did not send is held back, and added to its next update
    churn           the latter, where a device's process ends after this share of updates, by chance, and what it held
                    back is lost; "always" is the best plan, in which nothing is held back
    one_gradient    AdaComp's own regime: 200 devices, one gradient of ten images a push, asynchronous

    python -m benchmarks.bytes_to_accuracy [--seeds 3] [--quick] --json
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.byte_count import FETCHED, Goal, Remembered, Run, run
from shoal.plan import Plan, Until
from shoal.sim.devices import Build
from shoal.sim.jobs import SimulatedJob
from shoal.sim.network import AccessLink
from shoal.sim.profiles import builds, home_line
from shoal.sim.rates import Steady, mbit
from shoal.sim.real import close, simulated_job
from shoal.sim.rng import Rng
from shoal.trainer.package import make_ready
from testbed.results import finish, say

TASK = Path(__file__).parent / "digits_cnn.py"
ENTRY = "digits_cnn:DigitsCnn"

PROFILE = "pi4-lan"

#: Images of one gradient, as in the paper.
BATCH = 10

#: Restarts, as a share of updates; AdaComp has 0.004.
CHURN = (0.004, 0.05, 0.25)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How large a measurement is."""

    train: int
    test: int
    devices: int
    one_gradient_devices: int
    goal: Goal
    one_gradient_goal: Goal

    @property
    def lease_batches(self) -> int:
        """An epoch is one round: each device trains as many batches of it."""
        return self.train // (BATCH * self.devices)


FULL = Scale(
    train=60_000,
    test=10_000,
    devices=20,
    one_gradient_devices=200,
    goal=Goal(accuracy=0.97, versions_max=20),
    one_gradient_goal=Goal(accuracy=0.97, versions_max=30_000, every=500),
)
QUICK = Scale(
    train=4_000,
    test=1_000,
    devices=8,
    one_gradient_devices=8,
    goal=Goal(accuracy=0.8, versions_max=20),
    one_gradient_goal=Goal(accuracy=0.4, versions_max=2000, every=50),
)


# The plans ---------------------------------------------------------------------------------------------


def best_plan(scale: Scale, *, seed: int, feedback: bool = False) -> Plan:
    """In three or four rounds, what is held back of an update comes too late to be worth its bytes."""
    return Plan(
        codec="top5%+ef+3bit" if feedback else "top5%+3bit",
        codec_down="top20%+4bit",
        lease_batches=scale.lease_batches,
        learning_rate=0.1,
        momentum=0.5,
        outer="nesterov",
        **_common(scale.devices, seed),
    )


def one_gradient_plan(scale: Scale, *, seed: int) -> Plan:
    """Down goes the whole model: a device lacks about as many versions as there are devices, and decoding their changes
    one after the other takes longer than the gradient they are for. The paper counts what goes up."""
    return Plan(
        pace="async",
        codec="top1%+3bit",
        codec_down="dense",
        staleness="none",
        learning_rate=0.01,
        **_common(scale.one_gradient_devices, seed),
    )


def _common(devices: int, seed: int) -> dict[str, Any]:
    """The measurement ends a run, and judges it: the job itself does neither."""
    return {
        "batch_size": BATCH,
        "workers_min": devices,
        "workers_max": devices,
        "until": Until(epochs=10_000),
        "evaluate_every_epochs": 10_000,
        "lease_s": 3600.0,
        "seed": seed,
    }


def memoryless(count: int) -> list[Build]:
    """Devices that take 4 s as a median, by a lognormal factor whose deviation is its mean: as if arrivals had no
    memory. Told, because it decides how late updates are."""
    line = AccessLink(up=Steady(mbit(100)), down=Steady(mbit(100)))
    device = Build(
        kind="memoryless", seconds_per_gmac=0.0, seconds_per_batch=4.0, jitter=0.83, memory_mb=4096, line=line
    )
    return [device] * count


# The measurements --------------------------------------------------------------------------------------


@contextmanager
def job_of(plan: Plan, scale: Scale, folder: Path) -> Iterator[SimulatedJob]:
    """The task under a plan, with the first model of its seed."""
    counts = {"train": scale.train, "test": scale.test}
    ready = asyncio.run(make_ready(TASK, ENTRY, out=folder, kwargs=counts, plan={"seed": plan.seed}))
    job = simulated_job(ready, plan, train=True, job="digits")
    try:
        # Examples and code are left out: any plan needs them, and none changes them.
        yield replace(job, fetch_bytes=Path(ready.prepared.model).stat().st_size)
    finally:
        close(job)


def best_runs(scale: Scale, folder: Path, *, seed: int, churn: Sequence[float] = ()) -> dict[str, Run]:
    """The best plan as "always", and those with error feedback by their share of restarts."""
    devices, line = builds(PROFILE, scale.devices, Rng(seed)), home_line(PROFILE)
    with job_of(best_plan(scale, seed=seed), scale, folder) as made:
        job = replace(made, training=Remembered(made.training))
        say(f"best plan, seed {seed}")
        runs = {"always": _told(run(job, devices, line, scale.goal, seed=seed))}
        holding = replace(job, spec=replace(job.spec, plan=best_plan(scale, seed=seed, feedback=True)))
        for share in (0.0, *churn):
            say(f"with error feedback, seed {seed}, churn {share:g}")
            runs[f"{share:g}"] = _told(run(holding, devices, line, scale.goal, seed=seed, churn=share))
    return runs


def one_gradient_run(scale: Scale, folder: Path, *, seed: int) -> Run:
    say(f"one gradient a push, seed {seed}")
    devices = memoryless(scale.one_gradient_devices)
    with job_of(one_gradient_plan(scale, seed=seed), scale, folder) as job:
        return _told(run(job, devices, home_line(PROFILE), scale.one_gradient_goal, seed=seed))


def _told(each: Run) -> Run:
    largest = sorted(each.kinds.items(), key=lambda item: -item[1])[:5]
    state = "reached" if each.is_reached else "NOT REACHED,"
    say(
        f"  {state} {each.accuracy:.2%}: {each.versions} versions, {each.updates} updates ({each.refused} refused),"
        f" {each.examples:,} examples, {each.restarts} restarts; {each.up_bytes / 1e6:.3f} MB up,"
        f" {each.total_bytes / 1e6:.2f} MB in all: " + ", ".join(f"{kind} {size / 1e6:.3f}" for kind, size in largest)
    )
    return each


def measure(scale: Scale, folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Means over seeds; the churn of the first alone."""
    runs = [best_runs(scale, folder, seed=seed, churn=CHURN if seed == seeds[0] else ()) for seed in seeds]
    best, feedback = ([each[kind] for each in runs] for kind in ("always", "0"))
    one = [one_gradient_run(scale, folder, seed=seed) for seed in seeds]
    return {
        **_summed("", best),
        **_summed("feedback_", feedback),
        **_summed("one_gradient_", one),
        "first_models_mb": best[0].kinds[FETCHED] / 1e6,
        "each": [_row(each) for each in best],
        "feedback_each": [_row(each) for each in feedback],
        "churn": {share: _row(each) for share, each in runs[0].items()},
        "one_gradient_each": [_row(each) for each in one],
    }


def _summed(prefix: str, runs: Sequence[Run]) -> dict[str, Any]:
    values = {
        "up_mb": mean(each.up_bytes for each in runs) / 1e6,
        "total_mb": mean(each.total_bytes for each in runs) / 1e6,
        "accuracy": min(each.accuracy for each in runs),
        "is_reached": all(each.is_reached for each in runs),
        "updates": mean(each.updates for each in runs),
        "examples": mean(each.examples for each in runs),
    }
    return {f"{prefix}{name}": value for name, value in values.items()}


def _row(each: Run) -> dict[str, Any]:
    return {
        "is_reached": each.is_reached,
        "accuracy": each.accuracy,
        "versions": each.versions,
        "updates": each.updates,
        "refused": each.refused,
        "restarts": each.restarts,
        "up_mb": round(each.up_bytes / 1e6, 4),
        "total_mb": round(each.total_bytes / 1e6, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each plan")
    parser.add_argument("--quick", action="store_true", help="within a minute: few images, lower goals, one seed")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    scale, seeds = (QUICK, 1) if given.quick else (FULL, given.seeds)
    with tempfile.TemporaryDirectory(prefix="shoal-bytes-") as folder:
        result = measure(scale, Path(folder), range(seeds))
    finish(result | {"goal": scale.goal.accuracy, "seeds": seeds, "load_1m": os.getloadavg()[0]})


if __name__ == "__main__":
    main()
