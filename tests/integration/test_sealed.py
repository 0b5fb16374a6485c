"""Real agents whose leader sees sums alone: the job gets to its target, also when devices or the manager are killed.

Where a process dies at a word (``mortal``), the model must be the exact sum of what the history says: one mask that
stays, or one update in two sums, and it is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from kit import Site, cluster_in, run
from own_tally_trainer import TURNS, place_of
from shared_cluster import SharedCluster, shared_cluster

from shoal.runtime.local import LocalCluster
from testbed.echo_job import echo_job

PULL = ("--child-module", "pull_trainer")
VALUES, BATCHES = 200, 60

cluster = shared_cluster(workers=4, options=PULL)


async def _started(site: Site, directory: Path, codec: str = "dense", trust: str = "sealed(3, 0%, 30%)") -> str:
    folder = directory / "job"
    folder.mkdir(parents=True)
    job = echo_job(folder, values=VALUES, batches=BATCHES)
    job = dataclasses.replace(job, name="pull", prepared=dataclasses.replace(job.prepared, test=job.prepared.train))
    plan = {
        "trust": trust,
        "data": "local",
        "workers_min": 3,
        "epoch_leases": 40,
        "codec": codec,
        "until": {"accuracy": 0.9, "epochs": 15},
    }
    return await site.operator.submit(job, plan=plan)


@pytest.mark.parametrize("codec", [pytest.param("dense", marks=pytest.mark.gate("sealed")), "led30%+ef"])
def test_a_sealed_job_reaches_its_target(tmp_path: Path, cluster: SharedCluster, codec: str) -> None:
    async def story(site: Site) -> None:
        job = await _started(site, tmp_path, codec)
        view = await site.ended(job)
        assert "reached" in view.reason, view.reason
        rows, _ = site.history(job)
        assert len({(row.epoch, row.batch) for row in rows}) == len(rows)
        versions = {row.version for row in rows}
        assert all(sum(row.version == version for row in rows) >= 3 for version in versions)

    cluster.run(story)


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


# A process dies at a word --------------------------------------------------------------------------------------

#: These stories end the manager as the leader.
LEADS_HERE = ("--lead", "here")
OWN_TALLY = ("--child-module", "own_tally_trainer")
EPOCHS = 8
MORTAL = {"shoal.runtime.agent_main": "agent", "shoal.runtime.manager_main": "manager"}


@contextlib.contextmanager
def mortals(orders: Path) -> Iterator[None]:
    """Agents and managers of clusters that start meanwhile end when they are told to."""
    spawn = LocalCluster._spawn

    async def spawned(self: LocalCluster, module: str, *arguments: str, **options: Any) -> Any:
        return await spawn(self, "mortal", MORTAL[module], str(orders), *arguments, **options)

    with mock.patch.object(LocalCluster, "_spawn", spawned):
        yield


async def _tallying(site: Site, directory: Path, **changes: object) -> str:
    folder = directory / "job"
    folder.mkdir()
    job = echo_job(folder, values=VALUES, batches=BATCHES)
    job = dataclasses.replace(job, name="tally", arguments={"pace": str(site.pace_file)})
    plan = {
        "trust": "sealed(3, 0%, 30%)",
        "data": "local",
        "workers_min": 3,
        "epoch_leases": TURNS,
        "momentum": 0.0,
        "checkpoint_every_s": 0.5,
        "until": {"epochs": EPOCHS},
        **changes,
    }
    return await site.operator.submit(job, plan=plan)


async def _dies_at(site: Site, orders: Path, word: str, time: int) -> str:
    """Order a death, and wait for it: the name of the device, or nothing for the manager."""
    draft = orders.with_suffix(".new")
    draft.write_text(f"{word} {time}")
    draft.replace(orders)

    async def dead() -> tuple[str] | None:
        for name, process in {"": site.cluster.manager, **site.cluster.agents}.items():
            if process is not None and process.returncode is not None:
                assert process.returncode == -signal.SIGKILL
                return (name,)
        return None

    return (await site.until(f"somebody dies at {word}", dead))[0]


async def _moves(site: Site, job: str) -> None:
    """Two more versions: the first may have been under way."""
    rows, _ = site.history(job)
    newest = max((row.version for row in rows), default=0)

    async def has_moved() -> bool | None:
        rows, _ = site.history(job)
        return max((row.version for row in rows), default=0) >= newest + 2 or None

    await site.until(f"versions after {newest}", has_moved)


async def _is_exact(site: Site, job: str) -> None:
    rows, _ = site.history(job)
    model, versions = np.zeros(VALUES), sorted({row.version for row in rows})
    for version in versions:
        places = [place_of(row.epoch, row.node, VALUES) for row in rows if row.version == version]
        assert len(places) >= 3
        np.add.at(model, places, 1 / len(places))
    np.testing.assert_allclose((await site.model(job))["flat"], model, rtol=1e-5, atol=1e-6)


#: A device dies with its update sealed, agreed to or opened; a leader with some devices told and others not.
@pytest.mark.parametrize(
    ("who", "words"), [("device", ("Update", "Agreed", "Opened")), ("leader", ("Bind", "Agree", "Open"))]
)
def test_whoever_is_killed_at_a_word_the_sums_are_exact(tmp_path: Path, who: str, words: tuple[str, ...]) -> None:
    orders = tmp_path / "orders"

    async def story() -> None:
        async with cluster_in(tmp_path, workers=5, options=OWN_TALLY, manager_options=LEADS_HERE) as site:
            site.pace(0.4)
            job = await _tallying(site, tmp_path)
            await _moves(site, job)
            for word in words:
                name = await _dies_at(site, orders, word, 1 if who == "device" else 3)
                assert bool(name) == (who == "device")
                if name:
                    await site.cluster.start_agent(name)
                else:
                    await site.cluster.start_manager()
                await _moves(site, job)
            site.pace(0.0)
            await site.ended(job)
            await _is_exact(site, job)

    with mortals(orders):
        run(story())
