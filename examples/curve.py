"""Metrics of a job as a picture: `python examples/curve.py JOB loss auc -o curve.png`. Needs matplotlib.

JOB is a job of the cluster in --cluster, or a file that shoal.callbacks.CSV wrote.
"""

import argparse
import csv
from pathlib import Path

from matplotlib.figure import Figure

import shoal


def rows_of(job, cluster):
    if job.endswith(".csv"):
        with open(job, newline="") as file:
            return [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    return [{**row.to_dict(), **row.measured} for row in shoal.job(job, cluster=cluster).history]


def draw(rows, names, out, title):
    """One panel a metric, by version."""
    figure = Figure(figsize=(4 * len(names), 3), layout="constrained")
    figure.suptitle(title)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        points = [(row["version"], row[name]) for row in rows if row.get(name) is not None]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3)
        axes.set(xlabel="version of the model", ylabel=name)
        axes.grid(alpha=0.3)
    figure.savefig(out, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("metrics", nargs="+")
    parser.add_argument("-o", "--out", type=Path, default=Path("curve.png"))
    parser.add_argument("--cluster", help="its home, ~/.shoal if not said")
    parser.add_argument("--title", default="")
    given = parser.parse_args()
    draw(rows_of(given.job, given.cluster), given.metrics, given.out, given.title or given.job)


if __name__ == "__main__":
    main()
