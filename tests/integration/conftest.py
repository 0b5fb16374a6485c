"""The tools of these tests lie beside them, in ``tests/kits`` and in benchmarks; pytest looks in none of them."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

for folder in (HERE, HERE.parent / "kits", HERE.parent.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
