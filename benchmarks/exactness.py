"""Whether two agents give what one process would: the same jobs by plain PyTorch, on the batches that were applied.

python -m benchmarks.exactness --json            three seeds, the worst of each figure
python -m benchmarks.exactness --quick --json    one seed, within a minute

An error is the largest difference of a parameter. AdamW is held against a run of PyTorch in float64, and its error is
divided by that of PyTorch in float32: K's bias has no true gradient in attention, and float32 steps along noise there.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from benchmarks.exactness_tasks import Gpt, Language, Line
from shoal.errors import ShoalError
from shoal.learning.schedule import Schedule
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.scheduling.batches import batch_indices, epoch_order
from shoal.store.registry import Registry
from shoal.trainer.package import ReadyTask
from shoal.wire import tensors
from testbed.results import finish, say

TASKS_FILE = Path("benchmarks/exactness_tasks.py")
#: The longest that one job may take.
JOB_S = 180.0
SEEDS = (0, 1, 2)

RATE, DECAY, SCHEDULE = 3e-3, 0.1, "warmup 4 cosine 20"
CLIP, MOMENTUM, LEARNING_RATE = 0.1, 0.9, 0.1
WINDOW, LEASE_BATCHES, LINE_RATE = 4, 6, 0.5

ADAMW = {
    "batch_size": 16,
    "outer": "adamw",
    "outer_rate": RATE,
    "weight_decay": DECAY,
    "schedule": SCHEDULE,
    "workers_min": 2,
    "evaluate_every_epochs": 12,
    "until": {"epochs": 12},
}
TWO_GROUPS = {**ADAMW, "decay_skips": "vectors"}
CLIPPED = {
    "batch_size": 16,
    "learning_rate": LEARNING_RATE,
    "momentum": MOMENTUM,
    "clip_mean": CLIP,
    "workers_min": 2,
    "evaluate_every_epochs": 12,
    "until": {"epochs": 12},
}
#: Windows of 4 and 2 batches: an eighth of a sum, a quarter and a half of it are all numbers of float32.
ACCUMULATED = {
    "batch_size": 4,
    "accumulate": WINDOW,
    "lease_batches": LEASE_BATCHES,
    "learning_rate": LINE_RATE,
    "momentum": 0.0,
    "workers_min": 2,
    "evaluate_every_epochs": 3,
    "until": {"epochs": 3},
}

Values: TypeAlias = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Course:
    """A job that ended: its first model, its last one, and the batches of each version by lease."""

    first: Values
    last: Values
    #: For each version its leases, each an epoch and batches in order.
    versions: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]


def versions_of(rows: Iterable[Any]) -> tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]:
    """Group the rows of a job's history by version and lease."""
    found = []
    for _, version in groupby(sorted(rows, key=lambda row: (row.version, row.lease)), lambda row: row.version):
        leases = [list(lease) for _, lease in groupby(version, lambda row: row.lease)]
        found.append(tuple((lease[0].epoch, tuple(row.batch for row in lease)) for lease in leases))
    return tuple(found)


def largest(one: Values, other: Values) -> tuple[float, str]:
    """The largest difference of a value, and the tensor that has it."""
    gaps = {name: float(np.abs(one[name].astype(np.float64) - other[name]).max()) for name in other}
    worst = max(gaps, key=lambda name: gaps[name])
    return gaps[worst], worst


# Plain PyTorch -----------------------------------------------------------------------------------------------


