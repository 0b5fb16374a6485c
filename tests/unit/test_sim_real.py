"""From a task to a simulated job: what the cluster is told, what is trained, what is left behind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.learning.metrics import merge_all
from shoal.plan import Plan, Until
from shoal.roles.actions import Evaluate, Train
from shoal.sim.jobs import SimulatedJob, SystemOnly
from shoal.sim.real import close, simulated_job
from shoal.sim.torch_training import TorchTraining
from shoal.trainer.package import ReadyTask, make_ready, spec_of
from shoal.trainer.protocol import TrainerError

NEIGHBOUR = "WIDTH = 3\n"
SOURCE = """
import numpy as np
from torch import nn
from neighbour import WIDTH
from shoal.task import Task

class Sample(Task):
    def __init__(self, fails_at=-1):
        self.fails_at = fails_at

    def model(self):
        return nn.Sequential(nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH))

    def examples(self, split):
        count = 50 if split == "train" else 1200
        x = np.sin(np.arange(count * 4, dtype=np.float32)).reshape(count, 4)
        return x, (x.sum(1) > 0).astype(np.int64)

    def batch(self, x, y):
        if len(x) == self.fails_at:
            raise ValueError("no such batch")
        return x, y
"""
PLAN = Plan(batch_size=16, learning_rate=0.1, seed=3, until=Until(epochs=1))

Make = Callable[..., SimulatedJob]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> ReadyTask:
    folder = tmp_path_factory.mktemp("task")
    return _ready(folder, SOURCE, NEIGHBOUR)


def _ready(folder: Path, source: str, neighbour: str, **arguments: int) -> ReadyTask:
    code = folder / "code"
    code.mkdir()
    (code / "task.py").write_text(source)
    (code / "neighbour.py").write_text(neighbour)
    return asyncio.run(make_ready(code, "task:Sample", out=folder / "out", kwargs=arguments))


@pytest.fixture
def make(ready: ReadyTask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    """Makes jobs that are closed after the test; they unpack below ``tmp_path``."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[SimulatedJob] = []

    def maker(plan: Plan = PLAN, *, train: bool = True, task: ReadyTask = ready) -> SimulatedJob:
        made.append(simulated_job(task, plan, train=train, torch_threads=1))
        return made[-1]

    yield maker
    for job in made:
        close(job)


def test_the_job_is_what_a_cluster_would_be_told(make: Make, ready: ReadyTask) -> None:
    job, prepared = make(train=False), ready.prepared
    spec = job.spec
    assert (spec.job, spec.name, spec.entry, spec.plan) == ("job", "code", "task:Sample", PLAN)
    assert spec.bundle == hashlib.sha256(ready.bundle).hexdigest()
    assert spec.initial == hashlib.sha256(Path(prepared.model).read_bytes()).hexdigest()
    for dataset, manifest in ((spec.train, prepared.train), (spec.test, prepared.test)):
        listing = json.dumps(manifest.to_plain(), sort_keys=True).encode()
        assert (dataset.manifest, dataset.examples) == (hashlib.sha256(listing).hexdigest(), manifest.examples)
    assert (spec.train.examples, spec.test.examples) == (50, 1200)
    assert isinstance(job.training, SystemOnly)


def test_devices_fetch_code_model_and_examples_and_pay_for_the_layers(make: Make, ready: ReadyTask) -> None:
    job, prepared = make(train=False), ready.prepared
    files = [Path(prepared.model), *Path(prepared.shards).iterdir()]
    assert job.fetch_bytes == len(ready.bundle) + sum(file.stat().st_size for file in files)
    assert job.gmacs_per_example == pytest.approx(4 * 3 / 1e9)


def test_it_begins_from_the_prepared_model(make: Make) -> None:
    job = make(train=False)
    views = job.layout.views(job.model)
    # What BatchNorm begins with, and weights that are not nothing.
    assert views["1.running_var"].tolist() == views["1.weight"].tolist() == [1, 1, 1]
    assert np.abs(views["0.weight"]).max() > 0.01
    assert not job.model.flags.writeable


