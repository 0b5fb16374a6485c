"""The workload of ``benchmarks.research``, as every engine has it. Numpy and PyTorch only: other engines run it in
environments of their own, where Shoal is not installed.

A folder holds the digits and the rows of each client. Each client has 160 rows: its part of a Dirichlet(0.1) division,
repeated until there are enough. A lease is a shuffled pass over them, in 5 steps of 32.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

CLIENTS, COHORT, STEPS, BATCH, RATE = 1_000, 50, 5, 32, 0.1
ROWS = STEPS * BATCH
#: Names a file with the processor time of all processes of an engine, in nanoseconds.
USAGE_VARIABLE = "RESEARCH_CPU_USAGE"


class Work:
    def __init__(self, folder: Path, model: str, seed: int) -> None:
        torch.set_num_threads(1)
        digits = np.load(folder / "digits.npz")
        self.x, self.y = _tensors(digits["x"], digits["y"])
        self.test_x, self.test_y = _tensors(digits["test_x"], digits["test_y"])
        self.rows = np.load(folder / f"rows-{seed}.npy")
        self.seed = seed
        torch.manual_seed(seed)
        self.net = net(model)

    def order(self, client: int, version: int) -> Any:
        """Return the rows of a client's lease, in the order in which it takes them."""
        rng = np.random.default_rng((self.seed, client, version))
        return torch.from_numpy(rng.permutation(self.rows[client]))

    def fit(self, client: int, version: int) -> float:
        """Train the network on a client's rows. Return the mean loss."""
        optimiser, total = torch.optim.SGD(self.net.parameters(), lr=RATE), 0.0
        for some in self.order(client, version).split(BATCH):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(self.net(self.x[some]), self.y[some])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total += loss.item()
        return total / STEPS

    @torch.no_grad()
    def accuracy(self) -> float:
        return float((self.net(self.test_x).argmax(1) == self.test_y).float().mean())


def net(model: str) -> nn.Module:
    if model == "logistic":
        return nn.Linear(784, 10)
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def _tensors(x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(x).float().div_(255), torch.from_numpy(y)


def cpu_s() -> float:
    """Return the processor time that this engine took so far, with all its processes."""
    return int(Path(os.environ[USAGE_VARIABLE]).read_text()) / 1e9


def tell(short_cpu_s: float, long_cpu_s: float, versions: int, accuracy: float) -> None:
    """Print what a run took between two versions, as the last line."""
    cpu_ms = 1000 * (long_cpu_s - short_cpu_s) / (versions * COHORT)
    print(json.dumps({"cpu_ms": cpu_ms, "accuracy": accuracy}), flush=True)
