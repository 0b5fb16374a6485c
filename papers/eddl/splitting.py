"""Figure 12: splitting the leader's role: predicted and simulated, over the paper's trees, at 100 Mb/s.

The paper compares its trees with an asynchronous star alone, although it holds that rounds are better: the synchronous
star is here too, and a shard, in which every worker leads a part of the model. On real links: ``benchmarks.shapes``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from benchmarks.shapes import played_s
from papers.eddl.batch_time import QUICK_ROUNDS, ROUNDS, formula_s, star_of
from papers.eddl.paper import TREES
from papers.eddl.setting import BATCH_S, EPOCH_BATCHES, EPOCHS, MODEL_BYTES, RATES_MBIT
from papers.eddl.star import batch_s
from papers.harness.rows import Row
from shoal.sim.rates import mbit
from shoal.topology import predict
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.split import split

RATE_MBIT = RATES_MBIT[0]

#: (shape, workers) -> seconds a batch, as simulated; None where that was not.
Simulated: TypeAlias = Callable[[str, int], float | None]

#: Shape -> whether rounds are waited for: then the last round of an epoch is as long as the others, however small.
SHAPES: dict[str, bool] = {
    "star, sync, at once": True,
    "star, sync, in turn": True,
    "star, async": False,
    "tree, async above": False,
    "tree, sync above": True,
    "shard": True,
}


def run(quick: bool) -> list[Row]:
    return rows_of(partial(_simulated, rounds=QUICK_ROUNDS if quick else ROUNDS))


def rows_of(simulated: Simulated) -> list[Row]:
    rows = []
    for workers, aggregators in TREES.items():
        for shape in SHAPES:
            predicted_s = predicted(shape, workers, aggregators)
            played_s = simulated(shape, workers)
            batch = played_s if played_s is not None else predicted_s
            rows.append(
                {
                    "workers": workers,
                    "tree": f"1-{aggregators}-{workers}",
                    "shape": shape,
                    "predicted_s": predicted_s,
                    "simulated_s": played_s,
                    "training_s": None if batch is None else EPOCHS[-1] * batches_in_a_row(shape, workers) * batch,
                }
            )
    return rows


def batches_in_a_row(shape: str, workers: int) -> float:
    """How many batches one worker trains in an epoch."""
    share = EPOCH_BATCHES / workers
    return math.ceil(share) if SHAPES[shape] else share


def predicted(shape: str, workers: int, aggregators: int) -> float | None:
    """Seconds a batch; None for the asynchronous star, for which there is no prediction."""
    cluster = cluster_of(workers)
    match shape:
        case "star, sync, at once":
            return formula_s(workers, RATE_MBIT)
        case "star, sync, in turn":
            return predict.star(cluster, model_bytes=MODEL_BYTES).batch_s
        case "tree, async above" | "tree, sync above":
            above = "async" if "async" in shape else "sync"
            tree = split(cluster, aggregators=aggregators)
            return predict.tree(cluster, tree, model_bytes=MODEL_BYTES, above=above).batch_s
        case "shard":
            return predict.shard(cluster, model_bytes=MODEL_BYTES).batch_s
    return None


def cluster_of(workers: int) -> Cluster:
    """Boards on a switch, and a leader that does not work. In the paper's Figure 4 it is one of the aggregators."""
    rate = mbit(RATE_MBIT)
    crew = tuple(
        ClusterNode(name=f"w{number:02}", up_bytes_per_s=rate, down_bytes_per_s=rate, compute_s=BATCH_S)
        for number in range(1, workers + 1)
    )
    return Cluster(leader=ClusterNode(name="leader", up_bytes_per_s=rate, down_bytes_per_s=rate), workers=crew)


def _simulated(shape: str, workers: int, *, rounds: Mapping[str, int]) -> float:
    pace = "async" if "async" in shape else "sync"
    leaders = {"star, sync, at once": "at once", "star, sync, in turn": "shoal", "star, async": "shoal"}
    if shape in leaders:
        star = star_of(leaders[shape], workers=workers, rate_mbit=RATE_MBIT, pace=pace)
        return batch_s(star, rounds=rounds[pace])
    return played_s(
        shape.partition(",")[0],
        workers=workers,
        aggregators=TREES[workers],
        bytes_per_s=mbit(RATE_MBIT),
        batch_s=BATCH_S,
        pace=pace,
    )
