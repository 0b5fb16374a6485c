"""A task to train in tests: three clouds in four dimensions, apart enough for a small network."""

import time

import numpy as np
from torch import nn

import shoal


class Clouds(shoal.Task):
    def __init__(self, count=234, norm=False, pause_s=0.0):
        self.count, self.norm, self.pause_s = count, norm, pause_s

    def model(self):
        middle = nn.BatchNorm1d(16) if self.norm else nn.Identity()
        return nn.Sequential(nn.Linear(4, 16), middle, nn.Tanh(), nn.Linear(16, 3))

    def examples(self, split):
        chance = np.random.default_rng(0 if split == "train" else 1)
        y = chance.integers(0, 3, self.count)
        centres = np.array([[2, 0, 0, 1], [0, 2, 0, 1], [0, 0, 2, 1]])
        return (centres[y] + chance.normal(0, 0.5, (self.count, 4))).astype(np.float32), y

    def batch(self, x, y):
        # A job of this size would be over before anything could happen to it.
        time.sleep(self.pause_s)
        return x, y
