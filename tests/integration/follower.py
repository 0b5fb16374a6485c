"""`shoal model follow` as a process, for tests that read what it says."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from kit import WAIT_S, Site

from shoal.wire import tensors


class Follower:
    """The command in a process of its own, and the lines it prints."""

    def __init__(self, process: asyncio.subprocess.Process, file: Path) -> None:
        self.process = process
        self.file = file

    @classmethod
    @asynccontextmanager
    async def start(cls, site: Site, job: str, file: Path) -> AsyncIterator[Follower]:
        """It is ended with the block, whatever happens there."""
        command = ("-m", "shoal.cli.main", "model", "follow", job, "-o", str(file), "--every", "0.5s", "--json")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            *("--home", str(site.cluster.home)),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield cls(process, file)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def line(self, *did: str) -> dict[str, Any]:
        """The next line that tells of one of these."""
        assert self.process.stdout is not None
        while True:
            text = await asyncio.wait_for(self.process.stdout.readline(), WAIT_S)
            assert text, f"it ended, and never {' or '.join(did)}"
            told: dict[str, Any] = json.loads(text)
            if told["did"] in did:
                return told

    def right(self, text: str) -> float:
        """The share of these readings that the file's model knows."""
        rows = np.array([[float(part) for part in line.split(",")] for line in text.splitlines()])
        values, metadata = tensors.read(self.file, mmap=False)
        assert metadata["job"]
        scores = rows[:, :2] @ values["weight"].T + values["bias"]
        return float((scores.argmax(axis=1) == rows[:, 2]).mean())
