"""Devices that learn from what they have: examples stay there, may grow, and are judged before they are trained on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kit import HERE, Site, cluster_in, run
from readings_task import readings

from shoal.data.local import LOCAL_VARIABLE

READINGS = HERE / "readings_task.py"


async def _start(site: Site, name: str, folder: Path, text: str) -> Path:
    """A device that has these examples."""
    folder.mkdir()
    file = folder / "readings.csv"
    file.write_text(text)
    for path in (folder, file):
        path.chmod(0o755)
    with mock.patch.dict(os.environ, {LOCAL_VARIABLE: str(folder)}):
        await site.cluster.start_agent(name)
    await site.connected(name)
    return file


@pytest.mark.gate("examples stay on the device")
@pytest.mark.slow
def test_devices_learn_from_their_own_examples_and_new_ones_are_judged_first(tmp_path: Path) -> None:
    async def story() -> None:
        tmp_path.chmod(0o755)
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            files = [
                # Each has seen two of the three places: only together they know them all.
                await _start(site, f"device-{n}", tmp_path / f"own-{n}", readings(200, seed=n, labels=labels))
                for n, labels in enumerate(((0, 1), (1, 2), (2, 0)), start=1)
            ]
            plan: dict[str, Any] = {"workers_min": 3, "until": {"endless": True}, "share_labels": True}
            job = await site.submit_task(READINGS, **plan, staleness="similar", pace="async")
            await site.progress(job, "two epochs", lambda told: told.epoch >= 2)
            for number, file in enumerate(files):
                with file.open("a") as more:
                    more.write(readings(60, seed=50 + number))
            before = (await site.progress(job, "any", lambda told: True)).epoch
            await site.progress(job, "two more epochs", lambda told: told.epoch >= before + 2)
            await site.operator.stop(job)
            await site.ended(job, "stopped")
            views = site.evaluations(job)
            first, later = views[0], views[-1]
            assert first.examples > 60, "all there was is new at first"
            grown = [view for view in views if view.epoch > before]
            assert sum(view.examples for view in grown) == 180, "each new example is judged once"
            assert later.accuracy > 0.85
            assert len({(row.epoch, row.batch) for row in site.history(job)[0]}) == len(site.history(job)[0])

    run(story())


@pytest.mark.slow
def test_what_was_trained_on_is_not_new_again_when_a_trainer_or_an_agent_starts_anew(tmp_path: Path) -> None:
    async def story() -> None:
        tmp_path.chmod(0o755)
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            file = await _start(site, "device-1", tmp_path / "own-1", readings(60, seed=1))
            job = await site.submit_task(READINGS, until={"endless": True}, checkpoint_every_s=0.2)
            await site.progress(job, "an epoch", lambda told: told.epoch >= 1)
            for number in (1, 2):
                if number == 1:
                    (trainer,) = site.trainers("device-1")
                    trainer.kill()
                else:
                    await site.kill(site.cluster.agents["device-1"])
                    with mock.patch.dict(os.environ, {LOCAL_VARIABLE: str(file.parent)}):
                        await site.cluster.start_agent("device-1")
                before = (await site.progress(job, "any", lambda told: True)).epoch
                await site.progress(job, "it works again", lambda told, least=before + 2: told.epoch >= least)
                with file.open("a") as more:
                    more.write(readings(20, seed=10 + number))
                before = (await site.progress(job, "any", lambda told: True)).epoch
                await site.progress(job, "two more epochs", lambda told, least=before + 2: told.epoch >= least)
            await site.operator.stop(job)
            await site.ended(job, "stopped")
            assert sum(view.examples for view in site.evaluations(job)) == 60 + 20 + 20, "each was judged once"

    run(story())


@pytest.mark.slow
def test_a_device_without_examples_is_asked_again_and_held_to_its_budget(tmp_path: Path) -> None:
    async def story() -> None:
        tmp_path.chmod(0o755)
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            await _start(site, "device-1", tmp_path / "own-1", readings(3000, seed=1))
            plan: dict[str, Any] = {"work": "sized", "budget_s": 0.2, "epoch_leases": 10, "until": {"epochs": 3}}
            job = await site.submit_task(READINGS, **plan)
            await site.ended(job)
            view = await site.view(job)
            assert view is not None
            assert view.progress is not None
            (worker,) = view.progress.workers
            # It begins small and grows into what the budget allows: the last leases take about that.
            assert 0.02 < worker.train_s < 0.4, worker

    run(story())
