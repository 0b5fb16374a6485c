"""Loads a trained model into PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from shoal.errors import Misuse
from shoal.task import Task
from shoal.trainer.base import assign
from shoal.trainer.launch import opened
from shoal.trainer.placement import place
from shoal.trainer.steps import build_model
from shoal.wire import tensors


def trained_model(task: Task, path: Path, *, seed: int = 0) -> nn.Module:
    """Return the task's model with the tensors of a safetensors file, in evaluation mode.

    ``seed`` is the job's, so that untrained random values of ``Task.model`` are the same. Frozen tensors come from the
    file if it was pulled with them, else from the task.
    """
    # The caller's own random numbers must not change.
    drawn = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        model = build_model(task, seed)
    np.random.set_state(drawn)
    with opened(path) as file:
        arrays, notes = tensors.read(file, mmap=False)
    frozen = place(task, model).frozen
    for name in frozen.keys() & arrays.keys():
        assign(name, frozen[name], arrays.pop(name), notes)
    state = model.state_dict()
    for name, array in arrays.items():
        if name not in state or state[name].shape != array.shape:
            raise Misuse(f"{path.name} holds {name} {list(array.shape)}, which {type(task).__name__}.model() lacks")
        state[name].copy_(torch.from_numpy(np.array(array)))
    model.load_state_dict(state)
    return model.eval()
