"""Real agents that seal and add noise themselves: each group is on a device's disk before the device is in its sum."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from kit import Site, cluster_in, run

from testbed.echo_job import echo_job

PULL = ("--child-module", "pull_trainer")
OFTEN, EPSILON = 9, 100.0


def _account(site: Site, name: str) -> list[list[int]]:
    """What is on the device's disk."""
    (found,) = site.cluster.agent_home(name).rglob("privacy/*.json")
    kept: list[list[int]] = json.loads(found.read_text())["participations"]
    return kept


@pytest.mark.gate("private")
def test_a_device_counts_before_it_is_in_a_sum_and_no_oftener_than_it_may(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=4, options=PULL) as site:
            folder = tmp_path / "job"
            folder.mkdir()
            job = echo_job(folder, values=200, batches=60)
            plan = {
                "trust": f"sealed(3, 0%, 30%) + private({EPSILON:g}, 1e-4)",
                "data": "local",
                "cohort": 4,
                "workers_min": 4,
                "clip_update": 1.0,
                "participations": OFTEN,
                "epoch_leases": 40,
                "until": {"epochs": 2},
            }
            named = dataclasses.replace(
                job, name="pull", prepared=dataclasses.replace(job.prepared, test=job.prepared.train)
            )
            started = await site.operator.submit(named, plan=plan)
            view = await site.ended(started)
            # Twenty versions; a device may take part in nine.
            assert "the accounts of too many of the 4 devices here are spent" in view.reason, view.reason
            rows, _ = site.history(started)
            assert {row.version for row in rows} == set(range(1, OFTEN + 1))
            for name in site.cluster.agents:
                account = _account(site, name)
                assert len(account) == OFTEN
                assert len(account) >= sum(row.node == name for row in rows)
            assert view.progress.epsilon_worst <= EPSILON
            assert view.progress.participations_worst == OFTEN

    run(story())
