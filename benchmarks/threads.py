"""One real agent that trains a convolutional network with one thread and with two, in turns.

python -m benchmarks.threads --json
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path

from benchmarks.common import finish, say
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.trainer.processors import THREADS_VARIABLE, cores

TASK_FILE = Path("benchmarks/models_tasks/threads.py")
#: Leases of a turn that count, after the first ones, in which torch warms up.
WARM, COUNTED = 5, 20
TURN_S = 120.0


async def turn(threads: int, cache: Path) -> float:
    """Examples a second that the agent's trainer took in one job."""
    os.environ[THREADS_VARIABLE] = str(threads)
    async with LocalCluster(workers=1, cache=cache) as cluster, Operator.open(cluster.home) as operator:
        job = await operator.prepare_and_submit(str(TASK_FILE), plan={"workers_min": 1})
        began_s, warm = time.monotonic(), None
        while time.monotonic() - began_s < TURN_S:
            await asyncio.sleep(0.2)
            progress = (await operator.status(job)).jobs[0].progress
            batches = sum(worker.batches for worker in progress.workers) if progress else 0
            if warm is None and batches >= WARM:
                warm = batches
            if progress is not None and warm is not None and batches >= warm + COUNTED:
                (worker,) = progress.workers
                return 32 / worker.train_s
    raise SystemExit(f"no {WARM + COUNTED} leases within {TURN_S:g} s")


async def run(turns: int, cache: Path) -> dict[str, object]:
    rates: dict[int, list[float]] = {1: [], 2: []}
    for number in range(turns):
        for threads in rates:
            rates[threads].append(await turn(threads, cache))
            say(f"turn {number + 1}, {threads} thread(s): {rates[threads][-1]:.1f} examples/s")
    one, two = (statistics.median(rates[threads]) for threads in (1, 2))
    return {"speedup": two / one, "one_thread_per_s": one, "two_threads_per_s": two, "turns": turns, "cores": cores()}


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one turn each, within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-threads-") as cache:
        finish(asyncio.run(run(1 if given.quick else given.turns, Path(cache))))


if __name__ == "__main__":
    main()
