"""Real agents, a fifth of them liars with every attack in turn: the job gets to its target, and the liar is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from kit import Site
from shared_cluster import SharedCluster, shared_cluster

from testbed.echo_job import echo_job

LIAR = "liar"
PULL = ("--child-module", "pull_trainer")
VALUES, BATCHES = 200, 60


async def _add_liar(site: Site) -> None:
    home = site.cluster.agent_home(LIAR)
    await site.cluster._enrol(LIAR, home)
    command = ("lying_agent", "--home", str(home), *PULL)
    site.cluster.agents[LIAR] = await site.cluster._spawn(*command, log=f"{LIAR}.log")
    await site.connected(LIAR)


cluster = shared_cluster(workers=4, options=PULL, also=_add_liar)


async def _started(site: Site, directory: Path, **plan: object) -> str:
    folder = directory / "job"
    folder.mkdir()
    job = echo_job(folder, values=VALUES, batches=BATCHES)
    # Something to be evaluated on.
    job = dataclasses.replace(job, name="pull", prepared=dataclasses.replace(job.prepared, test=job.prepared.train))
    until = {"accuracy": 0.9, "epochs": 15}
    return await site.operator.submit(job, plan={"workers_min": 5, "until": until, **plan})


@pytest.mark.parametrize("pace", [pytest.param("sync", marks=pytest.mark.gate("robust")), "buffered"])
def test_a_fifth_of_the_devices_lie_and_the_job_reaches_its_target(
    tmp_path: Path, cluster: SharedCluster, pace: str
) -> None:
    async def story(site: Site) -> None:
        job = await _started(site, tmp_path, trust="robust", pace=pace, buffer=5)
        view = await site.ended(job)
        assert "reached" in view.reason, view.reason

        async def often() -> list[str] | None:
            down = [event.text for event in site.events(job) if event.kind == "update.down-weighted"]
            return [text for text in down if text.startswith(f"{LIAR} is") and " times so far" in text] or None

        # The manager writes events down a moment after they happen.
        await site.until("the liar is weighed down again and again", often)
        rows, _ = site.history(job)
        assert len({(row.epoch, row.batch) for row in rows}) == len(rows), "every batch counts once all the same"

    cluster.run(story)


@pytest.mark.parametrize(
    ("trust", "topology"), [("robust", "shard"), ("robust(clip)", "shard"), ("robust(clip)", "tree")]
)
def test_a_formation_outvotes_the_liar_too(tmp_path: Path, cluster: SharedCluster, trust: str, topology: str) -> None:
    async def story(site: Site) -> None:
        job = await _started(site, tmp_path, trust=trust, topology=topology, until={"epochs": 10_000})
        formed = await site.progress(job, topology, lambda progress: progress.topology.startswith(topology))
        # Events tell of ever fewer versions in which a device was weighed down; reports tell of the last one.
        await site.progress(job, "versions of it", lambda progress: progress.version >= formed.version + 60)
        await site.progress(
            job,
            "the liar weighed down",
            lambda progress: any(
                worker.node == LIAR and worker.reason.startswith("weighed down in version")
                for worker in progress.workers
            ),
        )
        await site.operator.stop(job)
        await site.ended(job, "stopped")
        told = site.events(job)
        assert not [event.text for event in told if event.kind == "sum.rejected"]
        rows, _ = site.history(job)
        assert len({(row.epoch, row.batch) for row in rows}) == len(rows), "every batch counts once all the same"
        if trust == "robust":
            assert (site.evaluations(job)[-1].accuracy or 0) >= 0.9

    cluster.run(story)


def test_where_everyone_is_believed_the_liar_wins(tmp_path: Path, cluster: SharedCluster) -> None:
    """So the test above can fail."""

    async def story(site: Site) -> None:
        job = await _started(site, tmp_path)
        view = await site.ended(job)
        assert "15 of 15 epochs" in view.reason, view.reason

    cluster.run(story)
