"""How a job stands, as its leader tells the manager. Reads the leader's parts and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.roles.leader.gathering.policy import TopologyPolicy
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.round_stats import RoundStats
from shoal.wire.messages import Progress, clip


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What the leader itself knows."""

    state: str
    reason: str
    version: int
    refused: int
    bytes_up: int
    bytes_down: int
    pace: str
    #: How long a lease usually takes.
    typical_s: float
    #: What devices of a private job have spent, by the fields of ``Progress``.
    spent: Mapping[str, Any]


def progress_of(shared: Shared, standing: Standing, *, stats: RoundStats, policy: TopologyPolicy) -> Progress:
    training, durability, formations = shared.training, shared.durability, shared.formations
    latest = training.latest
    rounds_per_s, examples_per_s = training.rates()
    unsaved, of_term = durability.unsaved, durability.of_term
    return Progress(
        job=shared.spec.job,
        term=shared.term,
        state=standing.state,
        reason=clip(standing.reason),
        version=standing.version,
        durable_version=max(0, durability.version),
        epoch=training.ledger.epoch,
        batches_applied=training.ledger.applied,
        batches_total=training.ledger.batches,
        accuracy=latest.accuracy if latest else None,
        loss=latest.loss if latest else None,
        metrics=latest.metrics if latest else (),
        train_loss=training.train_loss,
        rounds_per_s=rounds_per_s,
        examples_per_s=examples_per_s,
        bytes_up=standing.bytes_up,
        bytes_down=standing.bytes_down,
        seconds=training.elapsed_s,
        refused=standing.refused,
        workers=shared.workers.views(training.weighed_down, typical_s=standing.typical_s),
        staleness=training.lateness.typical,
        staleness_max=training.lateness.worst,
        saturation=stats.verdict,
        saturation_reason=stats.reason,
        saturated_at=stats.saturated_at,
        round_s=stats.round_s,
        sync_s=stats.sync_s,
        topology=formations.notation,
        topology_reason=clip(formations.reason or ""),
        pace=standing.pace,
        predicted_s=policy.predicted_s,
        alternatives=policy.views,
        unsaved_batches=unsaved.batches,
        unsaved_workers=unsaved.workers,
        term_batches=of_term.batches,
        term_workers=of_term.workers,
        took_part=len(training.took_part),
        **standing.spent,
    )
