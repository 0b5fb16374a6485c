"""A task's own step, batch, metrics, optimiser, loop and placement, against torch's own arithmetic."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import Misuse
from shoal.learning.figures import value
from shoal.learning.metrics import MetricSum
from shoal.plan import Plan
from shoal.scheduling.batches import batch_indices, epoch_order, mix
from shoal.task import Task, class_dimension
from shoal.trainer.base import load_base, write_base
from shoal.trainer.device import choose, move
from shoal.trainer.flat import read_into, write_from
from shoal.trainer.importer import make_task
from shoal.trainer.placement import place, to_training
from shoal.trainer.shared import SharedVectors
from shoal.trainer.steps import TorchTrainer, build_model, seeded

HEAD = """
import torch
from torch import nn
import shoal
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
"""

FROZEN = """
import torch
from torch import nn
import shoal
from shoal.task import Task

class Sample(Task):
    def model(self):
        body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).requires_grad_(False)
        return nn.Sequential(body, nn.Dropout(0.5), nn.Linear(8, 3))
"""


def examples(count, seed=0, classes=3):
    chance = np.random.default_rng(seed)
    return chance.normal(size=(count, 4)).astype(np.float32), chance.integers(0, classes, count)


@pytest.fixture
def load(make_job):
    """A trainer in this process, its model region filled from the task's own first weights."""
    with contextlib.ExitStack() as stack:

        def loader(source, train=None, test=None, **settings):
            job = make_job(source, train or examples(64), test, **settings)
            shared = SharedVectors.create(job.layout.size)
            stack.callback(shared.close)
            trainer = TorchTrainer(job, shared)
            task = make_task(Path(job.bundle_dir), job.entry, {})
            read_into(shared.model, build_model(task, job.seed), job.layout)
            return trainer, shared, job

        yield loader


def _as_before(job, flat, x, y, batches, *, epoch=0):
    """The training step of Shoal 0.1: one SGD for all leases, seeded by seed, epoch and batch."""
    model = build_model(make_task(Path(job.bundle_dir), job.entry, {}), job.seed)
    write_from(flat, model, job.layout)
    optimiser = torch.optim.SGD(model.parameters(), lr=job.learning_rate, weight_decay=job.weight_decay)
    model.train()
    for batch in batches:
        rows = batch_indices(epoch_order(len(x), seed=job.seed, epoch=epoch), batch, job.batch_size)
        seed = mix(job.seed, epoch, batch)
        torch.manual_seed(seed >> 1)
        np.random.seed(seed & 0xFFFFFFFF)
        optimiser.zero_grad()
        output, labels = model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])
        (-output.log_softmax(1).gather(1, labels.long().unsqueeze(1)).mean()).backward()
        optimiser.step()
    after = np.empty(job.layout.size, np.float32)
    read_into(after, model, job.layout)
    return after - flat


@pytest.mark.parametrize("inside", ["nn.Tanh()", "nn.Dropout(0.5)", "nn.BatchNorm1d(8)"])
def test_a_task_of_before_gives_the_same_bytes(load, inside):
    torch.set_num_threads(1)
    x, y = examples(64)
    trainer, shared, job = load(HEAD.replace("nn.Tanh()", inside), (x, y), weight_decay=0.01)
    trainer.train(0, [3, 0, 5])
    wanted = _as_before(job, shared.model, x, y, [3, 0, 5])
    assert shared.update.tobytes() == wanted.tobytes()


# Placement -----------------------------------------------------------------------------------------------------


def test_only_what_is_trained_is_in_the_vector(load):
    trainer, shared, job = load(FROZEN)
    assert [entry.name for entry in job.layout.entries] == ["2.weight", "2.bias"]
    body = {name: each.clone() for name, each in trainer._model.state_dict().items() if name.startswith("0.")}
    trainer.train(0, [0, 1])
    assert np.abs(shared.update).max() > 0
    after = trainer._model.state_dict()
    for name, before in body.items():
        assert torch.equal(before, after[name]), f"{name} is frozen, its running means too"
    assert trainer._model[1].training, "dropout in front of the head still drops"


