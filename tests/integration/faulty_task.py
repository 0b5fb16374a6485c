"""A task whose code goes wrong on devices, on request: hangs for the first that calls it, or raises on one example."""

import os
import sys
import time

import numpy as np
from torch import nn

import shoal


class Faulty(shoal.Task):
    def __init__(self, marker="", poison=-1):
        self.marker, self.poison = marker, poison

    def model(self):
        return nn.Linear(4, 3)

    def examples(self, split):
        count = 120 if split == "train" else 0
        return np.ones((count, 4), np.float32), np.arange(count)

    def loss(self, output, y):
        is_device = sys.argv[0] != "shoal-prepare"
        if self.marker and is_device and self._is_first():
            time.sleep(3600)
        if is_device and (y == self.poison).any():
            raise ValueError(f"example {self.poison} is poison\x1b[2J")
        return nn.functional.cross_entropy(output, y % 3)

    def _is_first(self):
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
