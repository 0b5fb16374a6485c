"""A task that changes a frozen tensor is refused by the tensor's name, however it writes."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import Misuse
from shoal.task import Task
from shoal.trainer.flat import read_into
from shoal.trainer.frozen_guard import SAMPLE, FrozenGuard
from shoal.trainer.importer import make_task
from shoal.trainer.placement import place, placed_again
from shoal.trainer.shards import Examples
from shoal.trainer.shared import SharedVectors
from shoal.trainer.steps import TorchTrainer, build_model
from shoal.trainer.trial import try_batch

#: The usual way to keep a mean of weights, and others that torch does not count.
EMA = """
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from shoal.task import Task

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9)).requires_grad_(False)
    def forward(self, x):
        return self.net(x)

class Sample(Task):
    def model(self):
        return Net()
    def step(self, model, batch, lease):
        x, y = batch
        CHANGE
        return nn.functional.cross_entropy(model(x), y)
"""
WRITES = {
    "update_parameters": "model.ema.update_parameters(model.net)",
    "data": "model.ema.module.weight.data.add_(1)",
    "numpy": "model.ema.module.weight.numpy()[:] += 1",
    "another tensor": "model.ema.n_averaged = model.ema.n_averaged + 1",
    "another memory": "model.ema.module.weight.data = torch.zeros(3, 4)",
    "in metrics": "pass",
}
IN_METRICS = """
    def metrics(self, model, batch):
        model.ema.module.bias.mul_(2)
        return {}
"""


def source_of(write: str) -> str:
    return EMA.replace("CHANGE", WRITES[write]) + (IN_METRICS if write == "in metrics" else "")


def examples(count):
    chance = np.random.default_rng(0)
    return chance.normal(size=(count, 4)).astype(np.float32), chance.integers(0, 3, count)


@pytest.fixture
def load(make_job):
    with contextlib.ExitStack() as stack:

        def loader(source):
            job = make_job(source, examples(32))
            shared = SharedVectors.create(job.layout.size)
            stack.callback(shared.close)
            task = make_task(Path(job.bundle_dir), job.entry, {})
            read_into(shared.model, build_model(task, job.seed), job.layout)
            return TorchTrainer(job, shared), task, job

        yield loader


@pytest.mark.parametrize("write", WRITES)
def test_a_device_refuses_a_lease_that_changes_a_frozen_tensor_and_names_it(load, write):
    trainer, _, _ = load(source_of(write))
    named = r"the code of Sample changed ema\.\S+.* which is frozen .*set ema = 0\.999 in the plan"
    if write == "in metrics":
        trainer.train(0, [0])
        with pytest.raises(Misuse, match=named):
            trainer.evaluate(0, 8)
        return
    for _ in range(2):
        with pytest.raises(Misuse, match=named):
            trainer.train(0, [0])


@pytest.mark.parametrize("write", WRITES)
def test_such_a_task_is_refused_before_it_is_sent(load, write):
    _, task, job = load(source_of(write))
    model = build_model(task, 0)
    rows = Examples([Path(shard) for shard in job.train])
    with pytest.raises(Misuse, match=r"the code of Sample changed ema\.\S+"):
        try_batch(task, model, place(task, model), train=rows, test=rows, batch_size=8, seed=0)


def test_a_mean_that_nobody_touches_and_trained_buffers_pass(load):
    source = source_of("in metrics").replace("model.ema.module.bias.mul_(2)", "pass")
    trainer, task, job = load(source.replace("nn.Linear(4, 3)", "nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))"))
    trainer.train(0, [0, 1])
    trainer.evaluate(0, 8)
    model = build_model(task, 0)
    rows = Examples([Path(shard) for shard in job.train])
    try_batch(task, model, place(task, model), train=rows, test=rows, batch_size=8, seed=0)


def test_a_move_to_another_device_is_no_change():
    """``Module.to`` puts other tensors in the place of buffers. Here the device is ``meta``, for want of another."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).requires_grad_(False), nn.BatchNorm1d(3))
    placed = place(Task(), model)
    model.to("meta")
    again = placed_again(placed, model)
    assert FrozenGuard(model, again.frozen).changed() == []
    assert again.shared["2.running_mean"][0] is model[2].running_mean
    assert (again.layout, list(again.frozen), again.still) == (placed.layout, list(placed.frozen), placed.still)


def test_where_a_task_is_prepared_every_value_is_compared():
    model = nn.Linear(4 * SAMPLE, 3).requires_grad_(False)
    frozen = dict(model.named_parameters())
    on_device, prepared = FrozenGuard(model, frozen), FrozenGuard(model, frozen, whole=True)
    # Past the values that devices look at, and by a way that torch does not count.
    model.weight.numpy()[2, 3 * SAMPLE] += 1
    assert prepared.changed() == ["weight"]
    assert on_device.changed() == []
    model.weight.numpy()[0, 0] += 1
    assert on_device.changed() == ["weight"]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn, torch.complex64])
def test_tensors_of_every_type_and_shape_can_be_compared(kind):
    model = nn.Module()
    model.register_buffer("many", torch.zeros(3, 5).to(kind))
    model.register_buffer("across", torch.zeros(3, 5).to(kind).t())
    model.register_buffer("one", torch.zeros(()).to(kind))
    model.register_buffer("none", torch.zeros(0, 4).to(kind))
    for whole in (False, True):
        guard = FrozenGuard(model, dict(model.named_buffers()), whole=whole)
        assert guard.changed() == []
        for name in ("many", "one"):
            buffer = model.get_buffer(name)
            buffer.data.copy_(torch.ones(buffer.shape).to(kind))
        assert guard.changed() == ["many", "one"]
        for name in ("many", "one"):
            buffer = model.get_buffer(name)
            buffer.data.copy_(torch.zeros(buffer.shape).to(kind))
