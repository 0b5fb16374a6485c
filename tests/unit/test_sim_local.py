"""Simulated devices with examples of their own: a lease is what a plain PyTorch loop over the device's rows makes."""

from __future__ import annotations

import asyncio
import hashlib
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from shoal import data
from shoal.errors import Misuse
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Evaluate, SettleOwn, Train, UndoOwn
from shoal.scheduling.batches import epoch_order, mix
from shoal.sim.fault_text import parse
from shoal.sim.jobs import LearningResult
from shoal.sim.local_devices import LocalTraining, divide
from shoal.sim.observe import Mark, Step
from shoal.sim.process import SimMachine
from shoal.sim.real import close, simulated_job
from shoal.sim.study import Study, simulate
from shoal.sim.trace import TraceWriter
from shoal.sim.world import World
from shoal.trainer.package import ReadyTask, make_ready
from shoal.trainer.prepared_job import own_layout
from shoal.trainer.protocol import TrainerError

pytestmark = pytest.mark.timeout(180)

COUNT, DEVICES, BATCH, RATE, SEED = 300, 6, 8, 0.1, 5
PARTITION = data.dirichlet(0.5, least=5)

SOURCE = """
import numpy as np
from torch import nn
from shoal.task import Task

class Sample(Task):
    def __init__(self, own=False, columns=False):
        self.own, self.columns = own, columns

    def model(self):
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def examples(self, split):
        count = 300 if split == "train" else 90
        chance = np.random.default_rng(0 if split == "train" else 1)
        y = chance.integers(0, 3, count)
        x = (np.eye(3, 4)[y] * 2 + chance.normal(0, 0.5, (count, 4))).astype(np.float32)
        if self.columns and split == "train":
            return {"x": x, "y": y, "writer": [f"writer {row % 9}" for row in range(count)]}
        return x, y

    def collate(self, rows, *, training):
        return super().collate((rows["x"], rows["y"]) if isinstance(rows, dict) else rows, training=training)

    def placement(self, name, tensor):
        return "own" if self.own and name.startswith("2.") else None
"""
PLAN = Plan(
    data="local",
    batch_size=BATCH,
    lease_batches=2,
    learning_rate=RATE,
    momentum=0.0,
    seed=SEED,
    workers_min=DEVICES,
    workers_max=DEVICES,
    epoch_leases=2 * DEVICES,
    until=Until(epochs=4),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReadyTask]:
    """The task with a shared model, and with a head for each device."""
    folder = tmp_path_factory.mktemp("task")
    (folder / "task.py").write_text(SOURCE)

    def ready(**arguments: bool) -> ReadyTask:
        made = make_ready(folder / "task.py", "task:Sample", out=folder / "out", kwargs=arguments, divided=True)
        return asyncio.run(made)

    return {"shared": ready(), "own": ready(own=True), "columns": ready(columns=True)}


@dataclass(frozen=True)
class LearnedLease:
    """A lease that a device's trainer was asked for, and its result."""

    node: str
    lease: Train
    model: np.ndarray
    own: np.ndarray | None
    result: LearningResult
    #: Whether it is the first that this process of a trainer had.
    is_first: bool


class Settled:
    """Keeps how the devices' own parts were settled, among the leases of each device."""

    def __init__(self, played: Played) -> None:
        self._played = played

    def step(self, step: Step) -> None:
        settled = [action for action in step.actions if isinstance(action, SettleOwn | UndoOwn)]
        self._played.log.setdefault(step.node, []).extend(settled)

    def mark(self, mark: Mark) -> None:
        pass


