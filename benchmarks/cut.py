"""A cut cable: the manager is cut off from the devices while they train, and the cable is put back.

A manager and four agents as processes, each in a network namespace of its own, with mutual TLS; trainers learn digits
for real and are padded to the pace of a small board. Nobody is told of the cut. Afterwards the job runs to its end, and
the history that survives is read. Run as root on Linux.

    python -m benchmarks.cut [--quick] --json

With ``--quick`` the manager is cut off from all devices for 30 s, once where devices lead and once where the manager
does. Without it also for 5 s and 90 s, and in part: the manager keeps one worker of four, and neither reaches the rest.

``versions_while_away``: versions that a device made, as leader, while it was cut off from the manager.
``versions_lost``: those of them that the final model does not descend from. A version is known by the checksums of the
model before and after it, so that one made again under the same number is not taken for it.
``batches_lost``, ``batches_twice``: from the audit of the registry's history, all epochs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from shoal.errors import ShoalError
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.store.registry import Registry
from shoal.wire import tensors
from shoal.wire.messages import JobView
from testbed.chaos.faults import MANAGER
from testbed.chaos.kit import EVENTS_MANY, digits_job, left_behind, lost_and_twice, tally_of
from testbed.chaos.soak import machine
from testbed.chaos.watch import VERSIONS_VARIABLE, Made, checksum, surviving, versions_in
from testbed.cluster import Cluster
from testbed.devices import boards
from testbed.namespaces import left_of, why_no_namespaces
from testbed.paced_digits import TALLY, layout_for
from testbed.results import finish, say

DEVICES = 4
PACE_S = 0.2
#: An epoch.
BATCHES = 60

MOMENTUM = 0.9
LEARNING_RATE = 0.02
CHECKPOINT_EVERY_S = 1.0

#: Who leads, and what ``shoal.runtime.manager_main`` calls it.
LEADS = {"devices": "devices", "manager": "here"}

CUT_S = 30.0
OTHER_CUTS_S = (5.0, 90.0)
#: How long training goes on, beyond the cut, before the padding is lifted: before and after it.
BESIDE_S = 20.0
AFTER_S = 3.0

#: No wait takes longer.
LIMIT_S = 240.0
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    lead: str
    cut_s: float
    #: The manager keeps one worker.
    is_partial: bool = False

    @property
    def name(self) -> str:
        from_whom = "all devices but one" if self.is_partial else "all devices"
        return f"--lead {self.lead}, the manager cut off from {from_whom} for {self.cut_s:g} s"

    @property
    def epochs(self) -> int:
        """The job must outlast the cut, also if what was trained meanwhile is lost."""
        return math.ceil((self.cut_s + BESIDE_S) * DEVICES / PACE_S / BATCHES) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Away:
    """When the manager was cut off, from whom, and how long it took to be of use again."""

    from_s: float
    to_s: float
    #: Devices that could not reach it.
    devices: tuple[str, ...]
    #: Until it had made durable a version that was made after the cable was back.
    kept_again_s: float

    def has(self, made: Made) -> bool:
        return self.from_s <= made.at_s <= self.to_s and made.node in self.devices


class Bench:
    """One cluster, one job, one cut."""

    def __init__(self, directory: Path, cut: Cut) -> None:
        self._directory = directory
        self._cut = cut
        self._home = directory / "home"
        self.pids: list[int] = []

    async def run(self) -> dict[str, Any]:
        cluster = Cluster(
            self._home,
            boards(DEVICES, pace_s=PACE_S),
            child_module="testbed.paced_digits",
            manager_module="testbed.chaos.manager",
            manager_options=("--lead", LEADS[self._cut.lead]),
            agent_module="testbed.chaos.agent",
            cache=self._directory / "cache",
        )
        with mock.patch.dict(os.environ, {VERSIONS_VARIABLE: str(self._versions)}):
            async with cluster:
                self.pids = [process.pid for process in (cluster.manager, *cluster.agents.values()) if process]
                await cluster.connected()
                async with Operator.open(self._home) as operator:
                    job = await self._submit(operator)
                    await self._at_work(operator, job)
                away = await self._cut_off(cluster, job)
                await asyncio.sleep(AFTER_S)
                for device in cluster.devices:
                    cluster.set_pace(device.name, 0.0)
                # One that was cut off itself may take long to dial again: it is not what is measured.
                async with Operator.open(self._home) as operator:
                    await self._ended(operator, job)
                    model = self._directory / "model.safetensors"
                    await operator.pull_model(job, model)
        return self._judged(job, away, model)

    @property
    def _versions(self) -> Path:
        return self._directory / "versions"

    async def _submit(self, operator: Operator) -> str:
        job = await asyncio.to_thread(digits_job, self._directory, batches=BATCHES, seed=1)
        plan = {
            "seed": 1,
            "learning_rate": LEARNING_RATE,
            "momentum": MOMENTUM,
            "until": {"epochs": self._cut.epochs},
            # The last version alone: an evaluation is not what is measured.
            "evaluate_every_epochs": 1_000_000,
            "checkpoint_every_s": CHECKPOINT_EVERY_S,
            "workers_min": 1,
        }
        return await operator.submit(job, plan=plan)

    async def _at_work(self, operator: Operator, job: str) -> None:
        """Every device has returned some leases, and a version is durable."""

        async def working() -> bool:
            progress = view.progress if (view := await _view(operator, job)) else None
            ready = [worker for worker in progress.workers if worker.batches >= 3] if progress else []
            return progress is not None and len(ready) == DEVICES and progress.durable_version > 0

        await _until("all devices are at work", working)

    async def _cut_off(self, cluster: Cluster, job: str) -> Away:
        leader = versions_in(self._versions)[-1].node
        others = [device.name for device in cluster.devices if device.name != leader]
        names = {device.name for device in cluster.devices}
        network = cluster.bed.network
        say(f"{self._cut.name}: {leader} leads at version {versions_in(self._versions)[-1].version}")
        if self._cut.is_partial:
            kept = others[-1]
            names.remove(kept)
            await asyncio.to_thread(network.split, [MANAGER, kept])
        else:
            await asyncio.to_thread(network.cut, MANAGER)
        from_s = time.monotonic()
        await asyncio.sleep(self._cut.cut_s)
        # Measured before the cable is back: what is made from now on may be made with the manager's help.
        to_s = time.monotonic()
        if self._cut.is_partial:
            await asyncio.to_thread(network.rejoin)
        else:
            await asyncio.to_thread(network.mend, MANAGER)
        mended_s = time.monotonic()
        async with Operator.open(self._home) as operator:

            async def kept_again() -> bool:
                progress = view.progress if (view := await _view(operator, job)) else None
                return progress is not None and any(
                    made.at_s > mended_s and made.term == progress.term and made.version <= progress.durable_version
                    for made in versions_in(self._versions)
                )

            await _until("the manager keeps versions again", kept_again)
        kept_s = time.monotonic() - mended_s
        return Away(from_s=from_s, to_s=to_s, devices=tuple(sorted(names)), kept_again_s=kept_s)

    async def _ended(self, operator: Operator, job: str) -> None:
        async def over() -> bool:
            view = await _view(operator, job)
            if view is not None and view.state in ("failed", "stopped"):
                raise SystemExit(f"the job {view.state}: {view.reason}")
            return view is not None and view.state == "finished"

        await _until("the job is finished", over)

    # What came of it -------------------------------------------------------------------------------------

    def _judged(self, job: str, away: Away, file: Path) -> dict[str, Any]:
        made = versions_in(self._versions)
        model, _ = tensors.read(file, mmap=False)
        layout = layout_for(BATCHES)
        flat = np.zeros(layout.size, np.float32)
        for name, view in layout.views(flat).items():
            view[...] = model[name]
        history = surviving(made, checksum(flat))
        with Registry(Paths(self._home).registry) as registry:
            lost, twice = lost_and_twice(registry, job, batches=BATCHES * self._cut.epochs)
            rows = registry.applied(job)
            events = registry.events_after(job, 0, limit=EVENTS_MANY)
        predicted = tally_of([(row.version, row.batch) for row in rows], batches=BATCHES, momentum=MOMENTUM)
        while_away = [each for each in made if away.has(each)]
        survived = {(each.version, each.model) for each in history}
        here = [each for each in made if away.from_s <= each.at_s <= away.to_s and not away.has(each)]
        after_s = min((each.at_s for each in history if each.at_s > away.to_s), default=math.inf)
        since = {each.version for each in history if each.at_s > away.to_s}
        return {
            "cut_s": self._cut.cut_s,
            "is_partial": self._cut.is_partial,
            "versions_while_away": len(while_away),
            "versions_lost": sum((each.version, each.model) not in survived for each in while_away),
            "versions_on_the_managers_side": len(here),
            "versions_lost_on_the_managers_side": sum((each.version, each.model) not in survived for each in here),
            "batches_lost": lost,
            "batches_twice": twice,
            "model_matches_history": bool(np.allclose(np.asarray(model[TALLY]), predicted, rtol=1e-4, atol=1e-4)),
            "trains_again_s": round(after_s - away.to_s, 2),
            "kept_again_s": round(away.kept_again_s, 2),
            "devices_at_work_after": len({row.node for row in rows if row.version in since}),
            "terms": sorted({each.term for each in made}),
            "terms_in_history": sorted({each.term for each in history}),
            "leaders": _led(made),
            "discarded_events": [event.text for event in events if "discard" in f"{event.kind} {event.text}"],
            "discarded_in_logs": self._discarded(),
            "bugs_logged": [log.name for log in self._logs() if "Traceback" in log.read_text(errors="replace")],
        }

    def _logs(self) -> list[Path]:
        return sorted(self._home.glob("*.log"))

    def _discarded(self) -> list[str]:
        """What was said of versions that had to be given up."""
        lines = [(log.stem, line) for log in self._logs() for line in log.read_text(errors="replace").splitlines()]
        return [f"{name}: {line.strip()}" for name, line in lines if "discard" in line]


def _led(made: Sequence[Made]) -> dict[str, str]:
    """Term -> who led under it, and which versions it made."""
    terms: dict[int, list[Made]] = {}
    for each in made:
        terms.setdefault(each.term, []).append(each)
    return {
        str(term): f"{found[0].node}, versions {found[0].version} to {found[-1].version}"
        for term, found in sorted(terms.items())
    }


async def _view(operator: Operator, job: str) -> JobView | None:
    """How a job stands; None while there is no manager to ask."""
    with contextlib.suppress(ShoalError):
        return (await operator.status(job)).jobs[0]
    return None


async def _until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not await condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not within {LIMIT_S:g} s: {what}")
        await asyncio.sleep(_POLL_S)


# The whole ---------------------------------------------------------------------------------------------


def cuts(given: argparse.Namespace) -> list[Cut]:
    leads = [given.lead] if given.lead else list(LEADS)
    if given.cut_s:
        return [Cut(lead=lead, cut_s=given.cut_s, is_partial=given.partial) for lead in leads]
    lengths_s = (CUT_S,) if given.quick else (CUT_S, *OTHER_CUTS_S)
    whole = [Cut(lead=lead, cut_s=cut_s) for cut_s in lengths_s for lead in leads]
    return whole if given.quick else [*whole, *(Cut(lead=lead, cut_s=CUT_S, is_partial=True) for lead in leads)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"one cut of {CUT_S:g} s for each who may lead")
    parser.add_argument("--lead", choices=tuple(LEADS), default="", help="only where these lead")
    parser.add_argument("--cut-s", type=float, default=0.0, help="one cut of this length instead of the usual ones")
    parser.add_argument("--partial", action="store_true", help="with --cut-s: the manager keeps one worker")
    parser.add_argument("--keep", type=Path, help="leave homes and logs in this directory, which is new")
    parser.add_argument("--json", action="store_true", help="the result is one line of JSON in any case")
    given = parser.parse_args()
    if why_not := why_no_namespaces():
        say(f"nothing can be cut off here: {why_not}")
        return 2
    # Told to end or interrupted, everything is taken down on the way out; also where a shell has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    began_s = time.monotonic()
    results: dict[str, list[dict[str, Any]]] = {}
    left: list[str] = []
    with contextlib.ExitStack() as stack:
        if given.keep:
            given.keep.mkdir(parents=True)
            directory = given.keep.resolve()
        else:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-cut-")))
        for number, cut in enumerate(cuts(given)):
            folder = directory / f"{number}-{cut.lead}"
            folder.mkdir()
            bench = Bench(folder, cut)
            result = asyncio.run(bench.run())
            results.setdefault(cut.lead, []).append(result)
            left += left_behind(folder, bench.pids)
            say(f"{cut.name}: {result['versions_lost']} of {result['versions_while_away']} versions lost")
    left += left_of(os.getpid())

    def total(name: str) -> int:
        return sum(result[name] for each in results.values() for result in each)

    counted = ("versions_lost", "versions_while_away", "batches_twice", "batches_lost")
    sums = {name: total(name) for name in counted}
    matches = all(result["model_matches_history"] for each in results.values() for result in each)
    finish(
        {
            "benchmark": "cut",
            **sums,
            "model_matches_history": matches,
            "devices_count": DEVICES,
            **results,
            "left_behind": left,
            "seconds": time.monotonic() - began_s,
            **machine(),
        }
    )
    sound = matches and not (sums["versions_lost"] or sums["batches_twice"] or sums["batches_lost"] or left)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
