"""Lets the tests of this folder import the statuses of the command line's tests, and the kit beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
