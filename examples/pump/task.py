"""Is the machine running as it always does? Learned from vibrations that keep coming: `shoal train examples/pump`."""

import numpy as np
from torch import nn

import shoal

LENGTH = 128  # moments of a window: 2.56 s


class Pump(shoal.Task):
    plan = shoal.Plan(
        **{"data": "local", "batch_size": 32, "lease_batches": 8, "epoch_leases": 8},
        **{"inner": "adamw", "learning_rate": 1e-3, "weight_decay": 0.05, "outer_rate": 1.0, "momentum": 0.0},
        until=(shoal.metric("auc") >= 0.87) | shoal.epochs(60),
    )

    def __init__(self, held_out=""):
        """`held_out`: a file of a few windows that are known to be faults or known not to be (see feed.py)."""
        self._held_out = held_out

    def model(self):
        """An autoencoder: 1,152 values, some of them hidden, go through 24. What it never saw comes out badly."""
        down = (nn.Flatten(), nn.Dropout(0.3), nn.Linear(9 * LENGTH, 128), nn.Tanh(), nn.Linear(128, 24))
        up = (nn.Linear(24, 128), nn.Tanh(), nn.Linear(128, 9 * LENGTH), nn.Unflatten(1, (LENGTH, 9)))
        return nn.Sequential(*down, *up)

    def examples(self, split):
        if split == "test":  # on the machine that starts the job
            held = np.load(self._held_out) if self._held_out else None
            return {"x": held["x"], "fault": held["fault"]} if held else None
        return shoal.data.windows(shoal.data.local_folder() / "*.npy", LENGTH)

    def collate(self, rows, *, training):
        """Each channel around its mean in the window: how a sensor hangs is no fault."""
        x = rows["x"]
        return {**rows, "x": x - x.mean(1, keepdim=True)}

    def step(self, model, batch, lease):
        return self._errors(model, batch["x"]).mean()

    def metrics(self, model, batch):
        errors = self._errors(model, batch["x"])
        sums = {"loss": shoal.mean(errors.sum(), len(errors))}
        if "fault" in batch:
            sums["auc"] = shoal.auc(errors, batch["fault"])
        return sums

    @staticmethod
    def _errors(model, x):
        """Of each window: what did not come out, as a share of what went in."""
        return (model(x) - x).square().mean((1, 2)) / x.square().mean((1, 2)).clamp(min=1e-3)
