"""The faults of ``benchmarks.past``: proxies before PostgreSQL and before the bucket; what a copy of the database does
not have; and what the final models say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.states import JobState
from shoal.store.checkpoints import NAME
from shoal.wire import tensors as tensor_files
from testbed.managers.relay import Relay

#: How a bucket may be hurt: it refuses, it is overloaded, it breaks answers off in the middle.
REFUSES, OVERLOADED, PARTIAL = "403", "503", "partial"


def _answer(status: str, body: bytes = b"") -> bytes:
    lines = (f"HTTP/1.1 {status}", "Content-Type: application/xml", f"Content-Length: {len(body)}", "Connection: close")
    return "\r\n".join((*lines, "", "")).encode() + body


_ANSWERS = {
    REFUSES: _answer("403 Forbidden", b"<Error><Code>AccessDenied</Code><Message>denied</Message></Error>"),
    OVERLOADED: _answer("503 Slow Down", b"<Error><Code>SlowDown</Code><Message>later</Message></Error>"),
}


class SlowRelay(Relay):
    """A relay that holds back each message of the client for a while, and whose target may change."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.delay_s = 0.0

    def retarget(self, port: int) -> None:
        """Pass on to another server from now on. What is open ends."""
        self.cut()
        self._target, self.is_cut = port, False

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError):
            if not self.is_cut:
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
                self._open.add(back)
                await asyncio.gather(self._late(reader, back), self._copy(there, writer))
                self._open.discard(back)
        writer.close()
        self._open.discard(writer)

    async def _late(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()


class BucketProxy(Relay):
    """A relay before an object server that can be made to fail."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self._fault = ""
        #: Requests that were answered with a fault.
        self.hurt = 0

    def fail(self, fault: str) -> None:
        """From the next request on; an empty fault ends it."""
        self.cut()
        self._fault, self.is_cut = fault, False

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._fault:
            await super()._pass_on(reader, writer)
            return
        self._open.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            if self._fault in _ANSWERS:
                self.hurt += 1
                writer.write(_ANSWERS[self._fault])
                await writer.drain()
            else:
                await self._break_off(head, reader, writer)
        writer.close()
        self._open.discard(writer)

    async def _break_off(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a request on, and half of the body of what it asks for. Listings are whole."""
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        back.write(head)
        if length := length_in(head):
            back.write(await reader.readexactly(length))
        await back.drain()
        answer = await there.readuntil(b"\r\n\r\n")
        writer.write(answer)
        size = length_in(answer)
        is_object = head.startswith(b"GET ") and b"list-type" not in head.split(b"\r\n")[0]
        self.hurt += is_object and size > 1
        writer.write(await there.readexactly(size // 2 if is_object else size))
        await writer.drain()
        back.close()


def length_in(head: bytes) -> int:
    """Return how long the body is that follows these headers of HTTP."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What a database knows, or a copy of it."""

    revoked: frozenset[str]
    #: Job -> its state.
    jobs: Mapping[str, str]

    def lost(self, *, revoked: str, ended: str, submitted: str) -> list[str]:
        """Return, as text, which of these facts the database does not have."""
        missing = {
            f"{revoked} is not revoked": revoked not in self.revoked,
            f"{ended} is open": ended in self.jobs and JobState(self.jobs[ended]).is_open,
            f"{submitted} is unknown": submitted not in self.jobs,
        }
        return [text for text, is_missing in missing.items() if is_missing]


_COPY = re.compile(r"^COPY (?:\w+\.)?(\w+) \(([^)]*)\) FROM stdin;$")


def known_rows(tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> Known:
    """Return what rows of the tables ``nodes`` and ``jobs`` know."""
    return Known(
        revoked=frozenset(str(row["node"]) for row in tables["nodes"] if row["state"] == "revoked"),
        jobs={str(row["job"]): str(row["state"]) for row in tables["jobs"]},
    )


def copied_rows(script: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of each table in the SQL that ``pg_restore --data-only`` writes."""
    tables: dict[str, list[dict[str, str]]] = {}
    rows: list[dict[str, str]] | None = None
    columns: list[str] = []
    for line in script.splitlines():
        if rows is not None:
            if line == "\\.":
                rows = None
            else:
                rows.append(dict(zip(columns, line.split("\t"), strict=True)))
        elif found := _COPY.match(line):
            columns = [name.strip(' "') for name in found[2].split(",")]
            rows = tables.setdefault(found[1], [])
    return tables


def counted_wrong(
    model: Sequence[float] | np.ndarray[Any, Any], *, epoch: int, applied: Sequence[Sequence[int]]
) -> tuple[int, int]:
    """Return how many batches are in a tally's model too often, and how many too seldom. Its ledger is in the same
    file: all batches of the epochs before, and these runs of the present one."""
    expected = np.full(len(model), epoch)
    for start, stop in applied:
        expected[start:stop] += 1
    difference = np.rint(np.asarray(model)).astype(int) - expected
    return int(difference[difference > 0].sum()), int(-difference[difference < 0].sum())


def read_checkpoint(path: Path) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """Return the flat model and the state in a checkpoint."""
    assert NAME.fullmatch(path.name)
    held, metadata = tensor_files.read(path, mmap=False)
    return np.asarray(held["flat"]).ravel(), json.loads(metadata["state"])
