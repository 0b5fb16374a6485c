"""Real agents in a private job: each keeps its own account, which neither kill -9 nor a greedy leader changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kit import HERE, Site, cluster_in, run
from readings_task import readings

from shoal.data.local import LOCAL_VARIABLE
from shoal.runtime.local import LocalCluster
from shoal.runtime.paths import Paths
from shoal.runtime.privacy_accounts import accounts, remember_limit

READINGS = HERE / "readings_task.py"
#: Little noise: what is shown is the account, not what twenty devices could learn.
PRIVATE: dict[str, Any] = {"trust": "private(60, 1e-4)", "cohort": 2, "clip_update": 1.0, "workers_min": 2}


async def _start(site: Site, name: str, folder: Path) -> None:
    if not folder.exists():
        folder.mkdir()
        (folder / "readings.csv").write_text(readings(120, seed=len(name)))
        for path in (folder, folder / "readings.csv"):
            path.chmod(0o755)
    with mock.patch.dict(os.environ, {LOCAL_VARIABLE: str(folder)}):
        await site.cluster.start_agent(name)
    await site.connected(name)


def _account(site: Site, name: str) -> list[list[int]]:
    """What is on the device's disk."""
    found = list(site.cluster.agent_home(name).rglob("privacy/*.json"))
    assert len(found) <= 1
    kept: list[list[int]] = json.loads(found[0].read_text())["participations"] if found else []
    return kept


@pytest.mark.slow
def test_a_participation_outlives_kill_minus_nine(tmp_path: Path) -> None:
    async def story() -> None:
        tmp_path.chmod(0o755)
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            for number in (1, 2):
                await _start(site, f"device-{number}", tmp_path / f"own-{number}")
            plan = {**PRIVATE, "epoch_leases": 10, "until": {"epochs": 40}, "checkpoint_every_s": 0.3}
            job = await site.submit_task(READINGS, **plan, participations=150)
            await site.progress(job, "a few versions", lambda told: told.version >= 3)
            await site.kill(site.cluster.agents["device-1"])
            before = _account(site, "device-1")
            assert len(before) >= 3
            await _start(site, "device-1", tmp_path / "own-1")

            async def counted() -> list[list[int]] | None:
                account = _account(site, "device-1")
                assert account[: len(before)] == before, "nothing is given back"
                return account if len(account) > len(before) else None

            after = await site.until("it takes part again", counted)
            often = len(after)
            told = await site.progress(job, "it is counted", lambda told: told.participations_worst >= often)
            assert told.participations_worst >= len(before)
            assert 0 < told.epsilon_worst <= told.epsilon <= 60
            assert told.train_loss is None
            await site.operator.stop(job)
            await site.ended(job, "stopped")
            for name in ("device-1", "device-2"):
                account = _account(site, name)
                assert len({tuple(pair) for pair in account}) == len(account), "one update a version"

    run(story())


@pytest.mark.slow
def test_a_second_job_gets_what_the_owner_leaves_it(tmp_path: Path) -> None:
    async def story() -> None:
        tmp_path.chmod(0o755)
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            for number in (1, 2, 3):
                await _start(site, f"device-{number}", tmp_path / f"own-{number}")
            careful = Paths(site.cluster.agent_home("device-1")).node
            # The first job may have all of its 60; what is left is less than one participation in the second.
            remember_limit(careful, 61.0)
            plan = {**PRIVATE, "epoch_leases": 10, "until": {"epochs": 4}, "participations": 3}
            first = await site.submit_task(READINGS, **plan | {"cohort": 3, "workers_min": 3})
            await site.ended(first, "finished")
            (spent,) = accounts(careful)
            assert (spent.job, spent.participations) == (first, 3)
            # Its leader has all three, is told that one has nothing left to spend, and goes on with two.
            second = await site.submit_task(READINGS, **plan | {"workers_min": 3})
            await site.ended(second, "finished")
            assert accounts(careful) == [spent]
            for name in ("device-2", "device-3"):
                kept = accounts(Paths(site.cluster.agent_home(name)).node)
                assert sorted(account.participations for account in kept) == [3, 3]

    run(story())


@pytest.mark.slow
def test_a_leader_that_asks_once_more_than_the_plan_says_gets_nothing(tmp_path: Path) -> None:
    spawn = LocalCluster._spawn

    async def greedy(self: LocalCluster, module: str, *arguments: str, **options: Any) -> Any:
        module = "greedy_manager" if module == "shoal.runtime.manager_main" else module
        return await spawn(self, module, *arguments, **options)

    async def story() -> None:
        tmp_path.chmod(0o755)
        async with cluster_in(tmp_path, workers=0, options=()) as site:
            for number in (1, 2):
                await _start(site, f"device-{number}", tmp_path / f"own-{number}")
            plan = {**PRIVATE, "epoch_leases": 10, "until": {"epochs": 4}}
            job = await site.submit_task(READINGS, **plan, participations=3)

            async def refused() -> bool | None:
                log = (site.cluster.home / "device-1.log").read_text()
                return True if log.count("took part 3 times, of 3 that the plan allows") >= 2 else None

            await site.until("the device says no", refused)
            assert [len(_account(site, f"device-{number}")) for number in (1, 2)] == [3, 3]
            view = await site.view(job)
            assert view is not None
            assert view.progress is not None
            assert view.progress.version <= 3
            await site.operator.stop(job)
            await site.ended(job, "stopped")

    with mock.patch.object(LocalCluster, "_spawn", greedy):
        run(story())
