"""One cluster of a soak: a stretch without faults, which gives the rate, then a fault every so often; and its figures.

Jobs follow one another. Goodput, batches that are lost or count twice, and what a model must be are as in
``testbed.chaos.soak``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from shoal.errors import ShoalError
from shoal.runtime.operator import Operator
from shoal.sim.rng import Rng
from shoal.store.base import Away
from shoal.store.registry import Registry
from shoal.trainer.package import ReadyTask
from shoal.wire import tensors
from shoal.wire.messages import JobView
from testbed.chaos.faults import FULL_DISK, WITH_ONE_MANAGER, WITH_TWO_MANAGERS, Fault, draw_faults, stretches
from testbed.chaos.kit import Site, digits_job, lost_and_twice, lost_and_twice_so_far, tally_of
from testbed.chaos.watch import last_in, versions_in
from testbed.paced_digits import TALLY
from testbed.results import say
from testbed.soak.growth import Sample
from testbed.soak.journal import Journal, Leg

#: An epoch: 42 s of six devices of which the slowest takes 0.4 s.
BATCHES = 600
MOMENTUM, LEARNING_RATE = 0.9, 0.02
CHECKPOINT_EVERY_S = 1.0
SAMPLE_EVERY_S = 5.0
#: Between two questions how the job stands: what the next job waits for.
ASK_EVERY_S = 0.25

#: Nobody makes a version for so long: the cluster does not get up again.
STALLED_S = 300.0


class Stalled(ShoalError):
    """The cluster does not train any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """How a leg is run."""

    number: int
    managers: int
    #: With faults.
    seconds: float
    #: Without, before them.
    calm_s: float
    every_s: float
    seed: int
    #: Of each job.
    epochs: int
    devices: Mapping[str, float]
    commit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A finished job."""

    lost: int
    twice: int
    model_matches: bool
    #: When each batch of its history was applied.
    applied_s: tuple[float, ...]


class Running:
    """A leg that runs."""

    def __init__(self, site: Site, operator: Operator, directory: Path, terms: Terms, journal: Journal) -> None:
        self._site = site
        self._operator = operator
        self._directory = directory
        self._terms = terms
        self._journal = journal
        #: All that were submitted; the last one runs.
        self._jobs: list[str] = []
        self._ended: dict[str, Ended] = {}
        self._faults: Counter[str] = Counter()
        self._load: list[float] = []
        self._bugs: dict[str, str] = {}
        self._rate = 0.0
        self._from_s = 0.0
        self._is_over = False

    async def run(self) -> None:
        try:
            await self._run()
        except ExceptionGroup as failed:
            if stalled := failed.subgroup(Stalled):
                raise Stalled(str(_first(stalled))) from failed
            raise

    async def _run(self) -> None:
        terms = self._terms
        ready = await asyncio.to_thread(digits_job, self._directory, batches=BATCHES, seed=terms.seed)
        await self._begin(ready)
        await self._all_at_work()
        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(self._sample())
            jobs = group.create_task(self._follow(ready))
            calm_s = time.monotonic()
            await asyncio.sleep(terms.calm_s)
            self._from_s = time.monotonic()
            applied = await asyncio.to_thread(self._applied_between, calm_s, self._from_s)
            self._rate = applied / (self._from_s - calm_s) / len(self._site.devices)
            say(f"leg {terms.number}, managers: {terms.managers}; without faults {self._rate:.3f} batches/s a device")
            await self._strike()
            sampling.cancel()
            self._is_over = True
            self._site.let_run()
            await jobs
        await self._note(terms.seconds)

    # Jobs ------------------------------------------------------------------------------------------------

    async def _begin(self, ready: ReadyTask) -> None:
        plan = {
            "seed": self._terms.seed + len(self._jobs),
            "learning_rate": LEARNING_RATE,
            "momentum": MOMENTUM,
            "until": {"epochs": self._terms.epochs},
            "evaluate_every_epochs": 1_000_000,
            "checkpoint_every_s": CHECKPOINT_EVERY_S,
        }
        until_s = time.monotonic() + STALLED_S
        while True:
            with contextlib.suppress(ShoalError):
                async with self._site.submitter() as operator:
                    self._jobs.append(await operator.submit(ready, plan=plan))
                return
            # The answer may have been lost, and not the job.
            with contextlib.suppress(Away):
                if taken := await asyncio.to_thread(self._unknown_job):
                    self._jobs.append(taken)
                    return
            if time.monotonic() > until_s:
                raise Stalled(f"no job could be submitted within {STALLED_S:g} s")
            await asyncio.sleep(ASK_EVERY_S)

    def _unknown_job(self) -> str:
        with self._site.registry() as registry:
            return next((row.job for row in registry.jobs() if row.state.is_open and row.job not in self._jobs), "")

    async def _view(self) -> JobView | None:
        return await self._site.view(self._operator, self._jobs[-1])

    async def _all_at_work(self) -> None:
        until_s = time.monotonic() + STALLED_S
        while True:
            view = await self._view()
            workers = view.progress.workers if view and view.progress else ()
            if sum(worker.batches >= 3 for worker in workers) == len(self._site.devices):
                return
            if time.monotonic() > until_s:
                raise Stalled(f"not all devices were at work within {STALLED_S:g} s")
            await asyncio.sleep(ASK_EVERY_S)

    async def _follow(self, ready: ReadyTask) -> None:
        """Each job that ends is followed by another, until the time is over."""
        while True:
            began_s = time.monotonic()
            while True:
                view = await self._view()
                if view is not None and view.state.is_ended:
                    break
                newest = last_in(self._site.home / "versions")
                if time.monotonic() - max(began_s, newest.at_s if newest else 0.0) > STALLED_S:
                    raise Stalled(f"{self._jobs[-1]}: no version for {STALLED_S:g} s")
                await asyncio.sleep(ASK_EVERY_S)
            if view.state != "finished":
                raise Stalled(f"{self._jobs[-1]} {view.state}: {view.reason}")
            over, ended = self._is_over, self._jobs[-1]
            if not over:
                # Before the last one is looked at: devices wait for it.
                await self._begin(ready)
            self._ended[ended] = await self._judged(ended)
            if over:
                return

    async def _judged(self, job: str) -> Ended:
        path = self._directory / f"{job}.safetensors"
        until_s = time.monotonic() + STALLED_S
        while True:
            with contextlib.suppress(ShoalError, OSError, Away):
                await self._operator.pull_model(job, path)
                return await asyncio.to_thread(self._judge, job, path)
            if time.monotonic() > until_s:
                raise Stalled(f"{job} finished, and nobody has its model")
            await asyncio.sleep(ASK_EVERY_S)

    def _judge(self, job: str, path: Path) -> Ended:
        model, _ = tensors.read(path, mmap=False)
        tally = np.array(model[TALLY])
        path.unlink()
        with self._site.registry() as registry:
            lost, twice = lost_and_twice(registry, job, batches=BATCHES * self._terms.epochs)
            rows = registry.applied(job)
            applied_s = self._applied_s(registry, job)
        predicted = tally_of([(row.version, row.batch) for row in rows], batches=BATCHES, momentum=MOMENTUM)
        matches = bool(np.allclose(tally, predicted, rtol=1e-4, atol=1e-4))
        if lost or twice or not matches:
            say(f"{job}: {lost} batches lost, {twice} twice; its model is that of its history: {matches}")
        return Ended(lost=lost, twice=twice, model_matches=matches, applied_s=applied_s)

    # Faults ----------------------------------------------------------------------------------------------

    async def _strike(self) -> None:
        terms, site = self._terms, self._site
        kinds = WITH_ONE_MANAGER if terms.managers == 1 else WITH_TWO_MANAGERS
        faults = draw_faults(
            Rng(terms.seed).stream(f"soak-{terms.number}"),
            kinds=[kind for kind in kinds if kind != FULL_DISK or site.has_disk],
            devices=site.devices,
            every_s=terms.every_s,
            span_s=terms.seconds,
            spared=site.devices[-1],
        )
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, self._from_s + fault.at_s - time.monotonic()))
                if fault.at_s:
                    await self._note(fault.at_s)
                aimed = site.aimed(fault)
                self._faults[aimed.kind] += 1
                self._tell(aimed)
                group.create_task(site.inflict(aimed))
            await asyncio.sleep(max(0.0, self._from_s + terms.seconds - time.monotonic()))

    def _tell(self, fault: Fault) -> None:
        leg = self._journal.legs.get(self._terms.number)
        so_far = f", goodput {leg.applied / leg.expected:.3f}, {leg.lost} lost, {leg.twice} twice" if leg else ""
        lasts = f" for {fault.for_s:.1f} s" if fault.for_s else ""
        elapsed_s = sum(each.seconds for each in self._journal.legs.values())
        say(f"{elapsed_s / 60:7.1f} min  {fault.kind}: {fault.victim}{lasts}{so_far}")

    # What came of it -------------------------------------------------------------------------------------

    async def _sample(self) -> None:
        while True:
            leading = await asyncio.to_thread(self._site.leading)
            for who, pid in self._site.living().items():
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(pid)
                    with process.oneshot():
                        sample = Sample(
                            at_s=round(time.monotonic(), 1),
                            who=who,
                            pid=pid,
                            rss_mb=round(process.memory_info().rss / 2**20, 2),
                            fds=process.num_fds(),
                            leads=who in leading,
                        )
                    self._journal.add_sample(self._terms.number, sample)
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def _note(self, seconds: float) -> None:
        """Write down what is known after so many seconds with faults."""
        with contextlib.suppress(Away):
            self._journal.add_leg(await asyncio.to_thread(self._leg, seconds))

    def _leg(self, seconds: float) -> Leg:
        site, terms = self._site, self._terms
        to_s = self._from_s + seconds
        bugs = site.bugs()
        for log, text in bugs.items():
            # The logs go with the cluster.
            if self._bugs.get(log) != text:
                say(f"{log}: {text}")
        self._bugs = bugs
        self._load.append(round(os.getloadavg()[0], 2))
        found = stretches(site.outages, devices=site.devices, from_s=self._from_s, to_s=to_s, leads=False)
        lost = sum(each.lost for each in self._ended.values())
        twice = sum(each.twice for each in self._ended.values())
        with site.registry() as registry:
            for job in self._going_on:
                now = lost_and_twice_so_far(registry, job, epoch_batches=BATCHES)
                lost, twice = lost + now[0], twice + now[1]
        return Leg(
            number=terms.number,
            managers=terms.managers,
            seconds=seconds,
            faults=dict(self._faults),
            missed=len(site.missed),
            applied=self._applied_between(self._from_s, to_s),
            expected=self._rate * sum(stretch.device_s for stretch in found),
            lost=lost,
            twice=twice,
            jobs_finished=len(self._ended),
            model_matches=all(each.model_matches for each in self._ended.values()),
            tracebacks=tuple(bugs),
            load=tuple(self._load),
            commit=terms.commit,
        )

    @property
    def _going_on(self) -> list[str]:
        """Jobs that were not looked at after their end."""
        return [job for job in self._jobs if job not in self._ended]

    def _applied_between(self, from_s: float, to_s: float) -> int:
        times = [at_s for each in self._ended.values() for at_s in each.applied_s]
        with self._site.registry() as registry:
            for job in self._going_on:
                times += self._applied_s(registry, job)
        return sum(from_s <= at_s < to_s for at_s in times)

    def _applied_s(self, registry: Registry, job: str) -> tuple[float, ...]:
        """When the batches of the surviving history were applied. Of a version that was made again, the last counts."""
        newest: dict[int, tuple[int, float]] = {}
        for made in versions_in(self._site.home / "versions"):
            if made.job == job:
                newest[made.version] = max(newest.get(made.version, (0, 0.0)), (made.term, made.at_s))
        return tuple(newest[row.version][1] for row in registry.applied(job))


def _first(failed: BaseException) -> BaseException:
    return _first(failed.exceptions[0]) if isinstance(failed, BaseExceptionGroup) else failed
