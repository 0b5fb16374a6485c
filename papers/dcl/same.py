"""§4.3: is a model trained by others the one trained at home? 784-128-10 on MNIST, in a plain torch loop.

Every product of the loop, forward and back, goes through one of these; all else is torch's. *By tasks*: cut up as for
executors, and computed task by task in this process.

- *outer products at home*, in a stated order, and the same *shuffled, by tasks*: the thesis' pair;
- *plain products* of numpy, and *tiles* of them: another order of adding, so equal to a few roundings;
  tiles at home and by tasks are equal to the bit;
- *masks*: fixed point, so equal to the fixed point's error. Weight gradients are of two secrets and stay at home.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from benchmarks.offload_at_home import AtHome
from benchmarks.offload_modes import Centralised, Masked, Paper, Tiles
from papers.dcl import paper
from papers.harness.rows import Row
from shoal.data import mnist
from shoal.offload.cost import Privacy
from shoal.offload.products import Products
from shoal.offload.torch.wrap import bring_home, offload
from testbed.results import say

BATCH, RATE, SEED = 100, 0.1, 0
#: One epoch; and enough to show the bits.
STEPS, QUICK_STEPS = 600, 8
EXECUTORS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    parameters: np.ndarray
    losses: tuple[float, ...]
    accuracy: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to have products done, and the other one that it is held against."""

    name: str
    make: Callable[[], Products]
    against: str
    privacy: Privacy = "none"


WAYS = (
    Way(name="outer products at home", make=lambda: Centralised(EXECUTORS), against=""),
    Way(name="outer products by tasks, shuffled", make=lambda: Paper(EXECUTORS), against="outer products at home"),
    Way(name="plain products at home", make=AtHome, against="outer products at home"),
    Way(name="tiles at home", make=lambda: Tiles(EXECUTORS), against="plain products at home"),
    Way(name="tiles by tasks, checked", make=lambda: Tiles(EXECUTORS, verify="freivalds"), against="tiles at home"),
    Way(
        name="masks by tasks, checked", make=lambda: Masked(EXECUTORS), against="plain products at home", privacy="mask"
    ),
)


class Digits:
    """MNIST as the loop reads it: pixels from 0 to 1."""

    def __init__(self) -> None:
        images, labels = mnist("train")
        self.x = torch.from_numpy(images.reshape(len(images), -1).astype(np.float32) / 255)
        self.y = torch.from_numpy(labels.astype(np.int64))
        images, labels = mnist("test")
        self.test_x = torch.from_numpy(images.reshape(len(images), -1).astype(np.float32) / 255)
        self.test_y = torch.from_numpy(labels.astype(np.int64))


def network() -> nn.Sequential:
    torch.manual_seed(SEED)
    inputs, hidden, outputs = paper.SIDES
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def trained(way: Way, digits: Digits, *, steps: int) -> Trained:
    began_s = time.monotonic()
    model = offload(network(), way.make(), privacy=way.privacy, verify="none", send="all")
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    order = torch.from_numpy(np.random.default_rng(SEED).permutation(len(digits.x)))
    losses = []
    for step in range(steps):
        chosen = order[step * BATCH : (step + 1) * BATCH]
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(digits.x[chosen]), digits.y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    took_s = time.monotonic() - began_s
    bring_home(model).eval()
    with torch.no_grad():
        right = (model(digits.test_x).argmax(1) == digits.test_y).float().mean().item()
    parameters = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()
    return Trained(parameters=parameters, losses=tuple(losses), accuracy=right, seconds=took_s)


def run(quick: bool) -> list[Row]:
    digits, steps = Digits(), QUICK_STEPS if quick else STEPS
    done: dict[str, Trained] = {}
    rows: list[Row] = []
    for way in WAYS:
        done[way.name] = trained(way, digits, steps=steps)
        rows.append(row_of(way, done, steps=steps))
        say(f"   {way.name}: {rows[-1]}")
    return rows


def row_of(way: Way, done: dict[str, Trained], *, steps: int) -> Row:
    made = done[way.name]
    row: Row = {"way": way.name, "steps": steps, "accuracy": made.accuracy, "seconds": made.seconds}
    if way.against:
        other = done[way.against]
        moved = np.abs(other.parameters - first_parameters()).max()
        row |= {
            "against": way.against,
            "same_bits": bool(np.array_equal(made.parameters, other.parameters)) and made.losses == other.losses,
            "largest_difference": float(np.abs(made.parameters - other.parameters).max()),
            # What the largest difference is beside what training moved the furthest parameter by.
            "difference_of_moved": float(np.abs(made.parameters - other.parameters).max() / moved),
        }
    return row


def first_parameters() -> np.ndarray:
    return torch.cat([parameter.detach().reshape(-1) for parameter in network().parameters()]).numpy()
