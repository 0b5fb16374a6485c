"""Simulated plans side by side, and their differences seed by seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import Misuse
from shoal.learning.estimate import Estimate, paired
from shoal.sim.series import LOWER, SeedSeries


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanComparison:
    """Series side by side. ``print`` shows a table, ``draw`` a picture; ``save`` writes a file with all figures."""

    series: tuple[SeedSeries, ...]
    metric: str

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each series, with the difference to the first one, seed by seed."""
        first, found = self.series[0], []
        for each in self.series:
            is_paired = each is not first and each.setting.seeds == first.setting.seeds
            found.append(
                {
                    "name": each.name,
                    "final": Estimate.of(each.finals(self.metric)),
                    "difference": paired(each.finals(self.metric), first.finals(self.metric)) if is_paired else None,
                    "versions": each.estimate(lambda outcome: float(outcome.rounds)),
                    "seconds": each.estimate(lambda outcome: outcome.seconds),
                    "bytes_up": each.estimate(lambda outcome: float(outcome.bytes_up)),
                    "bytes_down": each.estimate(lambda outcome: float(outcome.bytes_down)),
                    "took_part": each.estimate(lambda outcome: float(outcome.took_part)),
                }
            )
        return found

    def best(self) -> SeedSeries:
        """Return the series with the best mean."""
        sign = -1.0 if self.metric in LOWER else 1.0
        return max(self.series, key=lambda each: sign * Estimate.of(each.finals(self.metric)).mean)

    def __str__(self) -> str:
        from shoal.cli.render.compared import table_text

        return table_text(self.rows(), metric=self.metric, seeds=len(self.series[0].setting.seeds))

    def draw(self, path: str | Path) -> None:
        """Write a PNG: the metric by version and by virtual time, with the interval over seeds."""
        from shoal.cli.render.compared import draw

        draw(self.series, Path(path), metric=self.metric)

    def to_plain(self) -> dict[str, Any]:
        """Return every figure, for a file."""
        rows = [
            {name: value.to_plain() if isinstance(value, Estimate) else value for name, value in row.items()}
            for row in self.rows()
        ]
        return {"metric": self.metric, "rows": rows, "series": [each.to_plain() for each in self.series]}

    def save(self, path: str | Path) -> None:
        """Write a file of JSON with every evaluation of every seed. Its hashes are over what seeds decide."""
        text = json.dumps({"shoal_study": 1, **self.to_plain()}, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")


def compare(*series: SeedSeries, metric: str = "") -> PlanComparison:
    """Put simulations side by side, by the metric of the first one or another that all have."""
    if not series:
        raise Misuse("shoal.compare takes results of shoal.simulate")
    names = [each.name for each in series]
    if len(set(names)) < len(names):
        raise Misuse(f"two of these are called alike ({', '.join(names)}): give shoal.simulate a name=")
    chosen = metric or series[0].metric
    for each in series:
        each.finals(chosen)
    return PlanComparison(series=series, metric=chosen)
