"""Lets the tests of this folder import the kits: not every import mode of pytest looks there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "kits"))
