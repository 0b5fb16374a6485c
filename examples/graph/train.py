"""Who is in which circle of friends? A graph network without a package for graphs: `python examples/graph/train.py`."""

import argparse

import numpy as np
import torch
from torch import nn

import shoal

PEOPLE, CIRCLES, HINTS = 1_500, 4, 8
NEAR, FAR = 10, 5  # neighbours that are drawn of a person, and of each of those


class Circles(shoal.Task):
    plan = shoal.Plan(
        batch_size=50, lease_batches=8, inner="adamw", learning_rate=2e-3, momentum=0.0, until=shoal.epochs(6)
    )

    def model(self):
        return Sage()

    def examples(self, split):
        """Each person with a sample of the friends, and of their friends: all that a device needs of the graph."""
        neighbours, hints, circle = graph()
        people = np.arange(PEOPLE)
        people = people[people % 5 == 0] if split == "test" else people[people % 5 != 0]
        rng = np.random.default_rng(0 if split == "train" else 1)
        near = np.stack([rng.choice(neighbours[each], NEAR) for each in people])
        far = np.stack([rng.choice(neighbours[each], FAR) for each in near.ravel()]).reshape(len(people), NEAR, FAR)
        return {"own": hints[people], "near": hints[near], "far": hints[far], "circle": circle[people]}

    def step(self, model, batch, lease):
        return nn.functional.cross_entropy(model(batch), batch["circle"])

    def metrics(self, model, batch):
        return {"accuracy": shoal.mean((model(batch).argmax(1) == batch["circle"]).sum(), len(batch["circle"]))}


class Sage(nn.Module):
    """GraphSAGE with means over samples (Hamilton et al., NeurIPS 2017, section 3): two steps, from the far end."""

    def __init__(self, size=32):
        super().__init__()
        self.first, self.second = nn.Linear(2 * HINTS, size), nn.Linear(2 * size, size)
        self.top = nn.Linear(size, CIRCLES)

    def forward(self, rows):
        near = self.first(torch.cat([rows["near"], rows["far"].mean(2)], 2)).relu()
        own = self.first(torch.cat([rows["own"], rows["near"].mean(1)], 1)).relu()
        return self.top(self.second(torch.cat([own, near.mean(1)], 1)).relu())


def graph():
    """Return made-up friends, mostly of the same circle, and features that say little about the circle."""
    rng = np.random.default_rng(0)
    circle = rng.integers(0, CIRCLES, PEOPLE)
    share = np.where(circle[:, None] == circle, 0.03, 0.004)
    upper = np.triu(rng.uniform(size=share.shape) < share, 1)
    friends = upper | upper.T
    hints = centres()[circle] + rng.normal(0, 1.5, (PEOPLE, HINTS))
    neighbours = [np.flatnonzero(row) if row.any() else np.array([person]) for person, row in enumerate(friends)]
    return neighbours, hints.astype(np.float32), circle


def centres():
    return np.random.default_rng(9).normal(0, 0.7, (CIRCLES, HINTS))


def right_without_friends():
    """Return the accuracy of the classifier that knows how the features were made, but not who is a friend."""
    _, hints, circle = graph()
    nearest = np.square(hints[:, None] - centres()).sum(2).argmin(1)
    return float((nearest == circle)[::5].mean())


def draw(history, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(history["version"], history["accuracy"], marker="o", markersize=4, label="with friends of friends")
    axes.axhline(right_without_friends(), color="grey", linestyle="--", label="the best without the graph")
    axes.set(xlabel="version of the model", ylabel="held-out people right", ylim=(0, 1))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE", help="draw the accuracy by version; needs matplotlib")
    given = parser.parse_args()
    result = shoal.fit(Circles(), workers=2)
    alone = right_without_friends()
    print(f"{result.accuracy:.1%} right, without the graph {alone:.1%} at best, in {result.seconds:.0f} s")
    if given.picture:
        draw(result.history, given.picture)
