"""One seeded disaster: a small cluster with a plan, devices and faults drawn from a seed, and every invariant watching.

For those who hunt bugs in the protocol: ten thousand of these run in minutes, and one that fails is played again by its
number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.compress.codec import Codec
from shoal.plan import STALENESS, Plan, Until
from shoal.roles.actions import Action, End, Record, Save, Send, Store
from shoal.roles.events import Received
from shoal.sim.audit import Audit
from shoal.sim.chance import Chance, Stream
from shoal.sim.devices import Build
from shoal.sim.disk import FATES
from shoal.sim.fault_draw import draw
from shoal.sim.faults import (
    ALL,
    LEADER,
    NEVER,
    Apart,
    AtRound,
    AtSecond,
    Crash,
    Cut,
    Deaf,
    Disk,
    Duplicate,
    Fault,
    Leave,
    Mute,
    Partition,
    Restart,
    Slow,
    SlowLink,
    Stop,
    Transfer,
    When,
    Who,
    resolve,
    worker,
)
from shoal.sim.faults import (
    HOME as MANAGER,
)
from shoal.sim.inflict import Inflicter
from shoal.sim.invariants import Invariants, Violation
from shoal.sim.jobs import SimulatedJob, bare_spec
from shoal.sim.network import Line
from shoal.sim.observe import Mark, Observer, Step
from shoal.sim.parcels import Encoded
from shoal.sim.rates import Steady
from shoal.sim.sums import Sums
from shoal.sim.toy import FIRST_MODEL, LAYOUT, Toy
from shoal.sim.waylay import Plot, Waylay, plot
from shoal.sim.world import HOME, Settings, World
from shoal.states import JobState
from shoal.wire.coded import bytes_max, sizes_of
from shoal.wire.limits import UPLOAD_BUDGET_BYTES
from shoal.wire.messages import Assign, JobSpec

#: Faults begin within this time; then everyone is left in peace.
FAULTS_UNTIL_S = 30.0

#: By then every job is over: the faults, the longest lease, and many rounds.
LIMIT_S = 4000.0

#: A job with enough live workers moves within this time once nothing is done to it any more. Where leases have no fixed
#: time the first may have been doubled a few times before any came back, and a trainer that hangs holds it all.
BOUND_S = 150.0
LONG_BOUND_S = 1000.0

#: So many events within this time are a storm: somebody says the same again and again, and time hardly passes. The
#: busiest cases have half as many. How many a case has in all says nothing: one that is long and calm has more.
STORM_EVENTS = 10_000
STORM_S = 20.0

#: Once a job is over its workers are free within this time.
FREE_WITHIN_S = 90.0

#: Decisions of a leader after which a strike is worth a try.
_AMBUSHES = (
    "started",
    "resumed",
    "joined",
    "epoch",
    "evaluated",
    "ending",
    "expired",
    "lost",
    "refused",
    "failed",
    "handed-over",
    # No records: a version is to be kept, and that it is done.
    "save",
    "end",
)

#: The same of the manager: it begins to store a leader's version, and it tells a worker where its job is led.
_OF_THE_MANAGER = ("store", "told")

#: What the manager's disk may take to make a small write durable: an SSD, or a bad SD card that others use too. The
#: longest is longer than it takes to miss a leader.
_SYNCS_S = (0.01, 0.2, 1.0, 2.5)

_CHECK_EVERY_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Disaster:
    """What a seed stands for."""

    seed: int
    jobs: tuple[SimulatedJob, ...]
    builds: tuple[Build, ...]
    faults: tuple[Fault, ...]
    has_flaws: bool
    upload_budget_bytes: int
    #: Job -> when its operator stops it.
    stops: dict[str, float]
    #: What a leader or the manager decides when a node loses its power a moment later; empty: none does.
    ambush: str
    #: Which: ``home``, ``leader``, ``both``. Or connections break: ``line``, between these two; ``lines``, of everyone.
    #: Or the manager's ``disk`` is full for a while.
    ambushed: str
    #: Devices lead.
    prefers_devices: bool
    disk_sync_s: float
    #: When and how the devices of a formation are struck.
    plots: tuple[Plot, ...] = ()

    @property
    def shape(self) -> str:
        """Of its jobs: ``star`` if all are."""
        shapes = [job.spec.plan.shape for job in self.jobs]
        return next((shape for shape in shapes if shape != "star"), "star")


def disaster(seed: int, *, has_cuts: bool = True) -> Disaster:
    """The cluster and the schedule of a seed; without cuts of the manager's cable, as it was before there were any."""
    stream = Chance(seed).stream("disaster")
    names = ("pace", "shape", "work", "codec", "owner")
    paces, shapes, works, codecs, owners = (Chance(seed).stream(name) for name in names)
    specs = [_spec(stream, paces, f"job-{number}") for number in range(1 + stream.happens(0.3))]
    specs = [replace(spec, plan=replace(spec.plan, work=_work(works))) for spec in _shaped(specs, shapes)]
    specs = [replace(spec, plan=_coded(spec.plan, codecs)) for spec in specs]
    specs = [replace(spec, plan=_owned(spec.plan, owners)) for spec in specs]
    least = sum(spec.plan.workers_min for spec in specs)
    workers = max(3, min(8, least + 1 + stream.below(4)))
    is_shaped = any(spec.plan.shape != "star" for spec in specs)
    if is_shaped:
        # A formation needs some to be worth anything.
        workers = min(9, workers + 1 + shapes.below(3))
    faults = draw(stream, workers=workers, until_s=FAULTS_UNTIL_S, count=stream.below(13))
    faults += _copies_across_terms(stream) + _for_long(stream, workers)
    faults += _for_good(stream, workers, spare=workers - least)
    prefers_devices = stream.happens(0.5)
    faults += _of_leaders(stream, workers, prefers_devices=prefers_devices)
    # From a stream of their own: a seed without one is what it was before there were any.
    if has_cuts:
        faults += _cuts(Chance(seed).stream("cuts"), workers, prefers_devices=prefers_devices)
    ambush, ambushed = _ambush(stream, prefers_devices=prefers_devices)
    plots: tuple[Plot, ...] = ()
    if is_shaped:
        faults += _of_formations(shapes, workers)
        plots = tuple(plot(shapes) for _ in range(shapes.below(3)))
    is_tight = is_shaped and shapes.happens(0.6)
    if ambush == "handed-over":
        faults += (Transfer(who=LEADER, at=AtRound(1 + stream.below(6))),)
    return Disaster(
        seed=seed,
        jobs=tuple(_job(spec, stream) for spec in specs),
        builds=tuple(_build(stream) for _ in range(workers)),
        faults=faults,
        has_flaws=stream.happens(0.5),
        # Room for two uploads in one case of three, so that updates are offered and queue; more often where they may
        # all come at once, when a formation breaks.
        upload_budget_bytes=2 * FIRST_MODEL.nbytes if stream.happens(1 / 3) or is_tight else UPLOAD_BUDGET_BYTES,
        stops={specs[0].job: stream.between(2.0, 40.0)} if stream.happens(0.1) else {},
        ambush=ambush,
        ambushed=ambushed,
        prefers_devices=prefers_devices,
        # Slow where the time of a write is what is waited for.
        disk_sync_s=stream.pick(_SYNCS_S[2:] if ambush == "store" else _SYNCS_S),
        plots=plots,
    )


