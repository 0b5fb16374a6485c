"""Federated averaging over four nodes. The model is saved after each round, and a new run begins with it."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits.task import network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    file = Path(context.run_config["model-file"])
    torch.manual_seed(0)
    model = network()
    if file.exists():
        model.load_state_dict(torch.load(file, weights_only=True))  # noqa: TID251

    def save(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            torch.save(arrays.to_torch_state_dict(), file)

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=save,
    )
