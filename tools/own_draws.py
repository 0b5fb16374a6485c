"""Writes ``tab/test/own_draws.json``: the rows that Python's ``trainer.own_lease`` chooses, for a test of the package.

Each entry has what a lease is chosen from (rows held and seen, its most examples, epoch, number, seed, batch size,
passes), and the rows that are evaluated and trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal.learning.layout import Layout
from shoal.plan import Plan
from shoal.trainer.columns import Rows
from shoal.trainer.own_examples import OwnExamples
from shoal.trainer.own_lease import choose_rows
from shoal.trainer.protocol import TrainerSettings

TARGET = Path(__file__).parents[1] / "tab" / "test" / "own_draws.json"
CHOICES = 200
#: Nothing depends on it.
_MODEL = Layout.of([("weight", (1,), "parameter")])


class _Counted(OwnExamples):
    """Rows of which only the number is known."""

    def __init__(self, held: int, *, seen: int) -> None:
        super().__init__(seen=seen)
        self._held = held

    def look(self) -> int:
        return self._counted(self._held)

    def take(self, indices: np.ndarray) -> Rows:
        raise NotImplementedError


def choices(count: int) -> Iterator[dict[str, Any]]:
    rng = np.random.Generator(np.random.PCG64(7))
    for _ in range(count):
        held = int(rng.integers(1, 60))
        given = {
            "held": held,
            # A device may have dropped rows since its last lease.
            "seen": int(rng.choice([0, held, int(rng.integers(0, held + 10))])),
            "examples": int(rng.integers(1, 40)),
            "epoch": int(rng.integers(0, 5)),
            "lease": int(rng.integers(0, 100)),
            "seed": int(rng.choice([0, 7, (1 << 53) - 1])),
            "batch_size": int(rng.integers(1, 9)),
            "passes": int(rng.integers(1, 4)),
        }
        yield {**given, **_chosen(given)}


def _chosen(given: dict[str, int]) -> dict[str, Any]:
    plan = Plan(data="local", batch_size=given["batch_size"], local_epochs=given["passes"], seed=given["seed"])
    settings = TrainerSettings.of_plan(plan, bundle_dir="", entry="", arguments={}, train=(), layout=_MODEL)
    own = _Counted(given["held"], seen=given["seen"])
    chosen = choose_rows(own, settings, epoch=given["epoch"], lease=given["lease"], examples=given["examples"])
    assert chosen is not None
    return {
        "judged": [span.tolist() for span in chosen.judged],
        "parts": [part.tolist() for part in chosen.parts],
        "first_pass": chosen.first_pass,
    }


def text() -> str:
    """The file's content: one choice per line."""
    lines = (json.dumps(each, separators=(",", ":")) for each in choices(CHOICES))
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
