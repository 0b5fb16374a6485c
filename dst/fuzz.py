"""Play a seed under every invariant and oracle. A seed that fails is played again by its number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dst.block_oracle import BlockOracle
from dst.case import FuzzCase, case
from dst.helper_oracle import HelperOracle
from dst.hub_oracle import HubOracle
from dst.joint_oracle import JointOracle
from dst.oracles import HistoryOracle
from dst.parts_oracle import PartsOracle
from dst.privacy_oracle import PrivacyOracle
from dst.run import FuzzRun
from dst.seal_oracle import SealOracle
from dst.sealed_shape_oracle import SealedShapeOracle
from dst.shelf_oracle import ShelfOracle
from dst.sum_oracle import SumOracle
from dst.tab_oracle import TabOracle
from shoal.compress.codec import Codec
from shoal.sim.invariants import Invariants, Violation
from shoal.sim.jobs import SimulatedJob
from shoal.sim.observe import Observer
from shoal.states import JobState
from shoal.wire.coded import bytes_max, sizes_of

#: A job with enough live workers moves within this time once nothing is done to it any more. Where leases have no fixed
#: time the first may have been doubled a few times before any came back, and a trainer that hangs holds it all.
BOUND_S = 150.0
LONG_BOUND_S = 1000.0

_CHECK_EVERY_S = 5.0

#: What goes with sealed words is long. It is searched for secrets in one seed of this many.
SEALS_EVERY = 8


class CheckedRun(FuzzRun):
    """A case under way, with everything watching that must hold."""

    def __init__(self, what: FuzzCase, *, observers: Sequence[Observer] = ()) -> None:
        super().__init__(what, observers=observers)
        jobs = {job.spec.job: (job.spec, _update_bytes(job)) for job in what.jobs}
        self._invariants = Invariants(jobs, budget_bytes=what.upload_budget_bytes)
        specs, sums = [job.spec for job in what.jobs], SumOracle(self.world.leader_at)
        self._history = HistoryOracle(specs, self.world.leader_at, sums)
        self.world.observers += [self._invariants, sums, self._history]
        self.world.observers += [PrivacyOracle(specs), SealOracle(specs), PartsOracle(specs, sums), SealedShapeOracle()]
        firsts = {job.spec.job: hashlib.sha256(job.model.data).digest() for job in what.jobs}
        self._joint = JointOracle(specs, firsts=firsts, searches_seals=what.seed % SEALS_EVERY == 0)
        self.world.observers += [HelperOracle(specs), self._joint]
        hubs = [f"w{number}" for number, build in enumerate(what.builds, start=1) if build.is_hub]
        tabs = [f"w{number}" for number, build in enumerate(what.builds, start=1) if build.is_browser]
        self.world.observers += [HubOracle(specs, hubs), BlockOracle(), TabOracle(specs, tabs), ShelfOracle(specs)]

    def begin(self) -> None:
        super().begin()
        self.world.kernel.after(_CHECK_EVERY_S, self._check_progress)

    def on_end(self) -> None:
        self._joint.finish()
        for job in self.what.jobs:
            self._check_end(job.spec.job)

    def _check_progress(self) -> None:
        world = self.world
        since_s = self.inflicter.quiet_since_s
        for job in self.what.jobs:
            bound_s = BOUND_S if job.spec.plan.lease_s else LONG_BOUND_S
            self._invariants.stuck(job.spec.job, max(since_s, job.submit_s), world.kernel.now_s, bound_s=bound_s)
        world.kernel.after(_CHECK_EVERY_S, self._check_progress)

    def _check_end(self, job: str) -> None:
        record, newest = self.world.disk.jobs[job], self.world.disk.newest(job)
        if newest is None:
            raise Violation(f"{job} is over and nothing of it was saved")
        if record.state is JobState.FINISHED:
            # Any of them may have led while its clock jumped.
            skew_s = sum(machine.jumped_s for machine in self.world.machines.values())
            self._history.ended(job, record.reason or "", newest.state, skew_s=skew_s)
        elif record.state is JobState.FAILED:
            self._invariants.failed_rightly(job, record.reason or "")
        elif job not in self.what.stops:
            raise Violation(f"{job} is {record.state}: {record.reason}")


def _update_bytes(job: SimulatedJob) -> int:
    """What room is kept for, for an update of this job."""
    return bytes_max(Codec.parse(job.spec.plan.codec), sizes_of(job.layout))


def fuzz(profile: str, seed: int) -> None:
    """Play a seed; raises a Violation where an invariant breaks."""
    CheckedRun(case(profile, seed)).run()
