"""The few figures by which the reproduction is judged, out of the rows. Pure."""

from __future__ import annotations

from typing import Any

from papers.harness.rows import Row, one

SENT = ("updates_to_target", "entries", "update_bytes", "frame_bytes", "pickled_bytes")

_PAPERS = {"asgd": "update", "adacomp-1": "parameter"}


def headline(rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Only what was measured, of the first seed: a seed moves every method, and is to be the same for all."""
    told: dict[str, Any] = {}
    for name, arrivals in (("headline", "cycles"), ("memoryless", "memoryless")):
        found = {
            method: there(one(rows.get(name, []), method=method, rule=rule, start="together", seed=0))
            for method, rule in _PAPERS.items()
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


def there(row: Row | None) -> Row | None:
    """The row, if its run got to the target."""
    return row if row and row["updates_to_target"] is not None else None


def fewer(many: Row | None, few: Row | None, what: str) -> float | None:
    """How many times as much the one sent until the target; None where one of them did not get there."""
    return float(many[what] / few[what]) if many and few else None
