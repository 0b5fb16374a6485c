"""A part of the model for each device: devices that disagree each have a head of their own, and keep it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from kit import HERE, Site, cluster_in
from own_head_task import lines, named

from shoal.data.local import LOCAL_VARIABLE
from shoal.wire import tensors

TASK = HERE / "own_head_task.py"
DEVICES = ("device-0", "device-1")
STORY_S = 660


async def _start(site: Site, name: str, folder: Path) -> None:
    with mock.patch.dict(os.environ, {LOCAL_VARIABLE: str(folder)}):
        await site.cluster.start_agent(name)
    await site.connected(name)


async def _devices(site: Site, tmp_path: Path) -> list[Path]:
    """Two devices that have seen the same places, and call them otherwise."""
    tmp_path.chmod(0o755)
    folders = []
    for shift, name in enumerate(DEVICES):
        folder = tmp_path / f"own-{shift}"
        folder.mkdir()
        folder.chmod(0o755)
        file = folder / "readings.csv"
        file.write_text(lines(*named(300, seed=7, shift=shift)))
        file.chmod(0o644)
        await _start(site, name, folder)
        folders.append(folder)
    return folders


def _own_file(site: Site, name: str, job: str) -> Path:
    return site.cluster.agent_home(name) / "node" / "own" / f"{job}.safetensors"


def _right(model: dict[str, np.ndarray], *, shift: int) -> float:
    """The share of new examples that a device's model has right."""
    x, y = named(500, seed=99, shift=shift)
    hidden = np.maximum(0, x @ model["0.weight"].T + model["0.bias"])
    return float(((hidden @ model["2.weight"].T + model["2.bias"]).argmax(1) == y).mean())


@pytest.mark.nightly
@pytest.mark.timeout(720)
def test_own_heads_serve_devices_that_disagree_and_outlive_their_agents(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            folders = await _devices(site, tmp_path)
            plan: dict[str, Any] = {"until": {"endless": True}, "workers_min": 2, "checkpoint_every_s": 0.5}
            job = await site.submit_task(TASK, **plan)
            await site.progress(job, "six epochs", lambda told: told.epoch >= 6)
            await site.kill(site.cluster.agents[DEVICES[0]])
            kept = dict(tensors.read(_own_file(site, DEVICES[0], job), mmap=False)[0])
            assert set(kept) == {"2.weight", "2.bias"}
            # New ones for the first device alone: they are judged as soon as it is back, before it trains.
            with (folders[0] / "readings.csv").open("a") as more:
                more.write(lines(*named(60, seed=31, shift=0)))
            before = (await site.progress(job, "any", lambda told: True)).epoch
            await _start(site, DEVICES[0], folders[0])
            await site.progress(job, "three more epochs", lambda told: told.epoch >= before + 3)
            await site.operator.stop(job)
            await site.ended(job, "stopped")
            judged = [view for view in site.evaluations(job) if view.epoch >= before and view.examples]
            assert sum(view.examples for view in judged) == 60
            right = sum(view.examples * (view.accuracy or 0.0) for view in judged) / 60
            assert right > 0.85, f"{right:.0%} of new examples right with the head that was kept"

            shared = await site.model(job)
            assert set(shared) == {"0.weight", "0.bias"}
            for shift, name in enumerate(DEVICES):
                own = dict(tensors.read(_own_file(site, name, job), mmap=False)[0])
                assert _right(shared | own, shift=shift) > 0.85
                assert _right(shared | own, shift=1 - shift) < 0.2, "the heads differ"

    asyncio.run(asyncio.wait_for(story(), STORY_S))


@pytest.mark.nightly
@pytest.mark.timeout(720)
def test_a_shared_head_serves_at_most_one_of_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            await _devices(site, tmp_path)
            job = await site.submit_task(TASK, kwargs={"own": False}, workers_min=2, until={"epochs": 6})
            await site.ended(job)
            model = await site.model(job)
            # Whatever it says of an example, it is wrong for one of the two.
            assert _right(model, shift=0) + _right(model, shift=1) < 1.1
            assert not _own_file(site, DEVICES[0], job).exists()

    asyncio.run(asyncio.wait_for(story(), STORY_S))
