"""Devices that check in and do not stay: real processes, a real job, and kill -9 of one that is away."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from kit import Site, cluster_in, run

from shoal.wire.messages import NodeView

CHECK_IN_S = 6.0


async def dormant(site: Site, *names: str) -> None:
    async def all_away() -> bool | None:
        states = {view.node: view.state for view in (await site.operator.status()).nodes}
        return all(states.get(name) == "dormant" for name in names) or None

    await site.until(f"{names} are dormant", all_away)


@pytest.mark.timeout(400)
def test_devices_check_in_train_when_a_job_comes_and_one_that_is_killed_away_is_not_missed(tmp_path: Path) -> None:
    async def story() -> None:
        options = ("--check-in-s", str(CHECK_IN_S))
        async with cluster_in(tmp_path, workers=2, manager_options=options) as site:
            await dormant(site, "device-1", "device-2")
            # Nobody is connected when the job is submitted. Both come by themselves, and are given work.
            site.pace(0.02)
            job = await site.submit_tally(batches=24, epochs=2, workers_min=2)
            await site.ended(job)
            site.exactly_once(job, batches=24, epochs=2)
            await dormant(site, "device-1", "device-2")

            killed = site.cluster.agents["device-2"]
            killed.send_signal(signal.SIGKILL)
            await killed.wait()
            again = await site.submit_tally(batches=8, workers_min=1)
            await site.ended(again)
            site.exactly_once(again, batches=8, epochs=1)
            views: dict[str, NodeView] = {view.node: view for view in (await site.operator.status()).nodes}
            # It overslept, and nobody waits for it: it holds nothing.
            assert views["device-2"].state == "dormant"
            assert "comes again" in views["device-2"].reason

    run(story())