def _ambush(stream: Stream, *, prefers_devices: bool) -> tuple[str, str]:
    """What is waited for, and who is struck then. What a leader elsewhere says to the manager is often what is lost:
    a version, or its last word."""
    if prefers_devices and stream.happens(0.3):
        if stream.happens(0.4):
            return "store", stream.pick(("line", "leader"))
        return stream.pick(("end", "handed-over")), stream.pick(("line", "lines", "home"))
    if stream.happens(0.1):
        return "told", "lines"
    if stream.happens(0.1):
        # What is lost with a failed save counts most when it is one of the last.
        return stream.pick(("save", "evaluated", "ending")), "disk"
    if not stream.happens(0.35):
        return "", ""
    return stream.pick(_AMBUSHES), stream.pick(("home", "leader", "both", "line")) if prefers_devices else "home"


def _of_leaders(stream: Stream, workers: int, *, prefers_devices: bool) -> tuple[Fault, ...]:
    """What befalls a leader that is not at home: it is moved, lost, cut off from the manager or from a worker."""
    if not stream.happens(0.6 if prefers_devices else 0.15):
        return ()
    faults: list[Fault] = []
    for _ in range(1 + stream.below(3)):
        at: When = AtRound(1 + stream.below(12)) if stream.happens(0.6) else AtSecond(stream.between(2.0, 25.0))
        faults += _of_a_leader(stream, workers, at)
    return tuple(faults)


