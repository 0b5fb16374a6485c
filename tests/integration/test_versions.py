"""Published versions of a job without an end: taken back, served anew, and still there when the manager was killed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from follower import Follower
from kit import HERE, WAIT_S, Site, cluster_in, run
from readings_task import readings

from shoal.cli.model_follower import version_in
from shoal.wire.messages import VersionList

READINGS = HERE / "readings_task.py"


async def _versions(site: Site, job: str, what: str, least: int) -> VersionList:
    async def enough() -> VersionList | None:
        told = await site.operator.versions(job)
        return told if len(told.versions) >= least else None

    return await site.until(what, enough)


async def _restart(site: Site) -> None:
    await site.kill_manager()
    await site.cluster.start_manager()


def _kept(told: VersionList) -> list[tuple[int, str]]:
    return [(each.version, each.sha256) for each in told.versions]


@pytest.mark.slow
def test_versions_are_published_withdrawn_and_survive_the_manager(tmp_path: Path) -> None:
    async def story() -> None:
        tmp_path.chmod(0o755)
        async with cluster_in(tmp_path, workers=0, options=()) as site, AsyncExitStack() as ending:
            own = tmp_path / "own"
            own.mkdir()
            file = own / "readings.csv"
            file.write_text(readings(200, seed=1))
            file.chmod(0o644)
            own.chmod(0o755)
            await site.cluster.start_agent("device-1", "--data", str(own))
            await site.connected("device-1")
            plan: dict[str, Any] = {"until": {"endless": True}, "checkpoint_every_s": 0.5, "versions_kept": 3}
            job = await site.submit_task(READINGS, **plan, publish="every")
            follower = await ending.enter_async_context(Follower.start(site, job, tmp_path / "model.safetensors"))
            first = await _versions(site, job, "the first is published", 1)
            with file.open("a") as more:
                more.write(readings(100, seed=2))
            told = await _versions(site, job, "the second is published", 2)
            assert _kept(told)[:1] == _kept(first)
            while (await follower.line("pulled"))["version"] != told.versions[1].version:
                pass

            await _restart(site)
            assert _kept(await site.operator.versions(job)) == _kept(told), "the manager was killed"

            assert "is served again" in await site.operator.roll_back(job, reason="it is odd")
            await _restart(site)
            back = await site.operator.versions(job)
            assert back.served is not None
            assert (back.served.version, back.served.sha256) == _kept(told)[0]
            assert "withdrawn: it is odd" in back.served.hold
            line = await follower.line("went_back")
            assert line["version"] == told.versions[0].version == version_in(follower.file, job=job)
            assert "is not served any more: rolled back from version" in line["reason"]

            # It learns on, and is judged; what is served stays.
            before = len(site.evaluations(job))
            with file.open("a") as more:
                more.write(readings(100, seed=3))

            async def judged() -> bool:
                return len(site.evaluations(job)) > before

            await site.until("another evaluation", judged)
            held = await site.operator.versions(job)
            assert held.served is not None
            assert held.served.version == back.served.version

            await site.operator.publish(job)
            newest = await site.operator.versions(job)
            assert newest.served is not None
            assert newest.served.version > told.versions[1].version
            assert newest.served.hold == ""
            line = await follower.line("pulled")
            assert line["version"] == newest.served.version
            for each in newest.versions:
                await site.operator.pull_model(job, tmp_path / "one", version=each.version)
                assert version_in(tmp_path / "one", job=job) == each.version
            await site.operator.stop(job)
            await follower.line("ended")
            assert await asyncio.wait_for(follower.process.wait(), WAIT_S) == 0

    run(story())
