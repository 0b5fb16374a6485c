"""The leader is moved, killed, stopped, cut off from its manager: another leads on, and every batch is applied once.

These stories run nightly, since the same roles live through them in the simulator for every change:

- ``test_manager_and_leader_may_die_at_once``: ``tests/unit/test_sim_leaders.py``,
  ``test_a_leader_that_loses_its_power_is_followed`` and ``test_a_manager_that_starts_anew_finds_the_leader_it_had``;
- ``test_a_drained_leader_hands_over``: ``tests/unit/test_sim_leaders.py``,
  ``test_a_role_that_is_moved_goes_on_where_it_was``.
"""

import asyncio
import os
import re
import signal
import socket
from pathlib import Path

import pytest
from kit import Site, cluster_in, run
from shared_cluster import SharedCluster, shared_cluster

from shoal.errors import Refused
from shoal.wire.messages import JobView

SLOW_S = 0.1
BATCHES = 240

#: For the stories in which nobody dies.
cluster = shared_cluster(workers=3)


async def _training(site: Site, *, workers: int, leader: str = "", epochs: int = 2) -> str:
    """A slow job in the middle of its first epoch, led where it is wanted."""
    site.may_lose_the_manager = True
    site.pace(SLOW_S)
    job = await site.submit_tally(batches=BATCHES, epochs=epochs, workers_min=1)
    await site.mid_epoch(job)
    for name in site.cluster.agents:
        await site.works(job, name)
    if leader:
        await site.operator.transfer(job, leader)
        await _led_by(site, job, leader, term=2)
    return job


async def _led_by(site: Site, job: str, leader: str, *, term: int) -> JobView:
    async def leads() -> JobView | None:
        view = await site.view(job)
        there = view is not None and (view.leader, view.term) == (leader, term)
        return view if there and view.progress and view.progress.term == term and view.progress.version else None

    return await site.until(f"{leader} leads under term {term}", leads)


async def _finish(site: Site, job: str, *, epochs: int = 2) -> set[str]:
    site.pace(0.0)
    await site.ended(job)
    return {row.node for row in await site.tallied_once(job, batches=BATCHES, epochs=epochs)}


def _pids(site: Site) -> dict[str, list[int]]:
    return {name: sorted(child.pid for child in site.trainers(name)) for name in sorted(site.cluster.agents)}


async def _resumed_at(site: Site, job: str, term: int) -> int:
    resumed = await site.event(job, "job.resumed", f"term {term}")
    found = re.search(r"saved version (\d+)", resumed.text)
    assert found is not None
    return int(found[1])


@pytest.mark.gate("transfer")
def test_a_planned_transfer_loses_no_round_and_restarts_no_worker(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await _training(site, workers=3)
        before = _pids(site)
        for term, leader in ((2, "device-2"), (3, "device-3"), (4, "manager")):
            told = await site.operator.transfer(job, leader)
            assert told.endswith(f"hands over to {leader}")
            await _led_by(site, job, leader, term=term)
            version = await _resumed_at(site, job, term)
            await site.event(job, "leader.resigned", f"at version {version:,}")
        assert _pids(site) == before
        # Nobody lost a lease to any of it. Later, leases are of milliseconds, and a busy machine is late with some.
        assert not [
            e
            for e in site.events(job)
            if e.kind in ("device.lost", "lease.expired", "update.rejected", "lease.returned")
        ]
        assert await _finish(site, job) == {"device-1", "device-2", "device-3"}

    cluster.run(story)


@pytest.mark.gate("kill -9 of a leader")
def test_a_killed_leader_is_replaced_and_no_worker_restarts(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site, workers=3, leader="device-1")
            progress = await site.progress(job, "something durable", lambda p: p.term == 2 and p.durable_version > 5)
            before = _pids(site)
            await site.kill(site.cluster.agents["device-1"])
            await _led_by(site, job, "manager", term=3)
            assert await _resumed_at(site, job, 3) >= progress.durable_version
            del before["device-1"]
            site.cluster.agents.pop("device-1")
            assert _pids(site) == before
            await site.cluster.start_agent("device-1")
            await site.connected("device-1")
            await _finish(site, job)

    run(story())


def test_a_leader_that_was_stopped_steps_down_when_it_wakes(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site, workers=3, leader="device-1", epochs=3)
            stopped = site.cluster.agents["device-1"]
            os.kill(stopped.pid, signal.SIGSTOP)
            await _led_by(site, job, "manager", term=3)
            os.kill(stopped.pid, signal.SIGCONT)

            async def stepped_down() -> bool:
                return "no longer leads" in (site.cluster.home / "device-1.log").read_text()

            # It wakes in the middle of term 2, with an open door and a version to be kept: neither does harm.
            await site.until("the door of device-1 is closed", stepped_down)
            await site.works(job, "device-1")
            await _finish(site, job, epochs=3)

    run(story())


def test_training_goes_on_while_the_manager_is_away_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site, workers=3, leader="device-1", epochs=3)
            progress = await site.progress(job, "it is under way", lambda p: p.term == 2 and p.version > 20)
            before = _pids(site)
            await site.kill_manager()
            await asyncio.sleep(3.0)
            await site.cluster.start_manager()
            view = await _led_by(site, job, "device-1", term=2)
            assert view.progress is not None
            # Thirty rounds would fit; a leader that waited for its manager would have made none.
            assert view.progress.version >= progress.version + 8
            await site.event(job, "leader.connected", "device-1 still leads at")
            assert _pids(site) == before
            await _finish(site, job, epochs=3)
            assert not [event for event in site.events(job) if event.kind == "device.lost"]

    run(story())


