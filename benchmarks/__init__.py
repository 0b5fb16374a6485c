"""What is claimed, measured: one module a benchmark, each a command that ends with one line of JSON."""

import os
from pathlib import Path

# Real data beside the checkout, where .ci/run looks for them too.
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
if _BESIDE.is_dir():
    os.environ.setdefault("SHOAL_DATA", str(_BESIDE))
