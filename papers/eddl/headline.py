"""The few figures by which the reproduction is judged, out of the rows. Pure."""

from __future__ import annotations

from typing import Any

from papers.eddl.batch_time import sync_share
from papers.harness.rows import Row, chosen, one

#: What is aimed at.
FALSE_ALARMS_MAX = 0.05
LENT_RATIO_MAX = 0.6


def headline(rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Only what was measured."""
    told: dict[str, Any] = {}
    for row in chosen(rows.get("batch_time", []), workers=16):
        told[f"sync_share_{row['pace']}_{row['mbit']:g}"] = round(sync_share(row["paper"]), 3)
    judged = chosen(rows.get("saturated", []), rule="confidence")
    if judged:
        told["false_alarms"] = sum(row["false_alarms"] * row["runs"] for row in judged) / sum(r["runs"] for r in judged)
        told["false_alarms_within_5_percent"] = told["false_alarms"] <= FALSE_ALARMS_MAX
        told["knees"] = {f"{row['pace']}_{row['mbit']:g}": [row["knee"], row["size_median"]] for row in judged}
    lent = one(rows.get("stragglers", []), leader="shoal", mbit=1000.0, pace="async", stragglers=2)
    if lent:
        told["lent_ratio"] = lent["ratio"]
        told["lent_ratio_within_0_6"] = lent["ratio"] <= LENT_RATIO_MAX
    real = [row for row in rows.get("testbed", []) if "ratio" in row]
    if real:
        told["real_over_simulated"] = {f"{row['pace']}_{row['workers']}": round(row["ratio"], 3) for row in real}
    return told