def test_the_base_is_what_the_job_has_not_what_the_device_builds(load):
    """A device whose library draws other numbers, or which has another checkpoint, trains on the job's own base."""
    drawn = FROZEN.replace("def model(self):", "def model(self):\n        torch.seed()")
    trainer, _, job = load(drawn)
    first = trainer._model[0][0].weight.clone()
    again = TorchTrainer(job, SharedVectors.create(job.layout.size))
    assert torch.equal(first, again._model[0][0].weight)
    assert not first.equal(build_model(trainer._task, job.seed)[0][0].weight)


def _bits(tensor):
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_a_base_of_any_type_comes_back_bit_for_bit(tmp_path, kind):
    values = torch.randn(7, 5).to(kind)
    whole = {"a.b": values, "count": torch.arange(4), "is": torch.tensor([True, False]), "one": torch.tensor(3.0)}
    parts = write_base(whole, tmp_path)
    built = {name: torch.zeros_like(each) for name, each in whole.items()}
    load_base(built, [tmp_path / part for part in parts])
    for name, each in whole.items():
        assert _bits(each).equal(_bits(built[name]))
    built["a.b"].view(torch.uint8).add_(1)
    again = {name: torch.zeros_like(each) for name, each in whole.items()}
    load_base(again, [tmp_path / part for part in parts])
    assert again["a.b"].view(torch.uint8).equal(whole["a.b"].view(torch.uint8)), "writing to a tensor leaves the file"


def test_a_base_that_fits_another_model_is_refused(tmp_path):
    parts = [tmp_path / part for part in write_base({"w": torch.zeros(2)}, tmp_path)]
    with pytest.raises(Misuse, match=r"frozen w is torch.float32 \[3\] on this device"):
        load_base({"w": torch.zeros(3)}, parts)
    with pytest.raises(Misuse, match="not in the model"):
        load_base({}, parts)
    with pytest.raises(Misuse, match="such as v"):
        load_base({"w": torch.zeros(2), "v": torch.zeros(1)}, parts)


class Placing(Task):
    def __init__(self, where=""):
        self._where = where

    def placement(self, name, tensor):
        return self._where or None if name.startswith("0.") else None


def test_a_task_places_tensors_itself():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    placed = place(Placing("frozen"), model)
    assert set(placed.frozen) == {"0.weight", "0.bias"}
    assert not model[0].weight.requires_grad
    own = place(Placing("own"), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    assert set(own.own) == {"0.weight", "0.bias"}
    assert [entry.name for entry in own.layout.entries] == ["1.weight", "1.bias"]
    with pytest.raises(Misuse, match="there is shared, frozen and own"):
        place(Placing("there"), nn.Sequential(nn.Linear(2, 2)))


def test_a_frozen_module_inside_a_trained_one_stands_still():
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).requires_grad_(False), nn.Conv2d(2, 1, 1)
    )
    placed = place(Task(), model)
    to_training(model, placed)
    assert not model[0][1].training
    assert model[1].training
    assert "0.1.num_batches_tracked" in placed.frozen


def test_a_model_without_anything_to_train_is_refused():
    with pytest.raises(Misuse, match="no parameter that can be trained"):
        place(Task(), nn.Linear(2, 2).requires_grad_(False))


# Step, batch, metrics ------------------------------------------------------------------------------------------


def test_a_step_of_its_own_and_no_labels(load):
    source = (
        HEAD.replace("nn.Linear(8, 3)", "nn.Linear(8, 4)")
        + """
    def collate(self, rows, *, training):
        return {"x": rows[0], "training": training}
    def step(self, model, batch, lease):
        assert batch["training"] == torch.is_grad_enabled()
        return (model(batch["x"]) - batch["x"]).square().mean()
"""
    )
    trainer, _, _ = load(source)
    result = trainer.train(0, [0, 1])
    assert result.finite
    assert result.loss_sum > 0
    found = {each.name: value(each) for each in trainer.evaluate(0, 16).metrics}
    assert list(found) == ["loss"], "no accuracy where there is none"


