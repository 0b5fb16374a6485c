"""What the tests of examples share: devices with a folder of their own, and what crossed the network."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from kit import HERE, Site

from shoal.data.local import LOCAL_VARIABLE
from shoal.trainer.processors import THREADS_VARIABLE
from shoal.wire.messages import Progress

EXAMPLES = HERE.parents[1] / "examples"


def readable(*paths: Path) -> None:
    """Task code may run as another user, which has to read a device's examples."""
    for path in paths:
        path.chmod(0o755)


async def start_with(site: Site, name: str, folder: Path) -> None:
    """A device that was joined with this folder."""
    readable(folder, *folder.iterdir())
    # The devices share this machine: with a thread for every core each, they would wait for each other.
    with mock.patch.dict(os.environ, {LOCAL_VARIABLE: str(folder), THREADS_VARIABLE: "1"}):
        await site.cluster.start_agent(name)
    await site.connected(name)


def bytes_an_update(site: Site, job: str, progress: Progress, *, batches: int = 1) -> float:
    """What a lease of so many batches brought over the network; one that was refused crossed too.

    With local data a lease counts as one batch.
    """
    return progress.bytes_up / (len(site.history(job)[0]) / batches + progress.refused)
