"""Figure 6: what a batch takes, over the size of the cluster; how much of it is synchronisation. Simulated.

Three leaders: the paper's, which sends to all at once over a link whose two directions share the rate; the same with a
port of a switch, that carries the rate each way; and Shoal's, which sends one model after the other over such a port.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from papers.eddl.formulas import star_at_once_s
from papers.eddl.many import spread
from papers.eddl.paper import SYNC_SHARE_OF_16
from papers.eddl.setting import BATCH_S, MODEL_BYTES, RATES_MBIT, SIZES
from papers.eddl.star import Noise, Star, batch_s
from papers.harness.rows import Row
from shoal.net.shared_budget import TURN_HOLD_S
from shoal.sim.rates import mbit

QUICK_SIZES = (4, 16)
#: Workers without rounds drift apart slowly: those are watched for longer, and are never quite alike.
ROUNDS = {"sync": 8, "async": 40}
QUICK_ROUNDS = {"sync": 6, "async": 10}
NOISE = {"sync": Noise(), "async": Noise(training=0.05)}

#: Leader -> (one link for both directions, how long it sends to one before the next has a turn).
LEADERS: dict[str, tuple[bool, float]] = {
    "paper": (True, 0.0),
    "at once": (False, 0.0),
    "shoal": (False, TURN_HOLD_S),
}


def star_of(leader: str, *, workers: int, rate_mbit: float, pace: str, seed: int = 0) -> Star:
    half_duplex, hold_s = LEADERS[leader]
    return Star(
        workers=workers,
        rate_mbit=rate_mbit,
        pace=pace,
        half_duplex=half_duplex,
        turn_hold_s=hold_s,
        noise=NOISE[pace],
        seed=seed,
    )


def run(quick: bool) -> list[Row]:
    sizes = QUICK_SIZES if quick else SIZES
    cases = [(pace, rate_mbit, workers) for pace in ROUNDS for rate_mbit in RATES_MBIT for workers in sizes]
    # The large ones first: they take longest, and nobody waits for one at the end.
    ordered = sorted(cases, key=lambda case: case[2], reverse=True)
    rows = dict(zip(ordered, spread(partial(row_of, rounds=QUICK_ROUNDS if quick else ROUNDS), ordered), strict=True))
    return [rows[case] for case in cases]


def row_of(case: tuple[str, float, int], *, rounds: Mapping[str, int]) -> Row:
    pace, rate_mbit, workers = case
    row: Row = {"pace": pace, "mbit": rate_mbit, "workers": workers}
    for leader in LEADERS:
        star = star_of(leader, workers=workers, rate_mbit=rate_mbit, pace=pace)
        row[leader] = batch_s(star, rounds=rounds[pace])
    if pace == "sync":
        row["formula"] = formula_s(workers, rate_mbit)
    if workers == 16:
        row["reported_share"] = SYNC_SHARE_OF_16[rate_mbit, pace]
    return row


def formula_s(workers: int, rate_mbit: float) -> float:
    """t = l + 2nS/B (§4.3)."""
    return star_at_once_s(workers, compute_s=BATCH_S, model_bytes=MODEL_BYTES, bytes_per_s=mbit(rate_mbit))


def sync_share(batch: float) -> float:
    """The part of a batch that is not training."""
    return 1 - BATCH_S / batch
