"""A cluster trains what one process would have trained: real agents, real PyTorch, real TLS, small data."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from clouds_task import Clouds
from kit import HERE, Site, cluster_in, run
from shared_cluster import SharedCluster, shared_cluster
from torch import nn

from shoal.runtime.paths import Paths
from shoal.scheduling.batches import batch_indices, epoch_order
from shoal.scheduling.ledger import Applied
from shoal.store.blobs import BlobStore

CLOUDS = HERE / "clouds_task.py"

COUNT = 234
#: Does not divide the examples: the last batch of an epoch is short, and must weigh less than those it meets.
BATCH = 16
BATCHES = 15
RATE = 0.1
SEED = 3
PLAN = {"batch_size": BATCH, "learning_rate": RATE, "momentum": 0.9, "seed": SEED}

#: Two of the three devices: each trainer that starts loads PyTorch.
TWO = {"workers_min": 2, "workers_max": 2}

Batch = tuple[torch.Tensor, torch.Tensor]


#: Real trainers: three, of which a job may want two.
cluster = shared_cluster(workers=3, options=())


async def first_model(site: Site, job: str, task: Any) -> nn.Module:
    """The model that the job began from, as it was uploaded."""
    from shoal.trainer.trained import trained_model

    spec = await site.operator.job_spec(job)
    return trained_model(task, BlobStore(Paths(site.cluster.home).blobs).path(spec.initial)).train()


def rounds(task: Any, rows: list[Applied]) -> Iterator[list[Batch]]:
    """What went into each version, by the recorded history: the examples of each of its batches."""
    x, y = map(torch.from_numpy, task.examples("train"))
    versions: dict[int, list[Applied]] = {}
    for row in rows:
        versions.setdefault(row.version, []).append(row)
    for version in sorted(versions):
        chosen = [
            batch_indices(epoch_order(COUNT, seed=SEED, epoch=row.epoch), row.batch, BATCH) for row in versions[version]
        ]
        yield [(x[indices], y[indices]) for indices in chosen]


def worst_difference(model: dict[str, np.ndarray], reference: nn.Module) -> float:
    expected = {name: value for name, value in reference.state_dict().items() if value.is_floating_point()}
    assert sorted(model) == sorted(expected)
    return max(float(np.abs(model[name] - expected[name].numpy()).max()) for name in expected)


@pytest.mark.gate("train")
@pytest.mark.slow
def test_three_workers_train_the_model_that_one_process_trains(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await site.submit_task(CLOUDS, **PLAN, workers_min=3, until={"epochs": 3})
        await site.ended(job)
        rows = site.exactly_once(job, batches=BATCHES, epochs=3)
        assert {row.node for row in rows} == {"device-1", "device-2", "device-3"}

        # One optimiser, on the examples of each round in one batch: nothing of Shoal's arithmetic is used.
        task = Clouds()
        reference = await first_model(site, job, task)
        optimiser = torch.optim.SGD(reference.parameters(), lr=RATE, momentum=0.9)
        mixed = 0
        for batches in rounds(task, rows):
            mixed += len({len(y) for _, y in batches}) > 1
            x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
            optimiser.zero_grad()
            nn.functional.cross_entropy(reference(x), y).backward()
            optimiser.step()
        model = await site.model(job)
        assert worst_difference(model, reference) < 1e-5
        # The comparison could fail: a short batch met long ones, and training moved the model much further.
        assert mixed
        assert worst_difference(model, await first_model(site, job, task)) > 0.1

    cluster.run(story)


@pytest.mark.slow
def test_a_model_with_batch_norm_averages_its_running_statistics(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await site.submit_task(CLOUDS, kwargs={"norm": True}, **PLAN, **TWO, until={"epochs": 2})
        await site.ended(job)
        rows = site.exactly_once(job, batches=BATCHES, epochs=2)
        task = Clouds(norm=True)
        reference = await first_model(site, job, task)
        parameters = {name for name, _ in reference.named_parameters()}
        velocity: dict[str, torch.Tensor] = {}
        for batches in rounds(task, rows):
            before = {name: value.clone() for name, value in _floats(reference).items()}
            mean = {name: torch.zeros_like(value) for name, value in before.items()}
            total = sum(len(y) for _, y in batches)
            for x, y in batches:
                _restore(reference, before)
                _sgd_step(reference, x, y)
                for name, value in _floats(reference).items():
                    mean[name] += (value - before[name]) * (len(y) / total)
            for name in mean:
                # Weights have momentum; a running mean that overshoots would be no mean.
                if name in parameters:
                    velocity[name] = mean[name] = 0.9 * velocity.get(name, 0) + mean[name]
            _restore(reference, {name: before[name] + mean[name] for name in before})
        model = await site.model(job)
        assert {"1.running_mean", "1.running_var"} < set(model)
        assert worst_difference(model, reference) < 1e-4
        assert worst_difference(model, await first_model(site, job, task)) > 0.1

    cluster.run(story)


def _floats(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in model.state_dict().items() if value.is_floating_point()}


def _restore(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    for name, value in _floats(model).items():
        value.copy_(values[name])


def _sgd_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()


@pytest.mark.slow
def test_a_job_ends_at_the_accuracy_it_was_asked_for(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        until = {"accuracy": 0.95, "epochs": 50}
        plan = PLAN | {"learning_rate": 0.01, "momentum": 0.5, "until": until} | TWO
        job = await site.submit_task(CLOUDS, **plan)
        view = await site.ended(job)
        evaluations = site.evaluations(job)
        epochs = len(evaluations)
        assert 1 < epochs < 50
        assert [e.epoch for e in evaluations] == list(range(1, epochs + 1))
        assert all(e.examples == COUNT for e in evaluations)
        assert [e.accuracy >= 0.95 for e in evaluations] == [False] * (epochs - 1) + [True]
        assert view.reason == f"reached {evaluations[-1].accuracy:.2%}, the goal was 95.00%"
        rows = site.exactly_once(job, batches=BATCHES, epochs=epochs)
        assert max(row.version for row in rows) == evaluations[-1].version

        task = Clouds()
        model = _loaded(task, await site.model(job))
        x, y = map(torch.from_numpy, task.examples("test"))
        with torch.no_grad():
            output = model(x)
        assert int((output.argmax(1) == y).sum()) == round(evaluations[-1].accuracy * COUNT)
        assert nn.functional.cross_entropy(output, y).item() == pytest.approx(evaluations[-1].loss, abs=1e-4)

    cluster.run(story)


def _loaded(task: Any, arrays: dict[str, np.ndarray]) -> nn.Module:
    model: nn.Module = task.model()
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    return model.eval()


def test_two_jobs_share_a_cluster_and_split_its_nodes(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=4) as site:
            site.pace(0.1)
            sizes = (40, 60)
            jobs = [await site.submit_tally(batches=size, workers_min=2, workers_max=2) for size in sizes]
            at_work = [await site.progress(job, "two at work", _all_at_work(2)) for job in jobs]
            crews = [{worker.node for worker in progress.workers} for progress in at_work]
            assert crews[0] | crews[1] == set(site.cluster.agents)
            assert not crews[0] & crews[1]
            for job in jobs:
                view = await site.view(job)
                assert view is not None
                assert view.state == "running"
            site.pace(0.0)
            for job, size, crew in zip(jobs, sizes, crews, strict=True):
                await site.ended(job)
                assert {row.node for row in await site.tallied_once(job, batches=size)} == crew

    run(story())


def _all_at_work(count: int) -> Callable[[Any], bool]:
    return lambda progress: len(progress.workers) == count and all(worker.batches for worker in progress.workers)


SCRIPT = (
    CLOUDS.read_text()
    + """