def _of_a_leader(stream: Stream, workers: int, at: When) -> tuple[Fault, ...]:
    anyone, for_s = worker(1 + stream.below(workers)), stream.between(0.5, stream.pick((4.0, 12.0, 20.0)))
    fate, restart_s = stream.pick(list(Disk)), stream.between(0.2, 4.0)
    choices: tuple[tuple[Fault, ...], ...] = (
        (Transfer(who=anyone, at=at),),
        (Transfer(who=MANAGER, at=at),),
        (Transfer(who=LEADER, at=at),),
        # There and back again, the second while the first is under way.
        (Transfer(who=anyone, at=at), Transfer(who=LEADER, at=at)),
        (Crash(who=LEADER, at=at, restart_s=for_s),),
        (Restart(who=LEADER, at=at),),
        (Stop(who=LEADER, at=at, for_s=for_s),),
        (Partition(who=LEADER, at=at, for_s=for_s),),
        # Its workers reach it and the manager does not, or hears others only.
        (Apart(who=Who((*MANAGER.parts, *LEADER.parts)), at=at, for_s=for_s),),
        (Partition(who=MANAGER, at=at, for_s=for_s),),
        (Apart(who=Who((*LEADER.parts, *anyone.parts)), at=at, for_s=for_s),),
        (Apart(who=ALL, at=at, for_s=for_s),),
        # The manager starts anew while a device leads, alone or with its leader.
        (Crash(who=MANAGER, at=at, restart_s=restart_s, disk=fate),),
        (Crash(who=LEADER, at=at, restart_s=for_s), Crash(who=MANAGER, at=at, restart_s=restart_s, disk=fate)),
        (Transfer(who=anyone, at=at), Crash(who=MANAGER, at=at, restart_s=restart_s, disk=fate)),
        (Transfer(who=anyone, at=at), Crash(who=anyone, at=at, restart_s=for_s)),
    )
    return stream.pick(choices)


def _cuts(stream: Stream, workers: int, *, prefers_devices: bool) -> tuple[Fault, ...]:
    """The manager's cable: cut from everyone, from some, or carrying one way only; for seconds, minutes or an hour."""
    if not stream.happens(0.3 if prefers_devices else 0.08):
        return ()
    at: When = AtRound(1 + stream.below(8)) if stream.happens(0.7) else AtSecond(stream.between(3.0, 20.0))
    for_s = 3600.0 if stream.happens(0.04) else stream.pick((5.0, 12.0, 90.0, 90.0))
    # Home with those who still reach it: none, a few, most.
    with_home = [worker(1 + stream.below(workers)) for _ in range(stream.pick((0, 1, 1, 2, workers - 1)))]
    some = Who((*MANAGER.parts, *(part for who in with_home for part in who.parts)))
    choices: tuple[Fault, ...] = (
        Partition(who=MANAGER, at=at, for_s=for_s),
        Partition(who=some, at=at, for_s=for_s),
        Partition(who=some, at=at, for_s=for_s),
        Mute(who=MANAGER, at=at, for_s=for_s),
        Deaf(who=MANAGER, at=at, for_s=for_s),
    )
    cut = stream.pick(choices)
    if not stream.happens(0.25):
        return (cut,)
    # What is known of the two sides does not survive a restart by itself.
    again = Crash(who=MANAGER, at=at, restart_s=stream.between(0.2, min(for_s, 20.0)), disk=stream.pick(list(Disk)))
    return cut, again


