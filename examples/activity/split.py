"""One folder a device of the public recordings: `python examples/activity/split.py RECORDINGS.npz OUT --devices 3`."""

import argparse
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", type=Path, help="arrays X, y, subject, test_subjects")
    parser.add_argument("out", type=Path)
    parser.add_argument("--devices", type=int, default=3)
    given = parser.parse_args()
    held = np.load(given.recordings)
    x, y, person = held["X"].astype(np.float32), held["y"].astype(np.int64), held["subject"]
    y -= y.min()
    is_test = np.isin(person, held["test_subjects"])
    people = np.unique(person[~is_test])
    for number in range(given.devices):
        folder = given.out / f"device-{number + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        own = np.isin(person, people[number :: given.devices])
        np.savez(folder / "train.npz", x=x[own], y=y[own])
        np.savez(folder / "test.npz", x=x[is_test], y=y[is_test])
        print(f"{folder}: {own.sum():,} windows of {len(people[number :: given.devices])} people")


if __name__ == "__main__":
    main()
