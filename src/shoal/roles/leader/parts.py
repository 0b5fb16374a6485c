"""The state that the parts of a leader share. Each part changes its own, and reads the rest."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.roles.leader.checkpointing import Durability
from shoal.roles.leader.evaluation import Evaluations
from shoal.roles.leader.fixed_shares import FixedShares
from shoal.roles.leader.gathering.formations import Formations
from shoal.roles.leader.local_data import Online
from shoal.roles.leader.suspicion import Suspicion
from shoal.roles.leader.training_state import TrainingState
from shoal.roles.leader.workers import Workers
from shoal.wire.messages import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    spec: JobSpec
    term: int
    training: TrainingState
    workers: Workers
    formations: Formations
    evaluations: Evaluations
    durability: Durability
    suspicion: Suspicion
    shares: FixedShares
    #: Where examples are the devices' own.
    online: Online | None
