"""A task whose model reads a file that its author has and devices may lack."""

import os
import sys
from pathlib import Path

import numpy as np
from torch import nn

import shoal


class AbsentFile(shoal.Task):
    def model(self):
        if sys.argv[0] != "shoal-prepare":
            # A device that was given the folder has it in this variable.
            Path(os.environ.get("ABSENT_FILE", "/absent/model.safetensors")).read_bytes()
        return nn.Linear(4, 3)

    def examples(self, split):
        count = 120 if split == "train" else 0
        return np.ones((count, 4), np.float32), np.arange(count) % 3

    def loss(self, output, y):
        return nn.functional.cross_entropy(output, y)
