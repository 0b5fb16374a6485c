"""The quota of a manager's disk: measures its files, reports them to the manager role, refuses uploads that do not fit.

The role decides which files of ended jobs are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable

from shoal.errors import Refused
from shoal.roles.events import DiskMeasured
from shoal.roles.manager.retention import evictions, megabytes
from shoal.runtime.job_files import JobFiles

#: How often the disk is measured if it has a quota. It is measured when a job ends, too.
EVERY_S = 30.0


class DiskQuota:
    def __init__(self, files: JobFiles, quota_bytes: int, *, post: Callable[[DiskMeasured], object]) -> None:
        """``quota_bytes``: the most that the files may take, or 0 for no limit. ``post`` tells the manager role."""
        self._files = files
        self._quota_bytes = quota_bytes
        self._post = post
        #: Bytes in use when they were last measured, and uploaded since.
        self._used_bytes = 0
        self._changed = asyncio.Event()

    @property
    def is_limited(self) -> bool:
        return self._quota_bytes > 0

    async def run(self) -> None:
        """Until cancelled: measure the disk from time to time, and when a job ended."""
        while True:
            await self.measure()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), EVERY_S)
            self._changed.clear()

    def on_job_ended(self) -> None:
        self._changed.set()

    async def measure(self, *, wanted: dict[str, int] | None = None, more_bytes: int = 0) -> int:
        """Report the files to the manager role. Return how many bytes are too many, even after ended jobs gave all.

        ``wanted``: job -> the bytes that it will need. ``more_bytes`` are about to be written.
        """
        if not self.is_limited:
            return 0
        measure = functools.partial(
            self._files.measure, quota_bytes=self._quota_bytes, wanted=wanted, more_bytes=more_bytes
        )
        disk = await asyncio.to_thread(measure)
        self._used_bytes = disk.used_bytes
        self._post(disk)
        over = disk.used_bytes - disk.quota_bytes
        return evictions(over, checkpoints=disk.checkpoints, contents=disk.contents)[1]

    async def admit(self, size_bytes: int) -> None:
        """Count an upload of this size. Raise if it does not fit."""
        if self.is_limited and self._used_bytes + size_bytes > self._quota_bytes:
            left = await self.measure(more_bytes=size_bytes)
            if left:
                raise Refused(
                    f"the disk quota of {megabytes(self._quota_bytes)} lacks {megabytes(left)} for this upload, even"
                    " without the files of ended jobs: remove jobs (`shoal jobs rm`), or start the manager with a"
                    " larger --disk-quota"
                )
        self._used_bytes += size_bytes
