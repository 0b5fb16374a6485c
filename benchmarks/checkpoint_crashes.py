"""Crashes while checkpoints are saved; ``testbed.crashes.checkpoints`` describes the kinds."""

import sys

from testbed.crashes.checkpoints import main

if __name__ == "__main__":
    sys.exit(main())