def test_augmentation_is_for_training_alone_and_evaluation_is_seeded(load):
    source = (
        HEAD
        + """
    def collate(self, rows, *, training):
        x, y = rows
        return (x + torch.rand_like(x) if training else x), y
    def metrics(self, model, batch):
        return {"noise": shoal.mean(torch.rand(1), 1), "loss": shoal.mean(0.0, 1)}
"""
    )
    trainer, shared, _ = load(source)
    first = trainer.evaluate(0, 32).metrics
    torch.rand(5)
    assert trainer.evaluate(0, 32).metrics == first
    trainer.train(0, [0])
    before = shared.update.copy()
    trainer.train(0, [0])
    assert before.tobytes() == shared.update.tobytes()


def test_regression_reports_no_share_of_right_ones(load):
    x, _ = examples(64)
    y = x.sum(1).astype(np.float32)
    source = (
        HEAD.replace("nn.Linear(8, 3)", "nn.Linear(8, 1), nn.Flatten(0)")
        + """
    @staticmethod
    def loss(output, y):
        return (output - y).square().mean()
"""
    )
    trainer, _, _ = load(source, (x, y))
    assert [each.name for each in trainer.evaluate(0, 8).metrics] == ["loss"]


def test_each_position_of_a_sequence_counts(load):
    chance = np.random.default_rng(0)
    x, y = chance.normal(size=(32, 6, 4)).astype(np.float32), chance.integers(0, 3, (32, 6))
    source = HEAD.replace("nn.Linear(8, 3))", "nn.Linear(8, 3), Last())").replace(
        "class Sample",
        """class Last(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)

class Sample""",
    )
    trainer, _, _ = load(source, (x, y))
    (accuracy,) = [each for each in trainer.evaluate(0, 32).metrics if each.name == "accuracy"]
    assert accuracy.sums[1] == 32 * 6
    assert 0 < value(accuracy) < 1


# Optimisers and loops ------------------------------------------------------------------------------------------


def _trained(job, shared, make, x, y, batches, *, clip=0.0, accumulate=1):
    model = build_model(make_task(Path(job.bundle_dir), job.entry, {}), job.seed)
    write_from(shared.model, model, job.layout)
    optimiser = make(model.parameters())
    optimiser.zero_grad()
    for number, batch in enumerate(batches):
        rows = batch_indices(epoch_order(len(x), seed=job.seed, epoch=0), batch, job.batch_size)
        loss = nn.functional.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows]))
        (loss / accumulate).backward()
        if (number + 1) % accumulate == 0:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()
            optimiser.zero_grad()
    after = np.empty(job.layout.size, np.float32)
    read_into(after, model, job.layout)
    return after - shared.model


def test_an_inner_optimiser_begins_again_with_each_lease(load):
    x, y = examples(64)
    trainer, shared, job = load(HEAD, (x, y), inner="adamw", learning_rate=0.01, lease_batches=8)
    for _ in range(2):
        trainer.train(0, list(range(8)))
        wanted = _trained(job, shared, lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0), x, y, range(8))
        np.testing.assert_allclose(shared.update, wanted, atol=1e-6)


def test_a_kept_optimiser_goes_on(load):
    x, y = examples(64)
    options = {"inner": "adamw", "inner_state": "kept", "learning_rate": 0.01}
    trainer, shared, _ = load(HEAD, (x, y), **options)
    updates = []
    for _ in range(2):
        trainer.train(0, [0])
        updates.append(shared.update.copy())
    assert updates[0].tobytes() != updates[1].tobytes()


def test_the_tasks_own_optimiser_and_the_rate_of_a_schedule(load):
    x, y = examples(64)
    source = (
        HEAD
        + """
    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
"""
    )
    trainer, shared, job = load(source, (x, y))
    trainer.train(0, [0, 1, 2])
    wanted = _trained(job, shared, lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.5), x, y, range(3))
    np.testing.assert_allclose(shared.update, wanted, atol=1e-6)
    trainer.train(0, [0, 1, 2], rate=0.05)
    wanted = _trained(job, shared, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5), x, y, range(3))
    np.testing.assert_allclose(shared.update, wanted, atol=1e-6)


