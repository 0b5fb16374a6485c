"""Requests, sizes and what they took, for several profilers under the same conditions. Knows no processes.

Whatever carries tasks out is a ``Ground``: processes with quotas (``slo_trainers``), the device model (``slo_energy``),
or a formula here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from benchmarks.iprof import IProf
from benchmarks.maui import Maui
from benchmarks.slo_fleet import Member, draw_fleet
from shoal.scheduling.profile.conformal import WithMargin
from shoal.scheduling.profile.features import Features
from shoal.scheduling.profile.logrls import LogRls
from shoal.scheduling.profile.sizing import Profiler
from shoal.sim.rng import Rng

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: FLeet's: devices of the offline set, devices of the test, requests of each.
TEACHERS, DEVICES, REQUESTS = 15, 20, 14

#: "After three requests": from the fourth on.
EARLY = 3

#: A training device is asked for twice as much again until a task takes so many budgets, as in FLeet §3.3.
RAMP_BUDGETS = 2.0
RAMP_MOST = 24


class Ground(Protocol):
    """Where tasks are carried out. Devices go by name, and requests are counted from 0."""

    def features(self, device: str, request: int) -> Features:
        """What the device says of itself then."""

    def spend(self, device: str, request: int, examples: int) -> float:
        """Train so many examples there, under the conditions of that request; what it took."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One that was carried out. As shares of the budget."""

    device: str
    request: int
    examples: int
    spent: float
    reason: str

    @property
    def deviation(self) -> float:
        return abs(self.spent - 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Of one profiler."""

    p90: float
    #: From the fourth request of each device on.
    p90_late: float
    #: Share of tasks over budget.
    overshoot: float
    overshoot_late: float
    #: The most budgets that a first request of a device took.
    worst_first: float
    tasks: int


def contenders(*, unit: str = "s", energy: bool = False, within: float) -> dict[str, Profiler]:
    """``plain`` is ours without its margin: over as often as under, as I-Prof is, and so to be compared with it."""
    return {
        "ours": WithMargin(LogRls(unit=unit, energy=energy), within=within),
        "plain": LogRls(unit=unit, energy=energy),
        "iprof": IProf(unit=unit, energy=energy),
        "maui": Maui(unit=unit),
    }


def teach(
    profilers: Mapping[str, Profiler],
    devices: Sequence[str],
    ground: Ground,
    budget: float,
    *,
    first: int,
    at_once: int = 1,
) -> int:
    """The offline set: each training device does ever larger tasks, from ``first`` examples on.

    All learn from the same; says how many there were.
    """

    def ramp(device: str) -> list[tuple[Features, int, float]]:
        rows: list[tuple[Features, int, float]] = []
        while len(rows) < RAMP_MOST:
            request, examples = len(rows), first * 2 ** len(rows)
            rows.append((ground.features(device, request), examples, ground.spend(device, request, examples)))
            if rows[-1][2] >= RAMP_BUDGETS * budget:
                break
        return rows

    tasks = 0
    for rows in _mapped(ramp, devices, at_once):
        for row in rows:
            for profiler in profilers.values():
                profiler.observed(*row)
        tasks += len(rows)
    return tasks


def contest(
    profilers: Mapping[str, Profiler],
    devices: Sequence[str],
    ground: Ground,
    budget: float,
    *,
    requests: int,
    at_once: int = 1,
    after_each: Callable[[int, Mapping[str, Sequence[Task]]], None] = lambda request, done: None,
) -> dict[str, list[Task]]:
    """Every device asks every profiler once a round; they take turns in going first. Each learns from its own tasks.

    ``at_once``: so many devices work at a time; each does one task after the other.
    """
    done: dict[str, list[Task]] = {name: [] for name in profilers}
    names = list(profilers)
    deciding = threading.Lock()

    def ask(request: int, name: str, device: str) -> Task:
        features = ground.features(device, request)
        with deciding:
            sizing = profilers[name].decide(features, budget)
        spent = ground.spend(device, request, sizing.examples)
        with deciding:
            profilers[name].observed(features, sizing.examples, spent)
        return Task(
            device=device, request=request, examples=sizing.examples, spent=spent / budget, reason=sizing.reason
        )

    for request in range(requests):

        def turn(place: int, request: int = request) -> dict[str, Task]:
            first = (request + place) % len(names)
            return {name: ask(request, name, devices[place]) for name in names[first:] + names[:first]}

        for tasks in _mapped(turn, range(len(devices)), at_once):
            for name in names:
                done[name].append(tasks[name])
        after_each(request, done)
    return done


def _mapped(work: Callable[[_Item], _Result], items: Sequence[_Item], at_once: int) -> list[_Result]:
    """In the order of the items. One at a time needs no thread, and is the same in every run."""
    if at_once == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(work, items))


def last(done: Mapping[str, Sequence[Task]], request: int) -> str:
    """The median deviation of each in one round."""
    medians = (
        (name, float(np.median([t.deviation for t in tasks if t.request == request]))) for name, tasks in done.items()
    )
    return ", ".join(f"{name} {100 * value:.0f} % off" for name, value in medians)


def score(tasks: Sequence[Task]) -> Score:
    late = [task for task in tasks if task.request >= EARLY]
    return Score(
        p90=_p90(tasks),
        p90_late=_p90(late),
        overshoot=float(np.mean([task.spent > 1 for task in tasks])),
        overshoot_late=float(np.mean([task.spent > 1 for task in late])),
        worst_first=max(task.spent for task in tasks if task.request == 0),
        tasks=len(tasks),
    )


def _p90(tasks: Sequence[Task]) -> float:
    return float(np.percentile([task.deviation for task in tasks], 90))


class Drawn:
    """Tasks that take what a formula says, with each device's noise. No process runs."""

    def __init__(self, seed: int, members: Iterable[Member], *, seconds_per_example: float = 0.01) -> None:
        self._chance = Rng(seed)
        self._members = {member.name: member for member in members}
        self._per_example_s = seconds_per_example

    def features(self, device: str, request: int) -> Features:
        return self._members[device].features(request)

    def spend(self, device: str, request: int, examples: int) -> float:
        member = self._members[device]
        # The same for whoever sized it: so a difference between two profilers is theirs.
        noise = member.noise * self._chance.stream("noise", f"{device} {request}").normal()
        return examples * self._per_example_s / member.moments[request].speed * math.exp(noise)


def drawn_contest(seed: int, profilers: Mapping[str, Profiler], *, budget_s: float = 3.0) -> dict[str, list[Task]]:
    """FLeet's set-up on drawn devices: 15 to learn from, then 20 others with 14 requests each."""
    teachers = draw_fleet(seed, TEACHERS, requests=RAMP_MOST, name="teacher")
    members = draw_fleet(seed, DEVICES, requests=REQUESTS)
    ground = Drawn(seed, [*teachers, *members])
    teach(profilers, [member.name for member in teachers], ground, budget_s, first=8)
    return contest(profilers, [member.name for member in members], ground, budget_s, requests=REQUESTS)
