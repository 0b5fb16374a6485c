"""The tools of these tests lie beside them, and one job comes from the benchmarks; pytest looks in neither place."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

for folder in (HERE, HERE.parent.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
