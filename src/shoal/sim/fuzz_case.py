"""A fuzz case: a small cluster with plans, devices and faults, all drawn from one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shoal.learning.outer_rule import ADAPTIVE
from shoal.plan import STALENESS, Plan, Until
from shoal.sim.devices import Build
from shoal.sim.fault_draw import draw
from shoal.sim.faults import (
    ALL,
    LEADER,
    NEVER,
    AllWorkers,
    Apart,
    AtRound,
    AtSecond,
    Crash,
    CutFault,
    Deaf,
    Duplicate,
    Fault,
    LeaveFault,
    Mute,
    PartitionFault,
    Restart,
    SaveFate,
    Slow,
    SlowLink,
    Stop,
    TransferFault,
    When,
    Who,
    worker,
)
from shoal.sim.faults import (
    HOME as MANAGER,
)
from shoal.sim.fuzz_trust import (
    believing_plan,
    compared_plan,
    cut_unseen_plan,
    helped_plan,
    led_plan,
    noisy_plan,
    private_plan,
    private_shape_plan,
    sealed_plan,
    sealed_shape_plan,
    short_words_plan,
)
from shoal.sim.jobs import SimulatedJob, bare_spec
from shoal.sim.network import AccessLink
from shoal.sim.rates import Steady
from shoal.sim.rng import Rng, Stream
from shoal.sim.targeted_faults import BLOCK_MOMENTS, MOMENTS, SEAL_MOMENTS, TargetedFault, targeted_fault
from shoal.sim.toy_task import FIRST_MODEL, LAYOUT, Toy
from shoal.wire.limits import UPLOAD_BUDGET_BYTES
from shoal.wire.messages import JobSpec

#: Faults begin within this time; then everyone is left in peace.
FAULTS_UNTIL_S = 30.0

#: Decisions of a leader after which a strike is worth a try.
_MOMENTS = (
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

#: Only seeds above this number draw the leader's step: those below stand for what they always did, and tables of them
#: are kept.
OUTER_AFTER = 10_000

#: Only seeds above this number draw who is believed, for the same reason.
TRUST_AFTER = 20_000

#: Only seeds above this number, up to the next one, draw what a model may tell of a person, for the same reason.
PRIVATE_AFTER = 30_000

#: Only seeds above this number, up to the next one, draw sealed sums.
SEALED_AFTER = 40_000

#: Of these, only seeds above this number draw how wide the words of a sum are.
WORDS_AFTER = 45_000

#: Only seeds above this number, up to the next one, draw whether devices check in, and do not stay.
CHECK_IN_AFTER = 50_000

#: Only seeds above this number, up to the next one, have two managers, and a store that may be away.
STORES_AFTER = 60_000

#: Only seeds above this number, up to the next one, draw sealed sums whose devices add the noise of a private job.
SHARES_AFTER = 70_000

#: Only seeds above this number, up to the next one, draw sealed sums in trees and shards.
SEALED_SHAPES_AFTER = 90_000

#: Only seeds above this number, up to the next one, draw sealed sums of places that all devices agree on.
LED_AFTER = 100_000
LED_UNTIL = 110_000

#: Only seeds above this number, up to the next one, draw robust plans whose updates lie in parts with aggregators.
PARTS_AFTER = 120_000

#: Only seeds above this number, up to the next one, draw private plans whose updates meet in aggregators.
PRIVATE_SHAPES_AFTER = 130_000

#: Only seeds above this number, up to the next one, draw sealed sums of devices that cut themselves.
CUT_UNSEEN_AFTER = 135_000

#: Only seeds above this number, up to the next one, draw sealed sums that a helper opens, in the place of parts.
HELPED_AFTER = 140_000
HELPED_UNTIL = 150_000

#: Only seeds above this number, up to the next one, have hubs.
HUBS_AFTER = 150_000
HUBS_UNTIL = 160_000

#: Seeds above that, up to this one, have hubs that are lent blocks.
BLOCKS_UNTIL = 170_000

#: After how long devices without work come again, where they do.
_CHECK_INS_S = (0.0, 2.0, 6.0, 20.0)

#: What the manager's disk may take to make a small write durable: an SSD, or a bad SD card that others use too. The
#: longest is longer than it takes to miss a leader.
_SYNCS_S = (0.01, 0.2, 1.0, 2.5)

#: The same of a database.
_SHARED_SYNCS_S = (0.005, 0.02, 0.1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """The store that managers share is away for a while, or slow."""

    at_s: float
    for_s: float
    #: 0: it is away.
    slow_factor: float = 0.0
    #: Away for the manager with the most jobs alone: the way between them is cut.
    is_cut: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FuzzCase:
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
    strike_at: str
    #: Which: ``home``, ``leader``, ``both``. Or connections break: ``line``, between these two; ``lines``, of everyone.
    #: Or the manager's ``disk`` is full for a while.
    struck: str
    #: Devices lead.
    prefers_devices: bool
    disk_sync_s: float
    #: When and how the devices of a formation are struck.
    targeted: tuple[TargetedFault, ...] = ()
    #: After how long devices without work come again; 0: they stay connected.
    check_in_s: float = 0.0
    #: There are two managers, and both share a store.
    has_two_managers: bool = False
    outages: tuple[Outage, ...] = ()

    @property
    def topology(self) -> str:
        """Of its jobs: ``star`` if all are."""
        shapes = [job.spec.plan.topology for job in self.jobs]
        return next((shape for shape in shapes if shape != "star"), "star")


def fuzz_case(seed: int, *, has_cuts: bool = True) -> FuzzCase:
    """The cluster and the schedule of a seed; without cuts of the manager's cable, as it was before there were any."""
    stream = Rng(seed).stream("disaster")
    names = ("pace", "shape", "work", "codec", "owner")
    paces, shapes, works, codecs, owners = (Rng(seed).stream(name) for name in names)
    specs = [_spec(stream, paces, f"job-{number}") for number in range(1 + stream.happens(0.3))]
    specs = [replace(spec, plan=replace(spec.plan, work=_work(works))) for spec in _shaped(specs, shapes)]
    specs = _redrawn(specs, codecs, _coded)
    specs = _redrawn(specs, owners, _owned)
    is_led = LED_AFTER < seed <= LED_UNTIL
    has_blocks = HUBS_UNTIL < seed <= BLOCKS_UNTIL
    has_hubs = HUBS_AFTER < seed <= HUBS_UNTIL or has_blocks
    # An adaptive step makes as much of what is rounded as of an update: nobody could tell what a version should be.
    if seed > OUTER_AFTER and not is_led:
        specs = _redrawn(specs, Rng(seed).stream("outer"), _stepped)
    if seed > TRUST_AFTER and not has_hubs:
        specs = _redrawn(specs, Rng(seed).stream("trust"), believing_plan)
    if PRIVATE_AFTER < seed <= SEALED_AFTER:
        specs = _redrawn(specs, Rng(seed).stream("private"), private_plan)
    if SEALED_AFTER < seed <= CHECK_IN_AFTER or is_led:
        specs = _redrawn(specs, Rng(seed).stream("sealed"), sealed_plan)
    if WORDS_AFTER < seed <= CHECK_IN_AFTER:
        specs = _redrawn(specs, Rng(seed).stream("words"), short_words_plan)
    if is_led:
        specs = _redrawn(specs, Rng(seed).stream("led"), led_plan)
    if SHARES_AFTER < seed <= SEALED_SHAPES_AFTER:
        specs = _redrawn(specs, Rng(seed).stream("shares"), noisy_plan)
    moments: tuple[str, ...] = MOMENTS
    is_sealed_shape = SEALED_SHAPES_AFTER < seed <= LED_AFTER or CUT_UNSEEN_AFTER < seed <= HELPED_AFTER
    if is_sealed_shape:
        specs = _redrawn(specs, Rng(seed).stream("sealed shapes"), sealed_shape_plan)
        moments = (*MOMENTS, *SEAL_MOMENTS)
    is_helped = HELPED_AFTER < seed <= HELPED_UNTIL
    helps = Rng(seed).stream("helper")
    if is_helped:
        specs = _redrawn(specs, helps, helped_plan)
    if PARTS_AFTER < seed <= PRIVATE_SHAPES_AFTER:
        specs = _redrawn(specs, Rng(seed).stream("parts"), compared_plan)
    if CUT_UNSEEN_AFTER < seed <= HELPED_AFTER:
        specs = _redrawn(specs, Rng(seed).stream("cut unseen"), cut_unseen_plan)
    if PRIVATE_SHAPES_AFTER < seed <= CUT_UNSEEN_AFTER:
        specs = _redrawn(specs, Rng(seed).stream("private shapes"), private_shape_plan)
    hubs = Rng(seed).stream("hubs")
    if has_hubs:
        specs = _redrawn(specs, hubs, _in_blocks if has_blocks else _over_hubs)
    if has_blocks:
        moments = (*MOMENTS, *BLOCK_MOMENTS)
    least = sum(spec.plan.workers_least for spec in specs)
    workers = max(3, min(max(8, least + 1), least + 1 + stream.below(4)))
    is_shaped = any(spec.plan.topology != "star" for spec in specs)
    if is_shaped:
        # A formation needs some to be worth anything.
        most = max(9, workers) if is_sealed_shape or has_hubs else 9
        workers = min(most, workers + 1 + shapes.below(3))
    faults = draw(stream, workers=workers, until_s=FAULTS_UNTIL_S, count=stream.below(13))
    faults += _copies_across_terms(stream) + _for_long(stream, workers)
    faults += _for_good(stream, workers, spare=workers - least)
    prefers_devices = stream.happens(0.5)
    faults += _of_leaders(stream, workers, prefers_devices=prefers_devices)
    # From a stream of their own: a seed without one is what it was before there were any.
    if has_cuts:
        faults += _cuts(Rng(seed).stream("cuts"), workers, prefers_devices=prefers_devices)
    if is_helped:
        # Beside the workers, so that no fault for good befalls them: a job without its helper waits.
        specs, helpers = _with_helpers(specs, after=workers)
        faults += tuple(fault for number in helpers for fault in _of_a_helper(helps, number))
        workers += len(helpers)
    strike_at, struck = _draw_strike(stream, prefers_devices=prefers_devices)
    if is_helped and helps.happens(0.5):
        # The helper, when it is asked for a sum; or the manager's node, which may lead.
        strike_at, struck = "masks", helps.pick(("leader", "leader", "line", "home"))
    targeted: tuple[TargetedFault, ...] = ()
    if is_shaped:
        faults += _of_formations(shapes, workers)
        targeted = tuple(targeted_fault(shapes, moments=moments) for _ in range(shapes.below(3)))
    is_tight = is_shaped and shapes.happens(0.6)
    if strike_at == "handed-over":
        faults += (TransferFault(who=LEADER, at=AtRound(1 + stream.below(6))),)
    has_two_managers = STORES_AFTER < seed <= SHARES_AFTER
    stores = Rng(seed).stream("stores")
    if has_two_managers:
        faults += _of_managers(stores)
    hub_builds: tuple[Build, ...] = ()
    if has_hubs:
        hub_builds = tuple(_hub(hubs) for _ in range(1 + hubs.below(3)))
        faults += _of_hubs(hubs, workers, len(hub_builds))
    if has_blocks:
        faults += _of_blocks(hubs)
    # Slow where the time of a write is what is waited for.
    syncs_s = _SYNCS_S[2:] if strike_at == "store" else _SYNCS_S
    return FuzzCase(
        seed=seed,
        jobs=tuple(_job(spec, stream) for spec in specs),
        # Hubs are the last: a fault that names a worker by its number means no hub.
        builds=(*(_build(stream) for _ in range(workers)), *hub_builds),
        faults=faults,
        has_flaws=stream.happens(0.5),
        # Room for two uploads in one case of three, so that updates are offered and queue; more often where they may
        # all come at once, when a formation breaks.
        upload_budget_bytes=2 * FIRST_MODEL.nbytes if stream.happens(1 / 3) or is_tight else UPLOAD_BUDGET_BYTES,
        stops={specs[0].job: stream.between(2.0, 40.0)} if stream.happens(0.1) else {},
        strike_at=strike_at,
        struck=struck,
        prefers_devices=prefers_devices,
        disk_sync_s=stream.pick(_SHARED_SYNCS_S if has_two_managers else syncs_s),
        targeted=targeted,
        check_in_s=Rng(seed).stream("check-in").pick(_CHECK_INS_S) if CHECK_IN_AFTER < seed <= SHARES_AFTER else 0.0,
        has_two_managers=has_two_managers,
        outages=_outages(stores) if has_two_managers else (),
    )


