"""A lease of one plain step hands over the gradient, to float32's own precision; any other hands over what changed."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shoal.scheduling.batches import batch_indices, epoch_order
from shoal.trainer.flat import read_into, write_from
from shoal.trainer.importer import make_task
from shoal.trainer.shared import SharedVectors
from shoal.trainer.steps import TorchTrainer, build_model, window_shares

pytestmark = pytest.mark.timeout(120)

#: Weights of about 100 and gradients of about 1e-4: read back at this rate, no digit of a gradient is left.
RATE = 0.05

TASK = """
import torch
from torch import nn
import shoal
from shoal.task import Task

class Heavy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        with torch.no_grad():
            self.body.weight.add_(100.0)

    def forward(self, x):
        return self.norm(self.body(x))

class Sample(Task):
    def model(self):
        return Heavy()

    def loss(self, output, y):
        return 1e-4 * nn.functional.cross_entropy(output, y)
"""


def examples(count):
    chance = np.random.default_rng(0)
    return chance.normal(size=(count, 4)).astype(np.float32), chance.integers(0, 3, count)


@pytest.fixture
def load(make_job):
    with contextlib.ExitStack() as stack:

        def loader(source, rows=None, **settings):
            job = make_job(source, rows or examples(64), learning_rate=RATE, **settings)
            shared = SharedVectors.create(job.layout.size)
            stack.callback(shared.close)
            trainer = TorchTrainer(job, shared)
            read_into(shared.model, _model(job), job.layout)
            return trainer, shared, job

        yield loader


def _model(job):
    return build_model(make_task(Path(job.bundle_dir), job.entry, {}), job.seed)


def _gradient(job, shared, rows, batches, *, clip=0.0):
    """The gradient over the examples of these batches, and the model's buffers after them."""
    model = _model(job)
    write_from(shared.model, model, job.layout)
    task = make_task(Path(job.bundle_dir), job.entry, {})
    x, y = rows
    chosen = [batch_indices(epoch_order(len(x), seed=job.seed, epoch=0), batch, job.batch_size) for batch in batches]
    total = sum(len(indices) for indices in chosen)
    for indices in chosen:
        loss = task.loss(model(torch.from_numpy(x[indices])), torch.from_numpy(y[indices]))
        (loss * (len(indices) / total)).backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    found = np.zeros(job.layout.size, np.float32)
    for name, view in job.layout.views(found).items():
        tensor = dict(model.named_parameters()).get(name)
        if tensor is not None:
            view[...] = tensor.grad.numpy()
    after = np.empty(job.layout.size, np.float32)
    read_into(after, model, job.layout)
    return found, after


def _check(job, shared, rows, batches, *, clip=0.0, decay=0.0):
    size = job.layout.parameters_size
    gradient, after = _gradient(job, shared, rows, batches, clip=clip)
    wanted = gradient[:size] + decay * shared.model[:size]
    np.testing.assert_allclose(shared.update[:size] / -RATE, wanted, rtol=3e-7, atol=1e-12)
    np.testing.assert_array_equal(shared.update[size:], (after - shared.model)[size:])
    assert np.count_nonzero(shared.update[size:]), "BatchNorm's running means moved"


@pytest.mark.parametrize(
    ("batches", "settings"),
    [
        ([0], {}),
        ([0], {"clip_gradient": 1e-5}),
        ([0], {"weight_decay": 0.01}),
        ([0, 1, 2], {"accumulate": 3, "lease_batches": 3}),
        # The last batch of the epoch has 4 of 8 examples, and the window 2 of 3 batches.
        ([6, 7], {"accumulate": 3, "lease_batches": 3}),
    ],
)
def test_a_lease_of_one_plain_step_hands_over_the_gradient(load, batches, settings):
    rows = examples(60)
    trainer, shared, job = load(TASK, rows, **settings)
    assert trainer.train(0, batches).finite
    _check(
        job,
        shared,
        rows,
        batches,
        clip=settings.get("clip_gradient", 0.0),
        decay=settings.get("weight_decay", 0.0),
    )


def test_groups_of_the_tasks_own_sgd_each_have_their_rate(load):
    source = (
        TASK
        + """
    def optimizer(self, model):
        slow, fast = model.body.parameters(), [model.norm.weight]
        return torch.optim.SGD([{"params": slow}, {"params": fast, "lr": 0.5}], lr=0.05)
"""
    )
    rows = examples(64)
    trainer, shared, job = load(source, rows)
    trainer.train(0, [0])
    gradient, _ = _gradient(job, shared, rows, [0])
    views, wanted = job.layout.views(shared.update), job.layout.views(gradient)
    np.testing.assert_allclose(views["body.weight"], -0.05 * wanted["body.weight"], rtol=3e-7)
    np.testing.assert_allclose(views["norm.weight"], -0.5 * wanted["norm.weight"], rtol=3e-7)
    # In no group: it does not move.
    np.testing.assert_array_equal(views["norm.bias"], 0.0)


