"""The few figures by which the reproduction is judged, out of the rows. Pure."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from papers.eddl.rows import Row, chosen

SENT = ("updates_to_target", "entries", "update_bytes", "frame_bytes", "pickled_bytes")

_PAPERS = {"asgd": "update", "adacomp-1": "parameter"}


def headline(rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Only what was measured."""
    told: dict[str, Any] = {}
    for name, arrivals in (("headline", "cycles"), ("memoryless", "memoryless")):
        found = {
            method: over_seeds(chosen(rows.get(name, []), method=method, rule=rule)) for method, rule in _PAPERS.items()
        }
        for method, row in found.items():
            if row:
                told[f"updates_{method}_{arrivals}"] = row["updates_to_target"]
        for what in SENT[1:]:
            if (times := fewer(found["asgd"], found["adacomp-1"], what)) is not None:
                told[f"{what}_times_fewer_{arrivals}"] = times
    for row in rows.get("quick", []):
        told[f"best_{row['method']}_{row['rule']}"] = row["best"]
    return told


def over_seeds(rows: list[Row]) -> Row | None:
    """The mean of what was sent to the target; None where a run did not get there, or none was made."""
    if not rows or any(row["updates_to_target"] is None for row in rows):
        return None
    return rows[0] | {what: fmean(row[what] for row in rows) for what in SENT} | {"seeds": len(rows)}


def fewer(many: Row | None, few: Row | None, what: str) -> float | None:
    """How many times as much the one sent until the target; None where one of them did not get there."""
    return float(many[what] / few[what]) if many and few else None
