"""Draw what a script learns on one agent and on two: `python curve.py train.py curve.png`. Needs matplotlib."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.trainer.find_script import find_script
from shoal.trainer.processors import THREADS_VARIABLE

#: Each agent trains so many leases in an epoch: an evaluation is the mean of what agents measure before each of them.
EPOCHS, LEASES = 10, 2


async def trained(script: str, workers: int) -> tuple[list[float], float]:
    """The accuracy of each epoch, and the seconds from the first version to the last."""
    folder, entry = find_script(script)
    plan = {
        "workers_min": workers,
        "workers_max": workers,
        "epoch_leases": LEASES * workers,
        "until": {"epochs": EPOCHS},
    }
    async with LocalCluster(workers=workers) as cluster, Operator.open(cluster.home) as operator:
        job = await operator.submit(await operator.prepare(folder, entry, plan=plan), plan=plan)
        began_s = 0.0
        while True:
            told = await operator.status(job)
            view = told.jobs[0]
            if view.progress and view.progress.version and not began_s:
                began_s = time.monotonic()
            if view.state.is_ended:
                return [each.accuracy or 0.0 for each in told.evaluations], time.monotonic() - began_s
            await asyncio.sleep(0.1)


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    script, picture = sys.argv[1:3]
    # The same for each agent; a network this small gains nothing from more.
    os.environ[THREADS_VARIABLE] = "1"
    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    for workers in (1, 2):
        accuracies, seconds = asyncio.run(trained(script, workers))
        name = "one agent" if workers == 1 else f"{workers} agents"
        leases = [LEASES * (epoch + 1) for epoch in range(len(accuracies))]
        axes.plot(leases, [100 * share for share in accuracies], marker="o", label=name)
        print(json.dumps({"agents": workers, "accuracies": accuracies, "seconds": round(seconds, 1)}))
    axes.set(xlabel="leases of 50 steps that each agent trained", ylabel="held-out points right, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(Path(picture), dpi=120)


if __name__ == "__main__":
    main()
