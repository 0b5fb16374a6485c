"""How many stars would a person give a film? Factors of people and films: `python examples/recommender/train.py`."""

import argparse

import numpy as np
import torch
from torch import nn

import shoal

PEOPLE, FILMS, TASTES = 400, 200, 3


class Ratings(shoal.Task):
    plan = shoal.Plan(
        **{"batch_size": 100, "lease_batches": 32, "inner": "adamw", "learning_rate": 0.02},
        **{"momentum": 0.0, "weight_decay": 0.3},
        until=shoal.epochs(10),
    )

    def model(self):
        return Factors()

    def examples(self, split):
        person, film, stars = ratings()
        held_out = np.arange(len(stars)) % 5 == 0
        chosen = held_out if split == "test" else ~held_out
        return {"person": person[chosen], "film": film[chosen], "stars": stars[chosen]}

    def step(self, model, batch, lease):
        return (model(batch) - batch["stars"]).square().mean()

    def metrics(self, model, batch):
        return {"mse": shoal.mean((model(batch) - batch["stars"]).square().sum(), len(batch["stars"]))}


class Factors(nn.Module):
    """A rating is a mean, a bias of the person and the film, and the product of their vectors."""

    def __init__(self, size=8):
        super().__init__()
        self.people, self.films = nn.Embedding(PEOPLE, size + 1), nn.Embedding(FILMS, size + 1)
        for table in (self.people, self.films):
            nn.init.normal_(table.weight, std=0.1)
        self.mean = nn.Parameter(torch.tensor(3.0))

    def forward(self, rows):
        person, film = self.people(rows["person"]), self.films(rows["film"])
        return self.mean + person[:, 0] + film[:, 0] + (person[:, 1:] * film[:, 1:]).sum(1)


def ratings():
    """Return made-up ratings of one to five stars, from tastes of people, qualities of films and noise."""
    rng = np.random.default_rng(0)
    tastes, qualities = rng.normal(size=(PEOPLE, TASTES)), rng.normal(size=(FILMS, TASTES))
    kindness, fame = rng.normal(0, 0.3, PEOPLE), rng.normal(0, 0.4, FILMS)
    pairs = rng.choice(PEOPLE * FILMS, 24_000, replace=False)
    person, film = pairs // FILMS, pairs % FILMS
    mood = rng.normal(0, 0.4, len(pairs))
    liked = 3.2 + kindness[person] + fame[film] + 0.6 * (tastes[person] * qualities[film]).sum(1) + mood
    return person, film, np.clip(np.round(liked), 1, 5).astype(np.float32)


def error_of_means():
    """The error of a prediction that is the mean rating of the film."""
    train, test = Ratings().examples("train"), Ratings().examples("test")
    count = np.bincount(train["film"], minlength=FILMS)
    mean = np.bincount(train["film"], train["stars"], FILMS) / count
    return float(np.sqrt(np.square(mean[test["film"]] - test["stars"]).mean()))


def draw(history, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(history["version"], np.sqrt(history["mse"]), marker="o", markersize=4, label="factors")
    axes.axhline(error_of_means(), color="grey", linestyle="--", label="the mean of each film")
    axes.set(xlabel="version of the model", ylabel="error of a held-out rating, stars", ylim=(0, None))
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE", help="draw the error by version; needs matplotlib")
    given = parser.parse_args()
    result = shoal.fit(Ratings(), workers=2)
    error = result.history["mse"][-1] ** 0.5
    print(f"error {error:.3f} stars, by the means of films {error_of_means():.3f}, in {result.seconds:.0f} s")
    if given.picture:
        draw(result.history, given.picture)
