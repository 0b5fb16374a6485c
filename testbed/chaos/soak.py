"""A soak that hurts the real thing: kill -9, SIGSTOP, cut links, dead and hung trainers, a full disk, a dead manager.

One manager, six agents and their trainers as processes, mutual TLS, a network namespace for each device. Trainers learn
digits for real and are padded to the pace of a small board, so that the machine is not what is measured. In one
invocation: a run without faults, which gives the rate; a run with faults on the workers; a run in which devices lead,
with faults on leaders and the manager as well. Run as root, or links are not cut and no disk is filled.

    python -m benchmarks.chaos [--minutes 10] [--every 10] [--quick] --json

``--minutes`` is the time with faults, one half for each of the two runs that have them. The run without faults and the
ends of all three take about a third of that again: 30 minutes of faults end within 45.

``goodput`` is the number of batches applied, in the history that survives, over what the device-seconds that were alive
would have applied at the rate of the run without faults. Alive is a device whose process is up, not stopped, with its
link up, while the manager's process is up: the time that anyone takes to start, connect or notice is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.runtime.operator import Operator
from shoal.sim.rng import Rng
from shoal.wire import tensors
from testbed.chaos.faults import (
    FULL_DISK,
    KILL_LEADER,
    KILL_MANAGER,
    KILL_SUB_LEADER,
    LINK_DOWN,
    ON_WORKERS,
    OUTAGES,
    STOP,
    WITH_LEADER,
    WITH_MANAGER,
    Fault,
    at_their_pace,
    draw_faults,
    percentile,
    stretches,
)
from testbed.chaos.kit import EVENTS_MANY, ROOT, Site, digits_job, left_behind, lost_and_twice, tally_of
from testbed.namespaces import Network, left_of, why_no_namespaces
from testbed.paced_digits import TALLY
from testbed.results import finish, say

#: The quickest and the slowest device; the others lie between.
PACES_S = (0.20, 0.40)
#: What a round takes beyond its slowest device, roughly: only to choose how long a job is.
ROUND_EXTRA_S = 0.02

MOMENTUM = 0.9
LEARNING_RATE = 0.02
#: A killed manager loses what was applied since its last checkpoint. The model is small, so they can be frequent.
CHECKPOINT_EVERY_S = 1.0

#: No wait of the soak takes longer: a job that does not end within it is a failure of the run. The longest is for
#: 15,600 batches without padding, of a job that outlasts a quarter of an hour with faults.
LIMIT_S = 420.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    devices: Mapping[str, float]
    #: How long each of the two runs with faults is.
    seconds: float
    every_s: float
    #: How long the run without faults is measured.
    rate_seconds: float
    seeds: int
    seed: int
    batches: int
    start_s: float
    brief: bool
    #: Who leads in the run with faults on leaders: ``devices``, or the manager's node (``here``).
    lead: str
    #: How updates meet. Other than in a star, those who lead in part are struck as well.
    shape: str
    #: Plan values to try instead of the soak's own.
    plan: Mapping[str, Any]

    @property
    def epochs(self) -> int:
        """A few more than would be done without any fault: the job must outlast the soak."""
        round_s = max(self.devices.values()) + ROUND_EXTRA_S
        return math.ceil(1.1 * self.seconds / round_s * len(self.devices) / self.batches) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """What the cluster does while nothing goes wrong."""

    batches_per_device_s: float
    round_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Soak:
    """What came of a run with faults."""

    faults: list[Fault]
    missed: int
    goodput: float
    goodput_at_their_pace: float
    recoveries_s: list[float]
    #: Kind -> device-seconds lost a fault, on average.
    lost_device_s: dict[str, float]
    longest_pause_s: dict[str, float]
    #: Kind -> from the end of an outage to the next version with a batch of that device in it, on average.
    back_s: dict[str, float]
    #: Of the versions, the share that were made in the shape that was wanted.
    in_shape: float
    outcome: Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A finished job."""

    loss: float
    batches_lost: int
    batches_twice: int
    #: Whether the tally in the model is what the history says it must be.
    model_matches: bool
    events: Counter[str]
    tracebacks: list[str]


