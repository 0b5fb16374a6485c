"""How large honest updates are beside what is usual: the measurement behind the bound of ``learning.usual``.

Real training of real tasks, one trainer for all devices, without a network. Each update is judged by the leader's own
rule, as it would be in a job; nothing is left out, so that one that would have been refused shows. For each run:

    updates         how many were judged
    ratio_p99       its size over the median of the 64 before it: the 99th percentile
    ratio_max       and the largest
    above_floor     the largest of those above a tenth of the model's norm: below that none is refused
    share_max       the largest update over the norm of its model
    first_share     the largest of the first updates over that norm: they are held to it before anything is usual
    refused         how many the rule would have refused or put off

    sync, async     MNIST, LeNet-5, four devices in step, and without
    small_batches   eight devices, batches of ten: the noisiest gradients
    coded           one value of a hundred with error feedback, four bits each, four steps a lease
    one_label       ten devices of one digit each, without step: every update pulls elsewhere
    sized           leases of 1 to 64 steps
    overtrained     2,000 examples until the loss is next to nothing: tiny updates, and a hard batch now and then
    activity        twelve activities of several people, each device with one person's recordings

    python -m benchmarks.update_norms [--quick] [--only NAME ...] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal import data
from shoal.compress.codec import Codec
from shoal.compress.feedback import Feedback
from shoal.data.files import data_dir
from shoal.learning.outer import outer_change
from shoal.learning.usual import ENOUGH, FLOOR_SHARE, MULTIPLE, REACH_LEAST, WINDOW, Usual
from shoal.trainer.flat import layout_of, read_into, write_from
from shoal.wire.coded import code, norm_of, sizes_of
from testbed.results import say

#: As `examples/activity/split.py` reads them.
RECORDINGS = "har/hapt_windows_9ch_128.npz"

#: Of the full length, what ``--quick`` runs.
QUICK_SHARE = 0.08


@dataclass(frozen=True, slots=True)
class Examples:
    x: torch.Tensor
    y: torch.Tensor
    #: Device -> the examples it may draw from; none: all.
    pools: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    name: str
    updates: int
    devices: int = 4
    is_sync: bool = True
    codec: str = "dense"
    batch: int = 64
    #: Steps of a lease, by device in turn.
    steps: tuple[int, ...] = (1,)
    rate: float = 0.02
    momentum: float = 0.9
    task: str = "digits"
    examples: int = 60_000
    one_label: bool = False


RUNS = (
    Run(name="sync", updates=6000),
    Run(name="async", updates=6000, is_sync=False, momentum=0.0),
    Run(name="small_batches", updates=12_000, devices=8, batch=10),
    Run(name="coded", updates=1600, codec="top1%+ef+4bit", batch=10, steps=(4,)),
    Run(name="one_label", updates=3000, devices=10, is_sync=False, momentum=0.0, one_label=True),
    Run(name="sized", updates=600, steps=(1, 4, 16, 64)),
    Run(name="overtrained", updates=8000, is_sync=False, momentum=0.0, batch=16, rate=0.05, examples=2000),
    Run(name="activity", updates=3000, devices=10, task="activity", batch=32, rate=0.05, momentum=0.0),
)


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(400, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, 10),
    )


def activity_net() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv1d(9, 32, 7, padding=3), nn.ReLU(), nn.MaxPool1d(4)),
        *(nn.Conv1d(32, 48, 5, padding=2), nn.ReLU(), nn.MaxPool1d(4)),
        nn.Flatten(),
        *(nn.Linear(48 * 8, 96), nn.ReLU()),
        nn.Linear(96, 12),
    )


def digits(run: Run) -> Examples:
    x, y = (torch.as_tensor(np.asarray(array)[: run.examples]) for array in data.mnist("train"))
    labels = y.numpy()
    by_label = tuple(np.flatnonzero(labels == device % 10) for device in range(run.devices)) if run.one_label else ()
    return Examples((x.float() - 33.3) / 78.6, y.long(), by_label)


def activity(run: Run) -> Examples:
    held = np.load(data_dir() / RECORDINGS)
    x, y, people = held["X"].astype(np.float32), held["y"].astype(np.int64), held["subject"]
    pools = tuple(np.flatnonzero(people == person) for person in np.unique(people)[: run.devices])
    return Examples(torch.as_tensor(x), torch.as_tensor(y - y.min()), pools)


TASKS: dict[str, tuple[Callable[[], nn.Module], Callable[[Run], Examples]]] = {
    "digits": (lenet, digits),
    "activity": (activity_net, activity),
}


@dataclass(slots=True)
class Judged:
    """What came of a run's updates."""

    usual: Usual = field(default_factory=Usual)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    #: Of each update after the first few: its size over the median, and its norm over the model's.
    ratios: list[tuple[float, float]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    refused: int = 0

    def judge(self, node: str, norm: float, *, steps: int, model_norm: float, devices: int) -> None:
        size = norm / math.sqrt(steps)
        share = norm / max(model_norm, REACH_LEAST)
        self.shares.append(share)
        if len(self.recent) >= ENOUGH:
            self.ratios.append((size / median(self.recent), share))
        self.refused += self.usual.judge(node, norm, steps=steps, model_norm=model_norm, devices=devices) is not None
        self.recent.append(size)
        self.usual.accepted(norm, steps=steps)

    def told(self, run: Run) -> dict[str, float]:
        ratios = np.array(self.ratios)
        above = ratios[ratios[:, 1] > FLOOR_SHARE, 0]
        return {
            "updates": len(self.shares),
            "ratio_p99": round(float(np.quantile(ratios[:, 0], 0.99)), 2),
            "ratio_max": round(float(ratios[:, 0].max()), 2),
            "above_floor": round(float(above.max(initial=0.0)), 2),
            "share_max": round(max(self.shares), 4),
            "first_share": round(max(self.shares[: run.devices]), 4),
            "refused": self.refused,
        }


class Trainer:
    """One model that stands for those of all devices."""

    def __init__(self, run: Run, net: nn.Module, examples: Examples) -> None:
        self._run, self._net, self._examples = run, net, examples
        self.layout = layout_of(net)
        self._optimiser = torch.optim.SGD(net.parameters(), lr=run.rate)
        self._chance = np.random.default_rng(0)
        self._codec, self._sizes = Codec.parse(run.codec), sizes_of(self.layout)
        self._feedback = [Feedback(self.layout.size) for _ in range(run.devices)]

    def first(self) -> np.ndarray:
        model = np.empty(self.layout.size, np.float32)
        read_into(model, self._net, self.layout)
        return model

    def update(self, device: int, model: np.ndarray, steps: int) -> np.ndarray:
        """What a device sends after so many steps from this model, as it arrives."""
        write_from(model, self._net, self.layout)
        examples = self._examples
        for _ in range(steps):
            of = examples.pools[device] if examples.pools else len(examples.y)
            chosen = self._chance.choice(of, self._run.batch, replace=False)
            self._optimiser.zero_grad()
            loss = nn.functional.cross_entropy(self._net(examples.x[chosen]), examples.y[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
        delta: np.ndarray = self.first() - model
        if self._codec.form == "dense":
            return delta
        feedback = self._feedback[device]
        coded = code(self._codec, feedback.add(delta), self._sizes)
        feedback.sent(coded.values)
        return coded.values if isinstance(coded.values, np.ndarray) else coded.values.dense()


def measure(run: Run) -> dict[str, float]:
    torch.manual_seed(0)
    make_net, make_examples = TASKS[run.task]
    trainer = Trainer(run, make_net(), make_examples(run))
    model, velocity = trainer.first(), np.zeros(trainer.layout.parameters_size, np.float32)
    held = [model] * run.devices
    judged = Judged()
    made: list[np.ndarray] = []
    for number in range(run.updates):
        device = number % run.devices
        steps = run.steps[device % len(run.steps)]
        base = model if run.is_sync else held[device]
        update = trainer.update(device, base, steps)
        judged.judge(str(device), norm_of(update), steps=steps, model_norm=norm_of(model), devices=run.devices)
        made.append(update)
        if run.is_sync and len(made) < run.devices:
            continue
        mean = np.asarray(np.mean(made, axis=0, dtype=np.float64), np.float32)
        made.clear()
        change, velocity = outer_change(
            velocity, mean, momentum=run.momentum, parameters_size=trainer.layout.parameters_size
        )
        model = model + change
        held[device] = model
    return judged.told(run)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twelfth of each run")
    parser.add_argument("--json", action="store_true", help="one line of JSON, and nothing else on standard output")
    parser.add_argument("--only", nargs="+", choices=[run.name for run in RUNS], help="of these runs, not all")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    told: dict[str, Any] = {}
    for run in [run for run in RUNS if not options.only or run.name in options.only]:
        shorter = replace(run, updates=int(run.updates * QUICK_SHARE)) if options.quick else run
        told[run.name] = measure(shorter)
        say(f"{run.name}: {told[run.name]}")
    runs = list(told.values())
    summary = {
        "multiple": MULTIPLE,
        "ratio_max_above_floor": max(run["above_floor"] for run in runs),
        "first_share_max": max(run["first_share"] for run in runs),
        "refused": sum(run["refused"] for run in runs),
        "runs": told,
    }
    print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main()
