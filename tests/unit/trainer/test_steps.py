"""Training in this process, against torch's own arithmetic."""

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import Misuse
from shoal.learning.layout import Layout
from shoal.learning.metrics import merge_all
from shoal.scheduling.batches import batch_indices, epoch_order
from shoal.trainer.flat import layout_of, read_into, write_from
from shoal.trainer.importer import make_task
from shoal.trainer.shared import SharedVectors
from shoal.trainer.steps import TorchTrainer, build_model

LINEAR = """
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
"""

NORMALISED = LINEAR.replace("nn.Tanh()", "nn.BatchNorm1d(8)")
DROPPING = LINEAR.replace("nn.Tanh()", "nn.Dropout(0.5)")


REGRESSION = (
    LINEAR.replace("nn.Linear(8, 3)", "nn.Linear(8, 1), nn.Flatten(0)")
    + """
    @staticmethod
    def loss(output, y):
        return (output - y).square().mean()
"""
)

#: Every example is a row of labels, as in tagging tokens: outputs are (example, class, place).
TAGGING = """
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Sequential(nn.Linear(4, 15), nn.Unflatten(1, (3, 5)))
    @staticmethod
    def loss(output, y):
        return nn.functional.cross_entropy(output, y)
"""


def sums(result):
    return {metric.name: metric.sums for metric in result.metrics}


def examples(count, seed=0, classes=3):
    chance = np.random.default_rng(seed)
    return chance.normal(size=(count, 4)).astype(np.float32), chance.integers(0, classes, count)


@pytest.fixture
def load(make_job):
    """A trainer in this process, its model region filled from the task's own first weights."""
    with contextlib.ExitStack() as stack:

        def loader(source, train, test=None, **settings):
            job = make_job(source, train, test, **settings)
            shared = SharedVectors.create(job.layout.size)
            stack.callback(shared.close)
            trainer = TorchTrainer(job, shared)
            task = make_task(Path(job.bundle_dir), job.entry, {})
            read_into(shared.model, build_model(task, job.seed), job.layout)
            return trainer, shared, job

        yield loader