class Workshop:
    """Sites in one directory on one network, one after the other."""

    def __init__(self, directory: Path, network: Network | None, settings: Settings) -> None:
        self._directory = directory
        self._network = network
        self._settings = settings
        self.pids: list[int] = []

    @contextlib.asynccontextmanager
    async def site(self, name: str, *, lead: str = "here") -> AsyncIterator[tuple[Site, Operator]]:
        home = self._directory / name
        home.mkdir()
        settings = self._settings
        site = Site(home, devices=settings.devices, network=self._network, start_s=settings.start_s, lead=lead)
        self.pids = site.pids
        async with site, site.operator() as operator:
            yield site, operator

    async def submit(self, operator: Operator, *, seed: int) -> str:
        settings = self._settings
        job = await asyncio.to_thread(digits_job, self._directory, batches=settings.batches, seed=seed)
        plan = {
            "seed": seed,
            "learning_rate": LEARNING_RATE,
            "momentum": MOMENTUM,
            "until": {"epochs": settings.epochs},
            # The last version alone: an evaluation is not what is measured.
            "evaluate_every_epochs": 1_000_000,
            "checkpoint_every_s": CHECKPOINT_EVERY_S,
            "topology": settings.shape,
            **settings.plan,
        }
        return await operator.submit(job, plan=plan)

    # Waits ---------------------------------------------------------------------------------------------

    async def all_at_work(self, site: Site, operator: Operator, job: str) -> None:
        """Every device has returned some leases, so that the leader knows how long they take."""

        async def working() -> bool:
            view = await site.view(operator, job)
            workers = view.progress.workers if view and view.progress else ()
            return sum(worker.batches >= 3 for worker in workers) == len(site.devices)

        await _until("all devices at work", working)

    async def finish(self, site: Site, operator: Operator, job: str) -> Outcome:
        """Let the devices run, wait for the end, and look at what is there."""
        site.let_run()

        async def over() -> bool:
            view = await site.view(operator, job)
            if view is not None and view.state == "failed":
                raise SystemExit(f"the job failed: {view.reason}")
            return view is not None and view.state == "finished"

        await _until("the job is finished", over)
        path = self._directory / f"{job}.safetensors"
        await operator.pull_model(job, path)
        model, _ = tensors.read(path, mmap=False)
        return self._judge(site, job, np.asarray(model[TALLY]))

    def _judge(self, site: Site, job: str, metrics: np.ndarray[Any, Any]) -> Outcome:
        settings = self._settings
        with site.registry() as registry:
            lost, twice = lost_and_twice(registry, job, batches=settings.batches * settings.epochs)
            rows, events = registry.applied(job), registry.events_after(job, 0, limit=EVENTS_MANY)
            loss = registry.evaluations(job)[-1].loss
        assert loss is not None, "every evaluation here has a loss"
        predicted = tally_of([(r.version, r.batch) for r in rows], batches=settings.batches, momentum=MOMENTUM)
        return Outcome(
            loss=loss,
            batches_lost=lost,
            batches_twice=twice,
            model_matches=bool(np.allclose(metrics, predicted, rtol=1e-4, atol=1e-4)),
            events=Counter(event.kind for event in events),
            tracebacks=site.tracebacks(),
        )

    # Runs ----------------------------------------------------------------------------------------------

    async def without_faults(self) -> tuple[Rate, list[Outcome]]:
        """The rate, from a paced run; and what losses differ by, from unpaced ones: pace does not change them."""
        settings = self._settings
        outcomes: list[Outcome] = []
        async with self.site("without-faults") as (site, operator):
            job = await self.submit(operator, seed=settings.seed)
            await self.all_at_work(site, operator, job)
            from_s = time.monotonic()
            await asyncio.sleep(settings.rate_seconds)
            to_s = time.monotonic()
            outcomes.append(await self.finish(site, operator, job))
            made_s = [made.at_s for made in site.versions() if from_s <= made.at_s <= to_s]
            applied = _applied_between(site, job, from_s, to_s)
            rate = Rate(
                batches_per_device_s=applied / (to_s - from_s) / len(site.devices),
                round_s=(made_s[-1] - made_s[0]) / (len(made_s) - 1),
            )
            say(f"without faults: {applied / (to_s - from_s):.2f} batches/s, a round takes {rate.round_s:.3f} s")
            for other in range(1, settings.seeds):
                job = await self.submit(operator, seed=settings.seed + other)
                outcomes.append(await self.finish(site, operator, job))
        say("loss without faults: " + ", ".join(f"{outcome.loss:.4f}" for outcome in outcomes))
        return rate, outcomes

    async def with_faults(self, name: str, kinds: tuple[str, ...], rate: Rate, *, lead: str = "here") -> Soak:
        settings = self._settings
        if settings.shape != "star":
            kinds = (KILL_SUB_LEADER, *kinds)
        async with self.site(name, lead=lead) as (site, operator):
            if not site.has_disk:
                kinds = tuple(kind for kind in kinds if kind != FULL_DISK)
            faults = draw_faults(
                Rng(settings.seed).stream(name),
                kinds=kinds,
                devices=site.devices,
                every_s=settings.every_s,
                span_s=settings.seconds,
                brief=settings.brief,
            )
            job = await self.submit(operator, seed=settings.seed)
            await self.all_at_work(site, operator, job)
            from_s = time.monotonic()
            struck_s = await self._strike(site, faults, from_s)
            to_s = from_s + settings.seconds
            outcome = await self.finish(site, operator, job)
            manager_leads = lead == "here"
            return self._weigh(site, job, rate, struck_s, outcome, window_s=(from_s, to_s), manager_leads=manager_leads)

    async def _strike(self, site: Site, faults: list[Fault], from_s: float) -> list[tuple[float, Fault]]:
        """All faults in their time; returns when the span is over and everything was put right."""
        struck_s: list[tuple[float, Fault]] = []
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, from_s + fault.at_s - time.monotonic()))
                fault = site.aimed(fault)
                lasts = f" for {fault.for_s:.1f} s" if fault.for_s else ""
                say(f"{time.monotonic() - from_s:6.1f} s  {fault.kind}: {fault.victim}{lasts}")
                struck_s.append((time.monotonic(), fault))
                group.create_task(site.inflict(fault))
            await asyncio.sleep(max(0.0, from_s + self._settings.seconds - time.monotonic()))
        return struck_s

    def _weigh(
        self,
        site: Site,
        job: str,
        rate: Rate,
        struck_s: list[tuple[float, Fault]],
        outcome: Outcome,
        *,
        window_s: tuple[float, float],
        manager_leads: bool,
    ) -> Soak:
        settings, (from_s, to_s) = self._settings, window_s

        def expected(low_s: float, high_s: float) -> float:
            found = stretches(site.outages, devices=site.devices, from_s=low_s, to_s=high_s, leads=manager_leads)
            return rate.batches_per_device_s * sum(stretch.device_s for stretch in found)

        whole = stretches(site.outages, devices=site.devices, from_s=from_s, to_s=to_s, leads=manager_leads)
        overhead_s = rate.round_s - max(settings.devices.values())
        applied = _applied_between(site, job, from_s, to_s)
        made_s = [made.at_s for made in site.versions()]
        lost: dict[str, list[float]] = {}
        pauses_s: dict[str, list[float]] = {}
        ends_s = [at_s for at_s, _ in struck_s[1:]] + [to_s]
        for (at_s, fault), end_s in zip(struck_s, ends_s, strict=True):
            missing = expected(at_s, end_s) - _applied_between(site, job, at_s, end_s)
            lost.setdefault(fault.kind, []).append(missing / rate.batches_per_device_s)
            times_s = [at_s, *(t for t in made_s if at_s <= t <= end_s), end_s]
            pauses_s.setdefault(fault.kind, []).append(max(b - a for a, b in itertools.pairwise(times_s)))
        back_s: dict[str, list[float]] = {}
        worked_s = _worked(site, job)
        for at_s, fault in struck_s:
            ended_s = min(
                (o.to_s for o in site.outages if o.who == fault.victim and o.from_s >= at_s), default=math.inf
            )
            back = min((t for t in worked_s.get(fault.victim, ()) if t > ended_s), default=math.inf)
            # Of those who are back only after the soak is over, nothing can be said: by then nobody is paced.
            if fault.kind in OUTAGES and back < to_s:
                back_s.setdefault(fault.kind, []).append(back - ended_s)
        recoveries_s = [
            led_s - at_s for at_s, fault in struck_s if (led_s := _next_leader_s(site, at_s, fault)) is not None
        ]
        return Soak(
            faults=[fault for _, fault in struck_s],
            missed=len(site.missed),
            goodput=applied / expected(from_s, to_s),
            goodput_at_their_pace=applied / at_their_pace(whole, paces_s=settings.devices, overhead_s=overhead_s),
            recoveries_s=recoveries_s,
            lost_device_s={kind: sum(values) / len(values) for kind, values in sorted(lost.items())},
            longest_pause_s={kind: max(values) for kind, values in sorted(pauses_s.items())},
            back_s={kind: sum(values) / len(values) for kind, values in sorted(back_s.items())},
            in_shape=_in_shape(site, settings.shape, window_s),
            outcome=outcome,
        )


