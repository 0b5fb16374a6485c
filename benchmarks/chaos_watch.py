"""Writes down when each version was made, by whom and under which term, in the process that made it. Changes nothing.

The environment names the file; a line of it is a monotonic time, a version, a term, a node, the shape and who leads in
part. All processes of a machine share that clock, and a line is one write: the order of the file is that of events.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from shoal.roles.actions import Action
from shoal.roles.events import Event
from shoal.roles.leader import Leader

VERSIONS_VARIABLE = "SHOAL_CHAOS_VERSIONS"


@dataclass(frozen=True, slots=True)
class Made:
    """A version was made."""

    at_s: float
    version: int
    term: int
    node: str
    #: ``star``, ``tree`` or ``shard``.
    shape: str = "star"
    sub_leaders: tuple[str, ...] = ()


@contextlib.contextmanager
def watching(node: str) -> Iterator[None]:
    """Every leader in this process is watched."""
    handle = Leader.handle
    with Path(os.environ[VERSIONS_VARIABLE]).open("a", buffering=1) as file:

        def watched(leader: Leader, event: Event, now_s: float) -> list[Action]:
            before = leader.version
            actions = handle(leader, event, now_s)
            if leader.version > before:
                shape, subs = leader.shape.split()[0], ",".join(leader.sub_leaders)
                file.write(f"{time.monotonic():.4f} {leader.version} {leader.term} {node} {shape} {subs};\n")
            return actions

        with mock.patch.object(Leader, "handle", watched):
            yield


def versions_in(path: Path) -> list[Made]:
    """All that were made, in order. One that was made again after a crash is there again."""
    text = path.read_text() if path.exists() else ""
    # A process that is killed may leave half a line.
    rows = [line[:-1].split(" ") for line in text.splitlines() if line.endswith(";")]
    return [
        Made(float(at_s), int(version), int(term), node, shape, tuple(filter(None, subs.split(","))))
        for at_s, version, term, node, shape, subs in rows
    ]
