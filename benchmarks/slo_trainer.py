"""A process that trains as many examples as it is told: the trainer of one device. Knows neither quota nor profiler.

    python -m benchmarks.slo_trainer IMAGES.npy LABELS.npy

Says ``ready``; then for each line ``examples limit_s`` on its input it trains a small network for real and answers with
a line of JSON. Its model lives on from one task to the next.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from torch import nn

BATCH = 16
LEARNING_RATE = 0.05


class Learner:
    def __init__(self, images_path: str, labels_path: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._images = np.load(images_path, mmap_mode="r")
        self._labels = np.load(labels_path, mmap_mode="r")
        self._model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
        self._step = torch.optim.SGD(self._model.parameters(), LEARNING_RATE)
        self._at = 0

    def train(self, examples: int, *, limit_s: float) -> dict[str, float]:
        """Stops at the limit, with fewer: a size that is far too large shall not hold up the benchmark."""
        done, loss_sum = 0, 0.0
        began_s = time.perf_counter()
        while done < examples and time.perf_counter() - began_s < limit_s:
            count = min(BATCH, examples - done, len(self._labels) - self._at)
            x = torch.from_numpy(self._images[self._at : self._at + count].astype(np.float32) / 255)
            y = torch.from_numpy(self._labels[self._at : self._at + count].copy())
            self._step.zero_grad()
            loss = nn.functional.cross_entropy(self._model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            self._step.step()
            loss_sum += count * float(loss.detach())
            done += count
            self._at = (self._at + count) % len(self._labels)
        return {"examples": done, "spent_s": time.perf_counter() - began_s, "loss": loss_sum / done}


def main() -> None:
    learner = Learner(*sys.argv[1:3])
    learner.train(20 * BATCH, limit_s=10.0)
    print("ready", flush=True)
    for line in sys.stdin:
        examples, limit_s = line.split()
        print(json.dumps(learner.train(int(examples), limit_s=float(limit_s))), flush=True)


if __name__ == "__main__":
    main()
