"""The network of AdaComp as a task: 211,690 parameters, first values and images as its published code has them."""

from torch import nn

import shoal


class Cnn(shoal.Task):
    plan = shoal.Plan(batch_size=10, learning_rate=0.1, momentum=0.0, until=shoal.epochs(4))

    def model(self):
        network = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(1568, 128), nn.ReLU()),
            nn.Linear(128, 10),
        )
        for layer in network:
            if hasattr(layer, "weight"):
                nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
                nn.init.constant_(layer.bias, 0.1)
        return network

    def examples(self, split):
        return shoal.data.mnist(split)

    def batch(self, x, y):
        """Each image to mean 0 and deviation 1."""
        x = x.float()
        mean, deviation = x.mean((1, 2, 3), keepdim=True), x.std((1, 2, 3), keepdim=True, correction=0)
        return (x - mean) / deviation.clamp_min(1 / 28), y

    loss = staticmethod(nn.functional.cross_entropy)
