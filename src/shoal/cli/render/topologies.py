"""Where the updates of a job are summed, as text: which topology, what a batch was predicted to take, what it takes.
Pure.

Knows a Progress and a Plan; draws nothing and asks nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.render.format import clean, lease_text

if TYPE_CHECKING:
    from shoal.plan import Plan
    from shoal.wire.messages import Progress, TopologyView

_TOPOLOGY_CHARS = 60


def kind_of(topology: str) -> str:
    """``shard over 16 of 16 workers`` -> ``shard``."""
    return topology.split(" ", 1)[0]


def predicted_s(progress: Progress) -> float:
    """Return the predicted seconds per batch for the present topology and pace, or 0 without a prediction."""
    kind = kind_of(progress.topology)
    if progress.pace not in ("", "sync"):
        # The leader's own figure is of a round in which everyone waits for everyone.
        views = [view for view in progress.alternatives if (view.topology, view.pace) == (kind, progress.pace)]
        return views[0].batch_s if views else 0.0
    chosen = chosen_of(progress)
    return progress.predicted_s if chosen is None or chosen.topology == kind else 0.0


def chosen_of(progress: Progress) -> TopologyView | None:
    """Return the chosen alternative, in force or not yet, or None if there was no choice."""
    paced = [view for view in progress.alternatives if view.pace != "sync" and view.pace == progress.pace]
    return next((view for view in (*paced, *progress.alternatives) if view.chosen or view in paced), None)


def topology_text(progress: Progress, plan: Plan) -> str:
    """Return the topology in one line: ``shard over 16 of 16 workers, 1.47 s per batch (1.45 s predicted)``."""
    told = clean(progress.topology, _TOPOLOGY_CHARS)
    if progress.pace not in ("", "sync"):
        told += f", {clean(progress.pace, 20)}"
    measured = f"{lease_text(progress.round_s)} per batch" if progress.round_s > 0 else ""
    if expected_s := predicted_s(progress):
        return f"{told}, {measured or 'not measured yet'} ({lease_text(expected_s)} predicted)"
    if measured:
        told += f", {measured}"
    if "auto" in (plan.topology, plan.pace) and not progress.alternatives:
        told += "; auto has not chosen yet"
    return told


def off_by(progress: Progress) -> float | None:
    """Return the excess of a batch's time over the prediction, as a share of it, or None if one is unknown."""
    expected_s = predicted_s(progress)
    return progress.round_s / expected_s - 1 if expected_s > 0 and progress.round_s > 0 else None
