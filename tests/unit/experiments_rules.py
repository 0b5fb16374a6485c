"""Algorithms that processes of their own import by the name of this file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import shoal


class Halved(shoal.Algorithm):
    def finish(self, mean: Any, state: Any) -> Any:
        return {name: np.float32(0.5) * each for name, each in mean.items()}, state


class Ending(shoal.Algorithm):
    """Ends its process, as a system does that is short of memory. Never asked in the process of the test."""

    def finish(self, mean: Any, state: Any) -> Any:
        os._exit(1)
