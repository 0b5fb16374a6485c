"""The few figures by which the reproduction is judged, out of the rows. Pure."""

from __future__ import annotations

from typing import Any

from papers.fleet.paper import ONLINE_OVER_DAILY
from papers.harness.rows import Row, chosen, one

#: What is aimed at: fewer steps to 80 % than DynSGD on D2, both at their own best rate.
FEWER_STEPS_MIN = 0.25

#: Rules of ours, of which the best is judged.
OURS = ("distance", "buffered", "adaptive", "calibrated", "adaptive, calibrated")


#: Rules of Figure 9, and how the headline names them.
CLASS_0 = {
    "dynsgd": "dynsgd",
    "adasgd": "printed",
    "adasgd, released": "released",
    "adasgd, deployed": "deployed",
}


def headline(rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Only what was measured."""
    told: dict[str, Any] = {}
    late = [*rows.get("late", []), *rows.get("paper_rate", [])]
    if late:
        told["steps_to_80"] = steps_to_80(late)
        told |= against_dynsgd(late)
    told |= of_tail(rows.get("long_tail", []))
    told |= of_stream(rows.get("online", []))
    return told


def steps_to_80(rows: list[Row]) -> dict[str, dict[str, dict[str, float | None]]]:
    """By how the rate was set, staleness and rule; None where 80 % was not reached."""
    told: dict[str, dict[str, dict[str, float | None]]] = {}
    for row in rows:
        if row["split"] == "shards":
            told.setdefault(row["how"], {}).setdefault(row["staleness"], {})[row["rule"]] = row["median"]
    return told


def fewer(row: Row | None, than: Row | None) -> float | None:
    """The share of steps saved."""
    if row is None or than is None or row["median"] is None or than["median"] is None:
        return None
    return 1 - float(row["median"]) / float(than["median"])


def against_dynsgd(rows: list[Row]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for staleness in ("D1", "D2"):
        for how in ("paper", "tuned"):
            where = chosen(rows, split="shards", staleness=staleness, how=how)
            for rule, name in (("adasgd", "adasgd"), ("adasgd, released", "released")):
                found = fewer(one(where, rule=rule), one(where, rule="dynsgd"))
                if found is not None:
                    told[f"{name}_fewer_steps_{staleness}_{how}"] = found
    where = chosen(rows, split="shards", staleness="D2", how="tuned")
    dynsgd = one(where, rule="dynsgd")
    gains = {row["rule"]: fewer(row, dynsgd) for row in where if row["rule"] in OURS}
    reached = {rule: gain for rule, gain in gains.items() if gain is not None}
    if reached:
        best = max(reached, key=lambda rule: reached[rule])
        told |= {
            "best_rule_D2": best,
            "best_fewer_steps_D2": reached[best],
            "best_fewer_steps_D2_reached": reached[best] >= FEWER_STEPS_MIN,
        }
    return told


def of_tail(rows: list[Row]) -> dict[str, Any]:
    """Figure 9: the accuracy of the class that only stragglers have, at the end, the median of the seeds."""
    told: dict[str, Any] = {}
    for split, ending in (("hundred", ""), ("ten", "_ten_clients")):
        for rule, name in CLASS_0.items():
            row = one(rows, rule=rule, split=split)
            if row:
                told[f"class0_{name}{ending}"] = row["class_0_final"]
    return told


def of_stream(rows: list[Row]) -> dict[str, Any]:
    """Without resets, as a job in use would run; and with the paper's resets."""
    models = chosen(rows, what="model")
    told: dict[str, Any] = {}
    for name, reset_days, value in (
        ("f1_online_over_daily", None, "f1"),
        ("f1_online_over_daily_reset", 2, "f1"),
        ("f1_online_over_daily_reset_second_day", 2, "f1_second_day"),
    ):
        hourly = one(models, pace="hourly", reset_days=reset_days)
        daily = one(models, pace="daily", reset_days=reset_days)
        if hourly and daily:
            told[name] = hourly[value] / daily[value]
    hourly = one(models, pace="hourly", reset_days=None)
    for window in ("last hour", "last day"):
        popular = one(rows, what="popular", window=window)
        if hourly and popular:
            told[f"f1_online_over_{window.replace(' ', '_')}"] = hourly["f1"] / popular["f1"]
    if "f1_online_over_daily" in told:
        told["f1_online_over_daily_reached"] = told["f1_online_over_daily"] >= ONLINE_OVER_DAILY
    return told
