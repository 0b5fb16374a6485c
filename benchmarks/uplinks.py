"""Devices with a thin uplink: ``examples/mnist`` to 98 %, all of each update sent and a few of its values, in one run.

Eight devices, each a network namespace with an uplink of 1 Mb/s of its own (``tc tbf``) and a real agent; what comes
down, comes fast, and the examples are there already. ``dense`` is the example as it is: each batch's update whole.
``sparse`` trains a few dozen batches a lease and sends the largest values of what they came to, in four bits, and keeps
the rest for later. ``dense, as long leases`` is in between: as rarely, and whole. Time runs from the first lease to the
evaluation that reaches the goal.

    python -m benchmarks.uplinks [--workers 8] [--up-mbps 1] [--quick] --json
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.runtime.operator import Operator
from shoal.trainer.package import ReadyTask
from testbed.cluster import Cluster
from testbed.devices import boards
from testbed.namespaces import why_no_namespaces
from testbed.results import finish, say

ROOT = Path(__file__).resolve().parent.parent

GOAL = 0.98
LONGEST_S = 1500.0
QUICK_S = 12.0

#: Few leases an epoch, each of many steps; the outer step looks ahead (docs/codecs.md).
LONG_LEASES: dict[str, Any] = {
    "batch_size": 16,
    "lease_batches": 40,
    "learning_rate": 0.05,
    "momentum": 0.5,
    "outer": "nesterov",
}
PLANS: dict[str, dict[str, Any]] = {
    "sparse": {**LONG_LEASES, "codec": "top10%+ef+4bit"},
    "dense_long_leases": LONG_LEASES,
    "dense": {},
}


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds from the time at which everyone was there; what was reached, trained and sent by then."""

    seconds: float
    accuracy: float
    batches: int
    bytes_up: int
    bytes_down: int


async def measured(workers: int, up_mbps: float, names: list[str], *, stop_after_s: float | None) -> dict[str, Run]:
    """Each plan to the goal, or for so long."""
    runs: dict[str, Run] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-uplinks-") as folder:
        home = Path(folder) / "home"
        devices = boards(workers, up_mbps=up_mbps)
        cluster = Cluster(home, devices, child_module="shoal.trainer.child", cache=Path(folder) / "cache")
        async with cluster, Operator.open(home) as operator:
            await cluster.connected()
            ready = await operator.prepare(ROOT / "examples" / "mnist", "task:Digits", on_progress=say)
            for name in names:
                plan = {**PLANS[name], "workers_min": workers, "until": {"accuracy": GOAL, "epochs": 8}}
                runs[name] = await _run(operator, ready, name, plan, stop_after_s=stop_after_s)
    return runs


async def _run(
    operator: Operator, ready: ReadyTask, name: str, plan: dict[str, Any], *, stop_after_s: float | None
) -> Run:
    job = await operator.submit(ready, plan=plan)
    told, began_s = 0, 0.0
    async with asyncio.timeout(LONGEST_S):
        while True:
            status = await operator.status(job)
            view, progress = status.jobs[0], status.jobs[0].progress
            if not began_s and progress is not None and progress.state == "training":
                began_s = progress.seconds
                say(f"{name}: everyone is there")
            for seen in status.evaluations[told:]:
                say(f"{name}: {seen.accuracy:.2%} after epoch {seen.epoch}, {seen.seconds - began_s:.1f} s")
            told = len(status.evaluations)
            if view.state in ("finished", "failed", "stopped"):
                break
            if stop_after_s and began_s and progress is not None and progress.seconds - began_s > stop_after_s:
                await operator.stop(job)
                break
            await asyncio.sleep(0.25)
    if progress is None or view.state in ("failed", "stopped"):
        raise SystemExit(f"{name} ended as {view.state}: {view.reason}")
    ended_s = status.evaluations[-1].seconds if status.evaluations else progress.seconds
    batches = progress.epoch * progress.batches_total + progress.batches_applied
    run = Run(ended_s - began_s, progress.accuracy or 0.0, batches, progress.bytes_up, progress.bytes_down)
    say(f"{name}: {run.batches} batches in {run.seconds:.1f} s, {run.bytes_up / 1e6:.1f} MB up")
    while (await operator.status(job)).jobs[0].state in ("running", "stopping"):
        await asyncio.sleep(0.1)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--up-mbps", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=tuple(PLANS), default=list(PLANS))
    parser.add_argument(
        "--quick", action="store_true", help=f"within a minute: {QUICK_S:g} s each, and what was trained by then"
    )
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    if reason := why_no_namespaces():
        raise SystemExit(f"this benchmark needs network namespaces: {reason}")
    workers = 4 if given.quick else given.workers
    names = [name for name in given.only if not given.quick or name != "dense_long_leases"]
    stop_after_s = QUICK_S if given.quick else None
    runs = asyncio.run(measured(workers, given.up_mbps, names, stop_after_s=stop_after_s))
    told: dict[str, object] = {"workers": workers, "up_mbps": given.up_mbps, "goal": None if given.quick else GOAL}
    for name, run in runs.items():
        told |= {f"{name}_s": run.seconds, f"{name}_accuracy": run.accuracy, f"{name}_up_mb": run.bytes_up / 1e6}
        told |= {f"{name}_down_mb": run.bytes_down / 1e6, f"{name}_batches_per_s": run.batches / run.seconds}
    if "sparse" in runs and "dense" in runs:
        sparse, dense = runs["sparse"], runs["dense"]
        told["batches_ratio"] = (sparse.batches / sparse.seconds) / (dense.batches / dense.seconds)
        told["bytes_ratio"] = (dense.bytes_up / dense.batches) / (sparse.bytes_up / sparse.batches)
        if not given.quick:
            told["speedup"] = dense.seconds / sparse.seconds
            told["is_reached"] = min(sparse.accuracy, dense.accuracy) >= GOAL
    finish(told)


if __name__ == "__main__":
    main()
