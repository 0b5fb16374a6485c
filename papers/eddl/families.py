"""Figure 1, the half that DREBIN allows: how many apps each family of malware has. Counted; nothing is trained."""

from __future__ import annotations

import numpy as np

from papers.eddl.paper import FAMILY_SIZES
from papers.harness.rows import Row
from shoal.data import drebin


def run(quick: bool) -> list[Row]:
    _, families, _ = drebin.apps()
    return rows_of(families)


def rows_of(families: np.ndarray) -> list[Row]:
    """One row a family, the largest first; benign apps are family 0 and have no categories."""
    sizes = np.bincount(families[families >= 0], minlength=drebin.FAMILIES)[: drebin.FAMILIES]
    rows: list[Row] = [{"family": 0, "apps": int((families < 0).sum())}]
    for family, size in enumerate(sizes.tolist(), start=1):
        rows.append({"family": family, "apps": size, "reported": FAMILY_SIZES.get(family)})
    return rows
