"""The few figures by which the reproduction is judged, out of the rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from papers.harness.rows import Row, chosen, one
from papers.mdldroid.speed import summed

#: What the paper has: up to nine phones.
PAPER_SIZES = range(3, 10)


def headline(rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Only what was measured."""
    told: dict[str, Any] = {}
    if found := rows.get("accuracy"):
        told["accuracy"] = accuracies(found)
    if found := rows.get("schedulers"):
        told |= of_schedulers(found)
    if found := [*rows.get("explore", []), *rows.get("offset", [])]:
        told["explore"] = explored(found)
    if found := rows.get("memory"):
        told["peak_memory_mb"] = peaks(found)
    return told | summed(rows.get("speed", []))


def accuracies(rows: list[Row]) -> dict[str, dict[str, float]]:
    """By method and number of devices, whole people to each, θ the number of samples."""
    told: dict[str, dict[str, float]] = {}
    for row in chosen(rows, split="people", theta="samples"):
        told.setdefault(row["method"], {})[str(row["devices"])] = row["accuracy"]
    return told


def change(rows: list[Row], key: str, scheduler: str, other: str, sizes: Iterable[int] | None = None) -> float | None:
    """How much less, as a share, one scheduler has than another: the mean over the numbers of devices."""
    found = []
    for size in sizes if sizes is not None else sorted({row["devices"] for row in rows}):
        mine, theirs = (one(rows, devices=size, scheduler=name) for name in (scheduler, other))
        if mine and theirs and mine.get(key) is not None and theirs.get(key):
            found.append(mine[key] / theirs[key] - 1)
    return fmean(found) if found else None


def of_schedulers(rows: list[Row]) -> dict[str, Any]:
    agent = chosen(rows, scheduler="dqn")
    return {
        "makespan_vs_tree": change(rows, "makespan", "ours", "tree, in step"),
        "makespan_vs_ring": change(rows, "makespan", "ours", "ring"),
        "latency_vs_tree": change(rows, "latency_ideal", "ours", "tree, in step"),
        "latency_vs_ring": change(rows, "latency_ideal", "ours", "ring"),
        "variance_vs_tree": change(rows, "variance_rounds", "ours", "tree, in step"),
        "variance_vs_tree_one_round": change(rows, "variance_round", "ours", "tree, in step"),
        "dqn_over_exact": fmean(row["over_optimum"] for row in agent) if agent else None,
        "dqn_over_exact_by_devices": {str(row["devices"]): row["over_optimum"] for row in agent},
        "dqn_learning_s": {str(row["devices"]): row["learning_s"] for row in agent},
        "patterns": sum(row["patterns"] for row in chosen(rows, scheduler="ours")),
    }


def explored(rows: list[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """By threshold and strategy: games and seconds as so many times those of TDGE, the mean over numbers of devices."""
    told: dict[str, dict[str, dict[str, float]]] = {}
    for bar in dict.fromkeys(row["bar"] for row in rows):
        for name in dict.fromkeys(row["strategy"] for row in rows):
            ratios: dict[str, list[float]] = {"games": [], "seconds": []}
            for row in chosen(rows, bar=bar, strategy=name):
                base = one(rows, bar=bar, strategy="TDGE", devices=row["devices"])
                for key, found in ratios.items():
                    if base and base[key]:
                        found.append(row[key] / base[key])
            told.setdefault(bar, {})[name] = {f"{key}_vs_TDGE": fmean(found) for key, found in ratios.items() if found}
    return told


def peaks(rows: list[Row]) -> dict[str, dict[str, float]]:
    told: dict[str, dict[str, float]] = {}
    for row in rows:
        told.setdefault(row["how"], {})[str(row["devices"])] = row["peak_mb"]
    return told