def _redrawn(specs: Sequence[JobSpec], stream: Stream, change: Callable[[Plan, Stream], Plan]) -> list[JobSpec]:
    """The same jobs, each with its plan changed by what is drawn from this stream."""
    return [replace(spec, plan=change(spec.plan, stream)) for spec in specs]


def _of_managers(stream: Stream) -> tuple[Fault, ...]:
    """The manager with the most jobs dies or freezes, for about as long as it takes to lose its seat, or longer."""
    faults: list[Fault] = []
    for _ in range(stream.below(4)):
        at, for_s = AtSecond(stream.between(1.0, FAULTS_UNTIL_S)), stream.between(1.0, stream.pick((5.0, 15.0)))
        if stream.happens(0.5):
            faults.append(Stop(who=MANAGER, at=at, for_s=for_s))
        else:
            fate = stream.pick((SaveFate.SAFE, SaveFate.LOST))
            faults.append(Crash(who=MANAGER, at=at, restart_s=for_s, disk=fate))
    return tuple(faults)


def _outages(stream: Stream) -> tuple[Outage, ...]:
    return tuple(
        Outage(
            at_s=stream.between(0.0, FAULTS_UNTIL_S),
            for_s=stream.between(0.2, stream.pick((2.0, 15.0))),
            slow_factor=stream.pick((0.0, 0.0, 5.0, 20.0)),
            is_cut=stream.happens(0.5),
        )
        for _ in range(stream.below(4))
    )


