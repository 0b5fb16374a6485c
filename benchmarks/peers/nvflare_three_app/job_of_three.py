"""Federated averaging over four sites, of which three suffice for a round."""

import argparse

import torch
from model import Network
from nvflare.apis.dxo import DataKind
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import InTimeAccumulateWeightedAggregator
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_opt.pt.job_config.base_fed_job import BaseFedJob
from nvflare.job_config.script_runner import ScriptRunner
from nvflare.recipe import ProdEnv
from nvflare.recipe.spec import Recipe

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=8)
parser.add_argument("--shares")
parser.add_argument("--admin")
given = parser.parse_args()
torch.manual_seed(0)
job = BaseFedJob(initial_model=Network(), name="digits", min_clients=3)
aggregator = InTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHTS)
controller = ScatterAndGather(
    min_clients=3,
    wait_time_after_min_received=1,
    num_rounds=given.rounds,
    persistor_id=job.comp_ids["persistor_id"],
    aggregator_id=job.to_server(aggregator, id="aggregator"),
    shareable_generator_id=job.to_server(FullModelShareableGenerator(), id="shareable_generator"),
)
job.to_server(controller)
job.to_clients(ScriptRunner(script="client.py", script_args=f"--shares {given.shares}"))
run = Recipe(job).execute(ProdEnv(startup_kit_location=given.admin, login_timeout=30.0))
print("job", run.get_job_id())
print("result", run.get_result())