def test_clipping_and_accumulation(load):
    x, y = examples(64)
    trainer, shared, job = load(HEAD, (x, y), clip_gradient=0.01, accumulate=2, lease_batches=4)
    trainer.train(0, [0, 1, 2, 3])
    wanted = _trained(job, shared, lambda p: torch.optim.SGD(p, lr=0.1), x, y, range(4), clip=0.01, accumulate=2)
    np.testing.assert_allclose(shared.update, wanted, atol=1e-7)


def test_fresh_adam_with_few_steps_is_refused(load):
    source = (
        HEAD
        + """
    def optimizer(self, model):
        return torch.optim.Adam(model.parameters())
"""
    )
    with pytest.raises(Misuse, match="averages are mostly bias correction"):
        load(source)
    with pytest.raises(Misuse, match="outer = 'adamw'"):
        Plan(inner="adamw")
    assert Plan(inner="adamw", lease_batches=8).inner == "adamw"


def test_an_unknown_optimiser_is_named(load):
    with pytest.raises(Misuse, match=r"torch.optim has .*adamw"):
        load(HEAD, inner="adamww")


TWO = (
    HEAD
    + """
    def train(self, model, batches, lease):
        rates = (lease.rate, 0.01)
        optimisers = [torch.optim.SGD(part.parameters(), lr=rate) for part, rate in zip((model[0], model[2]), rates)]
        for x, y in batches:
            loss = self.loss(model(x), y)
            loss.backward()
            for each in optimisers:
                each.step()
                each.zero_grad()
            lease.log("loss", loss.item() * len(y), len(y))
"""
)


def test_a_loop_of_its_own(load):
    trainer, shared, _ = load(TWO)
    result = trainer.train(0, [0, 1])
    first = shared.update.copy()
    assert result.examples == 16
    assert result.loss_sum > 0
    trainer.train(0, [0, 1])
    assert first.tobytes() == shared.update.tobytes(), "it is pure"


def test_a_loop_without_metrics_of_its_own_has_those_of_classes(load):
    trainer, _, _ = load(TWO)
    found = {metric.name: metric for metric in trainer.evaluate(0, 8).metrics}
    assert set(found) == {"loss", "accuracy"}
    assert found["accuracy"].sums[1] == 8


def test_a_loop_whose_model_is_called_in_another_way_has_no_figures(load):
    other = TWO.replace(
        "    def train(",
        """
    def model(self):
        class Other(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 3)
            def forward(self, x, mask):
                return self.layer(x)
        return Other()

    def train(""",
        1,
    )
    trainer, _, _ = load(other)
    assert trainer.evaluate(0, 8).metrics == ()


def test_a_loop_logs_figures_of_its_own(load):
    logs = """
            lease.log("reward", 3.0 * len(y), len(y))
            lease.log("broken", float("inf"))
"""
    trainer, _, _ = load(TWO + logs)
    result = trainer.train(0, [0, 1])
    assert result.loss_sum > 0
    assert result.logged == (MetricSum(name="reward", kind="mean", sums=(48.0, 16.0)),)


def test_a_loop_logs_so_many_figures_and_no_more(load):
    trainer, _, _ = load(TWO + "            [lease.log(f'figure {n}', 1.0) for n in range(9)]\n")
    with pytest.raises(Misuse, match="at most 8 other figures"):
        trainer.train(0, [0, 1])


def test_a_loop_that_leaves_batches_out_is_refused(load):
    trainer, _, _ = load(TWO.replace("for x, y in batches:", "for x, y in [next(batches)]:"))
    with pytest.raises(Misuse, match=r"train took 1 of the lease's 2 batches"):
        trainer.train(0, [0, 1])


def test_an_anchor_is_the_version_before_the_first_step(load):
    source = (
        HEAD
        + """
    def step(self, model, batch, lease):
        x, y = batch
        pull = sum((p - lease.anchor(name)).square().sum() for name, p in model.named_parameters())
        return self.loss(model(x), y) + (5.0 * pull if lease.epoch else 0.0)
"""
    )
    trainer, shared, _ = load(source)
    trainer.train(0, list(range(8)))
    far = np.linalg.norm(shared.update)
    trainer.train(1, list(range(8)))
    assert 0 < np.linalg.norm(shared.update) < 0.7 * far


