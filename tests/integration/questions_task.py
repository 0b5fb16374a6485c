"""Tasks that ask devices about their own examples."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

import shoal

ROWS, DEVICES = 90, 3
PARTITION = shoal.data.dirichlet(0.3, least=10)


def points(split: str) -> Any:
    """Points around three centres; a device has its part of those to train on."""
    rng = np.random.default_rng(0 if split == "train" else 1)
    labels = np.arange(ROWS) % 3
    centres = 4 * np.stack([np.cos(2.1 * labels), np.sin(2.1 * labels)], axis=1)
    rows = PARTITION.here(labels) if split == "train" else np.arange(ROWS)
    return (rng.normal(size=(ROWS, 2)) + centres)[rows].astype(np.float32), labels[rows]


class Points(shoal.Task):
    def model(self) -> nn.Module:
        return nn.Linear(2, 3)

    def examples(self, split: str) -> Any:
        return points(split)


class Labels(shoal.Tally):
    figures = {"people": (), "labels": (3,), "total": (2,)}  # noqa: RUF012

    def examples(self, split: str) -> Any:
        return points(split) if split == "train" else None

    def count(self, rows: Any) -> dict[str, Any]:
        x, y = rows
        return {"people": len(x), "labels": np.bincount(y, minlength=3), "total": x.sum(axis=0)}


class People(Labels):
    """Figures that are not longer than 58, whatever the number of a device's examples."""

    figures = {"people": (), "labels": (3,)}  # noqa: RUF012

    def count(self, rows: Any) -> dict[str, Any]:
        counted = super().count(rows)
        return {name: counted[name] for name in self.figures}