def _of_formations(stream: Stream, workers: int) -> tuple[Fault, ...]:
    """What befalls devices that speak to one another: two that do not reach each other, one that is slow or gone while
    the others wait for it, words that come twice."""
    faults: list[Fault] = []
    for _ in range(stream.below(4)):
        at: When = AtRound(1 + stream.below(10)) if stream.happens(0.5) else AtSecond(stream.between(3.0, 25.0))
        one, other = (worker(1 + stream.below(workers)) for _ in range(2))
        for_s = stream.between(0.5, stream.pick((3.0, 12.0, 20.0)))
        choices: tuple[Fault, ...] = (
            Apart(who=Who((*one.parts, *other.parts)), at=at, for_s=for_s),
            Apart(who=Who((*one.parts, *other.parts, *LEADER.parts)), at=at, for_s=for_s),
            Crash(who=one, at=at, restart_s=for_s),
            Restart(who=one, at=at),
            Stop(who=one, at=at, for_s=for_s),
            SlowLink(who=one, factor=stream.pick((4.0, 40.0)), at=at, for_s=for_s),
            Slow(who=one, factor=stream.pick((4.0, 40.0)), at=at, for_s=for_s),
            Leave(who=one, at=at, back_s=for_s),
            Cut(who=one, at=at),
            Duplicate(who=ALL, share=stream.pick((0.2, 0.8)), at=at, for_s=for_s),
        )
        chosen = stream.pick(choices)
        if not isinstance(chosen, Apart) or one != other:
            faults.append(chosen)
    return tuple(faults)


def _copies_across_terms(stream: Stream) -> tuple[Fault, ...]:
    """Sometimes a leader dies early, and what it was told comes again while its successor lends the same numbers."""
    if not stream.happens(0.1):
        return ()
    copies = Duplicate(who=ALL, share=0.7, for_s=25.0)
    return copies, Crash(who=LEADER, at=AtRound(1 + stream.below(3)), restart_s=stream.between(0.2, 2.0))


def _for_long(stream: Stream, workers: int) -> tuple[Fault, ...]:
    """Sometimes a device is away for so long that its place is taken, and knows nothing of it when it is back."""
    if not stream.happens(0.25):
        return ()
    # The first are those who have work.
    who, at = worker(1 + stream.below(min(3, workers))), AtSecond(stream.between(4.0, 12.0))
    for_s = stream.between(9.0, 20.0)
    fates: tuple[Fault, ...] = Partition(who=who, at=at, for_s=for_s), Stop(who=who, at=at, for_s=for_s)
    return (stream.pick(fates),)


def _for_good(stream: Stream, workers: int, *, spare: int) -> tuple[Fault, ...]:
    """Sometimes a device that can be spared does not come back: by power, by its owner, behind a wall, or frozen."""
    if spare < 1 or not stream.happens(0.35):
        return ()
    who, at = worker(1 + stream.below(workers)), AtSecond(stream.between(1.0, FAULTS_UNTIL_S))
    fates: tuple[Fault, ...] = (
        Crash(who=who, at=at, restart_s=NEVER),
        Leave(who=who, at=at),
        Partition(who=who, at=at),
        Stop(who=who, at=at),
    )
    if stream.happens(0.6):
        return (stream.pick(fates),)
    # It leads, and at times the manager that knows it goes with it.
    start_s = stream.between(3.0, 12.0)
    last = AtSecond(start_s + stream.between(1.0, 6.0))
    lost: tuple[Fault, ...] = Transfer(who=who, at=AtSecond(start_s)), Crash(who=who, at=last, restart_s=NEVER)
    return lost if stream.happens(0.5) else (*lost, Crash(who=MANAGER, at=last, restart_s=stream.between(0.2, 3.0)))


