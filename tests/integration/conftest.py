<<<<<<< HEAD
"""The tools of these tests lie beside them and in ``tests/kits``, and one job comes from the benchmarks; pytest looks
in none of these places."""
=======
"""The tools of these tests lie beside them, in ``tests/kits`` and in benchmarks; pytest looks in none of them."""
>>>>>>> client

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

<<<<<<< HEAD
for folder in (HERE, HERE.parent.parent, HERE.parent / "kits"):
=======
for folder in (HERE, HERE.parent / "kits", HERE.parent.parent):
>>>>>>> client
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
