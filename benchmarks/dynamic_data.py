"""Lending batches against fixed shares: how long is an epoch where two of eight devices are four times slower?

EDDL (§6.5, Figure 13) compares its dynamic distribution with static shares of the data. Both are choices of a plan here
(``work = "leased" | "fixed"``) and are simulated on the deployed roles, in the synchronous and the asynchronous pace:
PerNet over links of 1000 Mb/s, one second a batch, four on the slow ones, give or take 5 %.

    python -m benchmarks.dynamic_data [--quick] --json
"""

from __future__ import annotations

import argparse

from benchmarks.common import PERNET
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Record
from shoal.sim.devices import Build
from shoal.sim.jobs import system_job
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.rates import Steady, mbit
from shoal.sim.world import Settings, World
from testbed.results import finish, say

WORKERS = 8
SLOW = 2
SLOWER = 4.0
BATCH_S = 1.0
JITTER = 0.05
RATE_MBIT = 1000.0
#: EDDL's epoch: 6,656 examples in batches of 128.
BATCHES = 52
EPOCHS, QUICK_EPOCHS = 20, 4
#: Models and links are both a twentieth of what they stand for: as long in simulated time.
SMALLER = 20


class Ends:
    """Watches when epochs end."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def step(self, step: Step) -> None:
        if step.role == "leader":
            self.at_s += [
                step.at_s for action in step.actions if isinstance(action, Record) and action.kind == "epoch.done"
            ]

    def mark(self, mark: Mark) -> None:
        pass


def epoch_s(*, work: str, pace: str, epochs: int, slow: int = SLOW) -> float:
    """An epoch once everyone is here: the first is left out."""
    rate = Steady(mbit(RATE_MBIT / SMALLER))
    line = AccessLink(up=rate, down=rate)
    builds = [
        Build(
            kind="slow" if number < slow else "even",
            seconds_per_gmac=0.0,
            seconds_per_batch=BATCH_S * (SLOWER if number < slow else 1.0),
            jitter=JITTER,
            memory_mb=4096,
            line=line,
        )
        for number in range(WORKERS)
    ]
    plan = Plan(
        work=work,
        pace=pace,
        batch_size=1,
        workers_min=WORKERS,
        workers_max=WORKERS,
        until=Until(epochs=epochs + 1),
        momentum=0.0,
    )
    job = system_job(plan, Layout.of([("flat", (PERNET // SMALLER,), "parameter")]), examples=BATCHES, start_s=0.1)
    ends = Ends()
    world = World(Settings(seed=0, builds=builds, home_line=line, jobs=[job]), observers=[ends])
    world.begin()
    if not world.run(limit_s=1e5):
        raise SystemExit(f"{work}, {pace}: did not finish")
    return (ends.at_s[-1] - ends.at_s[0]) / epochs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_EPOCHS} epochs instead of {EPOCHS}")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    epochs = QUICK_EPOCHS if parser.parse_args().quick else EPOCHS
    result: dict[str, float] = {}
    for pace in ("sync", "async"):
        for slow, name in ((SLOW, ""), (0, "_even")):
            leased_s, fixed_s = (
                epoch_s(work=work, pace=pace, epochs=epochs, slow=slow) for work in ("leased", "fixed")
            )
            result[f"epoch_leased_{pace}{name}_s"], result[f"epoch_fixed_{pace}{name}_s"] = leased_s, fixed_s
            result[f"ratio_{pace}{name}"] = leased_s / fixed_s
            say(f"{pace}, {slow} of {WORKERS} slow: leased {leased_s:.2f} s an epoch, fixed {fixed_s:.2f} s")
    finish(result)


if __name__ == "__main__":
    main()
