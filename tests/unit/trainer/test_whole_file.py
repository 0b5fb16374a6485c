"""A pulled model and its frozen base, joined to one file."""

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import Misuse
from shoal.task import Task
from shoal.trainer.base import write_base
from shoal.trainer.steps import build_model
from shoal.trainer.trained import trained_model
from shoal.trainer.whole_file import write_whole
from shoal.wire import tensors


class Adapted(Task):
    """A frozen body in two types that numpy lacks, and a trained head."""

    def model(self):
        body = nn.Linear(4, 4).to(torch.bfloat16)
        model = nn.ModuleDict({"body": body, "head": nn.Linear(4, 2)})
        model.register_buffer("scale", torch.ones(3).to(torch.float8_e4m3fn))
        model["body"].requires_grad_(False)
        return model

    def placement(self, name, tensor):
        return "frozen" if name == "scale" else None


def pulled(folder):
    """Files of a job whose frozen values are not those that the task builds."""
    model = build_model(Adapted(), 0)
    frozen = {
        "body.weight": model["body"].weight + 1,
        "body.bias": model["body"].bias + 1,
        "scale": model.scale.float() + 1,
    }
    frozen = {name: each.detach().to(model.state_dict()[name].dtype) for name, each in frozen.items()}
    head = {f"head.{name}": each.detach().numpy() + 3 for name, each in model["head"].named_parameters()}
    with (folder / "model.safetensors").open("wb") as file:
        tensors.write(file, head, {"layout": "kept"})
    base = [folder / part for part in write_base(frozen, folder)]
    return folder / "model.safetensors", base, frozen, head


def test_a_whole_file_makes_the_model_that_was_trained(tmp_path):
    file, base, frozen, head = pulled(tmp_path)
    write_whole(file, base, tmp_path / "whole.safetensors")
    state = trained_model(Adapted(), tmp_path / "whole.safetensors").state_dict()
    for name, each in frozen.items():
        assert torch.equal(state[name].view(torch.uint8), each.view(torch.uint8)), name
    for name, each in head.items():
        assert np.array_equal(state[name].numpy(), each)
    assert tensors.read(tmp_path / "whole.safetensors")[1]["layout"] == "kept"
    # The file alone has what was trained; the task builds the rest.
    state = trained_model(Adapted(), file).state_dict()
    assert not torch.equal(state["body.weight"], frozen["body.weight"])


def test_a_tensor_that_is_trained_and_frozen_is_refused(tmp_path):
    file, base, _, _ = pulled(tmp_path)
    twice = write_base({"head.weight": torch.zeros(2, 4)}, tmp_path)
    with pytest.raises(Misuse, match=r"head\.weight is in the model and in its frozen base"):
        write_whole(file, [*base, tmp_path / twice[0]], tmp_path / "whole.safetensors")
    assert not (tmp_path / "whole.safetensors").exists()
