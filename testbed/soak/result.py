"""What a soak amounts to, of all its legs together, and where results are kept."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from testbed.soak.growth import Growth, growths
from testbed.soak.journal import Journal

KEPT = Path(__file__).with_name("kept.json")

#: A process that lived less is left out, if the leg was long enough for others: its second quarter is still its start.
LIVED_AT_LEAST_S = 600.0
#: The shortest life that counts, of a leg's time with faults.
_SHARE_OF_A_LEG = 0.25


def result(journal: Journal) -> dict[str, Any]:
    legs = [journal.legs[number] for number in sorted(journal.legs)]
    kinds: Counter[str] = Counter()
    for leg in legs:
        kinds.update(leg.faults)
    grown = [
        each
        for leg in legs
        for each in growths(
            journal.samples.get(leg.number, ()), at_least_s=min(LIVED_AT_LEAST_S, _SHARE_OF_A_LEG * leg.seconds)
        )
    ]
    fattest = max(grown, key=lambda each: each.rss_percent, default=None)
    openest = max(grown, key=lambda each: each.fds, default=None)
    return {
        "hours": sum(leg.seconds for leg in legs) / 3600,
        "hours_with_two_managers": journal.seconds(2) / 3600,
        "faults": sum(kinds.values()),
        "lost": sum(leg.lost for leg in legs),
        "twice": sum(leg.twice for leg in legs),
        "goodput": _goodput(journal, 1, 2),
        "rss_growth_percent": fattest.rss_percent if fattest else None,
        "fds_growth": openest.fds if openest else None,
        "goodput_one_manager": _goodput(journal, 1),
        "goodput_two_managers": _goodput(journal, 2),
        "grew_most": {"rss": _told(fattest), "fds": _told(openest)},
        "processes_compared": len(grown),
        "longest_life_minutes": round(max((each.lived_s for each in grown), default=0.0) / 60, 1),
        "jobs_finished": sum(leg.jobs_finished for leg in legs),
        "model_matches_history": all(leg.model_matches for leg in legs),
        "faults_by_kind": dict(sorted(kinds.items())),
        "faults_missed": sum(leg.missed for leg in legs),
        "clusters": len(legs),
        "tracebacks": sorted({name for leg in legs for name in leg.tracebacks}),
        "load_median": median([load for leg in legs for load in leg.load] or [0.0]),
        "commits": sorted({leg.commit for leg in legs}),
    }


def is_sound(found: dict[str, Any]) -> bool:
    return not (found["lost"] or found["twice"]) and bool(found["model_matches_history"])


def keep(found: dict[str, Any]) -> None:
    """Add a result to those in the repository."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else []
    kept.append({"date": datetime.now(UTC).date().isoformat(), **found})
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def _goodput(journal: Journal, *managers: int) -> float | None:
    legs = [leg for leg in journal.legs.values() if leg.managers in managers]
    expected = sum(leg.expected for leg in legs)
    return sum(leg.applied for leg in legs) / expected if expected else None


def _told(each: Growth | None) -> dict[str, Any] | None:
    if each is None:
        return None
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(each).items()}
