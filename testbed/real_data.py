"""Where the real data of measurements are: in a folder beside the checkout, unless ``SHOAL_DATA`` names another."""

from __future__ import annotations

import os
from pathlib import Path


def use_data_beside_checkout() -> None:
    """Point the loaders at ``shared/data`` beside the checkout, if it is there. .ci/run looks for data there too."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    if beside.is_dir():
        os.environ.setdefault("SHOAL_DATA", str(beside))
