"""Rounds a second of a sealed job beside those of the same job unsealed, with real processes, in turns in one run.

A manager, agents and trainer children that return a prepared update. A part of ``benchmarks.trust``.

    python -m benchmarks.sealed_rounds --json
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import PERNET
from benchmarks.round_overhead import measure_shoal, running, stopped
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.trainer.package import ReadyTask
from testbed.echo_job import ECHO, echo_job
from testbed.processes import cpu_s
from testbed.results import finish, say

TRUSTS = {"plain": "identity", "sealed": "sealed"}


async def compare(*, workers: int = 8, values: int = PERNET, seconds: float, turns: int) -> dict[str, object]:
    rates: dict[str, list[float]] = {name: [] for name in TRUSTS}
    cpu_ms: dict[str, list[float]] = {name: [] for name in TRUSTS}
    with tempfile.TemporaryDirectory() as folder:
        ready = echo_job(Path(folder), values=values, batches=workers)
        async with (
            LocalCluster(workers=workers, agent_options=ECHO) as cluster,
            Operator.open(cluster.home) as operator,
        ):
            assert cluster.manager is not None
            pids = [cluster.manager.pid, *(agent.pid for agent in cluster.agents.values())]
            for turn in range(turns):
                for name, trust in TRUSTS.items():
                    rate, used_ms = await _turn(operator, ready, pids, trust, workers=workers, seconds=seconds)
                    rates[name].append(rate)
                    cpu_ms[name].append(used_ms)
                say(f"turn {turn + 1}: " + ", ".join(f"{name} {rates[name][-1]:.2f}" for name in rates) + " rounds/s")
    return {
        "sealed_rounds_ratio": median(s / p for s, p in zip(rates["sealed"], rates["plain"], strict=True)),
        **{f"{name}_rounds_per_s": median(each) for name, each in rates.items()},
        # Of manager and agents together: what the ratio is made of where processors are the limit.
        **{f"{name}_round_cpu_ms": median(each) for name, each in cpu_ms.items()},
    }


async def _turn(
    operator: Operator, ready: ReadyTask, pids: list[int], trust: str, *, workers: int, seconds: float
) -> tuple[float, float]:
    """Rounds a second of a job under this trust, and the processor time of a round."""
    plan: dict[str, Any] = {
        "trust": trust,
        "data": "local",
        "workers_min": workers,
        "epoch_leases": 1000 * workers,
        "until": {"epochs": 1000},
        "checkpoint_every_s": 10.0,
    }
    job = await operator.submit(ready, plan=plan)
    await running(operator, job, workers)
    before_s = cpu_s(*pids)
    rate = await measure_shoal(operator, job, seconds)
    used_s = cpu_s(*pids) - before_s
    await stopped(operator, job)
    return rate, 1e3 * used_s / max(1.0, rate * seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--params", type=int, default=PERNET)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    seconds, turns = (4.0, 1) if given.quick else (8.0, 5)
    finish(asyncio.run(compare(workers=given.workers, values=given.params, seconds=seconds, turns=turns)))


if __name__ == "__main__":
    main()
