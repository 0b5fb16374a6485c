"""Devices and the manager are killed, stopped, hung and damaged while they train: every batch is applied once.

``test_a_manager_killed_again_and_again_still_finishes`` runs nightly: the seeds of ``tests/simulation/test_fuzz.py``
crash the manager several times in a run.
"""

import asyncio
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from kit import HERE, Site, cluster_in, run
from shared_cluster import SharedCluster, shared_cluster

from shoal.wire.limits import TRACEBACKS_KEPT_PER_JOB

#: Slow enough that a fault falls into the first epoch on any machine; tests lift it once they have seen enough.
SLOW_S = 0.25
BATCHES = 90

#: For the stories in which no agent and no manager dies.
cluster = shared_cluster(workers=2)


async def _training(site: Site, *, workers: int, epochs: int = 2) -> str:
    """A slow job in the middle of its first epoch, with everybody at work."""
    site.pace(SLOW_S)
    job = await site.submit_tally(batches=BATCHES, epochs=epochs, workers_min=workers)
    await site.mid_epoch(job)
    return job


async def _finish(site: Site, job: str, *, epochs: int = 2) -> set[str]:
    """Let it run; who worked for the model that came of it."""
    site.pace(0.0)
    await site.ended(job)
    return {row.node for row in await site.tallied_once(job, batches=BATCHES, epochs=epochs)}


@pytest.mark.gate("kill -9 of a worker")
def test_a_killed_worker_is_replaced_and_comes_back_under_its_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site, workers=2)
            (trainer,) = site.trainers("device-2")
            await site.kill(site.cluster.agents["device-2"])
            lost = await site.event(job, "device.lost", "device-2")
            assert not trainer.is_running() or trainer.status() == psutil.STATUS_ZOMBIE
            await site.cluster.start_agent("device-2")
            await site.event(job, "device.joined", "device-2", after=lost.seq)
            await site.works(job, "device-2")
            assert await _finish(site, job) == {"device-1", "device-2", "device-3"}

    run(story())


def test_a_killed_trainer_is_started_again_by_its_agent(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await _training(site, workers=2)
        agent = site.cluster.agents["device-1"]
        (trainer,) = site.trainers("device-1")
        trainer.kill()
        failed = await site.event(job, "lease.failed", "device-1: the trainer was killed by SIGKILL")

        async def started_again() -> bool:
            return [child.pid for child in site.trainers("device-1")] not in ([], [trainer.pid])

        await site.until("another trainer", started_again)
        assert agent.returncode is None
        await _finish(site, job)
        assert not [e for e in site.events(job) if e.seq > failed.seq and e.kind in ("device.lost", "lease.failed")]

    cluster.run(story)


@pytest.mark.gate("kill -9 of the manager")
def test_a_killed_manager_continues_from_its_durable_version_and_no_worker_restarts(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site, workers=3)
            names = sorted(site.cluster.agents)
            before = {name: [child.pid for child in site.trainers(name)] for name in names}
            progress = await site.mid_epoch(job, applied=20)
            await site.kill_manager()
            await site.cluster.start_manager()
            resumed = await site.event(job, "job.resumed", "from saved version")
            version = int(re.search(r"saved version (\d+)", resumed.text)[1])
            assert version >= progress.durable_version > 0
            assert "term 2" in resumed.text
            for name in names:
                await site.works(job, name)
            assert {name: [child.pid for child in site.trainers(name)] for name in names} == before
            assert all(agent.returncode is None for agent in site.cluster.agents.values())
            assert await _finish(site, job) == set(names)

    run(story())


@pytest.mark.nightly
def test_a_manager_killed_again_and_again_still_finishes(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2) as site:
            job = await _training(site, workers=2, epochs=1)
            for term in (2, 3, 4):
                await site.kill_manager()
                await site.cluster.start_manager()
                await site.event(job, "job.resumed", f"term {term}")
                for name in site.cluster.agents:
                    await site.works(job, name)
            await _finish(site, job, epochs=1)

    run(story())


@pytest.mark.slow
def test_a_worker_stopped_for_ten_seconds_is_done_without_and_takes_part_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            job = await _training(site, workers=2)
            # The job may have begun without it.
            await site.works(job, "device-3")
            agent = site.cluster.agents["device-3"]
            frozen = [psutil.Process(agent.pid), *site.trainers("device-3")]
            # Two of them would be through with the epoch before it is back.
            site.pace(2 * SLOW_S)
            began_s = time.monotonic()
            for process in frozen:
                process.suspend()
            lost = await site.event(job, "device.lost", "device-3: silent for")
            await asyncio.sleep(max(0.0, began_s + 10 - time.monotonic()))
            before = await site.mid_epoch(job)
            for process in frozen:
                process.resume()
            await site.event(job, "device.assigned", "device-3", after=lost.seq)
            await site.works(job, "device-3")
            assert agent.returncode is None
            assert before.epoch == 0
            assert await _finish(site, job) == {"device-1", "device-2", "device-3"}

    run(story())


def test_a_worker_that_joins_mid_epoch_takes_part_in_it(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await _training(site, workers=1)
        await site.cluster.start_agent("latecomer")
        await site.event(job, "device.joined", "latecomer")
        await site.works(job, "latecomer")
        await _finish(site, job)
        first_epoch = {row.node for row in site.history(job)[0] if row.epoch == 0}
        assert first_epoch == {"device-1", "device-2", "latecomer"}

    cluster.run(story)


def test_a_worker_that_leaves_politely_is_not_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2) as site:
            job = await _training(site, workers=1)
            leaver = site.cluster.agents["device-1"]
            leaver.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(leaver.wait(), 90) == 0
            await site.event(job, "device.lost", "device-1: left: the agent was stopped")
            assert "device-2" in await _finish(site, job)
            assert not [event for event in site.events(job) if event.kind == "lease.expired"]

    run(story())


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2) as site:
            job = await _training(site, workers=2)

            async def two() -> bool:
                return len(site.checkpoints(job)) == 2

            await site.until("two checkpoints", two)
            await site.kill_manager()
            # Killed while a third was being put in place, there may be one more.
            *_, before, newest = site.checkpoints(job)
            content = bytearray(newest.read_bytes())
            content[len(content) // 2] ^= 1
            newest.write_bytes(content)
            await site.cluster.start_manager()
            told = await site.event(job, "checkpoint.damaged", "cannot be used")
            assert newest.name in told.text
            assert "the one before" in told.text
            await site.event(job, "job.resumed", f"from saved version {int(before.name.split('-')[0]):,},")
            await _finish(site, job)

    run(story())


# Faults in the task's own code: the real trainer, with torch

FAULTY = HERE / "faulty_task.py"


def _line_of(statement: str) -> int:
    lines = FAULTY.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(statement))


