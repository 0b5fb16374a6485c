"""Federated averaging over four sites, given to a provisioned deployment."""

import argparse

import torch
from model import Network
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import ProdEnv

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=8)
parser.add_argument("--shares")
parser.add_argument("--admin")
given = parser.parse_args()
torch.manual_seed(0)
recipe = FedAvgRecipe(
    name="digits",
    model=Network(),
    min_clients=4,
    num_rounds=given.rounds,
    train_script="client.py",
    train_args=f"--shares {given.shares}",
)
run = recipe.execute(ProdEnv(startup_kit_location=given.admin, login_timeout=30.0))
print("job", run.get_job_id())
print("result", run.get_result())
