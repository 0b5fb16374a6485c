"""A quota is kept to: uploads are counted, and one that does not fit is refused; the role hears each measurement."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from shoal.errors import Refused
from shoal.roles.events import DiskMeasured
from shoal.runtime import disk_quota
from shoal.runtime.disk_quota import DiskQuota
from shoal.runtime.job_files import JobFiles

pytestmark = pytest.mark.timeout(60)


class Files:
    """A disk on which ended jobs could give some bytes back."""

    def __init__(self, used_bytes: int, *, ended_bytes: int = 0) -> None:
        self.used_bytes = used_bytes
        self.ended_bytes = ended_bytes
        self.measured = 0

    def measure(
        self, *, quota_bytes: int, wanted: Mapping[str, int] | None = None, more_bytes: int = 0
    ) -> DiskMeasured:
        self.measured += 1
        return DiskMeasured(
            quota_bytes=quota_bytes,
            used_bytes=self.used_bytes + more_bytes,
            checkpoints={"old": self.ended_bytes},
            contents={},
            wanted=wanted or {},
        )


def quota(files: Files, quota_bytes: int) -> tuple[DiskQuota, list[DiskMeasured]]:
    told: list[DiskMeasured] = []
    return DiskQuota(cast(JobFiles, files), quota_bytes, post=told.append), told


def test_without_a_quota_nothing_is_measured_or_refused() -> None:
    files = Files(10)
    free, told = quota(files, 0)
    assert not free.is_limited
    assert asyncio.run(free.measure(wanted={"j": 5})) == 0
    asyncio.run(free.admit(10**12))
    assert (files.measured, told) == (0, [])


def test_the_role_hears_what_a_job_will_need() -> None:
    full, told = quota(Files(70), 100)
    assert asyncio.run(full.measure(wanted={"j": 5}, more_bytes=20)) == 0
    assert [(disk.used_bytes, disk.wanted) for disk in told] == [(90, {"j": 5})]


def test_uploads_are_counted_until_the_disk_is_measured_again() -> None:
    files = Files(0)
    full, _ = quota(files, 100)
    asyncio.run(full.admit(60))
    assert files.measured == 0
    # With what was uploaded this is too much: the disk is measured, and what it has is what counts.
    asyncio.run(full.admit(60))
    assert files.measured == 1


def test_an_upload_that_ended_jobs_have_room_for_is_admitted() -> None:
    full, told = quota(Files(100, ended_bytes=30), 100)
    asyncio.run(full.measure())
    asyncio.run(full.admit(30))
    assert told[-1].used_bytes == 130
    with pytest.raises(Refused, match=r"disk quota of 0.0 MB lacks 0.0 MB .* larger --disk-quota"):
        asyncio.run(full.admit(31))


def test_the_disk_is_measured_when_a_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_quota, "EVERY_S", 60.0)
    files = Files(1)
    full, _ = quota(files, 100)

    async def story() -> None:
        running = asyncio.create_task(full.run())
        async with asyncio.timeout(30):
            while files.measured < 1:
                await asyncio.sleep(0.01)
            full.on_job_ended()
            while files.measured < 2:
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(story())
