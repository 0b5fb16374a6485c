"""A real manager that also notes when its leaders make versions. Nothing it does is otherwise for it.

Run in place of ``shoal.runtime.manager_main``. A note is a line with the job, the version, its topology and the
seconds of the machine's clock, in a file that the environment names.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from shoal.roles.actions import Action
from shoal.roles.events import Event
from shoal.roles.leader.leader import Leader
from shoal.runtime import manager_main

NOTES_VARIABLE = "SHOAL_NOTES"


@dataclass(frozen=True, slots=True)
class Note:
    job: str
    version: int
    shape: str
    at_s: float


def read_notes(path: Path, job: str) -> list[Note]:
    """The versions of a job, as they were made."""
    lines = path.read_text().splitlines() if path.exists() else []
    parts = [line.split("\t") for line in lines]
    return [Note(name, int(version), shape, float(at_s)) for name, version, shape, at_s in parts if name == job]


def main() -> int:
    handle = Leader.handle
    with Path(os.environ[NOTES_VARIABLE]).open("a", buffering=1) as notes:

        def noted(leader: Leader, event: Event, now_s: float) -> list[Action]:
            before = leader.version
            actions = handle(leader, event, now_s)
            if leader.version > before:
                notes.write(f"{leader.job}\t{leader.version}\t{leader.topology}\t{time.monotonic()}\n")
            return actions

        with mock.patch.object(Leader, "handle", noted):
            return manager_main.main()


if __name__ == "__main__":
    sys.exit(main())
