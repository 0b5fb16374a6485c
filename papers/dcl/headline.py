"""The few figures by which the reproduction is judged, out of the rows. Pure."""

from __future__ import annotations

from typing import Any

from papers.harness.rows import Row, one


def headline(rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Only what was measured."""
    told: dict[str, Any] = {}
    if away := one(rows.get("same", []), way="outer products by tasks, shuffled"):
        told["paper_mode_same_bits"] = away["same_bits"]
    if tiles := one(rows.get("same", []), way="tiles by tasks, checked"):
        told["tiles_same_bits_as_tiles_at_home"] = tiles["same_bits"]
    for name, way in (("tiles", "tiles at home"), ("masks", "masks by tasks, checked")):
        if row := one(rows.get("same", []), way=way):
            told.setdefault("largest_difference", {})[name] = row["largest_difference"]
            told.setdefault("accuracy", {})[name] = row["accuracy"]
    if ratio := one(rows.get("communication", []), role="ratio"):
        told["bytes_times_fewer"] = ratio["times_fewer"]
    if whole := one(rows.get("communication", []), role="analyst"):
        told["analyst_issued_gb"], told["analyst_returned_gb"] = whole["issued_gb"], whole["returned_gb"]
    if share := one(rows.get("analyst", []), mode="thesis"):
        told["analyst_share"], told["analyst_share_thesis"] = share["share"], share["share_thesis"]
    if slower := one(rows.get("analyst", []), mode="paper"):
        told["analyst_seconds_over_home"] = slower["over_home"]
    for row in rows.get("brute_force", []):
        told[f"log10_ages_{row['what'].replace(' ', '_')}"] = row["log10_ages"]
    for row in rows.get("secrecy", []):
        told[f"within_one_pixel_{row['against']}_{row['images']}"] = row["within_one"]
    return told
