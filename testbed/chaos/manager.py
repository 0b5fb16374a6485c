"""The manager of a soak: the real one, watched. Run as ``shoal.runtime.manager_main`` is."""

from __future__ import annotations

import sys

from shoal.runtime import manager_main
from testbed.chaos.faults import MANAGER
from testbed.chaos.watch import watching


def main() -> int:
    with watching(MANAGER):
        return manager_main.main()


if __name__ == "__main__":
    sys.exit(main())
