"""The tools of these tests lie beside them; not every import mode of pytest looks there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "kits"))
