"""Real agents whose leader sees sums alone: the job gets to its target, also when devices or the manager are killed."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from kit import Site, cluster_in, run

from benchmarks.common import echo_job

PULL = ("--child-module", "pull_trainer")
VALUES, BATCHES = 200, 60


async def _started(site: Site, directory: Path) -> str:
    folder = directory / "job"
    folder.mkdir()
    job = echo_job(folder, values=VALUES, batches=BATCHES)
    job = dataclasses.replace(job, name="pull", prepared=dataclasses.replace(job.prepared, test=job.prepared.train))
    plan = {
        "trust": "sealed(3, 0%, 30%)",
        "data": "local",
        "workers_min": 3,
        "epoch_leases": 40,
        "until": {"accuracy": 0.9, "epochs": 15},
    }
    return await site.operator.submit(job, plan=plan)


def test_a_sealed_job_reaches_its_target(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=4, options=PULL) as site:
            job = await _started(site, tmp_path)
            view = await site.ended(job)
            assert "reached" in view.reason, view.reason
            rows, _ = site.history(job)
            assert len({(row.epoch, row.batch) for row in rows}) == len(rows)
            versions = {row.version for row in rows}
            assert all(sum(row.version == version for row in rows) >= 3 for version in versions)

    run(story())


def test_devices_that_are_killed_leave_the_sums_exact(tmp_path: Path) -> None:
    """A mask that stayed in a sum would throw the model as far as numbers go, and it would never get to its target."""

    async def story() -> None:
        async with cluster_in(tmp_path, workers=5, options=PULL) as site:
            job = await _started(site, tmp_path)
            for name in list(site.cluster.agents)[:2]:
                await asyncio.sleep(2.0)
                await site.kill(site.cluster.agents[name])
            view = await site.ended(job)
            assert "reached" in view.reason, view.reason

    run(story())