def _spec(stream: Stream, paces: Stream, name: str) -> JobSpec:
    """Jobs are short: what comes after the faults shows little. One that ends by its time would go on for long."""
    workers_min = 1 + stream.below(2)
    seconds = stream.between(3.0, 40.0) if stream.happens(0.2) else None
    plan = Plan(
        batch_size=100 * (1 + stream.below(3)),
        lease_batches=1 + stream.below(2),
        momentum=stream.pick((0.9, 0.0)),
        workers_min=workers_min,
        # At times as few as it needs, and others stand by.
        workers_max=workers_min + stream.below(4),
        lease_s=3.0 if stream.happens(0.8) else 0.0,
        checkpoint_every_s=stream.between(0.5, 6.0),
        evaluate_every_epochs=1 + stream.below(2),
        until=Until(
            epochs=1 + stream.below(4) if seconds is None else 8,
            accuracy=0.45 if stream.happens(0.1) else None,
            seconds=seconds,
        ),
    )
    test_examples = stream.below(4) * 700
    return bare_spec(name, _paced(plan, paces), examples=100 * (6 + stream.below(50)), test_examples=test_examples)


def _paced(plan: Plan, stream: Stream) -> Plan:
    """When its model moves, drawn from a stream of its own: whatever else befalls the job is the same in each pace."""
    pace = stream.pick(("sync", "buffered", "async"))
    # The last of them is for devices' own examples alone.
    buffer, staleness = stream.pick((2, 3, 5, 8)), stream.pick(STALENESS[:-1])
    # Asynchrony is momentum enough: with much of the plan's own, numbers grow until paper and machine differ.
    momentum = plan.momentum if pace == "sync" else plan.momentum / 3
    return replace(plan, pace=pace, buffer=buffer, staleness=staleness, momentum=momentum)


def _shaped(specs: Sequence[JobSpec], stream: Stream) -> list[JobSpec]:
    """Where its updates meet, drawn from a stream of its own: in every second case all meet at the leader, as if
    there were no other way."""
    if stream.happens(0.5):
        return list(specs)
    return [replace(spec, plan=_in_shape(spec.plan, stream)) for spec in specs]


def _in_shape(plan: Plan, stream: Stream) -> Plan:
    shape = stream.pick(("tree", "shard"))
    return replace(
        plan,
        shape=shape,
        # A shard moves in step.
        pace="sync" if shape == "shard" else plan.pace,
        # What sub-leaders sum up is late as a whole.
        staleness="root" if plan.staleness == "parameter" else plan.staleness,
        sub_leaders=stream.pick((0, 2, 3)),
        workers_max=plan.workers_max + 1 + stream.below(4),
        # Long enough to see it formed, broken and formed anew.
        until=replace(plan.until, epochs=(plan.until.epochs or 1) + 1),
    )


def _coded(plan: Plan, stream: Stream) -> Plan:
    """What crosses the wire, drawn from a stream of its own. Without feedback at the workers: what they have not sent
    yet is theirs to know, and could not be worked out on paper."""
    if stream.happens(0.5):
        return plan
    return replace(
        plan,
        codec=stream.pick(("dense", "bf16", "top100%", "top30%", "top60%+4bit")),
        codec_down=stream.pick(("dense", "bf16", "fp16", "top10%", "top30%+4bit", "top60%+8bit")),
        outer_rate=stream.pick((1.0, 0.7)),
        nesterov=stream.happens(0.3),
        cohort=stream.pick((0, 0, 2, 3)) if plan.pace == "sync" else 0,
    )


