"""EDDL's star in the simulator: is a batch as long as the paper's formula says, t = l + 2nS/B?

n workers train l = 1.0 s a batch and exchange PerNet (S = 2.88 MB) with one leader over its link of B. EDDL sends to
all workers at once; Shoal's leader sends one model after the other, so that the first to have one begins early. Both
are simulated on the deployed roles; the formula is EDDL's (§4.3).

    python -m benchmarks.eddl_star [--quick] --json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.common import PERNET, Versions
from shoal.learning.layout import Layout
from shoal.net.shared_budget import TURN_HOLD_S
from shoal.plan import Plan, Until
from shoal.sim.devices import Build
from shoal.sim.jobs import system_job
from shoal.sim.network import AccessLink
from shoal.sim.rates import Steady, mbit
from shoal.sim.world import Settings, World
from testbed.results import finish, say

BATCH_S = 1.0
RATES_MBIT = (100.0, 1000.0)
WORKERS = tuple(range(1, 17))
QUICK_WORKERS = (1, 2, 4, 8, 16)
ROUNDS = 6

_LAYOUT = Layout.of([("flat", (PERNET,), "parameter")])


def formula_s(workers: int, rate_mbit: float) -> float:
    """t = l + 2nS/B (EDDL §4.3)."""
    return BATCH_S + 2 * workers * PERNET * 4 / mbit(rate_mbit)


def simulated_s(workers: int, rate_mbit: float, *, turn_hold_s: float) -> float:
    """A batch, from one version to the next, once all workers are in step."""
    rate = Steady(mbit(rate_mbit))
    line = AccessLink(up=rate, down=rate)
    build = Build(
        kind="even",
        seconds_per_gmac=0.0,
        seconds_per_batch=BATCH_S,
        memory_mb=4096,
        line=line,
    )
    plan = Plan(
        batch_size=1, workers_min=workers, workers_max=workers, until=Until(epochs=1), lease_s=60.0, momentum=0.0
    )
    job = system_job(plan, _LAYOUT, examples=workers * ROUNDS, start_s=0.1)
    versions = Versions()
    settings = Settings(seed=0, builds=[build] * workers, home_line=line, jobs=[job], turn_hold_s=turn_hold_s)
    world = World(settings, observers=[versions])
    world.begin()
    if not world.run(limit_s=3600.0):
        raise SystemExit(f"{workers} workers at {rate_mbit:g} Mb/s did not finish")
    # From the first version; the last is told when its save is done, so up to the one before.
    return (versions.made_s[ROUNDS - 2] - versions.made_s[0]) / (ROUNDS - 2)


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
