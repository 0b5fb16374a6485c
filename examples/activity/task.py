"""What a person does, from the phone in their pocket: `shoal flock train examples/activity --devices 3 ...`."""

import numpy as np
from torch import nn

import shoal


class Activity(shoal.Task):
    """Nine channels, 128 samples each; twelve activities. Every device has one person's recordings, and keeps them."""

    plan = shoal.Plan(data="local", batch_size=32, learning_rate=0.05)

    def model(self):
        return nn.Sequential(
            *(nn.Conv1d(9, 32, 7, padding=3), nn.ReLU(), nn.MaxPool1d(4)),
            *(nn.Conv1d(32, 48, 5, padding=2), nn.ReLU(), nn.MaxPool1d(4)),
            nn.Flatten(),
            *(nn.Linear(48 * 8, 96), nn.ReLU()),
            nn.Linear(96, 12),
        )

    def examples(self, split):
        """Two files in the device's own folder; `split.py` makes such folders of the public recordings."""
        held = np.load(shoal.data.local_folder() / f"{split}.npz")
        return held["x"], held["y"]

    loss = staticmethod(nn.functional.cross_entropy)