@pytest.mark.nightly
def test_manager_and_leader_may_die_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site, workers=3, leader="device-1")
            await asyncio.gather(site.kill_manager(), site.kill(site.cluster.agents.pop("device-1")))
            await site.cluster.start_manager()
            await _led_by(site, job, "manager", term=3)
            await site.cluster.start_agent("device-1")
            await _finish(site, job)

    run(story())


@pytest.mark.nightly
def test_a_drained_leader_hands_over(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await _training(site, workers=2, leader="device-2")
        await site.operator.drain_node("device-2", "an update")
        await _led_by(site, job, "manager", term=3)
        await _finish(site, job)
        assert not [event for event in site.events(job) if event.kind in ("device.lost", "lease.expired")]
        await site.operator.undrain_node("device-2")

    cluster.run(story)


def test_a_revoked_leader_is_cut_off_and_replaced(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site, workers=3, leader="device-1")
            await site.operator.revoke_node("device-1", "stolen")
            await _led_by(site, job, "manager", term=3)
            assert await asyncio.wait_for(site.cluster.agents["device-1"].wait(), 60) == 4
            await _finish(site, job)

    run(story())


def test_a_revoked_worker_is_shut_out_by_a_leader_elsewhere(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site, workers=3, leader="device-1")
            last = max(event.seq for event in site.events(job))
            await site.operator.revoke_node("device-3", "stolen")
            await site.event(job, "device.lost", "device-3", after=last)
            at = (await site.view(job)).progress.version
            await _finish(site, job)
            rows, _ = site.history(job)
            assert not [row for row in rows if row.node == "device-3" and row.version > at + 2]

    run(story())


def test_a_transfer_that_cannot_be_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            job = await _training(site, workers=1)
            for node, why in (("manager", "leads job"), ("nobody", "there is no node nobody")):
                with pytest.raises(Refused, match=why):
                    await site.operator.transfer(job, node)
            await site.operator.transfer(job)
            await _led_by(site, job, "device-1", term=2)
            await _finish(site, job)

    run(story())


def test_a_device_leads_on_the_port_it_was_given(tmp_path: Path) -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        async with cluster_in(tmp_path, workers=0) as site:
            await site.cluster.start_agent("device-1", "--lead-port", str(port))
            job = await _training(site, workers=1, leader="device-1", epochs=1)
            await site.event(job, "leader.connected", f"device-1 leads at 127.0.0.1:{port}, term 2")
            await _finish(site, job, epochs=1)

    run(story())


def test_a_port_that_is_taken_leaves_the_leader_where_it_is_and_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = int(taken.getsockname()[1])
            async with cluster_in(tmp_path, workers=0) as site:
                await site.cluster.start_agent("device-1", "--lead-port", str(port))
                job = await _training(site, workers=1, epochs=1)
                await site.operator.transfer(job, "device-1")
                await _led_by(site, job, "manager", term=3)
                assert [e for e in site.events(job) if f"port {port} on 127.0.0.1 cannot be used" in e.text]
                await _finish(site, job, epochs=1)

    run(story())
