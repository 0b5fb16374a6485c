"""A process that multiplies, and lies about it or takes its time: ``odd_agent`` runs it in place of the honest one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.offload.kinds import compute
from shoal.offload.runtime import multiply_child


def lies(kind: str, tensors: Mapping[str, np.ndarray], **sides: Any) -> np.ndarray:
    wrong = compute(kind, tensors, **sides).copy()
    wrong[-1, -1] += 1000
    return wrong


def is_slow(kind: str, tensors: Mapping[str, np.ndarray], **sides: Any) -> np.ndarray:
    time.sleep(0.1)
    return compute(kind, tensors, **sides)


if __name__ == "__main__":
    multiply_child.main({"lies": lies, "slow": is_slow}[os.environ["ODD_MULTIPLIER"]])
