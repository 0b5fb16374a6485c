"""A real manager that also notes when its leaders make versions. Nothing it does is otherwise for it.

Run in place of ``shoal.runtime.serve``; a note is a line with the seconds of the machine's clock, in a file that the
environment names. Whoever reads them runs one job at a time.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from unittest import mock

from shoal.roles.actions import Action
from shoal.roles.events import Event
from shoal.roles.leader import Leader
from shoal.runtime import serve

NOTES_VARIABLE = "SHOAL_EDDL_NOTES"


def read_notes(path: Path) -> list[float]:
    """When each version was made, of all jobs."""
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    handle = Leader.handle
    with Path(os.environ[NOTES_VARIABLE]).open("a", buffering=1) as notes:

        def noted(leader: Leader, event: Event, now_s: float) -> list[Action]:
            before = leader.version
            actions = handle(leader, event, now_s)
            if leader.version > before:
                notes.write(f"{time.monotonic()}\n")
            return actions

        with mock.patch.object(Leader, "handle", noted):
            return serve.main()


if __name__ == "__main__":
    sys.exit(main())
