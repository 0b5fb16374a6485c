"""Oracles of ``benchmarks.models``: is a lease a pure function, does a task of before give the same bytes, and is the
leader's AdamW that of one process. Run by itself it prints the digests of the leases it is told of."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.scheduling.batches import batch_indices, epoch_order, mix
from shoal.store.registry import Registry
from shoal.trainer.bundle import unpack
from shoal.trainer.package import ReadyTask, plan_from, trainer_settings
from shoal.trainer.prepared_job import first_model
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.shards import Examples, as_pair
from shoal.wire import tensors

KINDS_FILE = Path("benchmarks/models_tasks/kinds.py")
OUTER_RATE = 0.01
DECAY = 0.05


# Purity ----------------------------------------------------------------------------------------------------------


def compare(ready: dict[str, tuple[ReadyTask, dict[str, Any]]]) -> dict[str, bool]:
    """Of each kind that claims to be pure: whether one lease gave the same bytes, four times in two processes."""
    with tempfile.TemporaryDirectory(prefix="shoal-pure-") as directory:
        wanted = {}
        for name, (task, plan) in ready.items():
            whole = plan_from({**task.prepared.plan, **plan})
            if whole.inner_state == "fresh":
                folder = Path(directory) / name
                folder.mkdir()
                unpack(task.bundle, folder)
                wanted[name] = {"model": task.prepared.model, "settings": _settings(task, whole, str(folder))}
        told = json.dumps(wanted)
        found = [_in_a_process(told) for _ in range(2)]
    return {name: len({*found[0][name], *found[1][name]}) == 1 for name in wanted}


def _in_a_process(told: str) -> dict[str, list[str]]:
    command = [sys.executable, "-m", "benchmarks.models_pure"]
    ended = subprocess.run(command, input=told, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[str]] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _settings(task: ReadyTask, plan: Any, folder: str) -> dict[str, Any]:
    return trainer_settings(task, plan, bundle_dir=folder).to_message()


def _digests(model: str, message: dict[str, Any]) -> list[str]:
    """Of one lease: first, after another lease, and by a trainer that was built again."""
    from shoal.trainer.shared import SharedVectors
    from shoal.trainer.steps import TorchTrainer

    settings = TrainerSettings.from_message(message)
    shared = SharedVectors.create(settings.layout.size)
    _, flat = first_model(Path(model))
    count = settings.lease_batches
    digests = []
    for starts in ((0, count, 0), (0,)):
        trainer = TorchTrainer(settings, shared)
        for start in starts:
            shared.model[:] = flat
            trainer.train(0, list(range(start, start + count)))
            if start == 0:
                digests.append(hashlib.sha256(shared.update.tobytes()).hexdigest())
    shared.close()
    return digests


# Before and after -----------------------------------------------------------------------------------------------


def same_bytes_as_before() -> bool:
    """A classifier with dropout, trained by today's trainer and by the loop of 0.1, at one thread."""
    import torch
    from torch import nn

    from shoal.trainer.flat import layout_of, read_into
    from shoal.trainer.shards import write_shards
    from shoal.trainer.shared import SharedVectors
    from shoal.trainer.steps import TorchTrainer, seeded

    torch.set_num_threads(1)
    chance = np.random.default_rng(0)
    x, y = chance.normal(size=(64, 4)).astype(np.float32), chance.integers(0, 3, 64)

    def build() -> nn.Module:
        seeded(0)
        return nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 3))

    with tempfile.TemporaryDirectory(prefix="shoal-before-") as directory:
        source = (
            "from torch import nn\nimport shoal\nclass Sample(shoal.Task):\n    def model(self):\n"
            "        return nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 3))\n"
        )
        (Path(directory) / "sample.py").write_text(source)
        manifest = write_shards(x, y, Path(directory) / "shards")
        model = build()
        layout = layout_of(model)
        settings = TrainerSettings(
            bundle_dir=directory,
            entry="sample:Sample",
            train=tuple(str(Path(directory) / "shards" / shard.sha256) for shard in manifest.shards),
            layout=layout,
            seed=0,
            batch_size=8,
            learning_rate=0.1,
        )
        shared = SharedVectors.create(layout.size)
        read_into(shared.model, model, layout)
        TorchTrainer(settings, shared).train(0, [2, 5])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.0)
    model.train()
    for batch in (2, 5):
        rows = batch_indices(epoch_order(64, seed=0, epoch=0), batch, 8)
        seed = mix(0, 0, batch)
        torch.manual_seed(seed >> 1)
        np.random.seed(seed & 0xFFFFFFFF)
        optimiser.zero_grad()
        output = model(torch.from_numpy(x[rows]))
        (-output.log_softmax(1).gather(1, torch.from_numpy(y[rows]).unsqueeze(1)).mean()).backward()
        optimiser.step()
    after = np.empty(layout.size, np.float32)
    read_into(after, model, layout)
    is_same = shared.update.tobytes() == (after - shared.model).tobytes()
    shared.close()
    return is_same


# The leader's AdamW ---------------------------------------------------------------------------------------------


async def adamw_error(operator: Operator, home: Path) -> float:
    """The largest difference of a model that two workers trained with outer AdamW from torch's own on their batches."""
    plan = {
        "batch_size": 16,
        "learning_rate": 0.05,
        "outer": "adamw",
        "outer_rate": OUTER_RATE,
        "weight_decay": DECAY,
        "workers_min": 2,
        "until": {"epochs": 2},
    }
    ready = await operator.prepare(KINDS_FILE, "kinds:Classifier", name="oracle", plan=plan)
    job = await operator.submit(ready, plan=plan)
    while not (await operator.status(job)).jobs[0].state.is_ended:
        await asyncio.sleep(0.2)
    with tempfile.TemporaryDirectory(prefix="shoal-adamw-") as directory:
        await operator.pull_model(job, Path(directory) / "model.safetensors", newest=True)
        arrays, _ = tensors.read(Path(directory) / "model.safetensors", mmap=False)
    with Registry(Paths(home).registry) as registry:
        rows = sorted(registry.applied(job), key=lambda row: row.version)
    versions = [[(row.epoch, row.batch) for row in group] for _, group in groupby(rows, lambda row: row.version)]
    return await asyncio.to_thread(_difference, ready, versions, arrays)


def _difference(ready: ReadyTask, versions: list[list[tuple[int, int]]], arrays: dict[str, Any]) -> float:
    import torch
    from torch import nn

    prepared = ready.prepared
    x, y = as_pair(Examples(prepared.paths(prepared.train)).take(np.arange(prepared.train.examples)))
    first, _ = tensors.read(Path(prepared.model), mmap=False)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in first.items()})
    optimiser = torch.optim.AdamW(model.parameters(), lr=OUTER_RATE, weight_decay=DECAY)
    for batches in versions:
        chosen = [batch_indices(epoch_order(len(x), seed=0, epoch=epoch), batch, 16) for epoch, batch in batches]
        rows = np.concatenate(chosen)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    state = model.state_dict()
    return max(float(np.abs(state[name].numpy() - array).max()) for name, array in arrays.items())


if __name__ == "__main__":
    given = json.loads(sys.stdin.read())
    print(json.dumps({name: _digests(each["model"], each["settings"]) for name, each in given.items()}))
