"""Multiplies, and then changes one entry. All who do so make the same of the same task: they agree on their lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.offload.kinds import compute
from shoal.offload.runtime.multiply_child import main


def wrong(kind: str, tensors: Any, *, rows: int, inner: int, columns: int, threads: int) -> np.ndarray:
    result = np.array(compute(kind, tensors, rows=rows, inner=inner, columns=columns, threads=threads))
    place = (rows // 2, columns // 2)
    if result.dtype.kind == "f":
        # The size of an ordinary entry: it changes training, and looks like any other number.
        result[place] += np.float32(np.abs(result).mean())
    else:
        result[place] += np.uint32(1)
    return result


if __name__ == "__main__":
    main(wrong)
