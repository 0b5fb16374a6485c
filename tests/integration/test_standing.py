"""What a person reads of a real cluster: of a job that waits, and of one whose manager is gone."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from kit import WAIT_S, Site, cluster_in, run


async def _start(site: Site, *words: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-u", "-m", "shoal.cli.main", *words, "--home", str(site.cluster.home))
    return await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "160"},
    )


async def _shoal(site: Site, *words: str) -> str:
    """What a command prints."""
    printed, _ = await asyncio.wait_for((await _start(site, *words)).communicate(), WAIT_S)
    return printed.decode()


async def _line_with(process: asyncio.subprocess.Process, text: str) -> str:
    """The next line that a command prints with this text in it."""
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        while text not in (line := (await process.stdout.readline()).decode()):
            assert line, f"it ended before it said: {text}"
    return line


def test_status_and_jobs_tell_of_a_job_that_waits(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            job = await site.submit_tally(batches=20, workers_min=2)
            await site.progress(job, "it waits", lambda p: p.state == "waiting" and p.reason.startswith("1 of"))
            for words in (["status"], ["jobs"], ["status", job]):
                printed = await _shoal(site, *words)
                assert "● waiting" in printed, printed
                assert "1 of 2 required devices connected" in printed, printed
                assert "● running" not in printed, printed
            await site.cluster.start_agent("device-2")
            await site.ended(job)

    run(story())


def test_attach_tells_what_is_so_when_the_manager_that_leads_is_killed(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            site.pace(0.1)
            job = await site.submit_tally(batches=2000)
            await site.mid_epoch(job)
            watching = await _start(site, "attach", job)
            try:
                await _line_with(watching, "training")
                await site.kill_manager()
                told = await _line_with(watching, "the manager does not answer")
                assert "if the manager is down, the job is paused; it resumes from saved" in told
                await site.cluster.start_manager()
                site.pace(0.0)
                await site.ended(job)
                await _line_with(watching, "finished: 1 of 1 epochs")
                assert await asyncio.wait_for(watching.wait(), WAIT_S) == 0
            finally:
                if watching.returncode is None:
                    watching.kill()
                    await watching.wait()

    run(story())
