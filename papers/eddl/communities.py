"""Table 3, the half that DREBIN allows: a local model of a community against a global one.

The paper's community has five categories of benign apps and five families of malware. DREBIN has families and no
categories: here the community has the five largest families, and its benign apps are drawn from all. The local model
learns 3,000 and 3,000 of them, the global one all malware and as many benign apps. Both are tested on the
community's malware and as many benign apps.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from papers.eddl.setting import BATCH, EPOCHS, LEARNING_RATE, MOMENTUM, WEIGHT_DECAY
from papers.harness import parts
from papers.harness.rows import Row
from shoal.data import drebin
from testbed.results import say

SIDES = (427, 512, 512, 256, 256, 128, 71)
#: The community: so many of the largest families, and training apps of either kind.
LOCAL_FAMILIES = 5
LOCAL_APPS = 3_000
SPLITS = {"app": drebin.by_app, "vector": drebin.by_vector}
MODELS = ("local", "global")
SEEDS = (0, 1, 2)


def run(quick: bool) -> list[Row]:
    if quick:
        return [one_run("app", "local", seed=0, epochs=2)]
    done = parts.of("eddl", "communities", about=len(SPLITS) * len(MODELS) * len(SEEDS))
    rows = []
    for split in SPLITS:
        for model in MODELS:
            for seed in SEEDS:
                key = {"split": split, "model": model, "seed": seed}
                rows.append(done.part(key, lambda k=key: one_run(k["split"], k["model"], seed=k["seed"])))  # type: ignore[misc]
    return rows


def one_run(split: str, model: str, *, seed: int, epochs: int = EPOCHS[-1]) -> Row:
    torch.set_num_threads(1)
    packed, families, columns = drebin.apps()
    held_out = SPLITS[split](packed)
    generator = np.random.default_rng(seed)
    trained, tested = drawn(families, held_out, model, generator)
    x, y = torch.from_numpy(drebin.unpacked(packed[trained], columns)), torch.from_numpy(classes(families[trained]))
    network = taught(x, y, seed=seed, epochs=epochs)
    with torch.no_grad():
        found = network(torch.from_numpy(drebin.unpacked(packed[tested], columns)).float()).argmax(1).numpy()
    row: Row = {"split": split, "model": model, "seed": seed, "apps": len(trained), "tested": len(tested)}
    row |= judged(found, classes(families[tested]))
    say(f"   {split}, {model}, seed {seed}: {row['accuracy']:.4f}")
    return row


def drawn(
    families: np.ndarray, held_out: np.ndarray, model: str, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that a model learns, and those of the community that it is tested on."""
    known = (families < drebin.FAMILIES) & (families >= 0)
    own, benign = known & (families < LOCAL_FAMILIES), families < 0
    attacks = np.flatnonzero(own & held_out)
    tested = [attacks, generator.permutation(np.flatnonzero(benign & held_out))[: len(attacks)]]
    malware = generator.permutation(np.flatnonzero((own if model == "local" else known) & ~held_out))
    malware = malware[:LOCAL_APPS] if model == "local" else malware
    harmless = generator.permutation(np.flatnonzero(benign & ~held_out))[: len(malware)]
    return np.concatenate([malware, harmless]), np.concatenate(tested)


def classes(families: np.ndarray) -> np.ndarray:
    """Return PerNet's classes: 0 is benign."""
    return (families + 1).astype(np.int64)


def taught(x: Any, y: Any, *, seed: int, epochs: int) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(SIDES):
        linear = nn.Linear(inputs, outputs)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    steps = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x), BATCH):
            part = order[start : start + BATCH]
            steps.zero_grad()
            nn.functional.cross_entropy(network(x[part].float()), y[part]).backward()  # type: ignore[no-untyped-call]
            steps.step()
    return network


def judged(found: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """As the paper has it: classified right, malware classified right, and told apart from benign apps."""
    bad = labels > 0
    return {
        "accuracy": float((found == labels).mean()),
        "recall": float((found == labels)[bad].mean()),
        "detected": float(((found > 0) == bad).mean()),
    }
