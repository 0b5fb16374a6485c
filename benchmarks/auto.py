"""Does ``auto`` find the best shape? Star, tree and shard against what it settles on, over a grid of clusters.

Each cell of the grid is a cluster in the simulator, on the deployed roles: so many workers, links of one rate, a model,
stragglers or none, links of their own or one shared air. What counts is the time from one version to the next once that
is steady: of the three shapes when a plan names them, and of ``auto`` when it has stopped changing its mind. The rounds
in which ``auto`` looks and changes are told apart: how many, and how much longer they took than the best shape would
have.

Beside it: what ``auto`` predicted for each shape when it first chose, against what that shape then took; and the pace,
for clusters with stragglers: what a lease of each worker takes in step and where nobody is waited for, and which of the
two ``pace = "auto"`` takes.

    python -m benchmarks.auto [--quick] --json
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from statistics import mean, median
from typing import Any

from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Record, Send
from shoal.roles.leader.gathering.policy import LATE_COSTS
from shoal.roles.node.failure_detector import Patience
from shoal.sim.devices import Build
from shoal.sim.jobs import system_job
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.rates import Steady, mbit
from shoal.sim.wire_size import Weighed
from shoal.sim.world import Settings, World
from shoal.topology.choose import ROUNDS_OFF, ROUNDS_SETTLING
from shoal.wire.limits import UPLOAD_BUDGET_BYTES
from shoal.wire.messages import NO_TENSORS, Message, Progress, TopologyView, Work
from testbed.results import finish, say

#: Training one lease, on a device that is no straggler.
TRAIN_S = 1.0
SLOW = 4.0
NARROW = 10.0

WORKERS = (2, 4, 8, 16, 32)
RATES_MBIT = (10.0, 100.0, 1000.0)
MODELS_MB = (0.2, 2.9, 40.0)
#: Some of both, in which a model takes about as long: 0.16, 0.23 and 0.32 s.
LOADS = ((10.0, 0.2), (100.0, 2.9), (1000.0, 40.0))
STRAGGLERS = ("none", "one slow", "quarter slow", "narrow uplink")
MEDIA = ("own", "air")
SHAPES = ("star", "tree", "shard")

#: A fixed shape holds: rounds that are passed over, and rounds that are measured.
PASSED_OVER = 1
MEASURED = 2
#: Where nobody waits for anybody, no two rounds are alike.
MEASURED_FLOWING = 12
#: ``auto`` has settled once it changed nothing for longer than it takes to find that rounds are not as predicted.
QUIET = ROUNDS_SETTLING + ROUNDS_OFF + 4
ROUNDS_MOST = 120

#: Nobody goes silent here, and some rounds take many minutes: heartbeats are rare, so that those are simulated soon.
PATIENCE = Patience(heartbeat_s=30.0, suspect_after_s=90.0, lost_after_s=240.0, reconnect_s=45.0)

#: Models are held in memory up to this size; a larger one is a smaller one that is heavier on the wire.
LIGHT_MB = 0.5

TARGET = 1.10


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A cluster and what it trains."""

    workers: int
    rate_mbit: float
    model_mb: float
    stragglers: str = "none"
    medium: str = "own"

    @property
    def shapes(self) -> tuple[str, ...]:
        """A tree of two workers is none."""
        return SHAPES if self.workers > 2 else ("star", "shard")


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """How one job went."""

    #: A lease of every worker, once that is steady: in step, from one version to the next.
    round_s: float
    #: What it settled on.
    shape: str
    pace: str
    #: Rounds until that held, how long they took, and how often shape or pace changed.
    settle_rounds: int
    settle_s: float
    changes: int
    is_settled: bool
    #: Leases that were given up on the way, though nobody failed.
    expired: int
    #: Shape -> what a round was predicted to take in it, when it was first chosen.
    predicted_s: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What each shape takes on a cluster, and ``auto``."""

    case: Case
    fixed: dict[str, Course]
    auto: Course

    @property
    def fixed_s(self) -> dict[str, float]:
        """Shape -> seconds a round, of those that came to hold."""
        return {shape: told.round_s for shape, told in self.fixed.items() if told.shape == shape}

    @property
    def expired(self) -> int:
        return sum(told.expired for told in (*self.fixed.values(), self.auto))

    @property
    def best(self) -> str:
        return min(self.fixed_s, key=lambda shape: (self.fixed_s[shape], SHAPES.index(shape)))

    @property
    def ratio(self) -> float:
        return self.auto.round_s / self.fixed_s[self.best]

    @property
    def errors(self) -> dict[str, float]:
        """Shape -> by how much a round was longer than was predicted, as a share of the prediction."""
        fixed_s = self.fixed_s
        return {shape: fixed_s[shape] / s - 1 for shape, s in self.auto.predicted_s.items() if shape in fixed_s}


class Heavier(Weighed):
    """Tensors that stand for larger ones: so many times as heavy as they are. Memory and sums cost less by that."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def pack(self, message: Message) -> tuple[Message, int]:
        packed, size_bytes = super().pack(message)
        tensors = getattr(message, "tensors", NO_TENSORS)
        return packed, size_bytes + (self._times - 1) * sum(array.nbytes for array in tensors.values())


