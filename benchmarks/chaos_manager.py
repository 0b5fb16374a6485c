"""The manager of a soak: the real one, watched. Run as ``shoal.runtime.manager_main`` is."""

from __future__ import annotations

import sys

from benchmarks.chaos_faults import MANAGER
from benchmarks.chaos_watch import watching
from shoal.runtime import manager_main


def main() -> int:
    with watching(MANAGER):
        return manager_main.main()


if __name__ == "__main__":
    sys.exit(main())
