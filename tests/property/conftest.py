"""What several kinds of tests share lies in ``tests/kits``; not every import mode of pytest looks there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "kits"))
