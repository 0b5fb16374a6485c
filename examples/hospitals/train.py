"""Who returns within a month? Hospitals learn together: `python examples/hospitals/train.py`."""

import argparse

import numpy as np
import torch
from torch import nn

import shoal

HOSPITALS, SIGNS = 3, 12
PATIENTS, HELD_OUT = 150, 2_000


class Return(shoal.Task):
    plan = shoal.Plan(
        data="local",
        **{"batch_size": 25, "lease_batches": 6, "epoch_leases": HOSPITALS * 2, "learning_rate": 0.1},
        **{"weight_decay": 0.01, "momentum": 0.0, "until": shoal.epochs(12)},
    )

    def model(self):
        return nn.Linear(SIGNS, 1)

    def examples(self, split):
        """A device has the patients of its own hospital. Here each process is a device, by its part."""
        if split == "test":
            return patients(None, HELD_OUT)
        return patients(shoal.data.part()[0], PATIENTS)

    def loss(self, output, y):
        return nn.functional.binary_cross_entropy_with_logits(output.squeeze(1), y)

    def metrics(self, model, batch):
        x, y = batch
        return {"auc": shoal.auc(model(x).squeeze(1), y)}


def patients(hospital, count):
    """Return made-up patients of a hospital, or of all hospitals if it is None. Each has other kinds."""
    rng = np.random.default_rng(100 if hospital is None else hospital)
    which = rng.integers(0, HOSPITALS, count) if hospital is None else np.full(count, hospital)
    usual = np.random.default_rng(7).normal(0, 1.5, (HOSPITALS, SIGNS))
    x = usual[which] + rng.normal(size=(count, SIGNS)) * np.where(np.abs(usual[which]) > 1.5, 0.2, 1.0)
    odds = x @ np.random.default_rng(8).normal(0, 0.8, SIGNS)
    return x.astype(np.float32), (rng.uniform(size=count) < 1 / (1 + np.exp(-odds))).astype(np.float32)


def auc_of(model):
    """The share of pairs, one who came back and one who did not, that the model puts in the right order."""
    x, y = patients(None, HELD_OUT)
    with torch.no_grad():
        odds = model(torch.as_tensor(x)).squeeze(1).numpy()
    rank = np.argsort(np.argsort(odds)) + 1
    back = y > 0
    return (rank[back].sum() - back.sum() * (back.sum() + 1) / 2) / (back.sum() * (~back).sum())


def trained_by_itself(hospital):
    """Train for one hospital only, with the same steps."""
    torch.manual_seed(0)
    model = Return().model()
    x, y = map(torch.as_tensor, patients(hospital, PATIENTS))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    for _ in range(24):
        for rows in torch.randperm(len(y)).split(25):
            optimiser.zero_grad()
            Return().loss(model(x[rows]), y[rows]).backward()
            optimiser.step()
    return model


def draw(single, together, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3), layout="constrained")
    axes = figure.subplots()
    names = [f"hospital {number + 1} by itself" for number in range(HOSPITALS)] + ["all together"]
    bars = axes.barh(names, [*single, together], color=["#9ab"] * HOSPITALS + ["teal"])
    axes.bar_label(bars, fmt="%.3f", padding=3)
    axes.set(xlim=(0.5, 1), xlabel="AUC on patients of all hospitals")
    axes.invert_yaxis()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE", help="draw both; needs matplotlib")
    given = parser.parse_args()
    result = shoal.fit(Return(), workers=HOSPITALS)
    single, together = [auc_of(trained_by_itself(each)) for each in range(HOSPITALS)], auc_of(result.model())
    apart = ", ".join(f"{each:.3f}" for each in single)
    print(f"AUC {together:.3f} together, {apart} by themselves, in {result.seconds:.0f} s")
    if given.picture:
        draw(single, together, given.picture)
