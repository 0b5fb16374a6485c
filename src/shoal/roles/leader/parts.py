"""The state that the parts of a leader share. Each part changes its own, and reads the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.learning.layout import Layout
from shoal.roles.leader.checkpointing import Durability
from shoal.roles.leader.evaluation import Evaluations
from shoal.roles.leader.fixed_shares import FixedShares
from shoal.roles.leader.gathering.formations import Formations
from shoal.roles.leader.gathering.private_sum import Normals, no_chance
from shoal.roles.leader.local_data import Online
from shoal.roles.leader.memory import IN_MEMORY, Memory
from shoal.roles.leader.suspicion import Suspicion
from shoal.roles.leader.training_state import TrainingState
from shoal.roles.leader.update_checks import UpdateChecks
from shoal.roles.leader.workers import Workers
from shoal.roles.machine import Machine
from shoal.wire.messages import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    spec: JobSpec
    term: int
    training: TrainingState
    checks: UpdateChecks
    workers: Workers
    formations: Formations
    evaluations: Evaluations
    durability: Durability
    suspicion: Suspicion
    shares: FixedShares
    #: Where examples are the devices' own.
    online: Online | None


def shared_parts(
    machine: Machine,
    spec: JobSpec,
    *,
    term: int,
    layout: Layout,
    model: np.ndarray,
    memory: Memory = IN_MEMORY,
    normals: Normals = no_chance,
) -> Shared:
    """Return the parts with which a leader of this job begins."""
    plan = spec.plan
    training = TrainingState(machine, spec, layout, model, memory=memory, normals=normals)
    durability, suspicion = Durability(machine), Suspicion()
    online = Online(machine, plan) if plan.data == "local" or plan.work == "sized" else None
    checks = UpdateChecks(spec=spec, layout=layout, training=training, online=online if plan.data == "local" else None)
    return Shared(
        spec=spec,
        term=term,
        training=training,
        checks=checks,
        workers=Workers(machine, job=spec.job),
        formations=Formations(
            machine, spec=spec, term=term, layout=layout, training=training, norm_max=checks.norm_max
        ),
        evaluations=Evaluations(
            machine, spec=spec, training=training, durability=durability, suspicion=suspicion, online=online
        ),
        durability=durability,
        suspicion=suspicion,
        shares=FixedShares(work=plan.work),
        online=online,
    )
