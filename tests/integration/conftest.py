"""The tools of these tests lie beside them and in ``tests/kits``, and one job comes from the testbed; pytest looks in
none of these places."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

for folder in (HERE, HERE.parent.parent, HERE.parent / "kits"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
