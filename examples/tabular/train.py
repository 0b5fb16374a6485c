"""Which bookings are cancelled? A table of numbers and categories: `python examples/tabular/train.py`."""

import argparse

import numpy as np
import torch
from torch import nn

import shoal

CHANNELS, MONTHS = 4, 12
NUMBERS = ("days ahead", "nights", "price of a night", "earlier stays")


class Bookings(shoal.Task):
    plan = shoal.Plan(
        batch_size=50, lease_batches=10, inner="adamw", learning_rate=5e-3, momentum=0.0, until=shoal.epochs(6)
    )

    def model(self):
        return Table()

    def examples(self, split):
        """Made-up bookings. Yours are `shoal.data.csv(file)` and a number for each category."""
        rng = np.random.default_rng(0 if split == "train" else 1)
        count = 6_000 if split == "train" else 1_500
        numbers = np.stack(
            [rng.gamma(1.5, 30, count), rng.poisson(2, count) + 1, rng.normal(90, 25, count), rng.poisson(0.5, count)],
            axis=1,
        )
        channel, month = rng.integers(0, CHANNELS, count), rng.integers(0, MONTHS, count)
        # Early bookings are cancelled more often, those of guests who were here before less; channel 2 lets all cancel.
        odds = numbers[:, 0] / 40 - 1.5 * numbers[:, 3] + 1.5 * (channel == 2) + np.sin(month) - 1.2
        cancelled = rng.uniform(size=count) < 1 / (1 + np.exp(-odds))
        columns = {"numbers": numbers.astype(np.float32), "channel": channel, "month": month}
        return columns | {"cancelled": cancelled.astype(np.float32)}

    def step(self, model, batch, lease):
        return nn.functional.binary_cross_entropy_with_logits(model(batch), batch["cancelled"])

    def metrics(self, model, batch):
        odds, true = model(batch), batch["cancelled"]
        loss = nn.functional.binary_cross_entropy_with_logits(odds, true, reduction="sum")
        return {"loss": shoal.mean(loss, len(true)), "auc": shoal.auc(odds, true)}


class Table(nn.Module):
    """Numbers as they are, and a vector learned for each category."""

    def __init__(self):
        super().__init__()
        self.channel, self.month = nn.Embedding(CHANNELS, 4), nn.Embedding(MONTHS, 4)
        self.scale = nn.BatchNorm1d(len(NUMBERS))
        self.top = nn.Sequential(nn.Linear(len(NUMBERS) + 8, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, rows):
        parts = [self.scale(rows["numbers"]), self.channel(rows["channel"]), self.month(rows["month"])]
        return self.top(torch.cat(parts, 1)).squeeze(1)


def draw(model, file):
    """Compare each tenth of the bookings, by their prediction, with how many were cancelled."""
    from matplotlib.figure import Figure

    rows = {name: torch.as_tensor(column) for name, column in Bookings().examples("test").items()}
    with torch.no_grad():
        predicted = model.eval()(rows).sigmoid().numpy()
    true, tenths = rows["cancelled"].numpy(), np.array_split(np.argsort(predicted), 10)
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, label="as predicted")
    points = [(predicted[each].mean(), true[each].mean()) for each in tenths]
    axes.plot(*zip(*points, strict=True), marker="o", label="a tenth of the held-out bookings")
    axes.set(xlabel="predicted share of cancelled bookings", ylabel="true share")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE", help="draw the predictions; needs matplotlib")
    given = parser.parse_args()
    result = shoal.fit(Bookings(), workers=2)
    auc = result.history["auc"][-1]
    print(f"AUC {auc:.3f} after {result.version} versions, in {result.seconds:.0f} s")
    if given.picture:
        draw(result.model(), given.picture)
