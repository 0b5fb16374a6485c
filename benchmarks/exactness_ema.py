"""Whether the accuracy that a job with ``ema`` reports is that of the model which people pull: two agents, one machine.

python -m benchmarks.exactness_ema --json            three seeds, the largest gap
python -m benchmarks.exactness_ema --quick --json    one seed, within a minute

The pulled model is evaluated by plain PyTorch in this process. ``last_step`` is how far the accuracy moved between the
last two evaluations of the same job without ``ema``: the gap that one version more or less would make.
"""

from __future__ import annotations

import argparse

import torch

import shoal
from benchmarks.exactness_ema_task import Noisy
from testbed.results import finish, say

SEEDS = (0, 1, 2)
DECAY = 0.95
EPOCHS = 4


def accuracy_of(model: torch.nn.Module, task: shoal.Task) -> float:
    """Return the share of the held-out examples that a model gets right."""
    x, y = task.examples("test")
    model.eval()
    with torch.no_grad():
        right = model(torch.from_numpy(x)).argmax(1).numpy() == y
    return float(right.mean())


def trained(seed: int, *, ema: float) -> shoal.Result:
    """Train the task with two agents, processes of their own."""
    plan = shoal.Plan(batch_size=16, learning_rate=0.5, momentum=0.9, workers_min=2, seed=seed, ema=ema)
    return shoal.fit(Noisy(), workers=2, until=shoal.epochs(EPOCHS), plan=plan, progress=False)


def gap_of(seed: int) -> float:
    """Return the reported accuracy minus that of the pulled model, absolute."""
    result = trained(seed, ema=DECAY)
    pulled = accuracy_of(result.model(), Noisy())
    say(f"seed {seed}: reported {result.accuracy}, pulled {pulled:.4f}, version {result.version}")
    if result.accuracy is None:
        raise RuntimeError("the job evaluated nothing")
    return abs(result.accuracy - pulled)


def ema_gap(*, quick: bool) -> float:
    """Return the largest gap between reported and pulled accuracy of a job with a mean of versions."""
    return max(gap_of(seed) for seed in (SEEDS[:1] if quick else SEEDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--json", action="store_true", help="accepted for the other benchmarks' sake: it always prints")
    given = parser.parse_args()
    gap = ema_gap(quick=given.quick)
    if given.quick:
        finish({"ema_gap": gap})
        return
    steps = []
    for seed in SEEDS:
        plain = [value for value in trained(seed, ema=0.0).history["accuracy"] if value is not None]
        say(f"seed {seed} without ema: {plain}")
        steps.append(abs(plain[-1] - plain[-2]))
    finish({"ema_gap": gap, "last_step": max(steps)})


if __name__ == "__main__":
    main()
