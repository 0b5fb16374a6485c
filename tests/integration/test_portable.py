"""Devices with and without PyTorch in one cluster: real agents, real trainers, a trainer that is killed."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path

import psutil
import pytest
from kit import HERE, Site, cluster_in, run

from shoal.data.local import LOCAL_VARIABLE
from shoal.trainer.bundle import unpack
from shoal.trainer.host import TrainerHost
from shoal.trainer.package import make_ready, plan_from, trainer_settings
from shoal.trainer.portable.capturing import capture_ready
from shoal.trainer.prepared_job import first_model
from shoal.trainer.processors import ENGINES

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.timeout(1800)

REAL = ("--threads", "1")
EXAMPLES = HERE.parent.parent / "examples"


async def started(site: Site, *, torch: int, onnx: int) -> list[str]:
    """Devices by engine; the names of those without PyTorch."""
    for number in range(torch):
        await site.cluster.start_agent(f"torch-{number}", "--engine", "torch")
    without = [f"onnx-{number}" for number in range(onnx)]
    for name in without:
        await site.cluster.start_agent(name, "--engine", "onnx")
        view = await site.connected(name)
        assert (view.facts.torch, bool(view.facts.onnx)) == ("", True)
    return without


@pytest.mark.gate("a device without PyTorch")
def test_a_confined_trainer_trains_without_pytorch(tmp_path: Path) -> None:
    async def story() -> None:
        ready = await make_ready(HERE / "clouds_task.py", "clouds_task:Clouds", out=tmp_path / "out")
        plan = plan_from({"batch_size": 16, "learning_rate": 0.1, "until": {"epochs": 1}})
        captured = await capture_ready(ready, plan, folder=tmp_path)
        assert captured.path is not None, captured.told
        unpack(ready.bundle, tmp_path / "bundle")
        settings = trainer_settings(
            ready,
            plan,
            bundle_dir=str(tmp_path / "bundle"),
            graphs=str(captured.path),
            initial=ready.prepared.model,
        )
        host = TrainerHost(child_module=ENGINES["onnx"])
        try:
            loaded = await host.start(settings)
            assert loaded.engine.startswith("onnxruntime")
            # Confined as one with PyTorch is: code of ours alone would say nothing here.
            assert host.confined
            host.shared.model[:] = first_model(Path(ready.prepared.model))[1]
            before = (await host.evaluate(0, 234)).metrics
            for batch in range(12):
                result = await host.train(0, [batch])
                assert result.finite
                host.shared.model[:] += host.shared.update
            after = (await host.evaluate(0, 234)).metrics
            assert host.pid is not None
            assert not [each for each in psutil.Process(host.pid).memory_maps() if "libtorch" in each.path]
        finally:
            await host.kill()
            await host.stop()
        assert [metric.name for metric in after] == ["loss", "accuracy"]
        assert after[0].sums[0] < before[0].sums[0]

    asyncio.run(story())


def test_devices_without_pytorch_train_beside_others_and_one_is_killed(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=REAL) as site:
            without = await started(site, torch=1, onnx=2)
            told: list[str] = []
            job = await site.operator.prepare_and_submit(
                str(HERE / "clouds_task.py"),
                kwargs={"count": 4000},
                plan={"batch_size": 16, "learning_rate": 0.1, "lease_batches": 2, "until": {"epochs": 12}},
                portable=True,
                on_progress=told.append,
            )
            assert any("agrees with PyTorch" in line for line in told), told
            for name in without:
                await site.works(job, name)
            (trainer,) = site.trainers(without[0])
            assert not [each for each in trainer.memory_maps() if "libtorch" in each.path]
            trainer.kill()
            await site.event(job, "lease.failed", f"{without[0]}: the trainer was killed by SIGKILL")
            await site.ended(job)
            site.exactly_once(job, batches=250, epochs=12)
            assert site.evaluations(job)[-1].accuracy >= 0.95

    run(story())


def test_a_job_without_graphs_is_for_pytorch_devices_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=REAL) as site:
            (without,) = await started(site, torch=1, onnx=1)
            job = await site.operator.prepare_and_submit(
                str(HERE / "clouds_task.py"), plan={"batch_size": 16, "until": {"epochs": 2}}
            )
            await site.ended(job)
            assert not [event for event in site.events(job) if without in event.text]

    run(story())


async def learnt(folder: Path, task: str, plan: dict[str, object], *, torch: int, onnx: int) -> tuple[float, int]:
    """Accuracy of a job on devices of both kinds, and of how many held-out examples. All without PyTorch take part."""
    folder.mkdir()
    async with cluster_in(folder, workers=0, options=REAL) as site:
        without = await started(site, torch=torch, onnx=onnx)
        job = await site.operator.prepare_and_submit(str(EXAMPLES / task), plan=plan, portable=True)
        for name in without:
            await site.works(job, name)
        await site.ended(job)
        last = site.evaluations(job)[-1]
        return float(last.accuracy), last.examples


async def both_learn_alike(folder: Path, task: str, plan: dict[str, object], *, least: float) -> None:
    mixed, examples = await learnt(folder / "mixed", task, plan, torch=2, onnx=2)
    same, _ = await learnt(folder / "same", task, plan, torch=4, onnx=0)
    # Three standard errors of the difference of two shares.
    share = (mixed + same) / 2
    assert abs(mixed - same) <= 3 * math.sqrt(2 * share * (1 - share) / examples), (mixed, same, examples)
    assert min(mixed, same) >= least


def learn_within(limit_s: float, story: Coroutine[None, None, None]) -> None:
    """As ``run``, with a longer limit: a busy machine takes long for a whole training."""
    asyncio.run(asyncio.wait_for(story, limit_s))


@pytest.mark.needs_data
@pytest.mark.nightly
def test_two_of_each_learn_digits_as_well_as_four_with_pytorch(real_data: Path, tmp_path: Path) -> None:
    learn_within(1500, both_learn_alike(tmp_path, "mnist", {"until": {"epochs": 1}}, least=0.95))


@pytest.mark.needs_data
@pytest.mark.nightly
def test_two_of_each_learn_activities_as_well_as_four_with_pytorch(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings = real_data / "har" / "hapt_windows_9ch_128.npz"
    if not recordings.exists():
        pytest.skip("no recordings of activities here")
    # The recordings of all people in one folder: a device without PyTorch trains on shared examples alone.
    split = [sys.executable, str(EXAMPLES / "activity" / "split.py"), str(recordings), str(tmp_path), "--devices", "1"]
    subprocess.run(split, check=True, timeout=300)
    monkeypatch.setenv(LOCAL_VARIABLE, str(tmp_path / "device-1"))
    plan: dict[str, object] = {"data": "shared", "until": {"epochs": 3}}
    learn_within(1500, both_learn_alike(tmp_path, "activity", plan, least=0.7))
