"""Simulated plans side by side, and their differences seed by seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import Misuse
from shoal.learning.estimate import Estimate, paired
from shoal.sim.series import SeedSeries


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanComparison:
    """Series side by side. ``print`` shows a table, ``draw`` a picture; ``save`` writes a file with all figures."""

    series: tuple[SeedSeries, ...]
    metric: str

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each series, with the difference to the first one, seed by seed. ``lacking`` are the seeds
        that are in neither, with the reason."""
        found = []
        for each in self.series:
            found.append(
                {
                    "name": each.name,
                    "final": each.final(self.metric),
                    "difference": self._difference(each),
                    "lacking": each.lacking(self.metric),
                    "versions": each.estimate(lambda outcome: float(outcome.rounds)),
                    "seconds": each.estimate(lambda outcome: outcome.seconds),
                    "bytes_up": each.estimate(lambda outcome: float(outcome.bytes_up)),
                    "bytes_down": each.estimate(lambda outcome: float(outcome.bytes_down)),
                    "took_part": each.estimate(lambda outcome: float(outcome.took_part)),
                }
            )
        return found

    def _difference(self, other: SeedSeries) -> Estimate | None:
        """Return the difference to the first series, over the seeds that have a result in both."""
        first = self.series[0]
        if other is first or other.setting.seeds != first.setting.seeds:
            return None
        pairs = zip(other.finals(self.metric), first.finals(self.metric), strict=True)
        both = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
        return paired([ours for ours, _ in both], [theirs for _, theirs in both]) if both else None

    def best(self) -> SeedSeries:
        """Return the series with the best mean, of those with a result for the most seeds."""
        sign = -1.0 if any(each.is_lower_better(self.metric) for each in self.series) else 1.0

        def merit(each: SeedSeries) -> tuple[int, float]:
            final = each.final(self.metric)
            return -len(each.lacking(self.metric)), sign * final.mean if final is not None else 0.0

        return max(self.series, key=merit)

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
    """Put simulations side by side, by the metric of the first one that was evaluated, or another."""
    if not series:
        raise Misuse("shoal.compare takes results of shoal.simulate")
    names = [each.name for each in series]
    if len(set(names)) < len(names):
        raise Misuse(f"two of these are called alike ({', '.join(names)}): give shoal.simulate a name=")
    evaluated = [each for each in series if any(outcome.evaluations for outcome in each.outcomes)]
    chosen = metric or (evaluated or series)[0].metric
    if evaluated and not any(each.has(chosen) for each in evaluated):
        known = sorted({name for each in evaluated for outcome in each.outcomes for name in outcome.metrics})
        raise Misuse(f"no evaluation has the metric {chosen!r}; there are: {', '.join(known)}")
    return PlanComparison(series=series, metric=chosen)