def reference(job, flat, x, y, *, steps, learning_rate, weight_decay=0.0):
    """The same model trained by torch.optim alone; the flat vector after it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    write_from(flat, model, job.layout)
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
    for rows in steps:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
        optimiser.step()
    after = np.empty(job.layout.size, np.float32)
    read_into(after, model, job.layout)
    return after


def test_a_lease_is_trained_with_its_own_rate_and_the_next_with_that_of_the_settings(load):
    x, y = examples(64)
    trainer, shared, _ = load(LINEAR, (x, y), batch_size=16)
    updates = []
    for rate in (0.0, 0.05, 0.0):
        trainer.train(0, [1], rate=rate, version=3)
        updates.append(shared.update.copy())
    assert np.array_equal(updates[0], updates[2])
    # The settings say 0.1, and one step is in proportion to the rate.
    assert np.allclose(updates[1], updates[0] / 2, atol=1e-7)


def test_the_mean_of_four_workers_is_one_big_batch_of_sgd(load):
    x, y = examples(64)
    trainer, shared, job = load(LINEAR, (x, y), batch_size=16, weight_decay=0.01)
    updates, weights = [], []
    for batch in range(4):
        result = trainer.train(2, [batch])
        updates.append(shared.update.copy())
        weights.append(result.examples)
    mean = np.average(updates, axis=0, weights=weights)
    whole = reference(job, shared.model, x, y, steps=[np.arange(64)], learning_rate=0.1, weight_decay=0.01)
    assert np.abs(mean).max() > 1e-3
    np.testing.assert_allclose(shared.model + mean, whole, atol=1e-5, rtol=0)


def test_short_batches_weigh_by_their_examples(load):
    x, y = examples(21)
    trainer, shared, job = load(LINEAR, (x, y), batch_size=16)
    results, updates = [], []
    for batch in range(2):
        results.append(trainer.train(0, [batch]))
        updates.append(shared.update.copy())
    assert [result.examples for result in results] == [16, 5]
    mean = np.average(updates, axis=0, weights=[16, 5])
    whole = reference(job, shared.model, x, y, steps=[np.arange(21)], learning_rate=0.1)
    np.testing.assert_allclose(shared.model + mean, whole, atol=1e-5, rtol=0)


def test_a_lease_of_several_batches_is_steps_one_after_the_other(load):
    x, y = examples(40)
    trainer, shared, job = load(LINEAR, (x, y))
    result = trainer.train(1, [3, 0])
    order = epoch_order(40, seed=5, epoch=1)
    steps = [batch_indices(order, batch, 8) for batch in (3, 0)]
    after = reference(job, shared.model, x, y, steps=steps, learning_rate=0.1)
    assert result.finite
    assert result.examples == 16
    np.testing.assert_allclose(shared.model + shared.update, after, atol=1e-6, rtol=0)


def test_training_replays_dropout_included(load):
    trainer, shared, _ = load(DROPPING, examples(16))
    first = trainer.train(0, [0, 1])
    before = shared.update.copy()
    torch.rand(7)
    again = trainer.train(0, [0, 1])
    assert (first.loss_sum, shared.update.tobytes()) == (again.loss_sum, before.tobytes())
    trainer.train(1, [0, 1])
    assert shared.update.tobytes() != before.tobytes()


def test_running_statistics_travel_with_the_update(load):
    x, y = examples(16)
    trainer, shared, job = load(NORMALISED, (x, y))
    kinds = {entry.name: entry.kind for entry in job.layout.entries}
    assert kinds["1.running_mean"] == kinds["1.running_var"] == "buffer"
    assert "1.num_batches_tracked" not in kinds
    assert job.layout.size - job.layout.parameters_size == 16
    trainer.train(0, [0])
    changed = job.layout.views(shared.update)
    assert np.abs(changed["1.running_mean"]).max() > 0
    # And back: evaluation uses the statistics it is given, not those of the last training.
    views = job.layout.views(shared.model)
    views["1.running_mean"][:] = 0
    views["1.running_var"][:] = 1
    plain = sums(trainer.evaluate(0, 16))["loss"][0]
    views["1.running_mean"][:] = 100
    assert sums(trainer.evaluate(0, 16))["loss"][0] != pytest.approx(plain, rel=0.01)


def test_evaluation_by_parts_is_evaluation_of_the_whole(load):
    trainer, shared, _ = load(LINEAR, examples(16), examples(37, seed=1))
    before = shared.model.copy()
    parts = [trainer.evaluate(0, 11), trainer.evaluate(11, 37)]
    whole = trainer.evaluate(0, 37)
    merged = {each.name: each for each in merge_all(part.metrics for part in parts)}
    assert merged["accuracy"] == {each.name: each for each in whole.metrics}["accuracy"]
    assert sums(whole)["accuracy"][1] == 37
    assert sum(sums(part)["loss"][0] for part in parts) == pytest.approx(sums(whole)["loss"][0], rel=1e-5)
    assert 0 < sums(whole)["accuracy"][0] < 37
    assert shared.model.tobytes() == before.tobytes()


def test_a_regression_has_a_loss_and_no_accuracy(load):
    x, _ = examples(16)
    trainer, _, _ = load(REGRESSION, (x, x.sum(1)))
    result = trainer.evaluate(0, 16)
    assert list(sums(result)) == ["loss"]
    assert result.metrics[0].lower


def test_a_regression_may_say_what_is_right(load):
    x, _ = examples(16)
    own = "    def correct(self, output, y):\n        return int(((output - y).abs() < 1).sum())\n"
    trainer, _, _ = load(REGRESSION + own, (x, x.sum(1)))
    right, of = sums(trainer.evaluate(0, 16))["accuracy"]
    assert of == 16
    assert 0 < right <= 16


def test_every_label_of_an_example_counts(load):
    chance = np.random.default_rng(3)
    x, y = chance.normal(size=(16, 4)).astype(np.float32), chance.integers(0, 3, (16, 5))
    trainer, _, _ = load(TAGGING, (x, y))
    right, of = sums(trainer.evaluate(0, 16))["accuracy"]
    assert of == 80
    assert 16 < right < 80


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (-1, 3), (5, 4), (0, 17)])
def test_a_range_outside_the_held_out_examples(load, start, stop):
    trainer, _, _ = load(LINEAR, examples(16))
    with pytest.raises(Misuse, match="16 held-out"):
        trainer.evaluate(start, stop)


def test_nan_is_reported_not_raised(load):
    x, y = examples(16)
    x[3] = np.nan
    trainer, _, _ = load(LINEAR, (x, y))
    result = trainer.train(0, [0, 1])
    assert not result.finite
    assert math.isnan(result.loss_sum)


def test_a_model_that_differs_from_the_job_is_named(load):
    other = Layout.of([("0.weight", (9, 4), "parameter")])
    with pytest.raises(Misuse, match=r"0.weight \[8, 4\] here, parameter 0.weight \[9, 4\] there"):
        load(LINEAR, examples(16), layout=other)


def test_a_loss_that_is_not_one_number(load):
    source = LINEAR + "    loss = staticmethod(lambda output, y: output)\n"
    trainer, _, _ = load(source, examples(16))
    with pytest.raises(Misuse, match=r"Sample.loss gave \[8, 3\]"):
        trainer.train(0, [0])


def test_tied_and_frozen_weights():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    layout = layout_of(model)
    assert [entry.name for entry in layout.entries] == ["0.weight"]
    flat = np.arange(9, dtype=np.float32)
    write_from(flat, model, layout)
    assert model[1].weight.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    back = np.zeros(9, np.float32)
    read_into(back, model, layout)
    assert back.tolist() == flat.tolist()


def test_models_that_cannot_be_laid_out():
    with pytest.raises(Misuse, match="no shape yet"):
        layout_of(nn.LazyLinear(2))


def test_unsaved_buffers_stay_behind():
    model = nn.Linear(1, 1)
    model.register_buffer("table", torch.ones(5), persistent=False)
    assert layout_of(model).size == 2