def test_an_accuracy_is_no_end_where_nothing_is_trained(make: Make) -> None:
    for until in (Until(accuracy=0.9), Until(accuracy=0.9, epochs=3)):
        plan = Plan(until=until)
        with pytest.raises(Misuse, match=r"90% is never reached where nothing is trained.*epochs or minutes"):
            make(plan, train=False)
        make(plan, train=True)


def test_an_update_is_the_same_whoever_made_one_before(make: Make) -> None:
    job = make()
    first = job.training.train(job.spec, job.model, Train(lease=1, epoch=0, batches=(0, 3)))
    kept = first.delta.copy()
    other = job.training.train(job.spec, job.model + 1, Train(lease=1, epoch=1, batches=(1,)))
    assert (first.examples, other.examples) == (18, 16)
    assert np.abs(first.delta - other.delta).max() > 1e-4
    # Its own memory, which nobody writes to.
    assert np.array_equal(first.delta, kept)
    assert not first.delta.flags.writeable
    again = job.training.train(job.spec, job.model, Train(lease=1, epoch=0, batches=(0, 3)))
    assert np.array_equal(again.delta, kept)
    assert again.loss_sum == first.loss_sum


def test_an_evaluation_adds_up_its_chunks(make: Make) -> None:
    job = make()
    whole = job.training.evaluate(job.spec, job.model, Evaluate(lease=1, chunks=(0, 1)))
    parts = [job.training.evaluate(job.spec, job.model, Evaluate(lease=1, chunks=(chunk,))) for chunk in (0, 1)]
    assert [part.examples for part in parts] == [1000, 200]
    assert whole.examples == 1200
    merged = merge_all(part.metrics for part in parts)
    assert whole.metrics[0] == merged[0]
    assert whole.metrics[0].sums[0] > 0
    assert whole.metrics[1].sums == pytest.approx(merged[1].sums)


def test_closing_leaves_nothing_behind(make: Make, tmp_path: Path) -> None:
    path, modules = list(sys.path), set(sys.modules)
    job = make()
    assert len(list(tmp_path.glob("shoal-simulate-*/task.py"))) == 1
    close(job)
    close(job)
    assert list(tmp_path.iterdir()) == []
    assert sys.path == path
    assert not {"task", "neighbour"} & (set(sys.modules) - modules)


def test_another_task_with_files_of_the_same_names_follows(make: Make, tmp_path: Path) -> None:
    close(make())
    other = make(task=_ready(tmp_path, SOURCE, "WIDTH = 5\n"))
    assert (
        other.training.train(other.spec, other.model, Train(lease=1, epoch=0, batches=(0,))).delta.size
        == 4 * 5 + 5 + 4 * 5
    )


def test_it_closes_where_its_block_ends_and_where_it_cannot_begin(ready: ReadyTask, make: Make, tmp_path: Path) -> None:
    spec = spec_of(ready, PLAN, job="job")
    with TorchTraining(ready, spec, torch_threads=1):
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []
    wrong = ReadyTask(name="code", entry="task:Other", arguments={}, bundle=ready.bundle, prepared=ready.prepared)
    with pytest.raises(Misuse, match="defines no task Other"):
        make(task=wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_fails_says_where(make: Make, tmp_path: Path) -> None:
    # Fails on the short last batch alone.
    job = make(task=_ready(tmp_path, SOURCE, NEIGHBOUR, fails_at=2))
    assert job.training.train(job.spec, job.model, Train(lease=1, epoch=0, batches=(0,))).examples == 16
    with pytest.raises(TrainerError, match=r"ValueError: no such batch, at Sample.batch \(task.py:21\)"):
        job.training.train(job.spec, job.model, Train(lease=1, epoch=0, batches=(3,)))


def test_values_that_are_not_finite_are_not_an_update(make: Make) -> None:
    job = make()
    with pytest.raises(TrainerError, match="not finite: try a lower learning rate"):
        job.training.train(job.spec, np.full_like(job.model, np.nan), Train(lease=1, epoch=0, batches=(0,)))


def test_a_simulation_without_training_needs_no_torch() -> None:
    code = "import sys, shoal.sim.real; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], timeout=60, check=False).returncode == 0
