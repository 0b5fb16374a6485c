"""The manager of a soak: the real one, and a file that says when each version was made. Decides and changes nothing.

Run as ``shoal.runtime.serve`` is. The environment names the file; a line of it is a monotonic time and a version.
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

VERSIONS_VARIABLE = "SHOAL_CHAOS_VERSIONS"


def main() -> int:
    handle = Leader.handle
    with Path(os.environ[VERSIONS_VARIABLE]).open("a", buffering=1) as file:

        def watched(leader: Leader, event: Event, now_s: float) -> list[Action]:
            before = leader.version
            actions = handle(leader, event, now_s)
            if leader.version > before:
                file.write(f"{time.monotonic():.4f} {leader.version}\n")
            return actions

        with mock.patch.object(Leader, "handle", watched):
            return serve.main()


if __name__ == "__main__":
    sys.exit(main())
