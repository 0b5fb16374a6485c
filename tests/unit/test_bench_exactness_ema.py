"""The pure parts of ``benchmarks.exactness_ema``."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from benchmarks.exactness_ema import accuracy_of
from benchmarks.exactness_ema_task import CLASSES, Noisy


class Always(nn.Module):
    """Says one class, whatever it sees, and only in evaluation mode."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.label = label

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.training
        return nn.functional.one_hot(torch.full((len(x),), self.label), CLASSES).float()


def test_accuracy_is_the_share_of_held_out_examples_that_are_right() -> None:
    task = Noisy()
    _, y = task.examples("test")
    assert accuracy_of(Always(2), task) == np.mean(y == 2)
    assert sum(accuracy_of(Always(label), task) for label in range(CLASSES)) == 1.0


def test_splits_differ_and_are_the_same_each_time() -> None:
    first, again, test = Noisy().examples("train"), Noisy().examples("train"), Noisy().examples("test")
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0][:100], test[0][:100])