class Played:
    """A simulation, and the leases of its devices' trainers."""

    def __init__(self, ready: ReadyTask, plan: Plan = PLAN, *, faults: str = "", seed: int = 1) -> None:
        self.ready, self.plan = ready, plan
        self.divided = divide(ready, PARTITION, devices=DEVICES)
        self.rows = {f"w{number}": rows for number, rows in enumerate(self.divided.rows, start=1)}
        self.leases: list[LearnedLease] = []
        #: Node -> its leases, and what became of each.
        self.log: dict[str, list[LearnedLease | SettleOwn | UndoOwn]] = {}
        self.machines: dict[str, SimMachine] = {}
        trace = io.StringIO()
        job = simulated_job(ready, plan, train=True, divided=self.divided)
        if faults:
            # A lease takes about 0.1 s, so that a trainer that starts again is there before the end.
            job = replace(job, gmacs_per_example=0.2, start_s=0.3)
        self.layout = job.layout
        assert isinstance(job.local, LocalTraining)
        with pytest.MonkeyPatch.context() as patch:
            self._listen(job.local, patch)
            begin = World.begin
            patch.setattr(World, "begin", lambda world: (setattr(self, "machines", world.machines), begin(world))[1])
            try:
                study = Study(job=job, devices=DEVICES, profile="even", seed=seed, faults=parse(faults))
                self.outcome = simulate(study, observers=[TraceWriter(trace, {}), Settled(self)])
            finally:
                close(job)
        self.trace_sha256 = hashlib.sha256(trace.getvalue().encode()).hexdigest()

    def _listen(self, local: LocalTraining, patch: pytest.MonkeyPatch) -> None:
        begin, learn, new = local.begin, local.learn_own, set[str]()

        def begin_too(node: str, *, seen: int) -> None:
            new.add(node)
            begin(node, seen=seen)

        def learn_too(model: np.ndarray, node: str, lease: Train, own: np.ndarray | None) -> LearningResult:
            before = model.copy(), own.copy() if own is not None else None
            result = learn(model, node, lease, own)
            self.leases.append(LearnedLease(node, lease, *before, result, node in new))
            self.log.setdefault(node, []).append(self.leases[-1])
            new.discard(node)
            return result

        patch.setattr(local, "begin", begin_too)
        # One by one, so that each lease is seen with the model that it begins with.
        patch.setattr(local, "promise", lambda model, node, lease: None)
        patch.setattr(local, "learn_own", learn_too)

    def of(self, node: str) -> list[LearnedLease]:
        return [lease for lease in self.leases if lease.node == node]

    def own(self, node: str) -> np.ndarray:
        return self.machines[node].own["job"]


