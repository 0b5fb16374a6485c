"""A case: a small cluster with plans, devices and faults, all drawn from a profile and one seed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dst.algorithms import algorithm_for
from dst.any_plan import for_tabs
from dst.case_faults import (
    FAULTS_UNTIL_S,
    copies_across_terms,
    cuts,
    drains,
    draw_strike,
    failovers,
    for_good,
    for_long,
    of_a_helper,
    of_browsers,
    of_formations,
    of_hubs,
    of_leaders,
    of_managers,
    outages,
    read_only_spells,
)
from dst.fault_draw import draw
from dst.outage import Outage
from dst.plans import coded, draw_spec, draw_work, owned, shaped
from dst.profiles import PROFILES, PlanDraw, Profile
from dst.targeted_faults import TargetedFault, targeted_fault
from dst.toy_task import FIRST_MODEL, LAYOUT, Toy
from shoal.errors import Misuse
from shoal.roles.manager.seat_watch import SILENT_S
from shoal.sim.devices import Build
from shoal.sim.faults import HOME, LEADER, AtRound, AtSecond, Fault, Stop, TransferFault
from shoal.sim.jobs import SimulatedJob
from shoal.sim.network import AccessLink
from shoal.sim.rates import Steady
from shoal.sim.rng import Rng, Stream
from shoal.wire.limits import UPLOAD_BUDGET_BYTES
from shoal.wire.messages import JobSpec

#: After how long devices without work come again, where they do.
_CHECK_INS_S = (0.0, 2.0, 6.0, 20.0)

#: What the manager's disk may take to make a small write durable: an SSD, or a bad SD card that others use too. The
#: longest is longer than it takes to miss a leader.
_SYNCS_S = (0.01, 0.2, 1.0, 2.5)

#: The same of a database.
_SHARED_SYNCS_S = (0.005, 0.02, 0.1)

#: The name of a simulated job's exported training step, which nobody fetches.
GRAPHS = "0" * 64


@dataclass(frozen=True, kw_only=True, slots=True)
class FuzzCase:
    """What a seed stands for."""

    profile: str
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


def case(profile: str, seed: int, *, has_cuts: bool = True) -> FuzzCase:
    """Draw the cluster and the schedule of a seed. ``has_cuts = False`` leaves the manager's cable whole."""
    drawn = PROFILES[profile]
    rng = Rng(seed)
    stream = rng.stream("disaster")
    shapes, hubs, helps, stores = (rng.stream(name) for name in ("shape", "hubs", "helper", "stores"))
    extras, visits = rng.stream("extras"), rng.stream("browsers")
    has_hubs, has_helpers, has_check_ins, has_two_managers, has_browsers = (
        _happens(extras, share)
        for share in (drawn.hubs, drawn.helpers, drawn.check_ins, drawn.two_managers, drawn.browsers)
    )
    specs = _specs(drawn, rng, stream, shapes, hubs, helps)
    if has_browsers:
        # Few plans suit tabs by chance.
        specs = [*_redrawn(specs[:1], visits, for_tabs), *specs[1:]] if visits.happens(0.7) else specs
        specs = [replace(each, graphs=GRAPHS) for each in specs]
    least = sum(spec.plan.workers_least for spec in specs)
    workers = max(3, min(max(8, least + 1), least + 1 + stream.below(4)))
    is_shaped = any(spec.plan.topology != "star" for spec in specs)
    if is_shaped:
        # A formation needs some to be worth anything.
        most = max(9, workers) if drawn.is_large else 9
        workers = min(most, workers + 1 + shapes.below(3))
    # One cut may begin while another lasts.
    cables = (("cuts", "more cuts") if profile == "any" else ("cuts",)) if has_cuts else ()
    faults, prefers_devices = _of_any_plan(stream, workers, workers - least, [rng.stream(name) for name in cables])
    if has_helpers:
        # Beside the workers, so that no fault for good befalls them: a job without its helper waits.
        specs, helpers = _with_helpers(specs, after=workers)
        faults += tuple(fault for number in helpers for fault in of_a_helper(helps, number))
        workers += len(helpers)
    strike_at, struck = draw_strike(stream, prefers_devices=prefers_devices)
    if has_helpers and helps.happens(0.5):
        # The helper, when it is asked for a sum; or the manager's node, which may lead.
        strike_at, struck = "masks", helps.pick(("leader", "leader", "line", "home"))
    targeted: tuple[TargetedFault, ...] = ()
    if is_shaped:
        faults += of_formations(shapes, workers)
        targeted = tuple(targeted_fault(shapes, moments=drawn.moments) for _ in range(shapes.below(3)))
    is_tight = is_shaped and shapes.happens(0.6)
    if strike_at == "leader.resigned":
        faults += (TransferFault(who=LEADER, at=AtRound(1 + stream.below(6))),)
    if has_two_managers:
        faults += of_managers(stores)
    others: tuple[Build, ...] = ()
    if has_hubs:
        others = tuple(_hub(hubs) for _ in range(1 + hubs.below(3)))
        faults += of_hubs(hubs, workers, len(others))
    if has_browsers:
        tabs = 1 + visits.below(3)
        faults += of_browsers(visits, workers + len(others), tabs)
        others += tuple(replace(_build(visits), is_browser=True) for _ in range(tabs))
    # Slow where the time of a write is what is waited for.
    syncs_s = _SYNCS_S[2:] if strike_at == "store" else _SYNCS_S
    return FuzzCase(
        profile=profile,
        seed=seed,
        jobs=tuple(_job(spec, stream) for spec in specs),
        # Hubs and browsers are the last: a fault that names a worker by its number means neither.
        builds=(*(_build(stream) for _ in range(workers)), *others),
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
        check_in_s=rng.stream("check-in").pick(_CHECK_INS_S) if has_check_ins else 0.0,
        has_two_managers=has_two_managers,
        outages=_outages(rng, stores, faults) if has_two_managers else (),
    )