result = shoal.fit(Clouds(), workers=2, until=shoal.accuracy(0.9) | shoal.epochs(20), save="model.safetensors")

import json, torch
x, y = Clouds().examples("test")
right = (result.model()(torch.from_numpy(x)).argmax(1).numpy() == y).mean()
print(json.dumps({"state": result.state, "said": result.accuracy, "right": float(right), "workers": result.workers}))
"""
)


@contextlib.contextmanager
def _running(script: Path) -> Iterator[subprocess.Popen[str]]:
    """A person's script, ended with all it started."""
    command = [sys.executable, "-W", "error", script.name]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # What a killed script cannot tidy up lies where pytest does.
    place = {"cwd": script.parent, "env": {**os.environ, "TMPDIR": str(script.parent)}}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes, **place) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_plain_script_fits_a_task_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with _running(script) as process:
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    result = json.loads(output)
    assert result["state"] == "finished"
    assert result["workers"] == 2
    assert result["right"] == pytest.approx(result["said"], abs=1e-6)
    assert result["said"] >= 0.9
    assert (tmp_path / "model.safetensors").exists()


ENDLESS = """
shoal.fit(Clouds(), workers=2, until=shoal.seconds(600), on_status=lambda status: print("up", flush=True))
"""


@pytest.mark.slow
def test_a_script_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CLOUDS.read_text() + ENDLESS)
    with _running(script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 3
        process.kill()
        process.wait(30)
        deadline_s = time.monotonic() + 30
        while left := [child for child in started if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]:
            assert time.monotonic() < deadline_s, left
            time.sleep(0.1)
