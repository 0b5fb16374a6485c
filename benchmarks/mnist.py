"""``examples/mnist`` (LeNet-5) trained by real agents: accuracy, time, bytes.

python -m benchmarks.mnist --workers 4 --json
"""

from __future__ import annotations

import argparse
import asyncio

from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from testbed.results import finish, say

LONGEST_S = 600


async def train(workers: int, epochs: int) -> dict[str, object]:
    async with LocalCluster(workers=workers) as cluster, Operator.open(cluster.home) as operator:
        plan = {"workers_min": workers, "until": {"epochs": epochs}}
        job = await operator.prepare_and_submit("examples/mnist", plan=plan, on_progress=say)
        evaluated = 0
        for _ in range(LONGEST_S * 2):
            status = await operator.status(job)
            for seen in status.evaluations[evaluated:]:
                say(f"epoch {seen.epoch}: {seen.accuracy:.2%} right, loss {seen.loss:.4f}, {seen.seconds:.0f} s")
            evaluated = len(status.evaluations)
            view = status.jobs[0]
            if view.state in ("finished", "failed", "stopped"):
                break
            await asyncio.sleep(0.5)
    progress = view.progress
    if view.state != "finished" or progress is None:
        raise SystemExit(f"the job ended as {view.state}: {view.reason}")
    return {
        "accuracy": progress.accuracy,
        "seconds": progress.seconds,
        "workers": workers,
        "epochs": epochs,
        "versions": progress.version,
        "bytes_up": progress.bytes_up,
        "bytes_down": progress.bytes_down,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="within a minute: three epochs")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    finish(asyncio.run(train(given.workers, 3 if given.quick else given.epochs)))


if __name__ == "__main__":
    main()
