"""A peer that averages the network's values with the others, again and again until it is killed. It trains nothing."""

import argparse
import time

import hivemind
import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.partition import AllreduceException
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--host")
parser.add_argument("--peers", type=int)
parser.add_argument("--first", nargs="*")
given = parser.parse_args()


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(400, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, 10),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    dht = hivemind.DHT(host_maddrs=[f"/ip4/{given.host}/tcp/0"], initial_peers=given.first, start=True)
    print("address", *dht.get_visible_maddrs(), flush=True)
    values = [value.detach().clone() for value in network().parameters()]
    averager = DecentralizedAverager(
        averaged_tensors=values,
        dht=dht,
        prefix="digits",
        target_group_size=given.peers,
        min_group_size=given.peers,
        next_chunk_timeout=5.0,
        start=True,
    )
    while True:
        began = time.monotonic()
        try:
            group = averager.step(timeout=30.0)
        except AllreduceException as error:
            print("failed", error, flush=True)
        else:
            print("averaged", len(group), time.monotonic() - began, flush=True)
