"""``shoal simulate`` with several seeds or several plans: the same series as ``shoal.simulate``, from words."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shoal.cli import screen
from shoal.cli.commands.train import plan_values
from shoal.cli.comparison import PlanComparison, compare
from shoal.cli.seed_processes import check_processes, played_plans
from shoal.cli.simulation import Question
from shoal.data.partition_text import parse_partition
from shoal.errors import Misuse
from shoal.runtime.paths import Paths, default_home
from shoal.sim.series import Setting, made_ready
from shoal.sim.study import Glance
from shoal.trainer.find import find_task
from shoal.trainer.package import ReadyTask, make_ready

#: Plans of one sweep: each of them is trained for every seed.
PLANS_MAX = 64


def swept(texts: Sequence[str]) -> list[dict[str, str]]:
    """Read ``learning_rate=0.01,0.1`` as plans, every value of one key with every value of the others."""
    axes: list[list[tuple[str, str]]] = []
    for text in texts:
        name, equals, values = text.partition("=")
        found = [value.strip() for value in values.split(",")]
        if not equals or not name or not all(found) or len(set(found)) < len(found):
            raise Misuse(f"--sweep {text!r}: write KEY=VALUE,VALUE with different values, as learning_rate=0.01,0.1")
        axes.append([(name, value) for value in found])
    names = [axis[0][0] for axis in axes]
    if len(set(names)) < len(names):
        raise Misuse(f"--sweep names a key twice: {', '.join(names)}")
    plans = [dict(pairs) for pairs in itertools.product(*axes)]
    if len(plans) > PLANS_MAX:
        raise Misuse(f"these are {len(plans)} plans, and a sweep has at most {PLANS_MAX}: leave out some values")
    return plans


def answer(question: Question, *, seeds: int, sweep: Sequence[str], processes: int = 1) -> PlanComparison:
    """Simulate every plan for every seed. Raises Misuse before the first if one of them cannot be."""
    check_processes(processes)
    setting = Setting(
        devices=question.devices,
        profile=question.profile,
        seeds=tuple(range(question.seed, question.seed + seeds)),
        partition=parse_partition(question.partition) if question.partition else None,
        faults=question.faults,
        train=question.train,
    )
    plans = plans_of(question, sweep)
    path, entry = find_task(question.task)
    tell = screen.Teller(screen.err())
    ready_of = prepared_by_seed(
        path, entry, arguments=question.arguments, values=question.plan, setting=setting, tell=tell
    )
    by_seed = {seed: ready_of(seed) for seed in setting.seeds}
    readies = {name: made_ready(values, setting, by_seed.__getitem__) for name, values in plans.items()}
    with screen.err().status("  simulating") as status:
        look = SeedProgress(len(setting.seeds), lambda text: status.update(f"  {text}"))
        series = played_plans(readies, setting, processes=processes, look=look)
    return compare(*series)


def plans_of(question: Question, sweep: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return every plan by its name, as plain values."""
    found: dict[str, dict[str, Any]] = {}
    for pairs in swept(sweep):
        # Whether it makes a plan is seen with the rest of the plan, before anything is simulated.
        typed = plan_values([f"{name}={value}" for name, value in pairs.items()])
        name = ", ".join(f"{name}={value}" for name, value in pairs.items()) or "plan"
        found[name] = {**question.plan, **typed}
    if question.versus:
        if sweep:
            raise Misuse("--versus is one other plan, and --sweep is several: leave out one of them")
        found[question.title({**question.plan, **question.versus})] = {**question.plan, **question.versus}
    return found


def prepared_by_seed(
    path: Path,
    entry: str,
    *,
    arguments: Mapping[str, Any],
    values: Mapping[str, Any],
    setting: Setting,
    tell: Callable[[str], None],
) -> Callable[[int], ReadyTask]:
    """Return what makes a task ready for a seed, which draws its first model."""

    def ready_of(seed: int) -> ReadyTask:
        preparing = make_ready(
            path,
            entry,
            out=Paths(default_home()).prepared,
            kwargs=arguments,
            plan={**values, "seed": seed},
            divided=setting.partition is not None,
            on_progress=tell,
        )
        return _run(preparing)

    return ready_of


def _run(preparing: Coroutine[Any, Any, ReadyTask]) -> ReadyTask:
    """Run this to its end, also where an event loop runs already, as in every notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(preparing)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, preparing).result()


class SeedProgress:
    """Reports how far several seeds are."""

    def __init__(self, count: int, tell: Callable[[str], object]) -> None:
        self._count, self._tell = count, tell
        self._begun: dict[str, list[int]] = {}

    def __call__(self, name: str, seed: int, glance: Glance) -> None:
        begun = self._begun.setdefault(name, [])
        if seed not in begun:
            begun.append(seed)
        version = glance.progress.version if glance.progress is not None else 0
        at = f"seed {begun.index(seed) + 1} of {self._count}"
        self._tell(f"{name}, {at}: version {version}, {glance.at_s:,.0f} s simulated")
