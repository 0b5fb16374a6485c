"""A device of a soak: the real agent, whose leaders are watched. Run as ``shoal.runtime.agent`` is."""

from __future__ import annotations

import os
import sys

from benchmarks.chaos_watch import watching
from shoal.runtime import agent

NAME_VARIABLE = "SHOAL_CHAOS_NAME"


def main() -> int:
    with watching(os.environ[NAME_VARIABLE]):
        return agent.main()


if __name__ == "__main__":
    sys.exit(main())