def _draw_strike(stream: Stream, *, prefers_devices: bool) -> tuple[str, str]:
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
    return stream.pick(_MOMENTS), stream.pick(("home", "leader", "both", "line")) if prefers_devices else "home"


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
    fate, restart_s = stream.pick(list(SaveFate)), stream.between(0.2, 4.0)
    choices: tuple[tuple[Fault, ...], ...] = (
        (TransferFault(who=anyone, at=at),),
        (TransferFault(who=MANAGER, at=at),),
        (TransferFault(who=LEADER, at=at),),
        # There and back again, the second while the first is under way.
        (TransferFault(who=anyone, at=at), TransferFault(who=LEADER, at=at)),
        (Crash(who=LEADER, at=at, restart_s=for_s),),
        (Restart(who=LEADER, at=at),),
        (Stop(who=LEADER, at=at, for_s=for_s),),
        (PartitionFault(who=LEADER, at=at, for_s=for_s),),
        # Its workers reach it and the manager does not, or hears others only.
        (Apart(who=Who((*MANAGER.parts, *LEADER.parts)), at=at, for_s=for_s),),
        (PartitionFault(who=MANAGER, at=at, for_s=for_s),),
        (Apart(who=Who((*LEADER.parts, *anyone.parts)), at=at, for_s=for_s),),
        (Apart(who=ALL, at=at, for_s=for_s),),
        # The manager restarts while a device leads, alone or with its leader.
        (Crash(who=MANAGER, at=at, restart_s=restart_s, disk=fate),),
        (Crash(who=LEADER, at=at, restart_s=for_s), Crash(who=MANAGER, at=at, restart_s=restart_s, disk=fate)),
        (TransferFault(who=anyone, at=at), Crash(who=MANAGER, at=at, restart_s=restart_s, disk=fate)),
        (TransferFault(who=anyone, at=at), Crash(who=anyone, at=at, restart_s=for_s)),
    )
    return stream.pick(choices)


