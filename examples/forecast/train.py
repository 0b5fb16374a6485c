"""Forecast a load that changes its habits, then learn the new ones: `python examples/forecast/train.py`."""

import argparse

import numpy as np
import torch
from torch import nn

import shoal

PAST_H, WEEK_H = 48, 168
TRAINED, CHANGE, WEEKS = 16, 22, 34  # weeks: the end of the first training, a heat pump comes, the end of the data
RECENT = 4  # weeks that the second training has


class Load(shoal.Task):
    plan = shoal.Plan(
        batch_size=56, lease_batches=8, inner="adamw", learning_rate=3e-3, momentum=0.0, until=shoal.epochs(12)
    )

    def __init__(self, first=0, end=TRAINED):
        """From week `first` up to week `end`; the week behind it is held out."""
        self.weeks = {"train": (first, end), "test": (end, end + 1)}

    def model(self):
        return nn.Sequential(nn.Linear(PAST_H + 4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def examples(self, split):
        return windows(*self.weeks[split])

    def loss(self, output, y):
        return nn.functional.smooth_l1_loss(output.squeeze(1), y)

    def metrics(self, model, batch):
        x, y = batch
        return {"mae": shoal.mean((model(x).squeeze(1) - y).abs().sum(), len(y))}


def load_kw():
    """Hours of a made-up house: days, weekends, weather, and from week CHANGE on a heat pump at night."""
    rng, hour = np.random.default_rng(0), np.arange(WEEKS * WEEK_H)
    day = 1 + 0.8 * np.sin((hour % 24 - 9) / 24 * 2 * np.pi) + 0.4 * (hour % WEEK_H >= 120)
    noise = rng.normal(0, 0.15, len(hour))
    weather = np.convolve(noise, np.ones(24) / 5, "same")
    pump = 1.5 * ((hour % 24 < 5) & (hour >= CHANGE * WEEK_H))
    return (day + weather + pump + noise / 2).astype(np.float32)


def windows(first, end):
    """The last two days and the time, and the load of the hour that follows."""
    load = load_kw()
    hours = np.arange(max(first * WEEK_H, PAST_H), end * WEEK_H)
    turns = 2 * np.pi * np.stack([hours / 24, hours / WEEK_H], 1)
    past = np.stack([load[hour - PAST_H : hour] for hour in hours])
    return np.concatenate([past, np.sin(turns), np.cos(turns)], 1, dtype=np.float32), load[hours]


def error_of(model, week):
    x, y = windows(week, week + 1)
    with torch.no_grad():
        return float(np.abs(model.eval()(torch.as_tensor(x)).squeeze(1).numpy() - y).mean())


def draw(errors, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, points in errors.items():
        axes.plot(points.keys(), points.values(), marker="o", markersize=4, label=name)
    axes.axvline(CHANGE, color="grey", linestyle="--", linewidth=1)
    axes.annotate("a heat pump is installed", (CHANGE, 0.02), xytext=(3, 3), textcoords="offset points")
    axes.set(xlabel="week", ylabel="mean error of a week, kW", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE", help="draw the error of each week; needs matplotlib")
    given = parser.parse_args()
    first = shoal.fit(Load(), workers=2)
    # The same task with the weeks since the change, from the model that was there.
    renewed = shoal.fit(Load(CHANGE, CHANGE + RECENT), workers=2, start=first)
    old, new = first.model(), renewed.model()
    errors = {
        "the first model": {week: error_of(old, week) for week in range(TRAINED, WEEKS)},
        "the renewed one": {week: error_of(new, week) for week in range(CHANGE + RECENT, WEEKS)},
    }
    before = np.mean([error_of(old, week) for week in range(TRAINED, CHANGE)])
    after, mended = (np.mean([error_of(each, week) for week in range(CHANGE + RECENT, WEEKS)]) for each in (old, new))
    print(f"error {before:.3f} kW before the change, {after:.3f} after it, {mended:.3f} by the renewed model")
    if given.picture:
        draw(errors, given.picture)