def plain_gpt(
    course: Course,
    seed: int,
    optimiser_of: Callable[[nn.Module], torch.optim.Optimizer],
    *,
    dtype: torch.dtype,
    schedule: str = "",
    clip: float = 0.0,
) -> Values:
    """Train the same first model on the same batches in one process, with one step per version."""
    task = Language()
    x, y = (torch.from_numpy(column) for column in task.examples("train"))
    model = Gpt()
    state = {name: torch.from_numpy(values.copy()) for name, values in course.first.items()}
    model.load_state_dict({**state, "head.weight": state["tokens.weight"]})
    model.to(dtype)
    optimiser = optimiser_of(model)
    rates = [group["lr"] for group in optimiser.param_groups]
    for number, leases in enumerate(course.versions):
        rows = np.concatenate(
            [
                batch_indices(epoch_order(len(x), seed=seed, epoch=epoch), batch, 16)
                for epoch, some in leases
                for batch in some
            ]
        )
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * (Schedule.parse(schedule).factor(number) if schedule else 1.0)
        optimiser.zero_grad()
        task.loss(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
    return {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)


def adamw_two_groups(model: nn.Module) -> torch.optim.Optimizer:
    """Biases and norms do not decay, as most people write it."""
    matrices = [each for each in model.parameters() if each.dim() >= 2]
    vectors = [each for each in model.parameters() if each.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE)


def heavy_ball(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def plain_line(course: Course) -> float:
    """The line's weight by plain SGD through each lease, a step for each window, and the mean of a version's leases."""
    x, y = (torch.from_numpy(column) for column in Line().examples("train"))
    model = nn.Linear(1, 1, bias=False)
    weight = torch.from_numpy(course.first["weight"].copy())
    for leases in course.versions:
        moved, examples = torch.zeros_like(weight), 0
        for epoch, batches in leases:
            model.load_state_dict({"weight": weight})
            optimiser = torch.optim.SGD(model.parameters(), lr=LINE_RATE)
            order, count = epoch_order(len(x), seed=0, epoch=epoch), 0
            for start in range(0, len(batches), WINDOW):
                rows = np.concatenate([batch_indices(order, batch, 4) for batch in batches[start : start + WINDOW]])
                optimiser.zero_grad()
                Line().loss(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                count += len(rows)
            moved, examples = moved + (model.weight.detach() - weight) * count, examples + count
        weight = weight + moved / examples
    return weight.item()


def over_float32(course: Course, seed: int, optimiser_of: Callable[[nn.Module], torch.optim.Optimizer]) -> float:
    """The error of a job over that of plain float32 PyTorch, both against float64."""
    exact = plain_gpt(course, seed, optimiser_of, dtype=torch.float64, schedule=SCHEDULE)
    plain = plain_gpt(course, seed, optimiser_of, dtype=torch.float32, schedule=SCHEDULE)
    (ours, where), (theirs, there) = largest(course.last, exact), largest(plain, exact)
    names = [name for name in exact if not name.endswith("qkv.bias")]
    rest = [
        largest({name: run[name] for name in names}, {name: exact[name] for name in names})
        for run in (course.last, plain)
    ]
    say(
        f"  {len(course.versions)} versions; off by {ours:.2e} in {where}, plain float32 by {theirs:.2e} in {there};"
        f" without the biases of Q, K and V {rest[0][0]:.2e} in {rest[0][1]}, plain {rest[1][0]:.2e} in {rest[1][1]}"
    )
    return ours / theirs


# On two agents -----------------------------------------------------------------------------------------------


async def _train(operator: Operator, home: Path, ready: ReadyTask, plan: dict[str, Any]) -> Course:
    job, began_s = await operator.submit(ready, plan=plan), time.monotonic()
    view = (await operator.status(job)).jobs[0]
    while not view.state.is_ended:
        if time.monotonic() - began_s > JOB_S:
            raise ShoalError(f"{job} did not end within {JOB_S:g} s: {view.reason}")
        await asyncio.sleep(0.2)
        view = (await operator.status(job)).jobs[0]
    if view.state != "finished":
        raise ShoalError(f"{job} {view.state}: {view.reason}")
    with tempfile.TemporaryDirectory(prefix="shoal-exactness-") as directory:
        await operator.pull_model(job, Path(directory) / "model.safetensors", newest=True)
        last, _ = tensors.read(Path(directory) / "model.safetensors", mmap=False)
    first, _ = tensors.read(Path(ready.prepared.model), mmap=False)
    with Registry(Paths(home).registry) as registry:
        versions = versions_of(registry.applied(job))
    names = [entry.name for entry in ready.prepared.layout.entries]
    return Course({name: first[name] for name in names}, {name: last[name] for name in names}, versions)


async def run(seeds: Sequence[int]) -> dict[str, float]:
    """Train each job on two agents of one cluster; the worst of each figure over the seeds."""
    adamws, groups, clips = [], [], []
    async with LocalCluster(workers=2) as cluster, Operator.open(cluster.home) as operator:
        # While the first job trains.
        preparing = asyncio.create_task(operator.prepare(TASKS_FILE, "exactness_tasks:Line", name="line"))
        for seed in seeds:
            ready = await operator.prepare(TASKS_FILE, "exactness_tasks:Language", name="gpt", plan={"seed": seed})
            courses = [
                await _train(operator, cluster.home, ready, {**plan, "seed": seed})
                for plan in (ADAMW, TWO_GROUPS, CLIPPED)
            ]
            say(f"seed {seed}: AdamW")
            adamws.append(over_float32(courses[0], seed, adamw))
            say(f"seed {seed}: AdamW with two groups")
            groups.append(over_float32(courses[1], seed, adamw_two_groups))
            wanted = plain_gpt(courses[2], seed, heavy_ball, dtype=torch.float32, clip=CLIP)
            loose = plain_gpt(courses[2], seed, heavy_ball, dtype=torch.float32)
            clips.append(largest(courses[2].last, wanted)[0])
            far = largest(loose, wanted)[0]
            say(f"seed {seed}: clip_mean off by {clips[-1]:.2e}; without a clip it would be {far:.2e}")
            if far < 100 * max(clips[-1], 1e-5):
                raise ShoalError(f"a clip of {CLIP:g} changes too little to show whether it is applied")
        line = await _train(operator, cluster.home, await preparing, ACCUMULATED)
    return {
        "adamw_gpt_to_float32": max(adamws),
        "clip_mean_error": max(clips),
        "accumulate_error": abs(line.last["weight"].item() - plain_line(line)),
        "two_groups_to_float32": max(groups),
    }


def _ema_gap(*, quick: bool) -> dict[str, float]:
    """Reported minus pulled accuracy of a job with ``ema``, where that benchmark is there."""
    name = "benchmarks.exactness_ema"
    if importlib.util.find_spec(name) is None:
        return {}
    return {"ema_gap": importlib.import_module(name).ema_gap(quick=quick)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    began_s = time.monotonic()
    torch.set_num_threads(1)
    found = asyncio.run(run(SEEDS[:1] if given.quick else SEEDS))
    finish({**found, **_ema_gap(quick=given.quick), "seconds": time.monotonic() - began_s})


if __name__ == "__main__":
    main()