def _cuts(stream: Stream, workers: int, *, prefers_devices: bool) -> tuple[Fault, ...]:
    """The manager's cable: cut from everyone, from some, or carrying one way only; for seconds, minutes or an hour."""
    if not stream.happens(0.3 if prefers_devices else 0.08):
        return ()
    at: When = AtRound(1 + stream.below(8)) if stream.happens(0.7) else AtSecond(stream.between(3.0, 20.0))
    for_s = 3600.0 if stream.happens(0.04) else stream.pick((5.0, 12.0, 90.0, 90.0))
    # Home, and the workers that still reach it: none, a few, most.
    with_home = [worker(1 + stream.below(workers)) for _ in range(stream.pick((0, 1, 1, 2, workers - 1)))]
    some = Who((*MANAGER.parts, *(part for who in with_home for part in who.parts)))
    choices: tuple[Fault, ...] = (
        PartitionFault(who=MANAGER, at=at, for_s=for_s),
        PartitionFault(who=some, at=at, for_s=for_s),
        PartitionFault(who=some, at=at, for_s=for_s),
        Mute(who=MANAGER, at=at, for_s=for_s),
        Deaf(who=MANAGER, at=at, for_s=for_s),
    )
    cut = stream.pick(choices)
    if not stream.happens(0.25):
        return (cut,)
    # What is known of the two sides does not survive a restart by itself.
    again = Crash(who=MANAGER, at=at, restart_s=stream.between(0.2, min(for_s, 20.0)), disk=stream.pick(list(SaveFate)))
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
            LeaveFault(who=one, at=at, back_s=for_s),
            CutFault(who=one, at=at),
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
    # The first workers are the ones that have work.
    who, at = worker(1 + stream.below(min(3, workers))), AtSecond(stream.between(4.0, 12.0))
    for_s = stream.between(9.0, 20.0)
    fates: tuple[Fault, ...] = PartitionFault(who=who, at=at, for_s=for_s), Stop(who=who, at=at, for_s=for_s)
    return (stream.pick(fates),)