class Loop:
    """Plain PyTorch: a model, its rows, a step for each batch. Nothing of Shoal's training is used."""

    def __init__(self, played: Played) -> None:
        self.played = played
        self.x, self.y = map(torch.from_numpy, examples())
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        self.own_layout = own_layout(Path(played.ready.prepared.model))
        self.adam: dict[str, torch.optim.Optimizer] = {}

    def train(self, done: LearnedLease) -> None:
        """Train the same lease from the same values."""
        self._load(self.played.layout, done.model)
        if self.own_layout is not None:
            assert done.own is not None
            self._load(self.own_layout, done.own)
        optimiser: torch.optim.Optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE)
        if self.played.plan.inner == "adam":
            if done.is_first:
                self.adam[done.node] = torch.optim.Adam(self.net.parameters(), lr=RATE)
            optimiser = self.adam[done.node]
        rows = self._order(done)
        for number in range(self.played.plan.passes):
            seeds = (SEED, done.lease.epoch, done.lease.batches[0])
            order = epoch_order(len(rows), seed=mix(*seeds), epoch=number) if number else np.arange(len(rows))
            for batch in torch.from_numpy(rows[order]).split(BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(self.net(self.x[batch]), self.y[batch]).backward()
                optimiser.step()

    def _order(self, done: LearnedLease) -> np.ndarray:
        """The newest examples first while they are new, the others in the order of this epoch and lease."""
        rows, lease = self.played.rows[done.node], done.lease
        count = min(lease.examples, len(rows))
        if not self.has_trained(done):
            return rows[::-1][:count].copy()
        order = epoch_order(len(rows), seed=mix(SEED, lease.epoch), epoch=lease.batches[0])
        return rows[order[:count]]

    def has_trained(self, done: LearnedLease) -> bool:
        return self.played.of(done.node)[0] is not done

    def _load(self, layout: Layout, values: np.ndarray) -> None:
        tensors = self.net.state_dict()
        for name, view in layout.views(values).items():
            tensors[name].copy_(torch.from_numpy(view))

    def change(self, done: LearnedLease) -> float:
        """The largest difference between its change and the one of the simulated device."""
        theirs = self.played.layout.views(done.model + done.result.trained.delta)
        tensors = self.net.state_dict()
        return max(float(np.abs(tensors[name].numpy() - view).max()) for name, view in theirs.items())

    def own_difference(self, own: np.ndarray) -> float:
        assert self.own_layout is not None
        tensors = self.net.state_dict()
        return max(
            float(np.abs(tensors[name].numpy() - view).max()) for name, view in self.own_layout.views(own).items()
        )


def examples() -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    y = chance.integers(0, 3, COUNT)
    return (np.eye(3, 4)[y] * 2 + chance.normal(0, 0.5, (COUNT, 4))).astype(np.float32), y


@pytest.fixture(scope="module")
def played(made: dict[str, ReadyTask]) -> Played:
    return Played(made["shared"])


@pytest.fixture(scope="module")
def heads(made: dict[str, ReadyTask]) -> Played:
    """With a head for each device, and trainers that fail, hang and die."""
    faults = "fail(w1, at=round(3))\nhang(w2, at=round(2))\nrestart(w3, at=round(4))\ncrash(home, at=round(7))"
    return Played(
        made["own"], replace(PLAN, lease_s=5.0, checkpoint_every_s=30.0, until=Until(epochs=8)), faults=faults
    )


# Training ---------------------------------------------------------------------------------------------------


def test_a_lease_of_several_passes_is_what_a_plain_loop_makes(made: dict[str, ReadyTask]) -> None:
    played = Played(made["shared"], replace(PLAN, local_epochs=3))
    loop = Loop(played)
    for done in played.leases:
        loop.train(done)
        assert loop.change(done) < 1e-6
    assert len(played.leases) > 3


def test_each_lease_is_what_a_plain_loop_over_the_devices_rows_makes(played: Played) -> None:
    loop = Loop(played)
    for done in played.leases:
        loop.train(done)
        assert loop.change(done) < 1e-6
        assert np.abs(done.result.trained.delta).max() > 1e-4
        assert done.result.trained.examples == min(2 * BATCH, len(played.rows[done.node]))
    assert {done.node for done in played.leases} == set(played.rows), "all devices took part"
    assert played.outcome.state == "finished"
    assert played.outcome.accuracy is not None
    assert played.outcome.accuracy > 0.8


def test_the_cluster_is_told_of_no_training_examples(made: dict[str, ReadyTask]) -> None:
    ready = made["shared"]
    job = simulated_job(ready, PLAN, train=True, divided=divide(ready, PARTITION, devices=2))
    try:
        assert (ready.prepared.train.examples, job.spec.train.examples, job.spec.test.examples) == (COUNT, 0, 90)
        shards = sum(shard.bytes for shard in ready.prepared.test.shards)
        assert job.fetch_bytes == len(ready.bundle) + Path(ready.prepared.model).stat().st_size + shards
    finally:
        close(job)


def test_new_examples_are_judged_once_and_before_they_are_trained_on(played: Played, heads: Played) -> None:
    for each in (played, heads):
        for node, rows in each.rows.items():
            judged = [done.result.fresh for done in each.of(node)]
            assert judged[0] == min(2 * BATCH, len(rows))
    assert not any(done.result.fresh for done in played.leases if Loop(played).has_trained(done))
    # A trainer that starts again takes what it was done with for seen.
    again = [done for node in heads.rows for done in heads.of(node)[1:] if done.is_first]
    assert again
    assert not any(done.result.fresh for done in again)
    first = played.leases[0]
    loop = Loop(played)
    loop._load(played.layout, first.model)
    x, y = (values[played.rows[first.node][::-1][: 2 * BATCH].copy()] for values in (loop.x, loop.y))
    right = int((loop.net(x).argmax(1) == y).sum())
    (accuracy,) = [metric for metric in first.result.fresh_metrics if metric.name == "accuracy"]
    assert accuracy.sums == (right, len(y))


def test_a_state_that_is_kept_stays_with_its_device_and_dies_with_its_trainer(made: dict[str, ReadyTask]) -> None:
    plan = replace(PLAN, inner="adam", inner_state="kept")
    found = Played(made["shared"], plan, faults="fail(w1, at=round(3))")
    loop, largest = Loop(found), 0.0
    for done in found.leases:
        loop.train(done)
        largest = max(largest, loop.change(done))
    assert largest < 1e-5
    assert len([done for done in found.of("w1") if done.is_first]) == 2, "its trainer began again"
    # The comparison could fail: a fresh Adam makes other steps.
    fresh, done = Loop(found), [done for done in found.of("w2") if not done.is_first][-1]
    fresh.train(replace(done, is_first=True))
    assert fresh.change(done) > 1e-3


def test_the_same_seed_is_the_same_simulation(made: dict[str, ReadyTask], played: Played) -> None:
    again, other = Played(made["shared"]), Played(made["shared"], seed=2)
    assert again.trace_sha256 == played.trace_sha256 != other.trace_sha256
    assert again.divided.sha256 == played.divided.sha256
    assert again.outcome.evaluations == played.outcome.evaluations


def test_noise_of_label_counts_is_drawn_again_the_same(made: dict[str, ReadyTask]) -> None:
    plan = replace(PLAN, share_labels=True, labels_epsilon=1.0, until=Until(epochs=1))
    first, again = (Played(made["shared"], plan) for _ in range(2))
    labels = [done.result.labels for done in first.leases]
    assert labels == [done.result.labels for done in again.leases]
    counts = [
        tuple(np.bincount(examples()[1][first.rows[done.node][::-1][: 2 * BATCH]], minlength=3).tolist())
        for done in first.leases[:DEVICES]
    ]
    assert labels[:DEVICES] != counts, "there is noise"


def test_a_lease_takes_a_device_as_long_as_the_examples_that_it_has(made: dict[str, ReadyTask]) -> None:
    found = Played(made["shared"], replace(PLAN, lease_batches=8, until=Until(epochs=2)))
    few, many = (sorted(found.rows, key=lambda node: len(found.rows[node]))[at] for at in (0, -1))
    assert len(found.rows[few]) <= 2 * BATCH
    assert len(found.rows[many]) >= 8 * BATCH
    busy_s = {device.node: device.busy_s / len(found.of(device.node)) for device in found.outcome.devices}
    assert busy_s[few] < 0.5 * busy_s[many]


# Own parts --------------------------------------------------------------------------------------------------


def test_own_parts_go_on_from_the_last_lease_that_was_taken(heads: Played) -> None:
    loop, taken, back = Loop(heads), 0, 0
    for node in heads.rows:
        done, values = heads.of(node)[0], heads.of(node)[0].own
        before: list[np.ndarray | None] = []
        for entry in heads.log[node]:
            if isinstance(entry, LearnedLease):
                done = entry
                assert values is not None
                assert done.own is not None
                assert np.array_equal(done.own, values), "it began with what was taken last"
                loop.train(done)
                assert done.result.own is not None
                assert loop.own_difference(done.result.own) < 1e-6
            elif isinstance(entry, UndoOwn):
                back, values = back + entry.leases, before[-entry.leases]
                del before[-entry.leases :]
            elif entry.taken:
                assert entry.lease == done.lease.lease
                before.append(values)
                taken, values = taken + 1, done.result.own
            else:
                back += 1
        assert np.array_equal(heads.own(node), values)
    assert taken > 40
    assert back, "some leases were lost"
    assert heads.outcome.state == "finished"


def test_own_parts_differ_and_are_not_in_the_model(heads: Played) -> None:
    assert set(heads.layout.views(np.zeros(heads.layout.size, np.float32))) == {"0.weight", "0.bias"}
    owns = [heads.own(node) for node in heads.rows]
    assert min(float(np.abs(a - b).max()) for i, a in enumerate(owns) for b in owns[:i]) > 1e-2


def test_an_evaluation_uses_the_first_models_own_part(made: dict[str, ReadyTask]) -> None:
    ready = made["own"]
    job = simulated_job(ready, PLAN, train=True, divided=divide(ready, PARTITION, devices=2))
    try:
        local = job.local
        assert local is not None
        assert local.first_own is not None
        before = job.training.evaluate(job.spec, job.model, Evaluate(lease=1, chunks=(0,)))
        local.begin("w1", seen=0)
        local.learn_own(job.model, "w1", Train(lease=2, epoch=0, batches=(0,), examples=16), local.first_own + 1)
        assert job.training.evaluate(job.spec, job.model, Evaluate(lease=3, chunks=(0,))) == before
    finally:
        close(job)


# What else a plan says --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"trust": "sealed(5)"},
        {"trust": "private(8, 1e-5)", "cohort": DEVICES, "clip_update": 1.0},
        {"topology": "tree", "aggregators": 2},
        {"work": "sized", "budget_s": 0.5},
        {"codec": "top10%+ef"},
        {"pace": "async"},
    ],
    ids=str,
)
def test_it_trains_whatever_else_the_plan_says(made: dict[str, ReadyTask], changes: dict[str, Any]) -> None:
    found = Played(made["shared"], replace(PLAN, **changes))
    assert found.outcome.state == "finished", found.outcome.reason
    assert found.outcome.accuracy is not None
    assert found.outcome.accuracy > (0.2 if "private" in str(changes) else 0.6)