def _of_any_plan(stream: Stream, workers: int, spare: int, cables: Sequence[Stream]) -> tuple[tuple[Fault, ...], bool]:
    """Draw faults that any cluster may have, and whether devices lead. ``spare``: how many may be gone for good.
    ``cables`` draw what happens to the manager's."""
    faults = draw(stream, workers=workers, until_s=FAULTS_UNTIL_S, count=stream.below(13))
    faults += copies_across_terms(stream) + for_long(stream, workers)
    faults += for_good(stream, workers, spare=spare)
    prefers_devices = stream.happens(0.5)
    faults += of_leaders(stream, workers, prefers_devices=prefers_devices)
    for cable in cables:
        faults += cuts(cable, workers, prefers_devices=prefers_devices)
    return faults, prefers_devices


def _outages(rng: Rng, stores: Stream, faults: Sequence[Fault]) -> tuple[Outage, ...]:
    """What befalls the store that managers share."""
    drawn = outages(stores) + read_only_spells(rng.stream("spells")) + drains(rng.stream("drains"))
    # A manager that is cut off or frozen meanwhile cannot tell that the store goes back: decision 70 leaves this open.
    blind = [(cut.at_s, cut.at_s + cut.for_s) for cut in drawn if cut.is_cut and not cut.slow_factor]
    for each in faults:
        if isinstance(each, Stop) and each.who == HOME and isinstance(each.at, AtSecond):
            blind.append((each.at.s, each.at.s + each.for_s))
    return drawn + tuple(
        each for each in failovers(rng.stream("past")) if not any(_hides(*span, each) for span in blind)
    )


def _hides(from_s: float, until_s: float, failover: Outage) -> bool:
    """Whether a manager that sees nothing in this time may miss what the store loses, while others take its jobs."""
    return from_s < failover.at_s + failover.for_s + SILENT_S and failover.at_s - failover.back_s < until_s


def _happens(stream: Stream, share: float) -> bool:
    """Whether this part is in a case. A part that all cases of a profile have, or none, draws nothing."""
    return stream.happens(share) if 0 < share < 1 else share == 1


def _specs(drawn: Profile, rng: Rng, stream: Stream, shapes: Stream, hubs: Stream, helps: Stream) -> list[JobSpec]:
    """Draw the jobs. Hubs and helpers draw the plans from the streams of what befalls them."""
    paces, works, codecs, owners = (rng.stream(name) for name in ("pace", "work", "codec", "owner"))
    specs = [draw_spec(stream, paces, f"job-{number}") for number in range(1 + stream.happens(0.3))]
    specs = [replace(each, plan=replace(each.plan, work=draw_work(works))) for each in shaped(specs, shapes)]
    specs = _redrawn(specs, codecs, coded)
    specs = _redrawn(specs, owners, owned)
    streams = {"hubs": hubs, "helper": helps}
    for name, change in drawn.plans:
        specs = _redrawn(specs, streams.get(name) or rng.stream(name), change)
    return specs


def _redrawn(specs: Sequence[JobSpec], stream: Stream, change: PlanDraw) -> list[JobSpec]:
    """The same jobs, each with its plan changed by what is drawn from this stream."""
    return [replace(each, plan=change(each.plan, stream)) for each in specs]


def _with_helpers(specs: Sequence[JobSpec], *, after: int) -> tuple[list[JobSpec], list[int]]:
    """Return the jobs, each with its own helper where its plan accepts one, and the numbers of these nodes."""
    named: list[JobSpec] = []
    numbers: list[int] = []
    for each in specs:
        number = after + len(numbers) + 1
        trust = re.sub(r"(sealed\([^)]*)\)", rf"\1, helper=w{number})", each.plan.trust)
        with contextlib.suppress(Misuse):
            if trust != each.plan.trust:
                each = replace(each, plan=replace(each.plan, trust=trust))
                numbers.append(number)
        named.append(each)
    return named, numbers


def _hub(stream: Stream) -> Build:
    """A hub, at times on a slow link, which it knows, or does not, or is wrong about."""
    build = _build(stream)
    rate = stream.pick((2e4, 1e6, 1e6))
    line = replace(build.line, up=Steady(rate), down=Steady(rate))
    return replace(build, line=line, is_hub=True, told_bytes_per_s=stream.pick((0.0, rate, 20 * rate)))


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
        algorithm=algorithm_for(spec.plan),
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
