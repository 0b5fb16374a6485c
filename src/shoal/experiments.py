"""``shoal.simulate`` and ``shoal.compare``: a task on simulated devices for several seeds, and plans side by side."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shoal.cli.comparison import PlanComparison as PlanComparison
from shoal.cli.comparison import compare as compare
from shoal.cli.seed_processes import check_processes, played_plans
from shoal.cli.sweep import SeedProgress, prepared_by_seed
from shoal.data.partition import Partition
from shoal.data.partition_text import parse_partition
from shoal.errors import Misuse
from shoal.learning.algorithm import Algorithm
from shoal.plan import Plan, Until
from shoal.progress import display_here
from shoal.sim.fault_text import parse
from shoal.sim.faults import resolve
from shoal.sim.fleet_file import FleetFile, chosen_devices
from shoal.sim.series import SeedSeries, Setting, made_ready
from shoal.task import Task
from shoal.trainer.find import source_of
from shoal.trainer.guard import stop_if_importing
from shoal.wire.encoding import to_json

#: A plan has its seed in 64 bits.
SEED_LIMIT = 1 << 63


def simulate(
    task: Task,
    *,
    devices: int | None = None,
    plan: Plan | None = None,
    algorithm: Algorithm | None = None,
    until: Until | None = None,
    partition: Partition | str | None = None,
    seeds: int | Sequence[int] = 1,
    profile: str | None = None,
    fleet: str | Path | None = None,
    faults: str = "",
    name: str = "",
    processes: int = 1,
    progress: bool = True,
) -> SeedSeries:
    """Train ``task`` on simulated devices: the roles that a cluster runs, real training, and virtual time.

    ``partition`` divides ``Task.examples("train")`` among the devices and means ``data = "local"``:
    ``shoal.data.dirichlet(0.1)``, or the same as text. ``seeds`` is how many seeds, from 0 on, or which. A seed draws
    the fleet, the first model, the order of examples and the partition. ``algorithm`` is what leaders ask instead of
    deciding by the plan (``shoal.Algorithm``). There are 20 ``devices``, unless you say otherwise, and ``profile`` says
    what they are (`shoal simulate --profiles`). ``fleet`` names a file that says both (docs/plan-a-fleet.md).
    ``faults`` says what goes wrong (docs/simulator.md). ``processes`` is how many seeds are simulated at a time, in as
    many processes.

    ``shoal.compare`` puts several results side by side under their names, by default the name of the
    algorithm's or the task's class.
    """
    stop_if_importing()
    check_processes(processes, algorithm)
    count, kind = chosen_devices(devices=devices, profile=profile, fleet=fleet)
    setting = _setting(devices=count, partition=partition, seeds=seeds, profile=kind, faults=faults)
    values = {**(to_json(plan) if plan else {}), **({"until": until} if until is not None else {})}
    if setting.partition is not None:
        values["data"] = "local"
    display = display_here(wanted=progress)
    try:
        with tempfile.TemporaryDirectory(prefix="shoal-task-") as scratch:
            path, entry = source_of(task, Path(scratch))
            ready_of = prepared_by_seed(
                path, entry, arguments=task.arguments, values=values, setting=setting, tell=display.step
            )
            readies = made_ready(values, setting, ready_of)
        title = name or type(algorithm if algorithm is not None else task).__name__
        look = SeedProgress(len(readies), display.step)
        return played_plans({title: readies}, setting, algorithm=algorithm, processes=processes, look=look)[0]
    finally:
        display.close()


def _setting(
    *,
    devices: int,
    partition: Partition | str | None,
    seeds: int | Sequence[int],
    profile: str | FleetFile,
    faults: str,
) -> Setting:
    setting = Setting(
        devices=devices,
        profile=profile,
        seeds=_seeds(seeds),
        partition=parse_partition(partition) if isinstance(partition, str) else partition,
        faults=parse(faults),
    )
    for fault in setting.faults:
        resolve(fault.who, workers=devices)
    return setting


def _seeds(given: int | Sequence[int]) -> tuple[int, ...]:
    """Read how many seeds there are, or which. Numbers of numpy become Python's, which do not overflow."""
    try:
        chosen = tuple(range(given)) if isinstance(given, int) else tuple(map(operator.index, given))
    except TypeError:
        chosen = ()
    if not chosen or len(set(chosen)) < len(chosen) or not all(-SEED_LIMIT <= seed < SEED_LIMIT for seed in chosen):
        raise Misuse(f"seeds = {given!r}: say how many, such as 3, or different ones, such as (1, 2, 3)")
    return chosen