def test_values_that_are_not_finite_are_not_an_update(made: dict[str, ReadyTask]) -> None:
    ready = made["shared"]
    job = simulated_job(ready, PLAN, train=True, divided=divide(ready, PARTITION, devices=2))
    try:
        assert job.local is not None
        job.local.begin("w1", seen=0)
        lease = Train(lease=1, epoch=0, batches=(0,), examples=16)
        with pytest.raises(TrainerError, match="not finite: try a lower learning rate"):
            job.local.learn_own(np.full_like(job.model, np.nan), "w1", lease, None)
    finally:
        close(job)


# Refusals ---------------------------------------------------------------------------------------------------


def test_rows_of_a_column_are_together(made: dict[str, ReadyTask]) -> None:
    divided = divide(made["columns"], data.by("writer"), devices=4)
    assert [sorted({int(row) % 9 for row in rows}) for rows in divided.rows] != []
    writers = [{int(row) % 9 for row in rows} for rows in divided.rows]
    assert sum(map(len, writers)) == len(set.union(*writers)) == 9
    assert divided.sha256 == data.hash_of(data.by("writer").rows([f"writer {row % 9}" for row in range(COUNT)], 4))


def test_the_labels_are_those_of_the_set(made: dict[str, ReadyTask]) -> None:
    for name in ("shared", "columns"):
        divided = divide(made[name], PARTITION, devices=DEVICES, seed=3)
        assert divided.sha256 == data.hash_of(PARTITION.rows(examples()[1], DEVICES, seed=3))