def _owned(plan: Plan, stream: Stream) -> Plan:
    """Whose the examples are, drawn from a stream of its own."""
    if not stream.happens(0.2):
        return plan
    is_sized, shares_labels = stream.happens(0.5), stream.happens(0.5)
    return replace(
        plan,
        data="local",
        epoch_leases=6 + stream.below(30),
        work="sized" if is_sized else "leased",
        budget_s=stream.pick((0.3, 2.0)) if is_sized else 0.0,
        requests_per_s=stream.pick((0.0, 2.0)) if is_sized else 0.0,
        share_labels=shares_labels,
        staleness="similar" if shares_labels and plan.staleness == "exponential" else plan.staleness,
    )


def _work(stream: Stream) -> str:
    return "fixed" if stream.happens(0.2) else "leased"


def _job(spec: JobSpec, stream: Stream) -> SimulatedJob:
    return SimulatedJob(
        spec=spec,
        layout=LAYOUT,
        model=FIRST_MODEL,
        training=Toy(),
        gmacs_per_example=0.001,
        fetch_bytes=20_000,
        start_s=stream.between(0.1, 1.5),
        submit_s=stream.between(0.0, 3.0),
    )


def _build(stream: Stream) -> Build:
    rate = Steady(stream.pick((2e4, 1e5, 1e6)))
    line = Line(up=rate, down=rate, latency_s=stream.pick((0.001, 0.02, 0.1)), jitter_s=stream.pick((0.0, 0.05, 0.3)))
    return Build(
        kind="toy",
        seconds_per_gmac=0.0,
        seconds_per_batch=stream.between(0.05, 0.8),
        jitter=stream.pick((0.0, 0.3)),
        memory_mb=1024,
        line=line,
    )


class _Ambush:
    """Waits for a leader's decision, or one of the manager about it, and cuts the power of a node just then: the worst
    moment is between two steps."""

    def __init__(self, world: World, kind: str, whom: str) -> None:
        self._world = world
        self._kind = kind
        self._whom = whom
        self._stream = world.chance.stream("ambush")

    def step(self, step: Step) -> None:
        if not self._kind or step.role != ("manager" if self._kind in _OF_THE_MANAGER else "leader"):
            return
        if any(_kind_of(action) == self._kind for action in step.actions):
            self._kind = ""
            # At once, or when what was said has been heard and a slow disk is at it.
            within_s = self._stream.pick((0.01, 0.05, 1.0))
            # A version that is stored came from the leader.
            leader = step.event.sender if isinstance(step.event, Received) and step.role == "manager" else step.node
            self._world.kernel.after(self._stream.between(0.0, within_s), self._strike, leader)

    def mark(self, mark: Mark) -> None:
        pass

    def _strike(self, leader: str) -> None:
        if self._whom == "disk":
            disk = self._world.disk
            disk.is_full = True
            self._world.kernel.after(self._stream.between(0.5, 6.0), setattr, disk, "is_full", False)
            return
        if self._whom in ("line", "lines"):
            agents = self._world.agents
            struck = [agents.get(leader)] if self._whom == "line" else list(agents.values())
            for agent in struck:
                if agent is not None and agent.connection is not None:
                    agent.connection.cut("the connection broke")
            return
        for node in {"home": [HOME], "leader": [leader], "both": sorted({HOME, leader})}[self._whom]:
            self._world.power_off(node, disk=self._stream.pick(FATES))
            again_s = self._stream.between(0.2, self._stream.pick((0.5, 3.0)))
            self._world.kernel.after(again_s, self._world.start, node)


def _kind_of(action: Action) -> str:
    if isinstance(action, Record):
        return action.kind
    if isinstance(action, Send) and isinstance(action.message, Assign):
        return "told" if action.message.role == "worker" else ""
    return {Save: "save", Store: "store", End: "end"}.get(type(action), "")


def _update_bytes(job: SimulatedJob) -> int:
    """What room is kept for, for an update of this job."""
    return bytes_max(Codec.parse(job.spec.plan.codec), sizes_of(job.layout))