class Watcher:
    """Watches a simulation of one job: when leases are lent, which shape and pace hold, what is predicted."""

    def __init__(self, workers: int, pace: str) -> None:
        self._workers = workers
        #: When each lease was lent, and the first of each version.
        self.lent_s: list[float] = []
        self.begun_s: list[float] = []
        self.shape, self.pace = "star", "sync" if pace == "auto" else pace
        self.changes = self.expired = 0
        #: Leases when shape or pace last changed, and when anything was last chosen.
        self.changed_at = self._chosen_at = 0
        #: What there was to choose from, at first and now.
        self.first_views: tuple[TopologyView, ...] = ()
        self._views: tuple[TopologyView, ...] = ()
        #: Called after leases were lent; may find that this was long enough.
        self.on_lent: Callable[[], object] = lambda: None
        self.is_enough = False

    def step(self, step: Step) -> None:
        if step.role != "leader":
            return
        lent = len(self.lent_s)
        for action in step.actions:
            match action:
                case Record(kind="lease.expired"):
                    self.expired += 1
                case Record(kind="topology.changed" | "pace.changed" as kind, reason=reason):
                    setattr(self, "pace" if kind == "pace.changed" else "shape", reason.split()[0].strip(":,"))
                    self.changes += 1
                    self.changed_at = len(self.lent_s)
                case Send(message=Work(kind="train", version=version)):
                    self.lent_s.append(step.at_s)
                    if version >= len(self.begun_s):
                        self.begun_s.append(step.at_s)
                case Send(message=Progress(alternatives=views)) if views != self._views:
                    self.first_views = self.first_views or views
                    self._views, self._chosen_at = views, len(self.lent_s)
        if len(self.lent_s) > lent:
            self.on_lent()

    def mark(self, mark: Mark) -> None:
        pass

    @property
    def rounds(self) -> float:
        """In each, as many leases as there are workers."""
        return len(self.lent_s) / self._workers

    @property
    def quiet(self) -> float:
        """Rounds since shape or pace changed, or something was chosen."""
        return self.rounds - max(self.changed_at, self._chosen_at) / self._workers

    def round_s(self, rounds: int) -> float:
        """Of the last of them: from version to version where these wait for everyone, else by leases."""
        if self.pace == "sync":
            return (self.begun_s[-1] - self.begun_s[-1 - rounds]) / rounds
        return (self.lent_s[-1] - self.lent_s[-1 - rounds * self._workers]) / rounds


def course(case: Case, shape: str, pace: str = "sync") -> Course:
    """One job on this cluster, until it is steady."""
    plan = Plan(
        batch_size=1,
        workers_min=case.workers,
        workers_max=case.workers,
        until=Until(epochs=1),
        # Nobody is given up here: how long a lease may take is another question.
        lease_s=36_000.0,
        momentum=0.0,
        topology=shape,
        pace=pace,
        buffer=max(1, case.workers - slow_workers(case)),
    )
    world, watcher = _world(case, plan)
    is_auto = "auto" in (shape, pace)
    measured = MEASURED if pace == "sync" else MEASURED_FLOWING

    # The leases of a round are lent at its beginning: one more round than is measured.
    enough = 1 + PASSED_OVER + measured

    def look() -> None:
        has_settled = bool(watcher.first_views) if is_auto else watcher.shape == shape
        is_long = watcher.quiet >= (max(QUIET, enough) if is_auto else enough)
        watcher.is_enough = (has_settled and is_long) or watcher.rounds >= ROUNDS_MOST

    watcher.on_lent = look
    if not world.kernel.run(lambda: watcher.is_enough, limit_s=1e7):
        raise SystemExit(f"{case} as a {shape} did not get on")
    changed_at = watcher.changed_at
    return Course(
        round_s=watcher.round_s(measured),
        shape=watcher.shape,
        pace=watcher.pace,
        settle_rounds=round(changed_at / case.workers),
        settle_s=watcher.lent_s[changed_at] - watcher.lent_s[0],
        changes=watcher.changes,
        is_settled=watcher.rounds < ROUNDS_MOST,
        expired=watcher.expired,
        predicted_s={view.topology: view.batch_s for view in watcher.first_views if view.pace == "sync"},
    )