@pytest.mark.parametrize(
    ("partition", "devices", "why"),
    [
        (data.iid(), 301, "300 examples are too few for 301 devices"),
        (data.by("writer"), 2, "no column 'writer'; they have x, y"),
        (data.by("x"), 2, "one value for each example"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    made: dict[str, ReadyTask], partition: data.Partition, devices: int, why: str
) -> None:
    with pytest.raises(Misuse, match=why):
        divide(made["shared"], partition, devices=devices)


def test_a_set_without_labels_has_no_classes(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(SOURCE.replace("return x, y", 'return {"x": x, "z": y}'))
    (tmp_path / "script.py").write_text("")
    source = SOURCE.replace("return x, y", 'return {"x": x, "z": y}').replace(
        '(rows["x"], rows["y"])', "tuple(rows.values())"
    )
    (tmp_path / "task.py").write_text(source)
    ready = asyncio.run(make_ready(tmp_path / "task.py", "task:Sample", out=tmp_path / "out", divided=True))
    with pytest.raises(Misuse, match="no column y, label or labels with one whole number a row; they have x, z"):
        divide(ready, PARTITION, devices=2)
    assert len(divide(ready, data.by("z"), devices=3).rows) == 3


def test_a_script_reads_its_examples_itself(made: dict[str, ReadyTask]) -> None:
    with pytest.raises(Misuse, match="a script reads its examples itself"):
        divide(replace(made["shared"], entry="script:train.py"), data.iid(), devices=2)


@pytest.mark.parametrize(
    ("changes", "train", "is_divided", "task", "why"),
    [
        ({}, True, False, "shared", 'say how .* such as --partition "dirichlet'),
        ({"data": "shared"}, True, True, "shared", 'data = "shared": add --plan data=local'),
        ({}, False, True, "shared", "with --system-only nothing is trained"),
        ({"data": "shared"}, True, False, "own", 'is each device\'s own, which needs data = "local"'),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    made: dict[str, ReadyTask], changes: dict[str, Any], train: bool, is_divided: bool, task: str, why: str
) -> None:
    divided = divide(made[task], PARTITION, devices=2) if is_divided else None
    with pytest.raises(Misuse, match=why):
        simulated_job(made[task], replace(PLAN, **changes), train=train, divided=divided)


def test_as_many_devices_are_simulated_as_have_examples(made: dict[str, ReadyTask]) -> None:
    job = simulated_job(made["shared"], PLAN, train=True, divided=divide(made["shared"], PARTITION, devices=2))
    try:
        with pytest.raises(Misuse, match="divided among 2 devices, and 3 are simulated"):
            simulate(Study(job=job, devices=3, profile="even"))
    finally:
        close(job)