def test_an_update_of_rounded_values_is_what_changed(load):
    source = (
        HEAD.replace("nn.Linear(8, 3))", "nn.Linear(8, 3)).bfloat16()")
        + """
    def batch(self, x, y):
        return x.bfloat16(), y
"""
    )
    trainer, shared, _ = load(source)
    shared.model += 1e-4  # Values that bfloat16 has not.
    trainer.train(0, [0, 1])
    moved = np.count_nonzero(shared.update)
    assert moved > 0
    rounded = torch.from_numpy(shared.model).bfloat16().float().numpy()
    after = torch.from_numpy(rounded + shared.update).bfloat16().float().numpy()
    np.testing.assert_array_equal(after, rounded + shared.update)
    # One plain step is handed over as it is: the leader's values take it, also where it is less than bfloat16 rounds.
    trainer.train(0, [0])
    after = torch.from_numpy(rounded + shared.update).bfloat16().float().numpy()
    assert np.count_nonzero(after != rounded + shared.update) > 0.9 * shared.update.size


# Processors ----------------------------------------------------------------------------------------------------


def test_a_processor_that_is_not_there_is_refused():
    assert choose("cpu").type == "cpu"
    assert choose("auto").type in ("cpu", "cuda", "mps")
    if not torch.cuda.is_available():
        with pytest.raises(Misuse, match="finds 0 CUDA devices here"):
            choose("cuda:3")
    with pytest.raises(Misuse, match="auto, cpu"):
        choose("gpu7")


def test_a_batch_moves_whole():
    batch = {"x": torch.ones(2), "rest": [torch.ones(1), ("text", torch.zeros(3))]}
    moved = move(batch, torch.device("meta"))
    assert moved["x"].device.type == moved["rest"][1][1].device.type == "meta"
    assert moved["rest"][1][0] == "text"
    assert move(batch, torch.device("cpu")) is batch


def test_seeds_draw_the_same_everywhere():
    seeded(1, 2)
    first = torch.rand(3), np.random.rand(3)
    seeded(1, 2)
    assert torch.equal(first[0], torch.rand(3))
    assert np.array_equal(first[1], np.random.rand(3))


# Where classes are ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "y", "wanted"),
    [
        ((8, 3), (8,), 1),
        ((8, 3, 5), (8, 5), 1),  # as torch's cross entropy has it
        ((8, 5, 3), (8, 5), 2),  # as a language model has it
        ((8, 5, 5), (8, 5), 1),  # both fit: torch's
        ((8, 3, 4, 6), (8, 4, 6), 1),
        ((8, 4, 6, 3), (8, 4, 6), 3),
        ((8, 4, 3), (8, 5), None),
        ((8,), (8,), None),
        ((8,), (), None),
    ],
)
def test_the_dimension_of_classes_is_the_one_that_fits(output, y, wanted):
    assert class_dimension(output, y) == wanted


LANGUAGE = """
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Sequential(nn.Linear(4, 15), nn.Unflatten(1, (5, 3)))
"""
OWN_LOSS = """
    @staticmethod
    def loss(output, y):
        return nn.functional.cross_entropy(output.flatten(0, 1), y.flatten())
"""


@pytest.mark.parametrize("source", [LANGUAGE, LANGUAGE + OWN_LOSS])
def test_a_language_model_has_an_accuracy_and_a_loss_by_default(load, source):
    chance = np.random.default_rng(3)
    x, y = chance.normal(size=(24, 4)).astype(np.float32), chance.integers(0, 3, (24, 5))
    trainer, shared, _ = load(source, (x, y))
    found = {metric.name: metric.sums for metric in trainer.evaluate(0, 24).metrics}
    output = trainer._model(torch.from_numpy(x))
    right = int((output.argmax(2) == torch.from_numpy(y)).sum())
    assert found["accuracy"] == (right, 120)
    loss = nn.functional.cross_entropy(output.flatten(0, 1), torch.from_numpy(y).flatten()).item()
    assert found["loss"][0] / found["loss"][1] == pytest.approx(loss, rel=1e-5)
    trainer.train(0, [0])
    assert np.abs(shared.update).max() > 0
