"""Whether a job has become worse than it was, from its evaluations only. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli.render.format import share_text
from shoal.learning.significance import at_least, explained_gap
from shoal.roles.manager.publishing import is_sound

if TYPE_CHECKING:
    from shoal.wire.messages import EvaluationView


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """The latest evaluation is worse than the best by more than chance explains."""

    latest: EvaluationView
    best: EvaluationView

    def __str__(self) -> str:
        lately, once = share_text(self.latest.accuracy, 1), share_text(self.best.accuracy, 1)
        return f"drift: {lately} lately, {once} at its best (epoch {self.best.epoch:,})"


def drift_of(evaluations: Sequence[EvaluationView]) -> Drift | None:
    """Return the drift in evaluations, oldest first, or None if there is none or too little data. It uses only
    accuracies: the random spread of other metrics is unknown."""
    views = [(view.accuracy, view) for view in evaluations if is_sound(view) and view.accuracy is not None]
    if len(views) < 2:
        return None
    *before, (share, latest) = views
    # A lucky score over few examples is not what a job was at its best.
    best_share, best = max(before, key=lambda pair: at_least(pair[0], pair[1].examples))
    by_chance = explained_gap(best_share, best.examples, share, latest.examples, picked_from=len(before))
    return Drift(latest=latest, best=best) if best_share - share > by_chance else None
