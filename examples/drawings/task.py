"""Recognise what a person draws. The drawings stay in the browser: `shoal train examples/drawings --portable`."""

from torch import nn

import shoal

SHAPES = ("circle", "square", "triangle")


class Drawings(shoal.Task):
    plan = shoal.Plan(
        **{"data": "local", "batch_size": 16, "lease_batches": 2, "epoch_leases": 4, "learning_rate": 0.05},
        until=shoal.endless(),
    )

    @property
    def columns(self):
        return {"x": shoal.column("uint8", (28, 28)), "y": shoal.column("int64", classes=SHAPES)}

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, len(SHAPES)))

    def examples(self, split):
        return None  # nobody has examples but the people who draw
