"""Federated averaging by Flower's simulation, for ``benchmarks.research``. Runs in an environment that has ``flwr``."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
# Ray runs its workers at a niceness of 15 otherwise, and the driver polls meanwhile.
os.environ["RAY_worker_niceness"] = "0"
os.environ["PYTHONPATH"] = str(Path(__file__).parent)

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app, server_app = ClientApp(), ServerApp()
ARGUMENTS = "RESEARCH_ARGUMENTS"


@functools.cache
def work() -> Any:
    """Return the workload, read once per process."""
    from research_work import Work

    folder, model, seed, *_ = os.environ[ARGUMENTS].split("\n")
    return Work(Path(folder), model, int(seed))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    # By its name: Ray sends this function to processes that import the module again.
    import research_flower
    from research_work import ROWS

    here = research_flower.work()
    here.net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    version = int(message.content["config"]["server-round"])
    loss = here.fit(int(context.node_config["partition-id"]), version)
    told = {"arrays": ArrayRecord(here.net.state_dict()), "metrics": MetricRecord({"loss": loss, "num-examples": ROWS})}
    return Message(content=RecordDict(told), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    import research_flower
    from research_work import CLIENTS, COHORT, cpu_s, tell

    here = research_flower.work()
    *_, short, long = os.environ[ARGUMENTS].split("\n")
    marks: dict[int, float] = {}

    def judge(version: int, arrays: ArrayRecord) -> MetricRecord | None:
        marks[version] = cpu_s()
        if version < int(long):
            return None
        here.net.load_state_dict(arrays.to_torch_state_dict())
        tell(marks[int(short)], marks[version], version - int(short), here.accuracy())
        return None

    strategy = FedAvg(fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    first = ArrayRecord(here.net.state_dict())
    strategy.start(grid=grid, initial_arrays=first, num_rounds=int(long), evaluate_fn=judge)


def main(*arguments: str) -> None:
    from research_work import CLIENTS

    os.environ[ARGUMENTS] = "\n".join(arguments)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    ray = {"init_args": {"num_cpus": 2, "include_dashboard": False}}
    run_simulation(
        server_app=server_app, client_app=client_app, num_supernodes=CLIENTS, backend_config={**resources, **ray}
    )


if __name__ == "__main__":
    import research_flower

    research_flower.main(*sys.argv[1:])
