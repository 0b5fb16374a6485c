"""What an operator does to a cluster that runs: a backup and a restore elsewhere, an upgrade, a quota."""

import asyncio
import contextlib
import dataclasses
import io
import os
import re
import subprocess
import tarfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kit import HERE, MOMENTUM, WAIT_S, Site, cluster_in, metrics, run

from shoal.cli import main
from shoal.errors import Refused
from shoal.roles.manager.going_back import TERMS_PASSED_OVER
from shoal.runtime import local
from shoal.runtime.backup import BackupSummary, back_up, restore
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.trainer.spawn import end_process
from shoal.wire.messages import PROTOCOL, Progress
from testbed.echo_job import echo_job

SLOW_S = 0.1
BATCHES = 240
EPOCHS = 2
#: Long enough for a busy machine to upgrade three devices meanwhile.
UPGRADE_SLOW_S, UPGRADE_BATCHES, UPGRADE_EPOCHS = 0.4, 300, 6


async def _training(site: Site) -> str:
    """A slow job in the middle of its first epoch, for which all devices work."""
    site.pace(SLOW_S)
    job = await site.submit_tally(batches=BATCHES, epochs=EPOCHS, workers_min=1)
    await site.mid_epoch(job)
    for name in site.cluster.agents:
        await site.works(job, name)
    return job


def _is_beyond(durable: int, progress: Progress) -> bool:
    return progress.durable_version > durable


async def _restored_elsewhere(site: Site, file: Path, other: Path) -> BackupSummary:
    """The manager is killed; its cluster is restored in another folder, under the address that devices know."""
    await site.kill_manager()
    restored = await asyncio.to_thread(restore, file, other)
    site.cluster.home = other
    await site.cluster.start_manager()
    return restored


async def _resumed_at(site: Site, job: str, term: int) -> int:
    resumed = await site.event(job, "job.resumed", f"term {term}")
    found = re.search(r"saved version (\d+)", resumed.text)
    assert found is not None
    return int(found[1])


def _pids(site: Site, agents: dict[str, Any]) -> dict[str, int]:
    return {name: process.pid for name, process in sorted(agents.items())}


@pytest.mark.gate("restore")
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
            told = await site.progress(job, "it is backed up", lambda p: p.durable_version > 0)
            for _ in range(2):
                # What the manager tells may be older than the backup.
                known = told.durable_version
                told = await site.progress(job, "more is durable", partial(_is_beyond, known))
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
            told = await site.progress(
                job, "device-2 leads", lambda p: p.term == 2 and _is_beyond(made.durable[job], p)
            )
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


QUOTA_BYTES = 20_000_000
ENDS = 200
ECHO = ("--child-module", "shoal.trainer.echo")


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_two_hundred_jobs_end_and_the_disk_stays_under_its_quota(tmp_path: Path) -> None:
    """Their checkpoints would take 160 MB."""

    async def story() -> None:
        options = ("--disk-quota-bytes", str(QUOTA_BYTES))
        async with cluster_in(tmp_path, workers=2, options=ECHO, manager_options=options) as site:
            folder = tmp_path / "echo"
            folder.mkdir()
            ready = echo_job(folder, values=50_000, batches=1)
            plan = {"momentum": MOMENTUM, "workers_min": 1, "workers_max": 1, "until": {"epochs": 1}}
            peak, jobs = 0, []
            for number in range(ENDS):
                named = dataclasses.replace(ready, name=f"echo-{number}")
                jobs.append(await site.operator.submit(named, plan=plan))
                if number >= 4:
                    # A few wait in the queue, so that no device does.
                    await site.ended(jobs[number - 4])
                peak = max(peak, _size(site.cluster.home / "cluster"))
            for job in jobs[-4:]:
                await site.ended(job)
            peak = max(peak, _size(site.cluster.home / "cluster"))
            assert peak <= QUOTA_BYTES, f"{peak:,} bytes"
            status = await site.operator.status()
            assert [view.state for view in status.jobs] == ["finished"] * ENDS
            # The oldest went first, each with a line that says so; the newest can be fetched.
            assert not list(Paths(site.cluster.home).checkpoints(jobs[0]).glob("*"))
            await site.event(jobs[0], "files.removed", "the disk quota of 20.0 MB lacks")
            assert (await site.model(jobs[-1]))["flat"].shape == (50_000,)
            with pytest.raises(Refused, match="the disk quota cost it"):
                await site.operator.pull_model(jobs[0], tmp_path / "old.safetensors")

    asyncio.run(asyncio.wait_for(story(), 1400))


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size if path.is_file() else 0
    return total


def test_a_job_that_would_not_fit_is_refused_before_it_is_uploaded_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0, manager_options=("--disk-quota-bytes", "2000000")) as site:
            for name, values, words in (("fat", 600_000, "for this upload"), ("wide", 100_000, "would not fit")):
                folder = tmp_path / name
                folder.mkdir()
                with pytest.raises(Refused, match=words):
                    await site.operator.submit(echo_job(folder, values=values, batches=1), plan={})
            assert (await site.operator.status()).jobs == ()
            assert _size(site.cluster.home / "cluster") < 2_000_000

    run(story())