def _next_leader_s(site: Site, at_s: float, fault: Fault) -> float | None:
    """When a version was made by the next leader, where this fault took the leader away; None where it did not."""
    made = site.versions()
    before = [each for each in made if each.at_s <= at_s]
    if not before or before[-1].node != fault.victim or fault.kind not in (KILL_MANAGER, KILL_LEADER, *OUTAGES):
        return None
    term = before[-1].term
    later = [each.at_s for each in made if each.at_s > at_s and each.term > term]
    same = [each.at_s for each in made if each.at_s > at_s and each.term == term]
    if fault.kind in (STOP, LINK_DOWN) and same and (not later or same[-1] > later[0] or same[0] < later[0]):
        # It was away for so short a time that it went on leading.
        later = [*same, *later]
    return min(later, default=math.inf)


def _made_at(site: Site) -> dict[int, float]:
    """Version -> when it was made; of one that was made again, the last time by the newest leader counts."""
    newest: dict[int, tuple[int, float]] = {}
    for made in site.versions():
        newest[made.version] = max(newest.get(made.version, (0, 0.0)), (made.term, made.at_s))
    return {version: at_s for version, (_, at_s) in newest.items()}


def _worked(site: Site, job: str) -> dict[str, list[float]]:
    """Device -> when versions were made that hold a batch of it."""
    made_s = _made_at(site)
    worked_s: dict[str, list[float]] = {}
    with site.registry() as registry:
        for row in registry.applied(job):
            worked_s.setdefault(row.node, []).append(made_s[row.version])
    return worked_s


