"""AdaComp through the whole simulator: the roles that are deployed, a plan, and real training in virtual time.

Two things differ from the arena. Batches are lent to whoever is ready, so that no worker has images of its own. And a
device takes a lognormal time for a batch, with about the deviation of a cycle of 0.2 + U(0, 2).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import digits_cnn
from papers.adacomp import paper
from papers.harness.rows import Row
from shoal.sim.devices import Build
from shoal.sim.metrics import Metrics
from shoal.sim.network import AccessLink
from shoal.sim.outcome import Outcome
from shoal.sim.rates import Steady, mbit
from shoal.sim.real import close, simulated_job
from shoal.sim.world import Settings, World
from shoal.trainer.find import find_task
from shoal.trainer.package import ReadyTask, make_ready, plan_from

TASK = Path(digits_cnn.__file__).resolve()

#: The mean of a cycle, and its deviation over that.
BATCH_S = 1.2
JITTER = 0.48

#: As on one machine: the paper's devices are containers of it, and its figures are of updates and not of seconds.
RATE_MBIT = 10_000.0

QUICK_WORKERS = 20
QUICK_S = 60.0


def plan_of(*, quick: bool) -> dict[str, Any]:
    workers = QUICK_WORKERS if quick else paper.WORKERS
    return {
        "pace": "async",
        "staleness": "parameter",
        "codec": "top1%",
        "codec_down": "dense",
        "learning_rate": paper.RATE,
        "momentum": 0.0,
        "batch_size": paper.BATCH,
        "workers_min": workers,
        "workers_max": workers,
        "until": {"seconds": QUICK_S} if quick else {"accuracy": paper.TARGET, "epochs": 8},
        "lease_s": 600.0,
        "seed": 0,
    }


def run(*, quick: bool) -> Row:
    """One row."""
    began_s = time.monotonic()
    chosen = plan_of(quick=quick)
    with tempfile.TemporaryDirectory(prefix="shoal-adacomp-") as folder:
        outcome = _played(_prepared(Path(folder)), chosen)
    last = outcome.evaluations[-1] if outcome.evaluations else None
    return {
        "state": str(outcome.state),
        "reason": outcome.reason,
        "workers": chosen["workers_min"],
        "updates": last.version if last else None,
        "accuracy": last.accuracy if last else None,
        "curve": [[point.version, round(point.accuracy or 0.0, 4)] for point in outcome.evaluations],
        # Of a device in the middle: the one that leads sends models, not updates.
        "bytes_up_median": median(device.bytes_up for device in outcome.devices),
        "bytes_down_median": median(device.bytes_down for device in outcome.devices),
        "seconds": time.monotonic() - began_s,
    }


def _played(ready: ReadyTask, chosen: dict[str, Any]) -> Outcome:
    job = simulated_job(ready, plan_from(ready.prepared.plan | chosen), train=True)
    rate = Steady(mbit(RATE_MBIT))
    line = AccessLink(up=rate, down=rate)
    build = Build(
        kind="container", seconds_per_gmac=0.0, seconds_per_batch=BATCH_S, jitter=JITTER, memory_mb=4096, line=line
    )
    workers = int(chosen["workers_min"])
    tally = Metrics(workers)
    world = World(Settings(seed=0, builds=[build] * workers, home_line=line, jobs=[job]), observers=[tally])
    try:
        world.begin()
        world.run(limit_s=1e6)
        return tally.outcome(world, job.spec.job)
    finally:
        close(job)


def _prepared(out: Path) -> ReadyTask:
    path, entry = find_task(str(TASK))
    return asyncio.run(make_ready(path, entry, out=out, kwargs={}, plan={"seed": 0}, on_progress=lambda text: None))
