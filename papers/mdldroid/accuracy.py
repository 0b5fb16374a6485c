"""Figure 3, Figure 12 and Table 3 on HAR: what the chain's mean, one model for all data, and NeighborSGD learn.

A device trains on its own windows and what its model moved by is its update; once an epoch the updates become one step
of the common model. All methods begin with the same weights, see the same windows in the same order, and have the same
rate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

import numpy as np

from papers.harness.rows import Row
from papers.mdldroid import lenet
from papers.mdldroid.means import any_merges, halving_weights, merged
from papers.mdldroid.setting import CREWS, EPOCHS, RATE, RESULTS
from papers.mdldroid.windows import UNEQUAL, Windows, at_random, by_person, recorded
from shoal.errors import Misuse
from testbed.results import say

SEEDS = (1, 2, 3)
#: The last looks, of which the mean is a run's accuracy: one look jumps by a point.
LOOKS = 3

#: Accuracy after each epoch, and how far the chain's mean was from a master's at most.
Run: TypeAlias = tuple[list[float], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """One run."""

    method: str
    devices: int = 9
    split: str = "people"
    #: What an update weighs: "samples", or the paper's "one".
    theta: str = "samples"
    epochs: int = EPOCHS
    #: Aggregations an epoch.
    aggregations: int = 1
    rate: float = RATE


def run(quick: bool) -> list[Row]:
    if quick:
        return [
            measured(Course(method=method, epochs=2), seeds=(1,))
            for method in ("central", "chain", "neighbour", "literal")
        ]
    runs: dict[Course, list[Run]] = {}
    rows: list[Row] = []
    began_s = time.monotonic()
    for seed in SEEDS:
        for course in courses():
            runs.setdefault(course, []).append(play(course, recorded(), seed=seed))
            rows = [row_of(each, found) for each, found in runs.items()]
            # At once: it takes long, and one seed of everything is better than three of something.
            RESULTS.write("accuracy", rows, time.monotonic() - began_s)
            say(f"   {course}: {runs[course][-1][0][-1]:.4f}")
    return rows


def courses() -> list[Course]:
    """Figure 3 first, then what it leaves open."""
    found = [Course(method="central", devices=1)]
    for devices in CREWS:
        for method in ("chain", "neighbour", "literal"):
            found.append(Course(method=method, devices=devices))
    found += [
        Course(method="chain", split="random"),
        Course(method="neighbour", split="random"),
        Course(method="neighbour, reshuffled"),
        Course(method="gossip"),
        Course(method="alone"),
        Course(method="chain", theta="one"),
        Course(method="chain", split="unequal"),
        Course(method="chain", split="unequal", theta="one"),
    ]
    return found


def measured(course: Course, *, seeds: Sequence[int]) -> Row:
    row = row_of(course, [play(course, recorded(), seed=seed) for seed in seeds])
    say(f"   {course}: {row['accuracy']:.4f}")
    return row


def row_of(course: Course, runs: Sequence[Run]) -> Row:
    curves = [curve for curve, _ in runs]
    finals = [fmean(curve[-LOOKS:]) for curve in curves]
    return {
        "method": course.method,
        "devices": course.devices,
        "split": course.split,
        "theta": course.theta,
        "epochs": course.epochs,
        "aggregations": course.aggregations,
        "rate": course.rate,
        "accuracy": fmean(finals),
        "by_seed": finals,
        "best": fmean(max(curve) for curve in curves),
        "apart": max(apart for _, apart in runs),
        "curve": [fmean(looks) for looks in zip(*curves, strict=True)],
    }


def shares(course: Course, windows: Windows, *, seed: int) -> list[np.ndarray]:
    if course.split == "random":
        return at_random(len(windows.labels), devices=course.devices, seed=seed)
    sizes = UNEQUAL if course.split == "unequal" else ()
    return by_person(windows.people, devices=course.devices, seed=seed, sizes=sizes)


def play(course: Course, windows: Windows, *, seed: int) -> Run:
    """Accuracy after each epoch; and how far the chain's mean was from a master's at most, relative to its largest."""
    model, curve, apart = lenet.begin(seed), [], 0.0
    own = shares(course, windows, seed=seed)
    if course.method == "central":
        own = [np.sort(np.concatenate(own))]
    if course.method == "alone":
        own = own[:1]
    models = [model] * len(own)
    for epoch in range(course.epochs):
        orders = [np.random.default_rng([seed, epoch, place]).permutation(part) for place, part in enumerate(own)]
        pieces = [np.array_split(order, course.aggregations) for order in orders]
        for number in range(course.aggregations):
            generator = np.random.default_rng([seed, epoch, number, 99])
            updates = [
                lenet.trained(start, windows.values, windows.labels, order=part[number], rate=course.rate) - start
                for start, part in zip(models, pieces, strict=True)
            ]
            sizes = [len(part[number]) for part in pieces]
            models, gap = together(course, models, updates, sizes, generator)
            apart = max(apart, gap)
        distinct = models if course.method == "gossip" else models[:1]
        curve.append(fmean(lenet.accuracy(one, windows.test_values, windows.test_labels) for one in distinct))
    return curve, apart


def together(
    course: Course,
    models: Sequence[np.ndarray],
    updates: Sequence[np.ndarray],
    sizes: Sequence[int],
    generator: np.random.Generator,
) -> tuple[list[np.ndarray], float]:
    """Every device's model for what comes next, and how far the chain's mean was from a master's."""
    count, apart = len(updates), 0.0
    thetas = [float(size) for size in sizes] if course.theta == "samples" else [1.0] * count
    mean = np.average(np.stack(updates), axis=0, weights=thetas)
    if course.method == "gossip":
        # Eq. 2 read as the work it cites: a device has its own model, the mean of itself and its neighbour on a ring.
        new = [start + update for start, update in zip(models, updates, strict=True)]
        return [((new[place] + new[place - 1]) / 2).astype(np.float32) for place in range(count)], apart
    if course.method in ("central", "alone"):
        step = mean
    elif course.method == "chain":
        step = merged(updates, thetas, any_merges(count, generator))
        apart = float(np.abs(step - mean).max() / np.abs(mean).max())
    elif course.method == "literal":
        step = (count - 1) * merged(updates, thetas, any_merges(count, generator))
    elif course.method.startswith("neighbour"):
        order = generator.permutation(count) if course.method.endswith("reshuffled") else np.arange(count)
        step = np.average(np.stack(updates)[order], axis=0, weights=halving_weights(count))
    else:
        raise Misuse(f"no method {course.method!r}")
    with np.errstate(over="ignore", invalid="ignore"):
        return [(models[0] + step).astype(np.float32)] * count, apart
