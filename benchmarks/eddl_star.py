"""EDDL's star in the simulator: is a batch as long as the paper's formula says, t = l + 2nS/B?

n workers train l = 1.0 s a batch and exchange PerNet (S = 2.88 MB) with one leader over its link of B. EDDL sends to
all workers at once; Shoal's leader sends one model after the other, so that the first to have one begins early. Both
are simulated on the deployed roles; the formula is EDDL's (§4.3).

    python -m benchmarks.eddl_star [--quick] --json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.common import PERNET, finish, say
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.sim.devices import Build
from shoal.sim.jobs import SimulatedJob, SystemOnly
from shoal.sim.network import Line
from shoal.sim.observe import Mark, Step
from shoal.sim.rates import Steady, mbit
from shoal.sim.world import TURN_HOLD_S, Settings, World
from shoal.wire.messages import Dataset, JobSpec

BATCH_S = 1.0
RATES_MBIT = (100.0, 1000.0)
WORKERS = tuple(range(1, 17))
QUICK_WORKERS = (1, 2, 4, 8, 16)
ROUNDS = 6

_LAYOUT = Layout.of([("flat", (PERNET,), "parameter")])
_SHA = "0" * 64


def formula_s(workers: int, rate_mbit: float) -> float:
    """t = l + 2nS/B (EDDL §4.3)."""
    return BATCH_S + 2 * workers * PERNET * 4 / mbit(rate_mbit)


class Versions:
    """When each version was first sent to anyone."""

    def __init__(self) -> None:
        self.made_s: dict[int, float] = {}

    def step(self, step: Step) -> None:
        if step.role == "leader":
            for action in step.actions:
                version = getattr(getattr(action, "message", None), "version", None)
                if version is not None:
                    self.made_s.setdefault(version, step.at_s)

    def mark(self, mark: Mark) -> None:
        pass


def simulated_s(workers: int, rate_mbit: float, *, turn_hold_s: float) -> float:
    """A batch, from one version to the next, once all workers are in step."""
    rate = Steady(mbit(rate_mbit))
    line = Line(up=rate, down=rate)
    build = Build(
        kind="even",
        seconds_per_gmac=0.0,
        seconds_per_batch=BATCH_S,
        jitter=0.0,
        memory_mb=4096,
        battery_wh=0.0,
        train_watts=0.0,
        idle_watts=0.0,
        heat=None,
        line=line,
    )
    plan = Plan(
        batch_size=1, workers_min=workers, workers_max=workers, until=Until(epochs=1), lease_s=60.0, momentum=0.0
    )
    spec = JobSpec(
        job="star",
        name="star",
        entry="task:None",
        bundle=_SHA,
        initial=_SHA,
        train=Dataset(manifest=_SHA, examples=workers * ROUNDS),
        test=Dataset(manifest=_SHA, examples=0),
        plan=plan,
    )
    model = np.zeros(PERNET, dtype=np.float32)
    model.flags.writeable = False
    job = SimulatedJob(
        spec=spec, layout=_LAYOUT, model=model, training=SystemOnly(PERNET), gmacs_per_example=0.0, start_s=0.1
    )
    versions = Versions()
    settings = Settings(seed=0, builds=[build] * workers, home_line=line, jobs=[job], turn_hold_s=turn_hold_s)
    world = World(settings, observers=[versions])
    world.begin()
    if not world.run(limit_s=3600.0):
        raise SystemExit(f"{workers} workers at {rate_mbit:g} Mb/s did not finish")
    made_s = versions.made_s
    # The last version is told when its save is done: up to the one before.
    return (made_s[ROUNDS - 1] - made_s[1]) / (ROUNDS - 2)


def table(workers: Sequence[int]) -> list[dict[str, float]]:
    rows = []
    say(f"{'Mb/s':>6} {'n':>3} {'l + 2nS/B':>10} {'simulated':>10} {'error':>7}   {'Shoal sends in turn':>19}")
    for rate_mbit in RATES_MBIT:
        for n in workers:
            expected_s = formula_s(n, rate_mbit)
            at_once_s = simulated_s(n, rate_mbit, turn_hold_s=0.0)
            in_turn_s = simulated_s(n, rate_mbit, turn_hold_s=TURN_HOLD_S)
            error = at_once_s / expected_s - 1
            rows.append(
                {
                    "mbit": rate_mbit,
                    "workers": n,
                    "formula_s": expected_s,
                    "simulated_s": at_once_s,
                    "error": error,
                    "in_turn_s": in_turn_s,
                }
            )
            say(
                f"{rate_mbit:6.0f} {n:3} {expected_s:8.3f} s {at_once_s:8.3f} s {error:+7.2%}"
                f"   {in_turn_s:8.3f} s {in_turn_s / expected_s - 1:+8.1%}"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"only n = {', '.join(map(str, QUICK_WORKERS))}")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    given = parser.parse_args()
    rows = table(QUICK_WORKERS if given.quick else WORKERS)
    worst = max(abs(row["error"]) for row in rows)
    finish({"rows": len(rows), "error_max": worst, "within_5_percent": worst <= 0.05, "table": rows})


if __name__ == "__main__":
    main()
