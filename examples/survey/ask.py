"""How long do people sleep? A survey whose organiser sees sums only: `python examples/survey/ask.py`."""

import argparse

import numpy as np

import shoal

DEVICES, PEOPLE = 8, 125
HOURS = (3, 12)


class Sleep(shoal.Tally):
    figures = {"people": (), "hours": (), "nights": (HOURS[1] - HOURS[0],)}

    def examples(self, split):
        """The answers on this device. Yours would read a file in `shoal.data.local_folder()`."""
        return {"slept": slept(shoal.data.part()[0])} if split == "train" else None

    def count(self, rows):
        hours = rows["slept"]
        nights = np.histogram(hours, bins=HOURS[1] - HOURS[0], range=HOURS)[0]
        return {"people": len(hours), "hours": hours.sum(), "nights": nights}


def slept(device):
    """Made-up answers of the people at a device; those at the last two work at night."""
    mean = 5.8 if device >= DEVICES - 2 else 7.4
    return np.clip(np.random.default_rng(device).normal(mean, 1.1, PEOPLE), *HOURS)


def draw(answers, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.bar(np.arange(*HOURS) + 0.5, answers["nights"], width=0.95, color="teal")
    axes.set(xlabel="hours of sleep", ylabel=f"people at {DEVICES} devices")
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE", help="draw the sums; needs matplotlib")
    given = parser.parse_args()
    answers = shoal.tally(Sleep(), devices=DEVICES, plan={"trust": "sealed"}).figures
    print(f"{answers['people']:.0f} people sleep {answers['hours'] / answers['people']:.2f} hours on average")
    if given.picture:
        draw(answers, given.picture)