@pytest.mark.slow
def test_a_hang_in_user_code_is_reported_by_name_and_does_not_stop_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The task leaves a mark beside the cluster, where no other user can go.
    monkeypatch.setenv("SHOAL_TRAINER_USER", "root")

    async def story() -> None:
        async with cluster_in(tmp_path, workers=2, options=()) as site:
            marker = tmp_path / "hung"
            plan = {"batch_size": 10, "workers_min": 2, "lease_s": 6.0, "until": {"epochs": 1}}
            job = await site.submit_task(FAULTY, kwargs={"marker": str(marker)}, **plan)
            failed = await site.event(job, "lease.failed", "stuck in Faulty.loss")
            assert f"Faulty.loss (faulty_task.py:{_line_of('time.sleep')})" in failed.text
            await site.ended(job)
            assert marker.exists()
            site.exactly_once(job, batches=12, epochs=1)

    run(story())


@pytest.mark.slow
def test_a_batch_that_always_fails_ends_the_job_with_the_line_that_raised(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2, options=()) as site:
            plan = {"batch_size": 10, "until": {"epochs": 1}}
            job = await site.submit_task(FAULTY, kwargs={"poison": 7}, **plan)
            view = await site.ended(job, "failed")
            assert "ValueError: example 7 is poison" in view.reason
            assert f"Faulty.loss (faulty_task.py:{_line_of('raise ValueError')})" in view.reason
            assert re.match(r"batch \d+ of epoch 1 failed \d+ times", view.reason)
            rows, _ = site.history(job)
            assert len({row.batch for row in rows}) == len(rows) < 12
            shown = await _tracebacks(site, job)
            # Each failure, with the line of the device's task and those that led to it, and no escape sequence.
            assert 1 <= shown.count("Traceback (most recent call last):") <= TRACEBACKS_KEPT_PER_JOB
            assert f'File "faulty_task.py", line {_line_of("raise ValueError")}, in loss' in shown
            assert "steps.py" in shown
            assert "ValueError: example 7 is poison" in shown
            assert "\x1b" not in shown

    run(story())


async def _tracebacks(site: Site, job: str) -> str:
    command = ("-m", "shoal.cli.main", "jobs", "show", job, "--traceback", "--home", str(site.cluster.home))
    shown = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    told, _ = await asyncio.wait_for(shown.communicate(), 180)
    assert shown.returncode == 0
    return told.decode()