def _world(case: Case, plan: Plan) -> tuple[World, Watcher]:
    times = max(1, round(case.model_mb / LIGHT_MB))
    values = int(case.model_mb * 1e6 / 4 / times)
    layout = Layout.of([("flat", (values,), "parameter")])
    job = system_job(plan, layout, examples=case.workers * ROUNDS_MOST * 2, start_s=0.1)
    watcher = Watcher(case.workers, plan.pace)
    rate = Steady(mbit(case.rate_mbit))
    settings = Settings(
        seed=0,
        builds=builds(case),
        home_line=AccessLink(up=rate, down=rate),
        jobs=[job],
        patience=PATIENCE,
        upload_budget_bytes=UPLOAD_BUDGET_BYTES // times,
    )
    world = World(settings, sizer=Heavier(times), observers=[watcher])
    world.begin()
    return world, watcher


def slow_workers(case: Case) -> int:
    return {"one slow": 1, "quarter slow": case.workers // 4}.get(case.stragglers, 0)


def builds(case: Case) -> list[Build]:
    """The devices. Stragglers are the last ones."""
    rate = Steady(mbit(case.rate_mbit))
    even = Build(
        kind="even",
        seconds_per_gmac=0.0,
        seconds_per_batch=TRAIN_S,
        memory_mb=4096,
        line=AccessLink(up=rate, down=rate, medium="air" if case.medium == "air" else ""),
    )
    slow = slow_workers(case)
    made = [even] * (case.workers - slow) + [replace(even, seconds_per_batch=SLOW * TRAIN_S)] * slow
    if case.stragglers == "narrow uplink":
        made[-1] = replace(even, line=replace(even.line, up=Steady(mbit(case.rate_mbit / NARROW))))
    return made


# The grid ------------------------------------------------------------------------------------------------


def grid(sizes: Sequence[int] = WORKERS) -> list[Case]:
    """All that differ and can be simulated in time."""
    every = itertools.product(sizes, RATES_MBIT, MODELS_MB, STRAGGLERS, MEDIA)
    cases = [
        Case(workers=workers, rate_mbit=rate, model_mb=model, stragglers=stragglers, medium=medium)
        for workers, rate, model, stragglers, medium in every
    ]
    return [case for case in cases if not _is_left_out(case)]


def _is_left_out(case: Case) -> bool:
    if case.stragglers == "quarter slow" and case.workers < 8:
        # A quarter of four is one, and of two none.
        return True
    if case.workers > 16:
        # A shard of so many has a thousand connections: a few that stand for the others.
        return (case.rate_mbit, case.model_mb) not in LOADS or case.stragglers not in ("none", "narrow uplink")
    # A round of these takes up to half an hour: nobody trains so.
    return case.workers > 4 and case.model_mb / case.rate_mbit > 1


def quick_grid() -> list[Case]:
    """Some of each kind, and few that are large."""
    found = [
        Case(workers=workers, rate_mbit=rate, model_mb=model, stragglers=stragglers, medium=medium)
        for workers, (rate, model), (stragglers, medium) in itertools.product(
            (2, 4, 8), LOADS, (("none", "own"), ("one slow", "own"), ("narrow uplink", "own"), ("none", "air"))
        )
    ]
    return [*found, Case(workers=16, rate_mbit=100.0, model_mb=2.9)]


def straggling(cases: Iterable[Case]) -> list[Case]:
    """The cells in which the pace is a question."""
    return [case for case in cases if slow_workers(case) and case.workers > 2 and case.medium == "own"]


def _run(job: tuple[Case, str, str]) -> Course:
    return course(*job)


def run_all(jobs: Sequence[tuple[Case, str, str]]) -> dict[tuple[Case, str, str], Course]:
    """Side by side, as many as there are cores. The large ones first: they would be waited for at the end."""
    order = sorted(jobs, key=lambda job: (-job[0].workers, -job[0].model_mb / job[0].rate_mbit, job[1] != "auto"))
    found = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for number, (job, done) in enumerate(zip(order, pool.map(_run, order), strict=True), start=1):
            found[job] = done
            if number % 50 == 0:
                say(f"{number} of {len(order)} jobs simulated")
    return {job: found[job] for job in jobs}


def show(cells: Sequence[Cell]) -> None:
    say(
        f"{'n':>3} {'Mb/s':>5} {'MB':>5} {'stragglers':13} {'links':5} {'star':>9} {'tree':>9} {'shard':>9}"
        f" {'auto':>9} {'took':6} {'ratio':>6} {'rounds':>6} {'predictions off by':>20}"
    )
    for cell in cells:
        case, auto = cell.case, cell.auto
        times = " ".join(f"{cell.fixed_s.get(shape, math.nan):8.2f}s" for shape in SHAPES)
        off = " ".join(f"{cell.errors.get(shape, math.nan):+6.1%}" for shape in SHAPES)
        say(
            f"{case.workers:3} {case.rate_mbit:5.0f} {case.model_mb:5.1f} {case.stragglers:13} {case.medium:5} {times}"
            f" {auto.round_s:8.2f}s {auto.shape:6} {cell.ratio:6.3f} {auto.settle_rounds:6} {off}"
            f"{'' if auto.is_settled else '  did not settle'}{'' if cell.ratio <= TARGET else '  <- over'}"
            f"{f'  {cell.expired} leases expired' if cell.expired else ''}"
        )


def show_paces(rows: Sequence[tuple[Case, Course, Course, Course]]) -> None:
    say("a lease of each worker:")
    say(f"{'n':>3} {'Mb/s':>5} {'MB':>5} {'stragglers':13} {'in step':>17} {'buffered':>17} {'auto':>9} took")
    for case, sync, buffered, auto in rows:
        say(
            f"{case.workers:3} {case.rate_mbit:5.0f} {case.model_mb:5.1f} {case.stragglers:13}"
            f" {sync.round_s:8.2f}s ({sync.shape:5}) {buffered.round_s:8.2f}s ({buffered.shape:5})"
            f" {auto.round_s:8.2f}s {auto.pace} {auto.shape}"
        )


def summary(cells: Sequence[Cell]) -> dict[str, Any]:
    """The figures of the grid."""
    ratios = [cell.ratio for cell in cells]
    worst = max(cells, key=lambda cell: cell.ratio)
    errors = [abs(error) for cell in cells if cell.case.medium == "own" for error in cell.errors.values()]
    air = [abs(error) for cell in cells if cell.case.medium != "own" for error in cell.errors.values()]
    return {
        "cells": len(cells),
        "worst_ratio": max(ratios),
        "worst_cell": asdict(worst.case),
        "mean_ratio": mean(ratios),
        "over_target": sum(ratio > TARGET for ratio in ratios),
        "within_target": max(ratios) <= TARGET,
        "chosen": dict(sorted(Counter(cell.auto.shape for cell in cells).items())),
        "best": dict(sorted(Counter(cell.best for cell in cells).items())),
        "prediction_error_median": median(errors),
        "prediction_error_max": max(errors),
        "prediction_error_air_median": median(air) if air else None,
        "settle_rounds_median": median(cell.auto.settle_rounds for cell in cells),
        "settle_rounds_max": max(cell.auto.settle_rounds for cell in cells),
        "changes_max": max(cell.auto.changes for cell in cells),
        "never_held": sum(len(cell.fixed) - len(cell.fixed_s) for cell in cells),
        "expired": sum(cell.expired for cell in cells),
        "not_settled": sum(not cell.auto.is_settled for cell in cells),
    }


def pace_summary(rows: Sequence[tuple[Case, Course, Course, Course]]) -> dict[str, Any]:
    """What the pace was where stragglers make it a question. Right is what ``LATE_COSTS`` says of what was measured."""
    right = sum(
        (auto.pace == "buffered") == (buffered.round_s * LATE_COSTS < sync.round_s) for _, sync, buffered, auto in rows
    )
    return {
        "pace_cells": len(rows),
        "pace_chosen": dict(sorted(Counter(auto.pace for *_, auto in rows).items())),
        "pace_right": right,
        "pace_speedup_max": max((sync.round_s / auto.round_s for _, sync, _, auto in rows), default=None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a part of the grid, up to 16 workers")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--workers", metavar="N,N,...", help="the grid of only these sizes")
    given = parser.parse_args()
    sizes = [int(size) for size in given.workers.split(",")] if given.workers else WORKERS
    cases = quick_grid() if given.quick else grid(sizes)
    paced = straggling(cases)
    jobs = [(case, shape, "sync") for case in cases for shape in (*case.shapes, "auto")]
    flowing = [(case, shape, pace) for case in paced for shape, pace in (("star", "buffered"), ("auto", "auto"))]
    done = run_all([*jobs, *flowing])
    cells = [
        Cell(
            case=case,
            fixed={shape: done[case, shape, "sync"] for shape in case.shapes},
            auto=done[case, "auto", "sync"],
        )
        for case in cases
    ]
    show(cells)
    rows = [
        (case, done[case, "auto", "sync"], done[case, "star", "buffered"], done[case, "auto", "auto"]) for case in paced
    ]
    show_paces(rows)
    finish(summary(cells) | pace_summary(rows))


if __name__ == "__main__":
    main()
