"""A device of a soak: the real agent, whose leaders are watched. Run as ``shoal.runtime.agent`` is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from shoal.runtime import agent
from testbed.chaos.watch import watching
from testbed.paced_digits import DEVICE_VARIABLE


def main() -> int:
    # The directory that its trainer reads its pace from is called after the device.
    with watching(Path(os.environ[DEVICE_VARIABLE]).name):
        return agent.main()


if __name__ == "__main__":
    sys.exit(main())
