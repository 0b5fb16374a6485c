"""Federated averaging in a plain PyTorch loop, for ``benchmarks.research``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.research_work import CLIENTS, COHORT, Work, cpu_s, tell


def main(folder: str, model: str, seed: str, short: str, long: str) -> None:
    work = Work(Path(folder), model, int(seed))
    rng, parameters = np.random.default_rng(int(seed)), list(work.net.parameters())
    start, began_s = parameters_to_vector(parameters).detach().clone(), 0.0
    for version in range(int(long)):
        if version == int(short):
            began_s = cpu_s()
        total = torch.zeros_like(start)
        for client in rng.choice(CLIENTS, COHORT, replace=False):
            vector_to_parameters(start.clone(), parameters)
            work.fit(int(client), version)
            total += parameters_to_vector(parameters).detach() - start
        start = start + total / COHORT
    ended_s = cpu_s()
    vector_to_parameters(start, parameters)
    tell(began_s, ended_s, int(long) - int(short), work.accuracy())


if __name__ == "__main__":
    main(*sys.argv[1:])