def _for_good(stream: Stream, workers: int, *, spare: int) -> tuple[Fault, ...]:
    """Sometimes a device that can be spared does not come back: by power, by its owner, behind a wall, or frozen."""
    if spare < 1 or not stream.happens(0.35):
        return ()
    who, at = worker(1 + stream.below(workers)), AtSecond(stream.between(1.0, FAULTS_UNTIL_S))
    fates: tuple[Fault, ...] = (
        Crash(who=who, at=at, restart_s=NEVER),
        LeaveFault(who=who, at=at),
        PartitionFault(who=who, at=at),
        Stop(who=who, at=at),
    )
    if stream.happens(0.6):
        return (stream.pick(fates),)
    # It leads, and at times the manager that knows it goes with it.
    start_s = stream.between(3.0, 12.0)
    last = AtSecond(start_s + stream.between(1.0, 6.0))
    lost: tuple[Fault, ...] = TransferFault(who=who, at=AtSecond(start_s)), Crash(who=who, at=last, restart_s=NEVER)
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


def _in_shape(plan: Plan, stream: Stream, kinds: tuple[str, ...] = ("tree", "shard")) -> Plan:
    kind = stream.pick(kinds)
    return replace(
        plan,
        topology=kind,
        # A shard moves in step.
        pace="sync" if kind == "shard" else plan.pace,
        # What aggregators sum up is late as a whole.
        staleness="root" if plan.staleness == "parameter" else plan.staleness,
        aggregators=stream.pick((0, 2, 3)),
        workers_max=plan.workers_max + 1 + stream.below(4),
        # Long enough to see it formed, broken and formed again.
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


def _stepped(plan: Plan, stream: Stream) -> Plan:
    """The leader's step and its schedule, drawn from a stream of their own."""
    schedule = stream.pick(("", "", "warmup 5 cosine 30", "constant 4 linear 20", "step 6 x0.5"))
    if stream.happens(0.3):
        return replace(plan, schedule=schedule)
    return replace(
        plan,
        outer=stream.pick(ADAPTIVE),
        nesterov=False,
        outer_rate=stream.pick((1e-3, 0.02)),
        # Sums are rounded in different orders here and on paper. The larger of the two is that of Reddi et al. 2021.
        outer_epsilon=stream.pick((1e-6, 1e-3)),
        outer_beta2=stream.pick((0.99, 0.999)),
        weight_decay=stream.pick((0.0, 0.1)),
        schedule=schedule,
    )


def _with_helpers(specs: Sequence[JobSpec], *, after: int) -> tuple[list[JobSpec], list[int]]:
    """Each sealed job with a helper of its own, and the numbers of these nodes."""
    named: list[JobSpec] = []
    numbers: list[int] = []
    for spec in specs:
        if spec.plan.believes.sealed is not None:
            numbers.append(after + len(numbers) + 1)
            trust = spec.plan.trust.replace(")", f", helper=w{numbers[-1]})", 1)
            spec = replace(spec, plan=replace(spec.plan, trust=trust))
        named.append(spec)
    return named, numbers


def _of_a_helper(stream: Stream, number: int) -> tuple[Fault, ...]:
    """What befalls the node that opens sums: it dies, freezes, is cut off from its leader or from everyone, or slow."""
    faults: list[Fault] = []
    who = worker(number)
    for _ in range(stream.below(6)):
        at: When = AtRound(1 + stream.below(6)) if stream.happens(0.6) else AtSecond(stream.between(2.0, 15.0))
        for_s = stream.between(0.2, stream.pick((2.0, 12.0)))
        choices: tuple[Fault, ...] = (
            Crash(who=who, at=at, restart_s=for_s),
            Restart(who=who, at=at),
            Stop(who=who, at=at, for_s=for_s),
            PartitionFault(who=who, at=at, for_s=for_s),
            Apart(who=Who((*who.parts, *LEADER.parts)), at=at, for_s=for_s),
            CutFault(who=who, at=at),
            LeaveFault(who=who, at=at, back_s=for_s),
            Slow(who=who, factor=stream.pick((4.0, 400.0)), at=at, for_s=for_s),
            TransferFault(who=who, at=at),
            Duplicate(who=who, share=0.7, at=at, for_s=for_s),
        )
        faults.append(stream.pick(choices))
    return tuple(faults)


def _over_hubs(plan: Plan, stream: Stream) -> Plan:
    """A tree, drawn from a stream of its own: whose updates are plain, cut, or sealed; at times with a place for no
    worker more than it needs, so that it would lack one if a hub took it."""
    kind, is_tight = stream.pick(("plain", "plain", "plain", "cut", "sealed", "as drawn")), stream.happens(0.4)
    if kind == "as drawn":
        return plan
    if kind == "cut":
        plan = replace(compared_plan(plan, stream), trust="robust(clip)", topology="tree")
    elif kind == "sealed":
        plan = replace(sealed_shape_plan(plan, stream), topology="tree")
    else:
        plan = _in_shape(plan, stream, ("tree",))
    if is_tight:
        least = max(3, plan.workers_least)
        plan = replace(plan, workers_min=least, workers_max=least)
    # Where it is not sealed after all, as ``_in_shape``.
    return replace(plan, staleness="root" if plan.staleness == "parameter" else plan.staleness)


def _in_blocks(plan: Plan, stream: Stream) -> Plan:
    """A tree whose hubs are lent blocks; at times with workers among its aggregators, or no blocks at all."""
    is_tight = stream.happens(0.3)
    if stream.happens(0.1):
        return _over_hubs(plan, stream)
    plan = replace(
        plan,
        topology="tree",
        work="blocks",
        pace="sync",
        data="shared",
        codec="dense",
        codec_down="dense",
        cohort=0,
        share_labels=False,
        budget_s=0.0,
        requests_per_s=0.0,
        staleness="root",
        aggregators=stream.pick((0, 0, 0, 2, 3)),
        workers_max=plan.workers_max + 1 + stream.below(4),
        # Long enough to see blocks lent, taken back and lent again.
        until=replace(plan.until, epochs=(plan.until.epochs or 1) + 4),
    )
    if is_tight:
        plan = replace(plan, workers_min=max(3, plan.workers_least), workers_max=max(3, plan.workers_least))
    return plan


def _hub(stream: Stream) -> Build:
    """A hub, at times on a slow link, which it knows, or does not, or is wrong about."""
    build = _build(stream)
    rate = stream.pick((2e4, 1e6, 1e6))
    line = replace(build.line, up=Steady(rate), down=Steady(rate))
    return replace(build, line=line, is_hub=True, told_bytes_per_s=stream.pick((0.0, rate, 20 * rate)))


def _of_hubs(stream: Stream, workers: int, hubs: int) -> tuple[Fault, ...]:
    """What befalls hubs: they come late, die at a delicate moment, are silent or slow, or are not reached by a worker
    or by the leader; at times all of them at once, for good."""
    faults: list[Fault] = []
    for number in range(workers + 1, workers + hubs + 1):
        if stream.happens(0.3):
            faults.append(Crash(who=worker(number), at=AtSecond(0.01), restart_s=stream.between(3.0, 20.0)))
    for _ in range(stream.below(5)):
        at: When = AtRound(1 + stream.below(12)) if stream.happens(0.6) else AtSecond(stream.between(3.0, 25.0))
        hub, other = worker(workers + 1 + stream.below(hubs)), worker(1 + stream.below(workers))
        every = Who((AllWorkers(workers + 1, workers + hubs),))
        for_s = stream.between(0.5, stream.pick((3.0, 12.0, 20.0)))
        choices: tuple[Fault, ...] = (
            Crash(who=hub, at=at, restart_s=stream.pick((for_s, for_s, NEVER))),
            Crash(who=every, at=at, restart_s=stream.pick((for_s, NEVER))),
            Restart(who=hub, at=at),
            Stop(who=hub, at=at, for_s=for_s),
            PartitionFault(who=hub, at=at, for_s=for_s),
            Apart(who=Who((*hub.parts, *other.parts)), at=at, for_s=for_s),
            Apart(who=Who((*hub.parts, *LEADER.parts)), at=at, for_s=for_s),
            SlowLink(who=hub, factor=stream.pick((4.0, 40.0)), at=at, for_s=for_s),
            Slow(who=hub, factor=stream.pick((4.0, 40.0)), at=at, for_s=for_s),
            LeaveFault(who=hub, at=at, back_s=stream.pick((for_s, NEVER))),
            CutFault(who=hub, at=at),
            TransferFault(who=hub, at=at),
        )
        faults.append(stream.pick(choices))
    return tuple(faults)


def _of_blocks(stream: Stream) -> tuple[Fault, ...]:
    """What is said of a block comes twice, and late; and its leader dies while it is out."""
    faults: list[Fault] = []
    if stream.happens(0.5):
        faults.append(Duplicate(who=ALL, share=0.7, at=AtSecond(stream.between(4.0, 12.0)), for_s=25.0))
    if stream.happens(0.4):
        who = stream.pick((LEADER, MANAGER))
        faults.append(Crash(who=who, at=AtRound(4 + stream.below(10)), restart_s=stream.between(0.2, 2.0)))
    return tuple(faults)


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
    line = AccessLink(
        up=rate, down=rate, latency_s=stream.pick((0.001, 0.02, 0.1)), jitter_s=stream.pick((0.0, 0.05, 0.3))
    )
    return Build(
        kind="toy",
        seconds_per_gmac=0.0,
        seconds_per_batch=stream.between(0.05, 0.8),
        jitter=stream.pick((0.0, 0.3)),
        memory_mb=1024,
        line=line,
    )