def _applied_between(site: Site, job: str, from_s: float, to_s: float) -> int:
    """Batches of the surviving history whose version was made in this time. Made again, the last time counts."""
    made_s = _made_at(site)
    with site.registry() as registry:
        return sum(from_s <= made_s[row.version] < to_s for row in registry.applied(job))


async def _until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not await condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not within {LIMIT_S:g} s: {what}")
        await asyncio.sleep(0.1)


# The whole ---------------------------------------------------------------------------------------------


async def soak(settings: Settings, directory: Path, network: Network | None) -> dict[str, Any]:
    workshop = Workshop(directory, network, settings)
    pids: list[int] = []
    rate, plain = await workshop.without_faults()
    pids += workshop.pids
    on_workers = await workshop.with_faults("faults-on-workers", ON_WORKERS, rate)
    _tell("faults on workers", on_workers)
    pids += workshop.pids
    kinds = WITH_MANAGER if settings.lead == "here" else WITH_LEADER
    with_manager = await workshop.with_faults("faults-on-all", kinds, rate, lead=settings.lead)
    _tell("faults on workers, leaders and the manager", with_manager)
    pids += workshop.pids
    soaks = (on_workers, with_manager)
    ended = [*plain, *(each.outcome for each in soaks)]
    losses = [outcome.loss for outcome in plain]
    return {
        "benchmark": "chaos",
        "devices": len(settings.devices),
        "minutes": 2 * settings.seconds / 60,
        "minutes_a_run": settings.seconds / 60,
        "every_s": settings.every_s,
        "faults": sum(len(each.faults) for each in soaks),
        "faults_missed": sum(each.missed for each in soaks),
        "goodput": on_workers.goodput,
        "goodput_with_leader_faults": with_manager.goodput,
        "goodput_at_their_pace": on_workers.goodput_at_their_pace,
        "goodput_at_their_pace_with_leader_faults": with_manager.goodput_at_their_pace,
        "leader_on": settings.lead,
        "shape": settings.shape,
        "versions_in_shape": [round(each.in_shape, 3) for each in soaks],
        "sub_leader_kills": sum(fault.kind == KILL_SUB_LEADER for each in soaks for fault in each.faults),
        "leader_faults": len(with_manager.recoveries_s),
        # None where no fault took the leader away.
        "leader_recovery_median_s": _recovery_s(with_manager, 0.5),
        "leader_recovery_p95_s": _recovery_s(with_manager, 0.95),
        "batches_lost": sum(outcome.batches_lost for outcome in ended),
        "batches_twice": sum(outcome.batches_twice for outcome in ended),
        "model_matches_history": all(outcome.model_matches for outcome in ended),
        "final_loss": [round(each.outcome.loss, 4) for each in soaks],
        "final_loss_fault_free": [round(loss, 4) for loss in losses],
        "batches_per_s_fault_free": rate.batches_per_device_s * len(settings.devices),
        "round_s_fault_free": rate.round_s,
        "lost_device_s": [_rounded(each.lost_device_s) for each in soaks],
        "longest_pause_s": [_rounded(each.longest_pause_s) for each in soaks],
        "back_s": [_rounded(each.back_s) for each in soaks],
        "bugs_logged": sorted({name for outcome in ended for name in outcome.tracebacks}),
        "left_behind": left_behind(directory, pids),
    }


