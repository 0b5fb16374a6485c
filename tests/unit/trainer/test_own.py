"""Own tensors of a model: trained here, in no update, from the values they are given."""

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.learning.figures import value
from shoal.trainer.arrays import write_examples
from shoal.trainer.flat import read_into
from shoal.trainer.importer import make_task
from shoal.trainer.placement import place
from shoal.trainer.prepare_child import prepare
from shoal.trainer.prepared_job import own_layout
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.shared import SharedVectors
from shoal.trainer.steps import TorchTrainer, build_model
from shoal.wire import tensors

TASK = """
import numpy as np
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def examples(self, split):
        chance = np.random.default_rng(3)
        return chance.normal(size=(96, 4)).astype(np.float32), chance.integers(0, 3, 96)

    def placement(self, name, tensor):
        return "own" if name.startswith(OWN) else None
"""


@pytest.fixture
def load(tmp_path):
    with contextlib.ExitStack() as stack:

        def loader(own=("3.",), **changes):
            (tmp_path / "task.py").write_text(f"OWN = {own!r}\n{TASK}")
            task = make_task(tmp_path, "task:Sample", {})
            model = build_model(task, 0)
            placed = place(task, model)
            settings = TrainerSettings(
                bundle_dir=str(tmp_path),
                entry="task:Sample",
                train=(),
                layout=placed.layout,
                own=placed.own_layout,
                seed=0,
                batch_size=16,
                learning_rate=0.1,
                is_local=True,
                **changes,
            )
            # As it crosses to the process.
            settings = TrainerSettings.from_message(json.loads(json.dumps(settings.to_message())))
            shared = SharedVectors.create(settings.layout.size, settings.own_size)
            stack.callback(shared.close)
            trainer = TorchTrainer(settings, shared)
            read_into(shared.model, {name: each for name, (each, _) in placed.shared.items()}, placed.layout)
            shared.own[:] = shared.own_after
            return trainer, shared, placed

        yield loader


def test_own_tensors_are_trained_and_in_no_update(load):
    trainer, shared, placed = load()
    assert [entry.name for entry in placed.own_layout.entries] == ["3.weight", "3.bias"]
    first = shared.own.copy()
    assert np.abs(first).max() > 0, "the first model's values are told when the task is loaded"
    trainer.learn(0, 0, 32)
    assert np.abs(shared.update).max() > 0
    assert shared.update.size == placed.layout.size
    assert np.abs(shared.own_after - first).max() > 1e-3
    assert shared.own.tobytes() == first.tobytes(), "what a lease begins with is the agent's"


def test_a_lease_is_a_function_of_the_own_values_it_is_given(load):
    # Which examples a lease takes depends on which are new: none are.
    trainer, shared, _ = load(local_seen=96)
    first = shared.own.copy()

    def lease(own):
        shared.own[:] = own
        trainer.learn(0, 0, 32)
        return shared.update.tobytes(), shared.own_after.copy()

    update, after = lease(first)
    other, onward = lease(after)
    again, repeated = lease(first)
    assert (again, repeated.tobytes()) == (update, after.tobytes()), "nothing of the lease between is left"
    assert other != update
    assert np.abs(onward - after).max() > 0


def loss_in(sums):
    (found,) = [each for each in sums if each.name == "loss"]
    return value(found)


def test_new_examples_are_judged_with_the_own_values(load):
    trainer, shared, _ = load()
    shared.own[:] = 0
    # A head of zeros gives every class a third.
    assert loss_in(trainer.learn(0, 0, 96).fresh_metrics) == pytest.approx(math.log(3), abs=1e-5)
    trainer, shared, _ = load()
    assert abs(loss_in(trainer.learn(0, 0, 96).fresh_metrics) - math.log(3)) > 1e-3


def test_held_out_examples_are_judged_with_the_first_models_values_on_every_device(load, tmp_path):
    chance = np.random.default_rng(5)
    held_out = (chance.normal(size=(40, 4)).astype(np.float32), chance.integers(0, 3, 40))
    manifest = write_examples(held_out, tmp_path)
    trainer, shared, _ = load(test=tuple(str(tmp_path / shard.sha256) for shard in manifest.shards))
    first = loss_in(trainer.evaluate(0, 40).metrics)
    shared.own[:] = 0
    assert loss_in(trainer.evaluate(0, 40).metrics) == first
    trainer.learn(0, 0, 32)
    assert loss_in(trainer.evaluate(0, 40).metrics) == first


def test_batch_norm_of_its_own(load):
    """FedBN: the scale, the shift and the running means stay on the device."""
    trainer, shared, placed = load(own=("1.",))
    names = [entry.name for entry in placed.own_layout.entries]
    assert names == ["1.weight", "1.bias", "1.running_mean", "1.running_var"]
    trainer.learn(0, 0, 32)
    after = placed.own_layout.views(shared.own_after)
    assert np.abs(after["1.running_mean"]).max() > 0
    assert "1.running_mean" not in [entry.name for entry in placed.layout.entries]


def test_own_values_that_are_no_numbers_are_told(load):
    trainer, shared, _ = load()
    shared.own[0] = np.nan
    assert not trainer.learn(0, 0, 32).finite


def test_another_own_part_than_the_jobs_is_refused(load, tmp_path):
    _, shared, placed = load()
    settings = TrainerSettings(
        bundle_dir=str(tmp_path),
        entry="task:Sample",
        train=(),
        layout=placed.layout,
        seed=0,
        batch_size=16,
        learning_rate=0.1,
    )
    with pytest.raises(Misuse, match="another own part"):
        TorchTrainer(settings, shared)


def test_an_own_part_needs_local_data(load, tmp_path):
    load()
    ask = {"bundle_dir": tmp_path, "entry": "task:Sample", "arguments": {}, "seed": 0, "out": tmp_path / "out"}
    with pytest.raises(Misuse, match=r'own for 3\.weight: .* set data = "local"'):
        prepare(**ask, key="a", report=lambda line: None)
    prepared = prepare(**ask, key="b", report=lambda line: None, data="local")
    assert [entry.name for entry in own_layout(Path(prepared.model)).entries] == ["3.weight", "3.bias"]
    assert "3.weight" not in tensors.read(Path(prepared.model))[0]


def test_memory_for_two_vectors_more():
    ours = SharedVectors.create(5, 3)
    theirs = SharedVectors.attach(ours.fd, 5, 3)
    ours.own[:], theirs.own_after[:] = 1, 2
    theirs.update[:] = 4
    assert (theirs.own.tolist(), ours.own_after.tolist(), ours.update.tolist()) == ([1] * 3, [2] * 3, [4] * 5)
    with pytest.raises(Misuse, match="two vectors of 5 values and two of 5000"):
        SharedVectors.attach(ours.fd, 5, 5000)
    assert SharedVectors.create(5).own.size == 0


def test_memory_that_is_not_mapped_is_copied():
    made = SharedVectors.create(5, 3)
    ours, theirs = (SharedVectors(made.fd, 5, 3, mapped=mapped) for mapped in (False, True))
    ours.own[:], theirs.own_after[:] = 1, 2
    ours.give()
    ours.take()
    assert (theirs.own.tolist(), ours.own_after.tolist()) == ([1] * 3, [2] * 3)