def test_an_ended_job_and_a_lost_device_go_and_what_nobody_names_goes_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2) as site:
            home = ["--home", str(site.cluster.home)]
            places = Paths(site.cluster.home)
            site.pace(0.05)
            job = await site.submit_tally(batches=400, workers_min=1)
            await site.works(job, "device-1")
            assert await asyncio.to_thread(main.run, ["jobs", "rm", job, *home]) == 4
            assert await asyncio.to_thread(main.run, ["nodes", "forget", "device-1", *home]) == 4
            told = capsys.readouterr().err
            assert "only an ended job goes" in told
            assert "device-1 is alive" in told
            await site.operator.stop(job)
            await site.ended(job, "stopped")
            assert places.checkpoints(job).exists()
            assert await asyncio.to_thread(main.run, ["jobs", "rm", job, *home]) == 0
            assert not places.checkpoints(job).exists()
            assert (await site.operator.status()).jobs == ()
            # What it alone named was uploaded a moment ago. An hour later it is garbage.
            assert list(places.blobs.glob("??/*"))
            for path in places.blobs.glob("??/*"):
                os.utime(path, (1.0, 1.0))
            assert await asyncio.to_thread(main.run, ["gc", "--dry-run", *home]) == 0
            assert "would go" in capsys.readouterr().err
            assert list(places.blobs.glob("??/*"))
            assert await asyncio.to_thread(main.run, ["gc", *home]) == 0
            assert not list(places.blobs.glob("??/*"))

            await site.kill(site.cluster.agents.pop("device-2"))

            async def lost() -> bool:
                return any(
                    view.node == "device-2" and view.state == "lost" for view in (await site.operator.status()).nodes
                )

            await site.until("device-2 is lost", lost)
            assert await asyncio.to_thread(main.run, ["nodes", "forget", "device-2", *home]) == 0
            assert [view.node for view in (await site.operator.status()).nodes] == ["device-1"]
            # It is not forgotten only until the manager starts again, nor let in when it returns.
            await site.kill_manager()
            await site.cluster.start_manager()
            await site.connected("device-1")
            returned = await site.cluster.start_agent("device-2")
            assert await asyncio.wait_for(returned.wait(), WAIT_S) == 4
            site.cluster.agents.pop("device-2")
            assert [view.node for view in (await site.operator.status()).nodes] == ["device-1"]
            # The same job can be submitted again: all of it is uploaded.
            site.pace(0.0)
            await site.ended(await site.submit_tally(batches=40, workers_min=1))

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


# Upgrades ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the protocol before, as it was committed last."""
    raised = _git("log", "--format=%H", "-S", f"PROTOCOL = {PROTOCOL}\n", "--", "src/shoal/wire/messages/base.py")
    if not raised:
        pytest.skip("needs the project's history: the commit that raised the protocol is not in this clone")
    archive = subprocess.run(
        ["git", "archive", f"{raised.split()[-1]}^", "src"],
        cwd=HERE.parent.parent,
        capture_output=True,
        timeout=60,
        check=False,
    )
    if archive.returncode != 0:
        pytest.skip("needs the project's history: the commit before that is not in this clone")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    spoken = (folder / "src" / "shoal" / "wire" / "messages" / "base.py").read_text()
    assert f"PROTOCOL = {PROTOCOL - 1}\n" in spoken
    return folder / "src"


def _git(*words: str) -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["git", *words], cwd=HERE.parent.parent, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


async def _speak(site: Site, expected: dict[str, int]) -> None:
    """Every device is alive, and speaks the protocol that is expected of it."""

    async def is_so() -> bool:
        nodes = (await site.operator.status()).nodes
        return {
            node.node: node.protocol for node in nodes if node.node in expected and node.state == "alive"
        } == expected

    await site.until(f"devices speak {expected}", is_so)


async def _goes_on(site: Site, job: str) -> None:
    """Batches are merged that were not when this was called."""
    before = await site.progress(job, "its leader reports", lambda told: True)

    def is_further(told: Progress) -> bool:
        return (told.epoch, told.batches_applied) > (before.epoch, before.batches_applied + 5)

    await site.progress(job, "it trains on", is_further)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lead", ["here", "devices"])
def test_a_cluster_is_upgraded_node_by_node_while_it_trains(previous: Path, lead: str, tmp_path: Path) -> None:
    async def story() -> None:
        with (
            mock.patch.dict(os.environ, PYTHONPATH=str(previous)),
            # Earlier ones start their agents by it, and have no other.
            mock.patch.object(local, "AGENT_MODULE", "shoal.runtime.agent"),
        ):
            async with cluster_in(tmp_path, workers=3, manager_options=("--lead", lead)) as site:
                site.may_lose_the_manager = True
                site.pace(UPGRADE_SLOW_S)
                job = await site.submit_tally(batches=UPGRADE_BATCHES, epochs=UPGRADE_EPOCHS, workers_min=1)
                for name in site.cluster.agents:
                    await site.works(job, name)
                # From here on, what is started is of this checkout.
                os.environ["PYTHONPATH"] = str(HERE)
                local.AGENT_MODULE = "shoal.runtime.agent_main"
                await site.kill_manager()
                await site.cluster.start_manager()
                names = sorted(site.cluster.agents)
                for name in names:
                    await site.connected(name)
                await _speak(site, dict.fromkeys(names, PROTOCOL - 1))
                await _goes_on(site, job)
                for count, name in enumerate(names, start=1):
                    await site.operator.drain_node(name, "upgrade")
                    await end_process(site.cluster.agents[name])
                    await site.cluster.start_agent(name)
                    await site.operator.undrain_node(name)
                    expected = dict.fromkeys(names[:count], PROTOCOL) | dict.fromkeys(names[count:], PROTOCOL - 1)
                    await _speak(site, expected)
                    await site.works(job, name)
                    await _goes_on(site, job)
                site.pace(0.0)
                await site.ended(job)
                await site.tallied_once(job, batches=UPGRADE_BATCHES, epochs=UPGRADE_EPOCHS)

    run(story())
