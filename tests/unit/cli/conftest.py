"""Lets the tests of this folder import the statuses beside them, and the kits."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "kits")]
