"""Handwritten digits with LeNet-5: `shoal train examples/mnist`."""

from torch import nn

import shoal


class Digits(shoal.Task):
    plan = shoal.Plan(batch_size=64, learning_rate=0.02, momentum=0.9, until=shoal.epochs(5))

    def model(self):
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(400, 120), nn.ReLU()),
            *(nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, 10),
        )

    def examples(self, split):
        return shoal.data.mnist(split)

    def batch(self, x, y):
        """Bytes to floats with mean 0 and deviation 1: MNIST's own are 33.3 and 78.6."""
        return (x.float() - 33.3) / 78.6, y

    loss = staticmethod(nn.functional.cross_entropy)
