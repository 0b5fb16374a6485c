"""One run of the simulator, with a job, devices and faults, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.errors import Misuse
from shoal.roles.node.failure_detector import Patience
from shoal.sim.cohort import why_not
from shoal.sim.faults import Fault
from shoal.sim.fleet_file import FleetFile
from shoal.sim.inflict import Inflicter
from shoal.sim.invariants import Invariants
from shoal.sim.jobs import SimulatedJob
from shoal.sim.metrics import Metrics, drawn
from shoal.sim.observe import Observer
from shoal.sim.outcome import Outcome
from shoal.sim.profiles import Fleet, home_line
from shoal.sim.rng import Rng
from shoal.sim.world import Settings, World
from shoal.wire.limits import COME_MOST_S
from shoal.wire.messages import Progress

#: When to end a simulation, even if the job is not over.
LIMIT_S = 30 * 86400.0

#: The time within which devices start, longer for many: nobody switches a thousand on at once.
ARRIVE_S = 2.0
ARRIVE_S_PER_DEVICE = 0.01

#: From this many devices on, heartbeats are rarer: one in ten seconds.
FLEET = 500
FLEET_PATIENCE = Patience(heartbeat_s=10.0, suspect_after_s=30.0, lost_after_s=60.0, reconnect_s=15.0)

#: From this many devices on, those for which nothing has to be decided are rows of a cohort, if the plan allows it. In
#: such a fleet, devices without work do not stay connected: they come again after this time.
COHORT_FROM = 20_000
CHECK_IN_S = 6 * 3600.0

_EVENTS_BETWEEN_LOOKS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    job: SimulatedJob
    devices: int
    profile: str | FleetFile
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    limit_s: float = LIMIT_S
    cohort_from: int = COHORT_FROM

    @property
    def is_cohort(self) -> bool:
        return self.devices >= self.cohort_from and why_not(self.job) is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Glance:
    """The state of a running simulation."""

    #: The virtual time.
    at_s: float
    events: int
    #: The last report of the job's leader, if there was one.
    progress: Progress | None


def simulate(
    study: Study,
    *,
    observers: Sequence[Observer] = (),
    look: Callable[[Glance], object] = lambda glance: None,
    look_every_s: float = 0.2,
) -> Outcome:
    """Run a simulation to the end of the job. Checks every invariant of the protocol on the way."""
    job = study.job
    if job.local is not None and job.local.devices != study.devices:
        raise Misuse(f"the examples are divided among {job.local.devices} devices, and {study.devices} are simulated")
    rng = Rng(study.seed)
    settings = Settings(
        seed=study.seed,
        builds=Fleet(study.profile, study.devices, rng),
        home_line=home_line(study.profile),
        jobs=[job],
        patience=Patience() if study.devices < FLEET else FLEET_PATIENCE,
        arrive_within_s=ARRIVE_S + ARRIVE_S_PER_DEVICE * study.devices,
        check_in_s=CHECK_IN_S if study.is_cohort else 0.0,
        is_cohort=study.is_cohort,
        watched=drawn(study.devices) if study.is_cohort else (),
    )
    name = job.spec.job
    metrics = Metrics(study.devices)
    world = World(settings)
    inflicter = Inflicter(world, study.faults)
    # A task's code may make updates that are refused, which is not the protocol's fault.
    invariants = Invariants({name: (job.spec, job.model.nbytes)}, is_honest=False, comes_within_s=COME_MOST_S)
    world.observers += [*observers, metrics, inflicter, invariants]
    inflicter.begin()
    world.begin()
    next_look_s = 0.0
    while not world.run(limit_s=study.limit_s, events_max=_EVENTS_BETWEEN_LOOKS):
        if world.kernel.next_s > study.limit_s:
            break
        metrics.count(world)
        now_s = time.monotonic()
        if now_s >= next_look_s:
            next_look_s = now_s + look_every_s
            look(_glance(world, name))
    metrics.count(world)
    look(_glance(world, name))
    return metrics.outcome(world, name)


def _glance(world: World, job: str) -> Glance:
    views = world.home.manager.job_views(job) if world.home is not None else ()
    progress = views[0].progress if views else None
    return Glance(at_s=world.kernel.now_s, events=world.kernel.handled, progress=progress)