def test_a_task_that_writes_to_its_weights_hands_over_what_changed(load):
    source = (
        TASK
        + """
    def step(self, model, batch, lease):
        model.body.bias.data.fill_(0.25)
        return self.loss(model(batch[0]), batch[1])
"""
    )
    trainer, shared, job = load(source)
    trainer.train(0, [0])
    moved = job.layout.views(shared.update)["body.bias"] + job.layout.views(shared.model)["body.bias"]
    np.testing.assert_allclose(moved, 0.25, atol=1e-3)


def test_a_hook_before_the_step_counts_however_small_the_gradient(load):
    source = (
        TASK
        + """
    def optimizer(self, model):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)

        def mask(*_):
            model.body.weight.grad[0] = 0.0

        optimiser.register_step_pre_hook(mask)
        return optimiser
"""
    )
    rows = examples(64)
    trainer, shared, job = load(source, rows)
    trainer.train(0, [0])
    gradient, _ = _gradient(job, shared, rows, [0])
    moved = job.layout.views(shared.update)["body.weight"]
    np.testing.assert_array_equal(moved[0], 0.0)
    np.testing.assert_allclose(moved[1:], -0.05 * job.layout.views(gradient)["body.weight"][1:], rtol=3e-7)


@pytest.mark.parametrize(("kind", "factor"), [("bfloat16", 0.98), ("float32", 1 - 2**-21)])
def test_a_hook_after_the_step_counts_from_two_last_places_on(load, kind, factor):
    source = f"""
import torch
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Linear(4, 3, bias=False).to(torch.{kind})

    def loss(self, output, y):
        return 1e-6 * output.float().mean()

    def collate(self, batch, *, training):
        x, y = super().collate(batch, training=training)
        return x.to(torch.{kind}), y

    def optimizer(self, model):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        optimiser.register_step_post_hook(lambda *_: model.weight.data.mul_({factor!r}))
        return optimiser
"""
    trainer, shared, _ = load(source)
    trainer.train(0, [0])
    np.testing.assert_allclose(shared.update, shared.model * (factor - 1), rtol=0.5, atol=1e-7)
    assert np.abs(shared.update).max() > 1e-7


@pytest.mark.parametrize("rate", [1e-4, RATE, 3.0])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_bfloat16_weights_hand_over_the_gradient(load, rate, decay):
    source = f"""
import torch
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Linear(4, 3).to(torch.bfloat16)

    def loss(self, output, y):
        return nn.functional.cross_entropy(output.float(), y)

    def collate(self, batch, *, training):
        x, y = super().collate(batch, training=training)
        return x.to(torch.bfloat16), y

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr={rate}, weight_decay={decay})
"""
    trainer, shared, _ = load(source)
    before = shared.model.copy()
    seen = []
    handle = register_optimizer_step_pre_hook(
        lambda optimiser, *_: seen.append(
            np.concatenate([p.grad.float().numpy().ravel() for g in optimiser.param_groups for p in g["params"]])
        )
    )
    try:
        trainer.train(0, [0])
    finally:
        handle.remove()
    np.testing.assert_allclose(shared.update, -rate * (seen[0] + decay * before), rtol=1e-6)


@pytest.mark.parametrize(
    ("batches", "settings"), [([0, 1], {"lease_batches": 2}), ([0], {"inner": "adagrad", "inner_state": "kept"})]
)
def test_other_leases_hand_over_what_changed(load, batches, settings):
    """Weights of about 100 move in steps of 2^-17."""
    trainer, shared, job = load(TASK, **settings)
    trainer.train(0, batches)
    moved = job.layout.views(shared.update)["body.weight"]
    np.testing.assert_array_equal(moved * 2**17, np.round(moved * 2**17))


def test_a_gradient_that_is_not_a_number_is_told(load):
    x, y = examples(64)
    trainer, _, _ = load(TASK, (np.where(x > 1.0, np.float32("nan"), x), y))
    assert not trainer.train(0, [0]).finite


def test_each_batch_has_its_share_of_its_window():
    assert window_shares([8] * 4, 2) == [0.5] * 4
    assert window_shares([8] * 8, 3) == [1 / 3] * 6 + [1 / 2] * 2
    assert window_shares([8, 8, 4], 2) == [0.5, 0.5, 1.0]
    assert window_shares([8, 8, 4], 3) == [0.4, 0.4, 0.2]
    assert window_shares([5], 1) == [1.0]


def test_a_short_last_window_steps_as_far_as_others(load):
    """The gradient is 1 whatever the batch. Eight batches are windows of 3, 3 and 2, and each is a whole step."""
    source = """
import torch
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Linear(4, 1, bias=False)

    def loss(self, output, y):
        return output.mean()
"""
    x = np.ones((64, 4), np.float32)
    trainer, shared, _ = load(source, (x, np.zeros(64, np.int64)), accumulate=3, lease_batches=8)
    trainer.train(0, list(range(8)))
    np.testing.assert_allclose(shared.update, -3 * RATE, rtol=1e-5)
