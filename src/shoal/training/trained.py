"""A trained model back in PyTorch's hands. Imports torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from shoal.task import Task
from shoal.wire import tensors


def trained_model(task: Task, path: Path) -> nn.Module:
    """The task's model with the tensors of a safetensors file, in evaluation mode."""
    model = task.model()
    arrays, _ = tensors.read(path, mmap=False)
    state = model.state_dict()
    for name, array in arrays.items():
        state[name].copy_(torch.from_numpy(np.array(array)))
    model.load_state_dict(state)
    return model.eval()
