"""A model is built around a frozen base without its base in memory, and is the model that is built as usual."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from shoal.task import Task
from shoal.trainer.base import load_base, write_base
from shoal.trainer.frozen_build import NotOnMeta, build_on_meta
from shoal.trainer.placement import place
from shoal.trainer.steps import build_model, seeded

WIDTH = 8


class Rotary(nn.Module):
    """Frequencies that ``__init__`` computes and no state dict holds, in a buffer and in a plain attribute."""

    inv_freq: Tensor

    def __init__(self) -> None:
        super().__init__()
        inv_freq = 1.0 / (100.0 ** (torch.arange(0, WIDTH, 2).float() / WIDTH))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.original = self.inv_freq
        self.scales = [torch.linspace(0, 1, WIDTH)]

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.cat((self.inv_freq, self.original)).cos() + self.scales[0]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.rotary = Rotary()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.adapter = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 11, bias=False)
        # One parameter under two names.
        self.head.weight = self.embed.weight
        nn.init.normal_(self.head.weight, std=0.02)
        self.requires_grad_(False)
        self.adapter.requires_grad_(True)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.adapter(self.norm(self.rotary(self.embed(tokens)))))
        return out


class Frozen(Task):
    def model(self) -> nn.Module:
        return Network()


def on_meta(task: Task) -> nn.Module:
    seeded(3)
    return build_on_meta(task, task.model)[0]


def test_it_gives_the_outputs_of_the_model_that_is_built_as_usual(tmp_path: Path) -> None:
    task = Frozen()
    usual = build_model(task, 3)
    whole = place(task, usual)
    parts = write_base(whole.frozen, tmp_path)
    seeded(3)
    model, placed = build_on_meta(task, task.model)
    assert {name for name, tensor in placed.frozen.items() if tensor.is_meta} == {
        "embed.weight",
        "norm.weight",
        "norm.bias",
    }
    assert not any(tensor.is_meta for tensor, _ in placed.shared.values())
    assert (placed.layout, list(placed.frozen)) == (whole.layout, list(whole.frozen))
    load_base(placed.frozen, [tmp_path / part for part in parts])
    assert model.head.weight is model.embed.weight
    for name, (tensor, _) in whole.shared.items():
        placed.shared[name][0].data.copy_(tensor.data)
    tokens = torch.arange(11)
    for each in (usual, model):
        each.eval()
    assert torch.equal(model(tokens), usual(tokens))
    model(tokens).sum().backward()
    assert [name for name, each in model.named_parameters() if each.grad is not None] == [
        "adapter.weight",
        "adapter.bias",
    ]


class UsesValues(Network):
    def __init__(self) -> None:
        super().__init__()
        self.scale = self.embed.weight.std().item()


class KeepsAProduct(Network):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("product", self.embed.weight @ self.embed.weight.T, persistent=False)


class KeepsAnAttribute(Network):
    def __init__(self) -> None:
        super().__init__()
        self.products = {"first": self.embed.weight * 2}


class KeepsNested(Network):
    def __init__(self) -> None:
        super().__init__()
        self.nested = {"first": [self.embed.weight * 2]}


class KeepsAnOrder(Network):
    """A whole-number buffer of a trained module: a state dict holds it, and no file of the job."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter.register_buffer("order", self.adapter.weight.detach()[0].argsort())


class Recurs(Network):
    """It keeps weak references to its parameters, so that none of them can be swapped."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH)


class RecursFrozen(Recurs):
    def __init__(self) -> None:
        super().__init__()
        self.lstm.requires_grad_(False)


class DrawsFeatures(Network):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(WIDTH), persistent=False)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (UsesValues, "RuntimeError"),
        (KeepsAProduct, "product is computed from parameters"),
        (KeepsAnAttribute, "products is computed from parameters"),
        (KeepsNested, "nested is computed from parameters"),
        (KeepsAnOrder, "adapter.order is computed from parameters"),
        (Recurs, "lstm.weight_ih_l0 cannot be given its values"),
        (RecursFrozen, "lstm.weight_ih_l0 cannot be given its values"),
        (DrawsFeatures, "draws random numbers"),
    ],
)
def test_a_model_that_needs_its_values_is_built_as_usual(network: type[nn.Module], reason: str) -> None:
    class Needs(Task):
        def model(self) -> nn.Module:
            return network()

    with pytest.raises(NotOnMeta, match=reason):
        on_meta(Needs())
    # What is built afterwards has its values.
    assert not any(tensor.is_meta for tensor in nn.Linear(2, 2).parameters())


def test_a_part_of_each_device_s_own_begins_with_its_values() -> None:
    class Own(Frozen):
        def placement(self, name: str, tensor: Any) -> Literal["own"] | None:
            return "own" if name == "adapter.bias" else None

    with pytest.raises(NotOnMeta, match="a part of its own"):
        on_meta(Own())
