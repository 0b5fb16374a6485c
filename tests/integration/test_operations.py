"""What an operator does to a cluster that runs: a backup and a restore elsewhere, a line that nobody sees."""

import asyncio
import io
import os
import re
from pathlib import Path
from typing import Any

import pytest
from kit import MOMENTUM, Site, cluster_in, metrics, run

from shoal.cli import main
from shoal.runtime.backup import BackupSummary, back_up, restore
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.store.registry_copy import TERMS_PASSED_OVER

SLOW_S = 0.1
BATCHES = 240
EPOCHS = 2


async def _training(site: Site) -> str:
    """A slow job in the middle of its first epoch, for which all devices work."""
    site.pace(SLOW_S)
    job = await site.submit_tally(batches=BATCHES, epochs=EPOCHS, workers_min=1)
    await site.mid_epoch(job)
    for name in site.cluster.agents:
        await site.works(job, name)
    return job


async def _restored_elsewhere(site: Site, file: Path, other: Path) -> BackupSummary:
    """The manager is killed; its cluster is restored in another folder, under the address that devices know."""
    await site.kill_manager()
    restored = await asyncio.to_thread(restore, file, other)
    site.cluster.home = other
    await site.cluster.start_manager()
    return restored


async def _resumed_at(site: Site, job: str, term: int) -> int:
    resumed = await site.event(job, "resumed", f"term {term}")
    found = re.search(r"durable version (\d+)", resumed.text)
    assert found is not None
    return int(found[1])


def _pids(site: Site, agents: dict[str, Any]) -> dict[str, int]:
    return {name: process.pid for name, process in sorted(agents.items())}


def test_a_cluster_is_backed_up_while_it_trains_and_goes_on_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site)
            file, other, old = tmp_path / "copy.tar", tmp_path / "other", site.cluster.home
            assert await asyncio.to_thread(main.run, ["backup", str(file), "--home", str(old)]) == 0
            assert "the file holds the cluster's keys" in capsys.readouterr().err
            # What is trained after the backup is lost with the manager.
            told = await site.progress(job, "more is durable", lambda p: p.durable_version > 20)
            before = _pids(site, site.cluster.agents)
            restored = await _restored_elsewhere(site, file, other)
            durable = restored.durable[job]
            assert 0 < durable < told.durable_version
            # The versions of the backup are all there, and training goes on from the last of them.
            assert await _resumed_at(site, job, 1 + TERMS_PASSED_OVER + 1) == durable
            site.pace(0.0)
            await site.ended(job)
            await site.tallied_once(job, batches=BATCHES, epochs=EPOCHS)
            assert _pids(site, site.cluster.agents) == before, "no device was started again"
            assert all(process.returncode is None for process in site.cluster.agents.values())
            assert Paths(other).registry.exists()

    run(story())


def test_a_leader_that_was_appointed_after_the_backup_steps_down(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site)
            file, other, old = tmp_path / "copy.tar", tmp_path / "other", site.cluster.home
            site.may_lose_the_manager = True
            made = await asyncio.to_thread(back_up, old, file)
            await site.operator.transfer(job, "device-2")
            told = await site.progress(job, "device-2 leads", lambda p: p.term == 2 and p.durable_version > 30)
            restored = await _restored_elsewhere(site, file, other)
            assert restored.durable == made.durable
            assert await _resumed_at(site, job, 1 + TERMS_PASSED_OVER + 1) == made.durable[job] < told.durable_version

            async def stepped_down() -> bool:
                return "no longer leads" in (old / "device-2.log").read_text()

            await site.until("device-2 steps down", stepped_down)
            site.pace(0.0)
            await site.ended(job)
            # Its versions of the same numbers are of another history: none of their batches is counted.
            rows = await site.tallied_once(job, batches=BATCHES, epochs=EPOCHS)
            assert metrics(rows, batches=BATCHES, momentum=MOMENTUM).any()

    run(story())


def test_backups_of_a_busy_cluster_are_all_whole(tmp_path: Path) -> None:
    """Versions are made, thinned out and published while files are linked: every copy can be restored."""

    async def story() -> None:
        async with cluster_in(tmp_path, workers=2) as site:
            jobs = [
                await site.submit_tally(
                    batches=40, epochs=3, workers_min=1, checkpoint_every_s=0.05, publish="every", versions_kept=1
                )
                for _ in range(2)
            ]
            for number in range(6):
                file = tmp_path / f"copy-{number}.tar"
                made = await asyncio.to_thread(back_up, site.cluster.home, file)
                again = await asyncio.to_thread(restore, file, tmp_path / f"other-{number}")
                assert again.durable == made.durable
                assert again.jobs == 2
                await asyncio.sleep(0.3)
            for job in jobs:
                await site.ended(job)

    run(story())


def test_an_operator_joins_by_a_line_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0) as site:
            made = await site.operator.make_token(role="operator", uses=2, valid_s=60.0, label="")
            monkeypatch.setattr("sys.stdin", io.StringIO(f"{made.join_line}\n"))
            home = tmp_path / "laptop"
            joined = ["join", "--line-file", "-", "--name", "ann", "--home", str(home)]
            assert await asyncio.to_thread(main.run, joined) == 0
            assert "ann may operate" in capsys.readouterr().out
            file = tmp_path / "line"
            file.write_text(f"{made.join_line}\n")
            joined = ["join", "--line-file", str(file), "--remove-line", "--name", "bob", "--home", str(tmp_path / "b")]
            assert await asyncio.to_thread(main.run, joined) == 0
            assert not os.path.exists(file)
            async with Operator.open(tmp_path / "b") as bob:
                assert (await bob.status()).manager == "manager"

    run(story())
