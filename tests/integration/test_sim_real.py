"""A simulated cluster trains for real: the model on its disk is what one plain loop over its history makes."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from clouds_task import Clouds
from torch import nn

from dst.encoded import Encoded
from shoal.learning.schedule import Schedule
from shoal.plan import Plan, Until
from shoal.roles.actions import Save
from shoal.scheduling.batches import batch_indices, epoch_order
from shoal.scheduling.ledger import Applied
from shoal.sim.devices import Build
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.rates import Steady
from shoal.sim.real import close, simulated_job
from shoal.sim.trace import TraceWriter
from shoal.sim.world import Settings, World
from shoal.trainer.package import ReadyTask, make_ready

CLOUDS = Path(__file__).resolve().parent / "clouds_task.py"
COUNT = 234
#: Does not divide the examples: the last batch of an epoch is short, and must weigh less than those it meets.
BATCH = 16
BATCHES = 15
SEED = 3
PLAN = Plan(
    batch_size=BATCH, learning_rate=0.1, momentum=0.9, seed=SEED, workers_min=3, until=Until(epochs=2), lease_s=5.0
)
LINE = AccessLink(up=Steady(1e6), down=Steady(1e6), latency_s=0.005)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    model: dict[str, np.ndarray]
    history: list[Applied]
    evaluations: list[dict[str, float]]
    trace_sha256: str


class Saves:
    """Keeps the last checkpoint that became durable."""

    last: Save

    def step(self, step: Step) -> None:
        pass

    def mark(self, mark: Mark) -> None:
        if mark.kind == "durable":
            self.last = mark.facts["save"]


def device(seconds_per_batch: float) -> Build:
    return Build(
        kind="steady",
        seconds_per_gmac=0.0,
        seconds_per_batch=seconds_per_batch,
        jitter=0.1,
        memory_mb=1024,
        battery_wh=0.0,
        train_watts=0.0,
        idle_watts=0.0,
        heat=None,
        line=LINE,
    )


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> ReadyTask:
    out = tmp_path_factory.mktemp("prepared")
    return asyncio.run(make_ready(CLOUDS, "clouds_task:Clouds", out=out, plan={"seed": SEED}))


def simulate(ready: ReadyTask, *, torch_threads: int, plan: Plan = PLAN) -> Outcome:
    job = simulated_job(ready, plan, train=True, torch_threads=torch_threads)
    try:
        # One of three takes longer, so that rounds and leases do not fall into step.
        builds = [device(0.05), device(0.06), device(0.09)]
        settings = Settings(seed=1, builds=builds, home_line=LINE, jobs=[job])
        trace, saves = io.StringIO(), Saves()
        world = World(settings, sizer=Encoded(), observers=[TraceWriter(trace, {}), saves])
        world.begin()
        assert world.run(limit_s=900.0)
    finally:
        close(job)
    record = world.disk.jobs["job"]
    assert record.state == "finished", record.reason
    return Outcome(
        model={entry.name: saves.last.tensors[entry.name] for entry in job.layout.entries},
        history=world.disk.history["job"],
        evaluations=saves.last.state["evaluations"],
        trace_sha256=hashlib.sha256(trace.getvalue().encode()).hexdigest(),
    )


@pytest.fixture(scope="module")
def outcome(ready: ReadyTask) -> Outcome:
    return simulate(ready, torch_threads=1)


def first_model(ready: ReadyTask) -> nn.Module:
    from shoal.trainer.trained import trained_model

    return trained_model(Clouds(), Path(ready.prepared.model)).train()


def rounds(history: list[Applied]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The examples of all batches of each version, by the recorded history."""
    x, y = map(torch.from_numpy, Clouds().examples("train"))
    versions: dict[int, list[torch.Tensor]] = {}
    for row in history:
        indices = batch_indices(epoch_order(COUNT, seed=SEED, epoch=row.epoch), row.batch, BATCH)
        versions.setdefault(row.version, []).append(torch.from_numpy(indices))
    for version in sorted(versions):
        chosen = torch.cat(versions[version])
        yield x[chosen], y[chosen]


