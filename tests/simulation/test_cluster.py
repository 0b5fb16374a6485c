"""Seeded clusters with faults: whatever breaks, history stays exact and the job ends."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from cluster import Home, World
from devices import Agent
from toy import LAYOUT, SHA, recomputed

from shoal.plan import Plan, Until
from shoal.roles.events import Asked
from shoal.wire.messages import Dataset, JobSpec, Submit

#: Faults come within this time; then everyone is left in peace.
FAULTS_UNTIL_S = 30.0
#: By then the job is over: faults, the longest stop, and many lease times.
LIMIT_S = 400.0

FAULTS = ("kill", "power", "leave", "stop", "cut", "crash")


def make_spec(world: World, name: str) -> JobSpec:
    choose = world.chance.integers
    plan = Plan(
        batch_size=int(choose(1, 4)),
        lease_batches=int(choose(1, 3)),
        momentum=0.9 if world.happens(0.5) else 0.0,
        workers_min=int(choose(1, 3)),
        workers_max=int(choose(2, 6)),
        lease_s=3.0 if world.happens(0.8) else 0.0,
        checkpoint_every_s=world.between(0.5, 6.0),
        evaluate_every_epochs=int(choose(1, 3)),
        until=Until(
            epochs=int(choose(1, 5)),
            accuracy=0.45 if world.happens(0.1) else None,
            seconds=world.between(5.0, 60.0) if world.happens(0.2) else None,
        ),
    )
    test = Dataset(manifest=SHA, examples=int(choose(0, 4)) * 700)
    train = Dataset(manifest=SHA, examples=int(choose(4, 40)))
    return JobSpec(job=name, name=name, entry="task:Toy", bundle=SHA, initial=SHA, train=train, test=test, plan=plan)


def break_something(world: World, faults: list[str]) -> None:
    fault = faults[world.chance.integers(len(faults))]
    names = sorted(name for name, agent in world.agents.items() if agent is not None)
    if fault == "crash":
        if world.home is not None:
            world.home.crash()
            world.after(world.between(0.1, 3.0), lambda: Home(world))
        return
    if not names:
        return
    agent = world.agents[names[world.chance.integers(len(names))]]
    assert agent is not None
    if fault == "stop":
        agent.stopped_until_s = world.now_s + world.between(0.5, 15.0)
    elif fault == "cut":
        if agent.session is not None:
            world.cut(agent.session)
    else:
        agent.die(politely=fault == "leave", silent=fault == "power")
        world.after(world.between(0.1, 6.0), lambda: Agent(world, agent.node))


def check_history(world: World, spec: JobSpec) -> None:
    """Each batch once in a finished epoch, at most once in the last; and the model is what the history says."""
    saved, state = world.disk.checkpoints[spec.job]
    history = world.disk.history.get(spec.job, [])
    times = Counter((row.epoch, row.batch) for row in history)
    assert not [batch for batch, count in times.items() if count != 1]
    epochs_done, batches = state["ledger"]["epoch"], state["ledger"]["batches"]
    for epoch in range(epochs_done):
        assert sorted(batch for e, batch in times if e == epoch) == list(range(batches))
    assert [row.version for row in history] == sorted(row.version for row in history)
    assert len({row.version for row in history}) == saved.version
    model = np.concatenate([saved.tensors[entry.name].ravel() for entry in LAYOUT.entries])
    np.testing.assert_allclose(model, recomputed(spec, history), atol=1e-6)


def run_seed(seed: int) -> None:
    world = World(seed)
    specs = [make_spec(world, f"job-{number}") for number in range(1 + world.happens(0.4))]
    home = Home(world)
    for number, spec in enumerate(specs):
        home.to_manager(Asked(question=number, message=Submit(spec=spec)))
    # Enough for every job's least number of workers, even when one job holds its most.
    for number in range(sum(spec.plan.workers_min for spec in specs) + int(world.chance.integers(1, 4))):
        world.after(world.between(0.0, 5.0), lambda number=number: Agent(world, f"pi-{number}"))
    # Some runs see every kind of fault, others one or two kinds again and again.
    faults = [fault for fault in FAULTS if world.happens(0.5)] or list(FAULTS)
    for _ in range(int(world.chance.integers(0, 12))):
        world.after(world.between(0.5, FAULTS_UNTIL_S), lambda: break_something(world, faults))

    def over() -> bool:
        return all(world.disk.jobs[spec.job].state == "finished" for spec in specs)

    assert world.run(over, LIMIT_S), {spec.job: world.disk.jobs[spec.job] for spec in specs}
    for spec in specs:
        check_history(world, spec)

    def all_free() -> bool:
        return world.home is not None and all(agent and not agent.workers for agent in world.agents.values())

    assert world.run(all_free, world.now_s + 90), "a worker was left behind in a job that is over"


@pytest.mark.parametrize("block", range(10))
def test_history_stays_exact_whatever_breaks(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        try:
            run_seed(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}: run_seed({seed}) plays it again")
            raise
