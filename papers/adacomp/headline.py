"""The few figures by which the reproduction is judged, out of the rows. Pure."""

from __future__ import annotations

from typing import Any

from papers.eddl.rows import Row, one

_PAPERS = {"asgd": "update", "adacomp-1": "parameter"}


def headline(rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Only what was measured."""
    told: dict[str, Any] = {}
    for name, arrivals in (("headline", "cycles"), ("memoryless", "memoryless")):
        found = {method: one(rows.get(name, []), method=method, rule=rule) for method, rule in _PAPERS.items()}
        for method, row in found.items():
            if row and row["updates_to_target"]:
                told[f"updates_{method}_{arrivals}"] = row["updates_to_target"]
        for what in ("entries", "update_bytes", "pickled_bytes"):
            if (times := fewer(found["asgd"], found["adacomp-1"], what)) is not None:
                told[f"{what}_times_fewer_{arrivals}"] = times
    for row in rows.get("quick", []):
        told[f"best_{row['method']}_{row['rule']}"] = row["best"]
    return told


def fewer(many: Row | None, few: Row | None, what: str) -> float | None:
    """How many times as much the one sent until the target; None where one of them did not get there."""
    if not many or not few or many[what] is None or few[what] is None:
        return None
    return float(many[what] / few[what])
