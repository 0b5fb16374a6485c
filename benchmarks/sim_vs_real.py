"""Does the simulator tell the truth? A real run of four agents on this machine, and its simulation, side by side.

The manager, its leader and four agents are real processes that talk over loopback. What their devices take for a lease
is measured in that run (the seconds each trainer reports), and what the wire takes in another with one agent and two
sizes of model; both go into the simulator, which must then come to the same number of rounds a second.

There are three runs. *Paced*: each trainer takes a time of its own, as boards of different speed do. *Trained*: four
PyTorch trainers share this machine's cores. *Local*: each of the four trains on rows of its own, and its twin in the
simulator trains for real on the same rows.

    python -m benchmarks.sim_vs_real [--quick] --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, pstdev
from typing import cast
from unittest import mock

import shoal.trainer
from benchmarks.common import PERNET, Versions
from benchmarks.local_digits_task import PARTITION
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Action
from shoal.roles.events import Event, Received
from shoal.roles.leader.leader import Leader
from shoal.runtime.local import LocalCluster
from shoal.runtime.manager_main import run_home
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.manager_start import ManagerReady
from shoal.runtime.operator import Operator
from shoal.sim.devices import Build
from shoal.sim.jobs import system_job
from shoal.sim.local_devices import divide
from shoal.sim.network import AccessLink
from shoal.sim.rates import Steady
from shoal.sim.real import close, simulated_job
from shoal.sim.world import Settings, World
from shoal.trainer.package import ReadyTask, laid_over, make_ready, plan_from
from shoal.wire.messages import Update
from testbed.echo_job import echo_job
from testbed.results import finish, say

WORKERS = 4
PACES_S = (0.10, 0.13, 0.17, 0.22)
SMALL = 500
TIMEOUT_S = 300.0
_ECHO = ("--child-module", "shoal.trainer.echo")


@dataclass
class Observed:
    """What the leader saw: when versions came, and what trainers said they took."""

    versions_s: list[float] = field(default_factory=list)
    trainings_s: dict[str, list[float]] = field(default_factory=dict)

    def rounds_per_s(self) -> float:
        """Between the first tenth of the versions, in which workers come, and the last."""
        skip = max(2, len(self.versions_s) // 10)
        times = self.versions_s[skip:]
        return (len(times) - 1) / (times[-1] - times[0])


@contextlib.contextmanager
def listening() -> Iterator[Observed]:
    """Hear what leaders in this process hear."""
    seen = Observed()
    handle = Leader.handle

    def heard(leader: Leader, event: Event, now_s: float) -> list[Action]:
        before = leader.version
        actions = handle(leader, event, now_s)
        if leader.version > before:
            seen.versions_s.append(now_s)
        if isinstance(event, Received) and isinstance(event.message, Update):
            seen.trainings_s.setdefault(event.sender, []).append(event.message.train_s)
        return actions

    with mock.patch.object(Leader, "handle", heard):
        yield seen


@contextlib.asynccontextmanager
async def cluster(directory: Path, options: Sequence[tuple[str, ...]]) -> AsyncIterator[Operator]:
    """A manager in this process, and an agent of its own process for each set of options."""
    ready: asyncio.Future[ManagerReady] = asyncio.get_running_loop().create_future()
    home = directory / "home"
    serving = asyncio.create_task(run_home(ManagerOptions(home=home), on_ready=ready.set_result))
    site = LocalCluster(workers=0, home=home, cache=directory / "cache")
    try:
        site.join_line = (await asyncio.wait_for(ready, TIMEOUT_S)).join_line
        for number, words in enumerate(options, start=1):
            await site.start_agent(f"device-{number}", *words, "--quiet")
        async with Operator.open(home) as operator:
            yield operator
    finally:
        await site.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def run_job(operator: Operator, ready: ReadyTask, plan: dict[str, object]) -> None:
    job = await operator.submit(ready, plan=plan)
    began_s = time.monotonic()
    while (state := (await operator.status(job)).jobs[0].state) != "finished":
        if state == "failed" or time.monotonic() - began_s > TIMEOUT_S:
            raise SystemExit(f"the real run ended as {state}")
        await asyncio.sleep(0.1)


# What the wire takes -----------------------------------------------------------------------------------


async def round_s(directory: Path, values: int, rounds: int) -> float:
    """A round of one worker that trains nothing: a model down, an update up."""
    directory.mkdir()
    with listening() as seen:
        async with cluster(directory, [_ECHO]) as operator:
            await run_job(operator, echo_job(directory, values=values, batches=rounds), _plan(1))
    return 1 / seen.rounds_per_s()


def _plan(workers: int, **more: object) -> dict[str, object]:
    return {"workers_min": workers, "workers_max": workers, "until": {"epochs": 1}, "momentum": 0.0, **more}


async def measured_line(directory: Path, rounds: int) -> AccessLink:
    """From two sizes of model: what a message takes however small, and what a byte does."""
    small_s = await round_s(directory / "small", SMALL, rounds)
    large_s = await round_s(directory / "large", PERNET, rounds)
    bytes_per_s = 2 * 4 * (PERNET - SMALL) / (large_s - small_s)
    say(f"wire: {small_s * 1000:.1f} ms a round at least, {bytes_per_s / 1e6:.0f} MB/s through encryption and merging")
    # A round is two messages, each over both ends; both ends' rates are passed one after the other, piece by piece.
    rate = Steady(bytes_per_s)
    return AccessLink(up=rate, down=rate, latency_s=small_s / 4)


# The same in the simulator -----------------------------------------------------------------------------


def simulated(real: Observed, line: AccessLink, *, values: int, batches: int, lease_batches: int) -> float:
    """Rounds a second of a simulation with these device speeds."""
    devices = [_device(real.trainings_s[node], line, lease_batches) for node in sorted(real.trainings_s)]
    layout = Layout.of([("flat", (values,), "parameter")])
    workers = len(devices)
    plan = Plan(
        batch_size=1,
        lease_batches=lease_batches,
        workers_min=workers,
        workers_max=workers,
        until=Until(epochs=1),
        momentum=0.0,
    )
    job = system_job(plan, layout, examples=batches, start_s=0.5)
    versions = Versions()
    world = World(Settings(seed=1, builds=devices, home_line=line, jobs=[job]), observers=[versions])
    world.begin()
    if not world.run(limit_s=3600.0):
        raise SystemExit("the simulation did not finish")
    return Observed(versions_s=versions.made_s).rounds_per_s()


def simulated_local(real: Observed, line: AccessLink, ready: ReadyTask, plan: dict[str, object]) -> float:
    """Rounds a second of a simulation in which devices train for real, on the rows that the real ones had."""
    lease_batches = cast(int, plan["lease_batches"])
    names = [f"device-{number}" for number in range(1, WORKERS + 1)]
    devices = [_device(real.trainings_s[node], line, lease_batches) for node in names]
    divided = divide(ready, PARTITION, devices=WORKERS)
    job = simulated_job(ready, plan_from(laid_over(ready.prepared.plan, plan)), train=True, divided=divided)
    try:
        versions = Versions()
        world = World(
            Settings(seed=1, builds=devices, home_line=line, jobs=[replace(job, start_s=0.5)]), observers=[versions]
        )
        world.begin()
        if not world.run(limit_s=3600.0):
            raise SystemExit("the simulation did not finish")
    finally:
        close(job)
    return Observed(versions_s=versions.made_s).rounds_per_s()


def _device(trainings_s: list[float], line: AccessLink, lease_batches: int) -> Build:
    settled = trainings_s[len(trainings_s) // 10 :]
    logs = [math.log(max(seconds, 1e-6)) for seconds in settled]
    return Build(
        kind="measured",
        seconds_per_gmac=0.0,
        seconds_per_batch=median(settled) / lease_batches,
        jitter=pstdev(logs),
        memory_mb=4096,
        line=line,
    )


# Both --------------------------------------------------------------------------------------------------


async def paced(directory: Path, line: AccessLink, rounds: int) -> dict[str, float]:
    directory.mkdir()
    options = [(*_ECHO, "--pace-s", str(pace_s)) for pace_s in PACES_S]
    batches = rounds * WORKERS
    with listening() as real:
        async with cluster(directory, options) as operator:
            await run_job(operator, echo_job(directory, values=PERNET, batches=batches), _plan(WORKERS))
    sim = simulated(real, line, values=PERNET, batches=batches, lease_batches=1)
    return _compared("paced", real, sim)


async def trained(directory: Path, line: AccessLink, epochs: int) -> dict[str, float]:
    directory.mkdir()
    task = Path(shoal.trainer.__file__).with_name("demo_task.py")
    lease_batches = 4
    with listening() as real:
        async with cluster(directory, [() for _ in range(WORKERS)]) as operator:
            ready = await operator.prepare(task, "demo_task:Digits", on_progress=lambda text: None)
            plan = _plan(WORKERS, lease_batches=lease_batches, evaluate_every_epochs=100)
            await run_job(operator, ready, {**plan, "until": {"epochs": epochs}})
    values = ready.prepared.layout.size
    batches = len(real.versions_s) * WORKERS * lease_batches
    sim = simulated(real, line, values=values, batches=batches, lease_batches=lease_batches)
    return _compared("trained", real, sim)


async def local(directory: Path, line: AccessLink, rounds: int) -> dict[str, float]:
    directory.mkdir()
    task = Path(__file__).with_name("local_digits_task.py")
    more = {"lease_batches": 4, "epoch_leases": rounds * WORKERS, "evaluate_every_epochs": 100, "data": "local"}
    plan = _plan(WORKERS, **more)
    with listening() as real:
        async with cluster(
            directory, [("--part", f"{number}/{WORKERS}") for number in range(1, 1 + WORKERS)]
        ) as operator:
            ready = await operator.prepare(task, "local_digits_task:LocalDigits", on_progress=lambda text: None)
            await run_job(operator, ready, plan)
    here = await make_ready(task, "local_digits_task:LocalDigits", out=directory / "divided", divided=True)
    return _compared("local", real, simulated_local(real, line, here, plan))


def _compared(name: str, real: Observed, sim: float) -> dict[str, float]:
    measured = real.rounds_per_s()
    error = sim / measured - 1
    speeds = ", ".join(f"{1000 * median(seconds):.0f}" for _, seconds in sorted(real.trainings_s.items()))
    say(f"{name}: real {measured:.2f} rounds/s, simulated {sim:.2f} ({error:+.1%}); devices take {speeds} ms a lease")
    return {f"{name}_real": measured, f"{name}_simulated": sim, f"{name}_error": error}


async def run(*, quick: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="shoal-twin-") as folder:
        directory = Path(folder)
        line = await measured_line(directory, 60 if quick else 200)
        result = await paced(directory / "paced", line, 40 if quick else 150)
        result |= await trained(directory / "trained", line, 1 if quick else 4)
        result |= await local(directory / "local", line, 60 if quick else 250)
    error = max(abs(result[f"{name}_error"]) for name in ("paced", "trained", "local"))
    return {"error": error, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    finish(asyncio.run(run(quick=parser.parse_args().quick)))


if __name__ == "__main__":
    main()
