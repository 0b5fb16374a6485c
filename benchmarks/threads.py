"""One real agent that trains a convolutional network with one thread and with two, in turns.

PyTorch alone trains the same network in between, in a process of its own: ``bare_speedup`` is what this machine gives
to two threads at that time, and ``share`` how much of it an agent gets.

    python -m benchmarks.threads --json
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from pathlib import Path

from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.trainer.processors import THREADS_VARIABLE, cores
from testbed.results import finish, say

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


async def bare_turn(threads: int) -> float:
    """The same by PyTorch alone."""
    command = (sys.executable, "-m", "benchmarks.threads", "--bare", str(threads))
    variables = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, **variables}
    )
    said, _ = await asyncio.wait_for(process.communicate(), TURN_S)
    return float(said)


def train_bare(threads: int) -> float:
    """Examples a second: the median step, as an agent counts its leases."""
    import torch

    from benchmarks.models_tasks.threads import Wide

    torch.set_num_threads(threads)
    task = Wide()
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pixels, labels = task.examples("train")
    size, took_s = task.plan.batch_size, []
    for number in range(WARM + COUNTED):
        rows = slice(number * size % len(labels), number * size % len(labels) + size)
        began_s = time.monotonic()
        optimizer.zero_grad()
        given = torch.from_numpy(pixels[rows]).float() / 255
        loss = torch.nn.functional.cross_entropy(model(given), torch.from_numpy(labels[rows]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        took_s.append(time.monotonic() - began_s)
    return size / statistics.median(took_s[WARM:])


async def run(turns: int, cache: Path) -> dict[str, object]:
    rates: dict[tuple[str, int], list[float]] = {}
    for number in range(turns):
        for threads in (1, 2):
            rates.setdefault(("agent", threads), []).append(await turn(threads, cache))
            rates.setdefault(("bare", threads), []).append(await bare_turn(threads))
        told = (f"{who} {threads} thread(s) {each[-1]:.1f}" for (who, threads), each in sorted(rates.items()))
        say(f"turn {number + 1}: {', '.join(told)} examples/s")
    middle = {key: statistics.median(each) for key, each in rates.items()}
    speedup, bare = (middle[who, 2] / middle[who, 1] for who in ("agent", "bare"))
    return {
        "speedup": speedup,
        "bare_speedup": bare,
        "share": speedup / bare,
        "one_thread_per_s": middle["agent", 1],
        "two_threads_per_s": middle["agent", 2],
        "bare_one_thread_per_s": middle["bare", 1],
        "bare_two_threads_per_s": middle["bare", 2],
        "turns": turns,
        "cores": cores(),
    }


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one turn each, within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    parser.add_argument("--bare", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        print(train_bare(given.bare))
        return
    with tempfile.TemporaryDirectory(prefix="shoal-threads-") as cache:
        finish(asyncio.run(run(1 if given.quick else given.turns, Path(cache))))


if __name__ == "__main__":
    main()