def worst_difference(model: dict[str, np.ndarray], reference: nn.Module) -> float:
    expected = reference.state_dict()
    assert sorted(model) == sorted(expected)
    return max(float(np.abs(model[name] - expected[name].numpy()).max()) for name in expected)


def test_every_batch_of_an_epoch_is_applied_once_and_all_devices_took_part(outcome: Outcome) -> None:
    applied = sorted((row.epoch, row.batch) for row in outcome.history)
    assert applied == [(epoch, batch) for epoch in range(2) for batch in range(BATCHES)]
    assert {row.node for row in outcome.history} == {"w1", "w2", "w3"}


def test_the_model_is_what_one_loop_over_the_history_makes(ready: ReadyTask, outcome: Outcome) -> None:
    # One optimiser, on the examples of each round in one batch: nothing of Shoal's arithmetic is used.
    reference = first_model(ready)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    sizes = set()
    for x, y in rounds(outcome.history):
        sizes.add(len(y) % BATCH)
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(x), y).backward()
        optimiser.step()
    assert worst_difference(outcome.model, reference) < 1e-5
    # The comparison could fail: the short batch met others, and training moved the model much further.
    assert sizes == {0, COUNT % BATCH}
    assert worst_difference(outcome.model, first_model(ready)) > 0.1


@pytest.mark.parametrize("topology", ["star", "shard", "tree"])
@pytest.mark.parametrize("schedule", ["", "warmup 5 cosine 30"])
def test_with_adamw_outside_it_is_one_adamw_on_all_examples_of_each_round(
    ready: ReadyTask, topology: str, schedule: str
) -> None:
    plan = replace(PLAN, outer="adamw", outer_rate=0.01, weight_decay=0.1, topology=topology, schedule=schedule)
    found = simulate(ready, torch_threads=1, plan=replace(plan, until=Until(epochs=5)))
    reference = first_model(ready)
    optimiser = torch.optim.AdamW(reference.parameters(), lr=0.01, betas=(0.9, 0.999), weight_decay=0.1)
    versions = 0
    for x, y in rounds(found.history):
        for group in optimiser.param_groups:
            group["lr"] = 0.01 * Schedule.parse(schedule).factor(versions)
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(x), y).backward()
        optimiser.step()
        versions += 1
    assert versions >= 20
    assert worst_difference(found.model, reference) < 1e-5
    assert worst_difference(found.model, first_model(ready)) > 0.05


def test_a_schedule_is_the_rate_of_the_leases(ready: ReadyTask) -> None:
    found = simulate(ready, torch_threads=1, plan=replace(PLAN, momentum=0.0, schedule="warmup 4 linear 8"))
    reference = first_model(ready)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1)
    for version, (x, y) in enumerate(rounds(found.history)):
        for group in optimiser.param_groups:
            group["lr"] = 0.1 * Schedule.parse("warmup 4 linear 8").factor(version)
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(x), y).backward()
        optimiser.step()
    assert worst_difference(found.model, reference) < 1e-5


def test_the_last_evaluation_is_that_of_the_model(outcome: Outcome) -> None:
    model = Clouds().model().eval()
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in outcome.model.items()})
    x, y = map(torch.from_numpy, Clouds().examples("test"))
    with torch.no_grad():
        output = model(x)
    assert [row["epoch"] for row in outcome.evaluations] == [1, 2]
    last = outcome.evaluations[-1]
    assert last["version"] == max(row.version for row in outcome.history)
    assert last["examples"] == COUNT
    assert last["accuracy"] == int((output.argmax(1) == y).sum()) / COUNT > 0.5
    assert last["loss"] == pytest.approx(nn.functional.cross_entropy(output, y).item(), abs=1e-5)


def test_it_happens_the_same_way_twice(ready: ReadyTask, outcome: Outcome) -> None:
    again = simulate(ready, torch_threads=1)
    assert {name: array.tobytes() for name, array in again.model.items()} == {
        name: array.tobytes() for name, array in outcome.model.items()
    }
    assert again.evaluations == outcome.evaluations
    assert again.trace_sha256 == outcome.trace_sha256
