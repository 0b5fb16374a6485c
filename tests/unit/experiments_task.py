"""A task that three devices learn within a second, for test_experiments.py."""

import numpy as np
from torch import nn

import shoal


class Blobs(shoal.Task):
    plan = shoal.Plan(batch_size=16, learning_rate=0.1, momentum=0.0)

    def model(self):
        return nn.Linear(4, 3)

    def examples(self, split):
        chance = np.random.default_rng(1 if split == "train" else 2)
        y = chance.integers(0, 3, 300)
        return (np.eye(3, 4)[y] * 2 + chance.normal(0, 0.7, (300, 4))).astype(np.float32), y


class Wide(Blobs):
    """Points of so many values that a stack of models gives the bits of single ones."""

    def model(self):
        return nn.Linear(64, 3)

    def examples(self, split):
        x, y = super().examples(split)
        return np.tile(x, 16), y
