"""A manager whose registry holds many ended jobs: a real manager and operator, and the commands that people type."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit import manager_in, run

from benchmarks.status import fill
from shoal.errors import Refused
from shoal.runtime import job_files, job_retention
from shoal.runtime import operator as operating
from shoal.runtime.ended_jobs import ENDED_A_PAGE, ENDED_SHOWN
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.states import JobState
from shoal.store.registry import Registry
from shoal.trainer.package import ReadyTask
from testbed.echo_job import echo_job

pytestmark = pytest.mark.timeout(400)

ENDED = 230


async def ended_job(operator: Operator, ready: ReadyTask) -> str:
    """Submit a job and stop it: it has no devices."""
    job = await operator.submit(ready, plan={})
    await operator.stop(job)
    async with asyncio.timeout(120):
        while not (await operator.status(job)).jobs[0].state.is_ended:
            await asyncio.sleep(0.05)
    return job


@pytest.fixture
def ready(tmp_path: Path) -> ReadyTask:
    (tmp_path / "scratch").mkdir()
    return echo_job(tmp_path / "scratch", values=8, batches=4)


def filled(home: Path, ready: ReadyTask) -> str:
    """Make a cluster with many ended jobs. Return the one that the others are copies of."""
    jobs: list[str] = []

    async def story() -> None:
        async with manager_in(home), Operator.open(home) as operator:
            jobs.append(await ended_job(operator, ready))

    run(story())
    fill(Paths(home).registry, jobs[0], ENDED, now_s=time.time())
    return jobs[0]


def shoal(home: Path, *words: str) -> str:
    command = (sys.executable, "-m", "shoal", *words, "--home", str(home))
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=True, env=environment).stdout


def test_a_status_lists_the_latest_and_the_rest_is_found_by_page_and_by_name(
    tmp_path: Path, ready: ReadyTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    first = filled(home, ready)

    async def story() -> None:
        async with manager_in(home), Operator.open(home) as operator:
            opened = await operator.submit(ready, plan={})
            told = await operator.status()
            assert len(told.jobs) == ENDED_SHOWN + 1
            assert (told.jobs[-1].job, told.jobs[-2].job) == (opened, first), "open jobs last, before them the latest"
            assert told.count(JobState.STOPPED) == ENDED
            assert told.ended_unlisted == ENDED - ENDED_SHOWN
            pages, number = [], 1
            while number:
                page = await operator.ended_jobs(number)
                assert len(page.jobs) <= ENDED_A_PAGE
                pages += [view.job for view in page.jobs]
                number = page.next_ended_page
            assert len(set(pages)) == len(pages) == ENDED
            assert opened not in pages
            # None of these is in the status, nor in the manager's memory.
            assert [view.job for view in (await operator.jobs_called("night-00199")).jobs] == ["night-00199"]
            assert [view.job for view in (await operator.jobs_called("night-0019")).jobs] == [
                f"night-0019{digit}" for digit in range(10)
            ]
            assert [view.job for view in (await operator.jobs_called("night-77")).jobs] == ["night-00077"], "by name"
            (shown,) = (await operator.status("night-00199")).jobs
            assert shown.since_s > 100 * 3600
            assert (await operator.job_spec(first)).job == first
            with pytest.raises(Refused, match="is stopped already"):
                await operator.stop("night-00150")
            assert "removed" in await operator.remove_job("night-00199")
            assert (await operator.status("night-00199")).jobs == ()
            # An id that an ended job has is refused, and another one is drawn.
            drawn = iter(["night-00150", "night-00151", "fresh-0001"])
            monkeypatch.setattr(operating, "job_id", lambda name, letters: next(drawn))
            assert await operator.submit(ready, plan={}) == "fresh-0001"
            listed = await asyncio.to_thread(shoal, home, "jobs")
            assert f"{ENDED - 1 - ENDED_SHOWN} ended jobs not shown: `shoal jobs --ended`" in listed
            second = await asyncio.to_thread(shoal, home, "jobs", "--ended", "--page", "2")
            assert f"page 2 with {ENDED_A_PAGE} of {ENDED - 1} ended jobs" in second
            assert "shoal jobs --ended --page 3" in second
            story = json.loads(await asyncio.to_thread(shoal, home, "jobs", "show", "night-00120", "--json"))
            assert story["job"]["job"] == "night-00120"

    run(story())


def test_old_jobs_go_and_the_record_says_why(tmp_path: Path, ready: ReadyTask, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    first = filled(home, ready)
    monkeypatch.setattr(job_files, "FRESH_S", -1.0)
    monkeypatch.setattr(job_retention, "SOON_S", 0.2)
    # Of the copies those stay that ended 3 to 29 hours ago, and what they are copies of.
    kept_hours, left_over = 30, 28

    async def story() -> None:
        async with manager_in(home, keep_jobs=f"{kept_hours}h"), Operator.open(home) as operator:
            async with asyncio.timeout(200):
                while (told := await operator.status()).count(JobState.STOPPED) > left_over:
                    await asyncio.sleep(0.1)
            left = [view.job for view in (await operator.ended_jobs()).jobs]
            assert left[0] == first, "it ended just now"
            assert len(left) == left_over
            assert told.ended_unlisted == len(left) - ENDED_SHOWN
            assert (await operator.status("night-00100")).jobs == ()
            (act,) = await operator.acts("night-00100")
            assert (act.kind, act.operator) == ("remove a job", "manager")
            assert f"--keep-jobs {kept_hours}h keeps no job for longer" in act.text
            async with asyncio.timeout(60):
                while not [event for event in (await operator.status()).events if event.kind == "job.removed"]:
                    await asyncio.sleep(0.1)
            # What the others are made of stays.
            assert await operator.submit(ready, plan={})

    run(story())
    with Registry(Paths(home).registry) as registry:
        assert len(registry.acts(limit=1000, subject="")) >= ENDED - kept_hours