def _recovery_s(each: Soak, share: float) -> float | None:
    return percentile(each.recoveries_s, share) if each.recoveries_s else None


def _tell(title: str, each: Soak) -> None:
    say(f"{title}: goodput {each.goodput:.3f} ({each.goodput_at_their_pace:.3f} at the pace of those alive)")
    for kind, lost in each.lost_device_s.items():
        count = sum(fault.kind == kind for fault in each.faults)
        back = f", at work again {each.back_s[kind]:.1f} s after" if kind in each.back_s else ""
        pause_s = each.longest_pause_s[kind]
        say(f"    {kind:18} {count:3} x {lost:6.1f} device-s lost, longest pause {pause_s:.1f} s{back}")
    if each.recoveries_s:
        say("    led again after the leader was taken away: " + ", ".join(f"{s:.1f}" for s in each.recoveries_s) + " s")
    say(f"    events: {dict(each.outcome.events)}")


def _in_shape(site: Site, shape: str, window_s: tuple[float, float]) -> float:
    made = [made.shape == shape for made in site.versions() if window_s[0] <= made.at_s <= window_s[1]]
    return sum(made) / max(1, len(made))


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}


def machine() -> dict[str, Any]:
    git = ("git", "-C", str(ROOT))
    words = [(*git, "rev-parse", "--short", "HEAD"), (*git, "status", "--porcelain", "--untracked-files=no")]
    commit, changed = (subprocess.run(w, capture_output=True, text=True, timeout=10).stdout.strip() for w in words)
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
        "commit": commit + ("+changes" if changed else ""),
    }


def paces(count: int) -> dict[str, float]:
    return {f"device-{i + 1}": round(float(pace_s), 3) for i, pace_s in enumerate(np.linspace(*PACES_S, count))}


def settings_of(given: argparse.Namespace) -> Settings:
    seconds = 60 * given.minutes / 2
    return Settings(
        devices=paces(given.devices),
        seconds=15.0 if given.quick else seconds,
        every_s=3.0 if given.quick else given.every,
        rate_seconds=6.0 if given.quick else min(90.0, max(10.0, seconds / 4)),
        seeds=1 if given.quick else 3,
        seed=given.seed,
        # Few epochs: the last round of one may be short, which is no fault's doing.
        batches=60 if given.quick else 1200,
        start_s=given.start_s,
        brief=given.quick,
        lead=given.lead,
        shape=given.topology,
        plan={name: float(value) for name, _, value in (text.partition("=") for text in given.plan)},
    )


def _as_if_typed(number: int, frame: object) -> None:
    signal.raise_signal(signal.SIGINT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="with faults, in two runs of half of it")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two faults")
    parser.add_argument("--devices", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lead", choices=("devices", "here"), default="devices", help="who leads in the last run")
    parser.add_argument("--topology", choices=("star", "tree", "shard"), default="star", help="how updates meet")
    parser.add_argument("--start-s", type=float, default=0.0, help="what loading torch would take, for every trainer")
    parser.add_argument("--plan", action="append", default=[], metavar="NAME=NUMBER", help="such as lease_s=1.5")
    parser.add_argument("--quick", action="store_true", help="15 s a run, a fault every 3 s, one seed")
    parser.add_argument("--keep", type=Path, help="leave homes and logs in this directory, which is new")
    parser.add_argument("--json", action="store_true", help="the result is one line of JSON in any case")
    given = parser.parse_args()
    settings = settings_of(given)
    # Told to end or interrupted, everything is taken down on the way out; also where a shell has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _as_if_typed)
    why_not = why_no_namespaces()
    if why_not:
        say(f"links are not cut, devices are stopped instead: {why_not}")
    facts = machine()
    with contextlib.ExitStack() as stack:
        if given.keep:
            given.keep.mkdir(parents=True)
            directory = given.keep.resolve()
        else:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-chaos-")))
        network = None if why_not else stack.enter_context(Network(list(settings.devices)))
        result = asyncio.run(soak(settings, directory, network))
    result["left_behind"] += [] if why_not else left_of(os.getpid())
    finish({**result, "namespaces": not why_not, **facts})
    sound = not (result["batches_lost"] or result["batches_twice"] or result["left_behind"])
    return 0 if sound and result["model_matches_history"] else 1


if __name__ == "__main__":
    sys.exit(main())
