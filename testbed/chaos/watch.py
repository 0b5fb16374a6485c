"""Writes down when each version was made, by whom and under which term, in the process that made it. Changes nothing.

The environment names the file; a line of it is a monotonic time, a version, a term, a node, the shape, checksums of the
model before and after, the job, and who leads in part. All processes of a machine share that clock, and a line is one
write: the order of the file is that of events.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from shoal.roles.actions import Action
from shoal.roles.events import Event
from shoal.roles.leader.leader import Leader

VERSIONS_VARIABLE = "SHOAL_CHAOS_VERSIONS"

#: Some lines at the end of the file.
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Made:
    """A version was made."""

    at_s: float
    version: int
    term: int
    node: str
    #: ``star``, ``tree`` or ``shard``.
    shape: str = "star"
    aggregators: tuple[str, ...] = ()
    #: Checksums of the model that was moved, and of that which came of it: they tell histories apart.
    before: int = 0
    model: int = 0
    job: str = ""


def checksum(model: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(model, np.float32).data)


@contextlib.contextmanager
def watching(node: str) -> Iterator[None]:
    """Every leader in this process is watched."""
    handle = Leader.handle
    with Path(os.environ[VERSIONS_VARIABLE]).open("a", buffering=1) as file:

        def watched(leader: Leader, event: Event, now_s: float) -> list[Action]:
            before, model = leader.version, leader.model
            actions = handle(leader, event, now_s)
            if leader.version > before:
                shape, subs = leader.topology.split()[0], ",".join(leader.aggregators)
                # A step makes new arrays: the old one is as it was.
                sums = f"{checksum(model)} {checksum(leader.model)}"
                made = f"{time.monotonic():.4f} {leader.version} {leader.term} {node}"
                file.write(f"{made} {shape} {sums} {leader.job} {subs};\n")
            return actions

        with mock.patch.object(Leader, "handle", watched):
            yield


def versions_in(path: Path) -> list[Made]:
    """All that were made, in order. One that was made again after a crash is there again."""
    return _made_in(path.read_text() if path.exists() else "")


def last_in(path: Path) -> Made | None:
    """The newest version of all, without reading those before it."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        # The first may be the end of a line.
        lines = file.read().decode().splitlines(keepends=True)
    made = _made_in("".join(lines if len(lines) == 1 else lines[1:]))
    return made[-1] if made else None


def _made_in(text: str) -> list[Made]:
    # A process that is killed may leave half a line.
    rows = [line[:-1].split(" ") for line in text.splitlines() if line.endswith(";")]
    return [
        Made(
            at_s=float(at_s),
            version=int(version),
            term=int(term),
            node=node,
            shape=shape,
            aggregators=tuple(filter(None, subs.split(","))),
            before=int(before),
            model=int(model),
            job=job,
        )
        for at_s, version, term, node, shape, before, model, job, subs in rows
    ]


def surviving(made: Sequence[Made], model: int) -> list[Made]:
    """The history that ends in the model with this checksum, oldest first: each was made of the one before it."""
    by_model = {(each.version, each.model): each for each in made}
    last = max((each for each in made if each.model == model), key=lambda each: each.version, default=None)
    found: list[Made] = []
    while last is not None:
        found.append(last)
        last = by_model.get((last.version - 1, last.before))
    return found[::-1]
