"""Figures 8 to 10: what 10, 20 and 30 epochs take, and whether 30 asynchronous ones beat 20 synchronous. Simulated.

An epoch is 52 batches, so that its last round may be smaller; epochs are alike, so that one is played and multiplied.
"""

from __future__ import annotations

from papers.eddl.batch_time import star_of
from papers.eddl.many import spread
from papers.eddl.setting import EPOCH_BATCHES, EPOCHS, RATES_MBIT, SIZES
from papers.eddl.star import epoch_s
from papers.harness.rows import Row, one

QUICK_SIZES = (4, 8)


def run(quick: bool) -> list[Row]:
    sizes = QUICK_SIZES if quick else SIZES
    cases = [(pace, rate_mbit, workers) for rate_mbit in RATES_MBIT for workers in sizes for pace in ("sync", "async")]
    return spread(row_of, cases)


def row_of(case: tuple[str, float, int]) -> Row:
    pace, rate_mbit, workers = case
    row: Row = {"pace": pace, "mbit": rate_mbit, "workers": workers}
    for leader in ("paper", "shoal"):
        star = star_of(leader, workers=workers, rate_mbit=rate_mbit, pace=pace)
        row[leader] = epoch_s(star, batches=EPOCH_BATCHES)
    return row


def training_s(rows: list[Row], leader: str, *, epochs: int, **wanted: object) -> float | None:
    row = one(rows, **wanted)
    return None if row is None else epochs * float(row[leader])


def ratio(rows: list[Row], leader: str, *, workers: int, mbit: float) -> float | None:
    """ASYNC-30 over SYNC-20: at the same accuracy, says the paper, so that above 1 the rounds win (Figure 10)."""
    late = training_s(rows, leader, epochs=EPOCHS[2], workers=workers, mbit=mbit, pace="async")
    soon = training_s(rows, leader, epochs=EPOCHS[1], workers=workers, mbit=mbit, pace="sync")
    return None if late is None or soon is None else late / soon
