"""Play a seed under every invariant and oracle. A seed that fails is played again by its number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dst.algorithms import AskingOracle
from dst.case import FuzzCase, case
from dst.greedy_liar import GreedyLiar
from dst.helper_oracle import HelperOracle
from dst.hub_oracle import HubOracle
from dst.joint_oracle import JointOracle
from dst.managers.invariants import ManagersInvariants
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
from shoal.sim.rng import Rng
from shoal.sim.world import HOME
from shoal.states import JobState
from shoal.wire.coded import bytes_max, sizes_of

#: A job with enough live workers moves within this time once nothing is done to it any more. Where leases have no fixed
#: time the first may have been doubled a few times before any came back, and a trainer that hangs holds it all.
BOUND_S = 150.0
LONG_BOUND_S = 1000.0

_CHECK_EVERY_S = 5.0

#: What goes with sealed words is long. It is searched for secrets in one seed of this many.
SEALS_EVERY = 8

#: Leaders lie until then, in the seeds in which they do.
LYING_S = 30.0
#: What these seeds draw, one after the other.
LYING_PROFILES = ("sealed", "sealed-words", "sealed-led", "sealed-private", "sealed-shapes", "sealed-clip", "helper")


class CheckedRun(FuzzRun):
    """A case under way, with everything watching that must hold."""

    def __init__(self, what: FuzzCase, *, observers: Sequence[Observer] = ()) -> None:
        super().__init__(what, observers=observers)
        jobs = {job.spec.job: (job.spec, _update_bytes(job)) for job in what.jobs}
        invariants = ManagersInvariants if what.has_two_managers else Invariants
        self._invariants = invariants(jobs, budget_bytes=what.upload_budget_bytes)
        specs, sums = [job.spec for job in what.jobs], SumOracle(self.world.leader_at)
        self._history = HistoryOracle(specs, self.world.leader_at, sums)
        self.world.observers += [self._invariants, sums, self._history]
        self.world.observers += [PrivacyOracle(specs), SealOracle(specs), PartsOracle(specs, sums), SealedShapeOracle()]
        self._joint = _joint_oracle(what)
        self.world.observers += [HelperOracle(specs), self._joint]
        hubs = [f"w{number}" for number, build in enumerate(what.builds, start=1) if build.is_hub]
        tabs = [f"w{number}" for number, build in enumerate(what.builds, start=1) if build.is_browser]
        self.world.observers += [HubOracle(specs, hubs), TabOracle(specs, tabs), ShelfOracle(specs)]
        self.asking = AskingOracle(specs)
        self.world.observers.append(self.asking)

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


class LyingRun(FuzzRun):
    """A case under way whose leaders lie to sealing devices, until others take over that do not. Whoever is honest must
    keep its promises, and every job must end."""

    def __init__(self, what: FuzzCase) -> None:
        specs = [job.spec for job in what.jobs]
        self.liar = GreedyLiar(specs, Rng(what.seed).stream("liar"), until_s=LYING_S)
        super().__init__(what, observers=[self.liar])
        self.joint = _joint_oracle(what)
        seals = SealOracle(specs, is_led_honestly=False)
        self.world.observers += [seals, HelperOracle(specs), self.joint]

    def begin(self) -> None:
        super().begin()
        self.world.kernel.at(LYING_S, self._replace_leaders)

    def on_end(self) -> None:
        self.joint.finish()

    def _replace_leaders(self) -> None:
        """Start every node again that leads a job: whoever leads then knows nothing of the lies."""
        world = self.world
        for node in (HOME, *sorted(world.agents)):
            if any(world.leader_at(node, job.spec.job) is not None for job in self.what.jobs):
                world.power_off(node)
                world.kernel.after(1.0, world.start, node)


def _joint_oracle(what: FuzzCase) -> JointOracle:
    firsts = {job.spec.job: hashlib.sha256(job.model.data).digest() for job in what.jobs}
    specs = [job.spec for job in what.jobs]
    return JointOracle(specs, firsts=firsts, searches_seals=what.seed % SEALS_EVERY == 0)


def _update_bytes(job: SimulatedJob) -> int:
    """What room is kept for, for an update of this job."""
    return bytes_max(Codec.parse(job.spec.plan.codec), sizes_of(job.layout))


def fuzz(profile: str, seed: int) -> None:
    """Play a seed; raises a Violation where an invariant breaks."""
    CheckedRun(case(profile, seed)).run()


def fuzz_lying(seed: int) -> None:
    """Play a seed in which leaders lie; raises a Violation where an invariant breaks."""
    LyingRun(case(LYING_PROFILES[seed % len(LYING_PROFILES)], seed)).run()
