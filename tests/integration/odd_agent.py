"""A device's agent as it is, but for what multiplies: run as ``python -m odd_agent lies|slow --home DIR ...``."""

from __future__ import annotations

import os
import sys

from shoal.offload.runtime import multiplier
from shoal.runtime import agent

if __name__ == "__main__":
    os.environ["ODD_MULTIPLIER"] = sys.argv.pop(1)
    multiplier.CHILD_MODULE = "odd_multiplier"
    sys.exit(agent.main())
