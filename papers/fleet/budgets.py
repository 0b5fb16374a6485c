"""Figures 12 and 13: how far nine of ten tasks are from their budget, in seconds and in points of a battery.

The contest is ``benchmarks.slo``'s without processes: devices whose seconds follow a formula, and phones of the
simulator that warm and drain. Nothing is measured on a device; ``python -m benchmarks.slo`` has agents under quotas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks.slo import modelled_contest
from benchmarks.slo_loop import Task, contenders, drawn_contest, score
from papers.fleet.paper import BUDGETS
from papers.harness.rows import Row
from shoal.scheduling.profile.conformal import WITHIN

SEEDS = tuple(range(1, 11))

#: By the unit of the budget.
CONTESTS: Mapping[str, Callable[[int], Mapping[str, Sequence[Task]]]] = {
    "seconds": lambda seed: drawn_contest(seed, contenders(within=WITHIN), budget_s=BUDGETS["seconds"].size),
    "battery": lambda seed: modelled_contest(seed, within=WITHIN),
}


def run(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for unit, contest in CONTESTS.items():
        found: dict[str, list[float]] = {}
        for seed in SEEDS[:1] if quick else SEEDS:
            for name, tasks in contest(seed).items():
                # All requests, as in the paper, also the first of a device.
                found.setdefault(name, []).append(BUDGETS[unit].size * score(tasks).p90)
        rows += [
            {"unit": unit, "profiler": name, "off": median(by_seed), "by_seed": by_seed}
            for name, by_seed in found.items()
        ]
    return rows
