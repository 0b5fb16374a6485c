"""AdaComp's task: handwritten digits with a network of 211,690 parameters. Knows no plan and no device."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

import shoal

#: Of weights, cut off at two of them; biases begin at the same number.
DEVIATION = 0.1


class DigitsCnn(shoal.Task):
    """Two convolutions of 32 filters and two layers, as in AdaComp §4.1 (the published code has more filters)."""

    def __init__(self, train: int = 60_000, test: int = 10_000) -> None:
        """How many examples of each, from the first on."""
        self._counts = {"train": train, "test": test}

    def model(self) -> nn.Module:
        network = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(1568, 128), nn.ReLU()),
            nn.Linear(128, 10),
        )
        for parameter in network.parameters():
            if parameter.dim() == 1:
                nn.init.constant_(parameter, DEVIATION)
            else:
                nn.init.trunc_normal_(parameter, std=DEVIATION, a=-2 * DEVIATION, b=2 * DEVIATION)
        return network

    def examples(self, split: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        x, y = shoal.data.mnist(split)
        return x[: self._counts[split]], y[: self._counts[split]]

    def batch(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Each image to mean 0 and deviation 1; one of a single grey to zeros."""
        pixels = x.float()
        sides = (1, 2, 3)
        deviations = pixels.std(dim=sides, correction=0, keepdim=True).clamp_min(pixels[0].numel() ** -0.5)
        return (pixels - pixels.mean(dim=sides, keepdim=True)) / deviations, y
