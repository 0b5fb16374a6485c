"""One identity, one process: two starts from one home, and two devices with a copy of one certificate. Real agents."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from kit import WAIT_S, Site, cluster_in, manager_in, run

from shoal.cli.commands import join
from shoal.runtime.event_kinds import device_of
from shoal.runtime.journal import CLUSTER
from shoal.runtime.tenancy import LOCK_FILE


def told(site: Site, name: str) -> str:
    return (site.cluster.home / f"{name}.log").read_text()


async def says(site: Site, name: str, words: str, *, times: int = 1) -> None:
    async def said() -> bool:
        return told(site, name).count(words) >= times

    await site.until(f"{name} says {words!r}", said)


def alarms(site: Site) -> list[str]:
    return [event.text for event in site.events(CLUSTER) if event.kind == "key.misused"]


def changes(site: Site, node: str) -> list[str]:
    """What the manager wrote down of a node's coming and going."""
    return [event.text for event in site.events(CLUSTER) if device_of(event.kind, event.text) == node]


def test_a_newer_start_from_the_same_home_takes_the_place_of_the_older(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            await site.connected("device-1")
            await says(site, "device-1", "connected to")
            older = site.cluster.agents["device-1"]
            newer = await site.cluster.start_agent("device-1")
            assert await asyncio.wait_for(older.wait(), WAIT_S) == 0
            await says(site, "device-1", "connected to", times=2)
            log = told(site, "device-1")
            assert f"an agent runs from this home (process {older.pid}): it is asked to end" in log
            assert f"was started again from this home (process {newer.pid}): this agent ends" in log
            # It took over once: nobody is thrown out after that.
            await site.event(CLUSTER, "device.connected", "device-1 restarted")
            seen = len(changes(site, "device-1"))
            await asyncio.sleep(3.0)
            assert newer.returncode is None
            assert len(changes(site, "device-1")) == seen
            assert not alarms(site)

    run(story())


def test_a_lock_that_a_dead_agent_left_stops_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            await says(site, "device-1", "connected to")
            await site.kill(site.cluster.agents["device-1"])
            assert (site.cluster.agent_home("device-1") / "node" / LOCK_FILE).exists()
            await site.cluster.start_agent("device-1")
            await says(site, "device-1", "connected to", times=2)
            assert "is asked to end" not in told(site, "device-1")

    run(story())


@pytest.mark.gate("one process per name")
def test_of_two_devices_with_one_certificate_the_first_is_kept_and_both_addresses_are_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            site.pace(0.05)
            job = await site.submit_tally(batches=300)
            await site.mid_epoch(job, applied=2)
            # As a card that was copied after the device had joined.
            shutil.copytree(
                site.cluster.agent_home("device-1") / "node",
                site.cluster.agent_home("clone") / "node",
                ignore=shutil.ignore_patterns(LOCK_FILE),
            )
            seen = len(changes(site, "device-1"))
            await site.cluster.start_agent("clone")
            await says(site, "clone", "two devices use the identity of device-1: 127.0.0.1 and 127.0.0.1; make a new")
            waits = [float(wait) for wait in re.findall(r"trying again in ([\d.]+) s", told(site, "clone"))]
            assert waits
            assert waits[-1] >= 5.0
            await site.progress(job, "the first goes on", lambda progress: progress.batches_applied >= 20)
            await site.until("the manager says so", lambda: _is(len(alarms(site)) == 1))
            assert len(changes(site, "device-1")) == seen, "the first is not disturbed"
            assert "connected to" not in told(site, "clone")
            # The first one starts again, by itself: its place is its own.
            first = site.cluster.agents["device-1"]
            await site.kill(first)
            await site.cluster.start_agent("device-1")
            await says(site, "device-1", "connected to", times=2)
            site.pace(0.0)
            await site.ended(job)
            await site.tallied_once(job, batches=300)

    run(story())


async def _is(so: bool) -> bool:
    return so


def test_a_device_whose_name_is_taken_is_told_what_it_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with manager_in(tmp_path / "home") as ready:
            for folder, expected in (("a", "pi1"), ("b", "pi1-2")):
                member = await asyncio.to_thread(join._member, tmp_path / folder, ready.join_line, "pi1")
                assert member.identity.node == expected

    run(story())
    assert capsys.readouterr().out == "The name pi1 is taken: this device is pi1-2.\n"
