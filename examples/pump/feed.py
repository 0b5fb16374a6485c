"""Recordings that keep coming: `python examples/pump/feed.py hapt_windows_9ch_128.npz OUT`.

The public recordings of a phone in a pocket (UCI HAPT) stand for a machine's vibration sensor: nine channels, 50 times
a second. Walking is the machine as it should run, stairs are faults. Each device gets a new .npy file every few
seconds, of people of its own; OUT/held_out.npz has windows of other people, with the truth.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np

RUNNING, FAULTS = 1, (2, 3)  # walking; upstairs and downstairs
WINDOWS_A_FILE = 8


def devices_of(source, devices):
    """For each device the files that it will have, in order; and the held-out windows with their truth."""
    held = np.load(source)
    x, y, person = held["X"].astype(np.float32).transpose(0, 2, 1), held["y"], held["subject"]
    is_test = np.isin(person, held["test_subjects"])
    people = np.unique(person[~is_test])
    files = []
    for number in range(devices):
        own = x[np.isin(person, people[number::devices]) & (y == RUNNING)]
        files.append([own[at : at + WINDOWS_A_FILE] for at in range(0, len(own) - WINDOWS_A_FILE, WINDOWS_A_FILE)])
    judged = np.flatnonzero(is_test & np.isin(y, (RUNNING, *FAULTS)))[::4]
    return files, {"x": x[judged], "fault": np.isin(y[judged], FAULTS)}


def write(folder, number, windows):
    """A recording: moments by channels. It is whole when it gets its name, because it may be read at any moment."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / "draft.tmp"
    with draft.open("wb") as file:
        np.save(file, windows.reshape(-1, windows.shape[-1]))
    os.replace(draft, folder / f"recording-{number:05}.npy")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--first", type=int, default=4, help="files that a device has at once")
    parser.add_argument("--every", type=float, default=1.0, help="seconds to the next file")
    given = parser.parse_args()
    files, held_out = devices_of(given.source, given.devices)
    given.out.mkdir(parents=True, exist_ok=True)
    np.savez(given.out / "held_out.npz", **held_out)
    for number in range(max(map(len, files))):
        if number >= given.first:
            time.sleep(given.every)
        for device, own in enumerate(files):
            if number < len(own):
                write(given.out / f"device-{device + 1}", number, own[number])
    print(f"{given.out}: all recordings are there")


if __name__ == "__main__":
    main()
