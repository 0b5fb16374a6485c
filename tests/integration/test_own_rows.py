"""Devices with and without PyTorch that learn from rows of their own, by columns that the task declares."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from kit import HERE, Site, cluster_in, run
from own_rows_task import signs

from shoal.data.local import LOCAL_VARIABLE

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.timeout(600)

TASK = HERE / "own_rows_task.py"
#: What each device has seen: only together they know all six signs.
SEEN = {"onnx-0": (0, 1, 2), "onnx-1": (2, 3, 4), "torch-0": (4, 5, 0)}


async def start(site: Site, name: str, folder: Path, *, count: int, save: Any) -> np.ndarray:
    """Start a device with rows of its own; its name begins with its engine. Return the pictures that it has."""
    folder.mkdir()
    x, y = signs(count, seed=sum(map(ord, name)), of=SEEN[name])
    save(folder, x, y)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    engine = name.partition("-")[0]
    search = os.environ["PYTHONPATH"]
    if engine == "onnx":
        # No process of this device can import PyTorch.
        broken = folder.parent / "no-torch"
        (broken / "torch").mkdir(parents=True, exist_ok=True)
        (broken / "torch" / "__init__.py").write_text('raise ImportError("there is no PyTorch here")\n')
        search = os.pathsep.join((str(broken), search))
    with mock.patch.dict(os.environ, {LOCAL_VARIABLE: str(folder), "PYTHONPATH": search}):
        await site.cluster.start_agent(name, "--engine", engine, "--threads", "1")
    view = await site.connected(name)
    assert bool(view.facts.torch) == (engine == "torch")
    return x


def as_npz(folder: Path, x: np.ndarray, y: np.ndarray) -> None:
    np.savez(folder / "signs.npz", x=x, y=y)


def as_csv(folder: Path, x: np.ndarray, y: np.ndarray) -> None:
    header = ",".join([*(f"x.{number}" for number in range(64)), "y"])
    lines = [",".join([*map(str, picture.reshape(-1)), f"sign-{label}"]) for picture, label in zip(x, y, strict=True)]
    (folder / "signs.csv").write_text("\n".join([header, *lines]) + "\n")


async def three_devices(site: Site, tmp_path: Path, *, count: int = 150) -> list[np.ndarray]:
    tmp_path.chmod(0o755)
    saves = {"onnx-0": as_npz, "onnx-1": as_csv, "torch-0": as_npz}
    return [await start(site, name, tmp_path / name, count=count, save=saves[name]) for name in SEEN]


async def submitted(site: Site, plan: dict[str, Any], **kwargs: Any) -> str:
    told: list[str] = []
    job = await site.operator.prepare_and_submit(
        str(TASK), kwargs=kwargs, plan={"workers_min": 3, **plan}, portable=True, on_progress=told.append
    )
    assert any("agrees with PyTorch" in line for line in told), told
    return job


def files_of_manager(site: Site) -> Iterator[bytes]:
    """Everything that the manager, who leads too, keeps on its disk: blobs, checkpoints, records, logs."""
    for path in site.cluster.home.rglob("*"):
        if path.is_file() and not any(path.is_relative_to(site.cluster.agent_home(name)) for name in SEEN):
            yield path.read_bytes()


@pytest.mark.full
def test_devices_without_pytorch_learn_from_their_own_rows(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            pictures = await three_devices(site, tmp_path)
            job = await submitted(site, {"work": "sized", "budget_s": 0.2, "until": {"epochs": 12}})
            for name in SEEN:
                await site.works(job, name)
            (trainer,) = site.trainers("onnx-0")
            assert not [each for each in trainer.memory_maps() if "libtorch" in each.path]
            await site.ended(job)
            rows = site.exactly_once(job, batches=12, epochs=12)
            assert {row.node for row in rows} == set(SEEN)
            assert (site.evaluations(job)[-1].accuracy or 0.0) > 0.85, "each of them has seen half of the signs"
            stored = b"\0".join(files_of_manager(site))
            assert b"sign-0" in stored, "the search finds what is there"
            for own in pictures:
                assert not [each for each in own if each.tobytes() in stored], "a row has left its device"

    run(story())


@pytest.mark.full
def test_new_rows_are_judged_before_they_are_trained_on_and_the_own_part_stays(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            await three_devices(site, tmp_path, count=32)
            job = await submitted(site, {"until": {"endless": True}}, own_head=True)
            await site.progress(job, "three epochs", lambda told: told.epoch >= 3)
            for name in ("onnx-0", "onnx-1"):
                own = site.cluster.agent_home(name) / "node" / "own" / f"{job}.safetensors"
                assert own.exists(), f"{name} keeps its own part of the model"
                seen = json.loads((own.parents[1] / "seen.json").read_text())
                assert seen["counts"][job] == 32
            await site.operator.stop(job)
            await site.ended(job, "stopped")

    run(story())


@pytest.mark.full
def test_a_private_job_is_counted_by_devices_without_pytorch(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            await three_devices(site, tmp_path)
            private = {"trust": "private(60, 1e-4)", "cohort": 3, "clip_update": 1.0, "participations": 150}
            job = await submitted(site, {**private, "epoch_leases": 9, "until": {"epochs": 2}})
            await site.ended(job)
            site.exactly_once(job, batches=9, epochs=2)
            view = await site.view(job)
            assert view is not None
            assert view.progress is not None
            worst = 0
            for name in SEEN:
                (account,) = site.cluster.agent_home(name).rglob("privacy/*.json")
                taken = json.loads(account.read_text())["participations"]
                assert len({tuple(pair) for pair in taken}) == len(taken) > 0
                worst = max(worst, len(taken))
            assert view.progress.participations_worst <= worst
            assert 0 < view.progress.epsilon_worst <= 60

    run(story())


@pytest.mark.full
def test_a_sealed_job_sums_what_devices_without_pytorch_made(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            await three_devices(site, tmp_path)
            # One sum has all three; a mask that stayed would throw the model as far as numbers go.
            job = await submitted(site, {"trust": "sealed(3, 0%, 30%)", "epoch_leases": 12, "until": {"epochs": 6}})
            await site.ended(job)
            rows = site.exactly_once(job, batches=12, epochs=6)
            assert {row.node for row in rows} == set(SEEN)
            assert (site.evaluations(job)[-1].accuracy or 0.0) > 0.5

    run(story())


@pytest.mark.full
def test_a_file_that_does_not_fit_is_named_to_the_operator_without_a_value(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            tmp_path.chmod(0o755)

            def wrong(folder: Path, x: np.ndarray, y: np.ndarray) -> None:
                np.savez(folder / "signs.npz", x=x[:, :7], y=y)

            await start(site, "onnx-0", tmp_path / "onnx-0", count=20, save=wrong)
            job = await submitted(site, {"until": {"epochs": 1}, "workers_min": 1})
            await site.event(
                job, "preparation.failed", "signs.npz: column x is uint8 [7, 8]; the task declares uint8 [8, 8]"
            )
            await site.operator.stop(job)
            await site.ended(job, "stopped")

    run(story())


async def waits(site: Site, job: str, name: str) -> bool | None:
    view = await site.view(job)
    workers = view.progress.workers if view and view.progress else ()
    return any(worker.node == name and worker.state == "waiting" for worker in workers) or None


@pytest.mark.full
@pytest.mark.parametrize("name", ["torch-0", "onnx-0"])
def test_a_device_that_begins_without_rows_trains_once_it_has_some(tmp_path: Path, name: str) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            tmp_path.chmod(0o755)
            await start(site, name, tmp_path / name, count=0, save=lambda folder, x, y: None)
            job = await submitted(site, {"workers_min": 1, "epoch_leases": 4, "until": {"endless": True}})
            await site.until(f"{name} waits", lambda: waits(site, job, name))
            as_npz(tmp_path / name, *signs(64, seed=3, of=SEEN[name]))
            (tmp_path / name / "signs.npz").chmod(0o644)
            # The leader has it ask again after half a minute.
            await site.works(job, name)
            await site.operator.stop(job)
            await site.ended(job, "stopped")

    run(story())