class Case:
    """A disaster under way."""

    def __init__(self, what: Disaster, *, observers: Sequence[Observer] = ()) -> None:
        self.what = what
        jobs = {job.spec.job: (job.spec, _update_bytes(job)) for job in what.jobs}
        self._invariants = Invariants(jobs, budget_bytes=what.upload_budget_bytes)
        rate = Steady(1e7)
        settings = Settings(
            seed=what.seed,
            builds=what.builds,
            home_line=Line(up=rate, down=rate, latency_s=0.001),
            jobs=what.jobs,
            arrive_within_s=5.0,
            has_flaws=what.has_flaws,
            upload_budget_bytes=what.upload_budget_bytes,
            prefers_devices=what.prefers_devices,
            disk_sync_s=what.disk_sync_s,
        )
        self.world = World(settings, parcels=Encoded())
        self._inflicter = Inflicter(self.world, what.faults)
        self._audit = Audit([job.spec for job in what.jobs], lambda node, job: self.world.leader_at(node, job))
        self._gone = _gone_for_good(what)
        # The trace is written before a violation is raised on what it shows last.
        ambush = _Ambush(self.world, what.ambush, what.ambushed)
        plots = [
            Waylay(self.world, each, self.world.chance.stream(f"plot {number}"))
            for number, each in enumerate(what.plots)
        ]
        sums = Sums(self.world.leader_at)
        self.world.observers += [*observers, self._inflicter, ambush, *plots, self._invariants, sums, self._audit]

    def run(self) -> None:
        """To the end; raises a Violation if anything is not as it must be."""
        world = self.world
        self._inflicter.begin()
        world.begin()
        world.kernel.after(_CHECK_EVERY_S, self._check_progress)
        for name, at_s in self.what.stops.items():
            world.kernel.at(at_s, world.stop_job, name)
        self._run_to_the_end()
        for job in self.what.jobs:
            self._check_end(job.spec.job)
        # A device behind a cut hears of the end when it is over.
        quiet_s = max(world.kernel.now_s, self._inflicter.quiet_since_s)
        if not world.kernel.run(self._all_free, limit_s=quiet_s + FREE_WITHIN_S):
            raise Violation(f"a worker was left behind in a job that is over: {self._occupied()}")

    def _run_to_the_end(self) -> None:
        world, until_s = self.world, 0.0
        while until_s < LIMIT_S:
            until_s, before = until_s + STORM_S, world.kernel.handled
            if world.run(limit_s=until_s, events_max=STORM_EVENTS):
                return
            if world.kernel.handled - before == STORM_EVENTS:
                raise Violation(f"a storm of {STORM_EVENTS} events, {self._not_over()}")
        raise Violation(self._not_over())

    def _not_over(self) -> str:
        states = {name: f"{record.state}: {record.reason}" for name, record in self.world.disk.jobs.items()}
        return f"not over after {self.world.kernel.now_s:.0f} s: {states}"

    def _check_progress(self) -> None:
        world = self.world
        since_s = self._inflicter.quiet_since_s
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
            skew_s = sum(max(0.0, machine.skew_s) for machine in self.world.machines.values())
            self._audit.ended(job, record.reason or "", newest.state, skew_s=skew_s)
        elif record.state is JobState.FAILED:
            self._invariants.failed_rightly(job, record.reason or "")
        elif job not in self.what.stops:
            raise Violation(f"{job} is {record.state}: {record.reason}")

    def _occupied(self) -> dict[str, tuple[str, ...]]:
        agents = self.world.agents.items()
        busy = {
            name: (*agent.jobs, *agent.led, *agent.seconded)
            for name, agent in agents
            if agent and name not in self._gone
        }
        return {name: jobs for name, jobs in busy.items() if jobs}

    def _all_free(self) -> bool:
        return not self._occupied()


def _gone_for_good(what: Disaster) -> set[str]:
    """Devices that will never hear that their job is over."""
    lasting = [fault for fault in what.faults if isinstance(fault, Partition | Stop) and math.isinf(fault.for_s)]
    return {name for fault in lasting for name in resolve(fault.who, workers=len(what.builds))}


def hunt(seed: int) -> None:
    """Play a seed; raises a Violation where an invariant breaks."""
    Case(disaster(seed)).run()
