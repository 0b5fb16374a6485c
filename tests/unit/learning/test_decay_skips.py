"""Which tensors decay, and what AdamW with two groups of parameters makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import Misuse
from shoal.learning.decay_skips import DecaySkips
from shoal.learning.layout import Layout
from shoal.learning.outer import OuterState, outer_step
from shoal.learning.outer_rule import OuterRule

LAYOUT = Layout.of(
    [
        ("embedding.weight", (4, 2), "parameter"),
        ("norm.weight", (2,), "parameter"),
        ("norm.bias", (2,), "parameter"),
        ("head.weight", (3, 2), "parameter"),
        ("head.bias", (3,), "parameter"),
        ("scale", (), "parameter"),
        ("seen", (3, 3), "buffer"),
    ]
)


@pytest.mark.parametrize(
    ("text", "decayed"),
    [
        ("", [(0, 22)]),
        ("vectors", [(0, 8), (12, 18)]),
        ("*.bias", [(0, 10), (12, 18), (21, 22)]),
        ("vectors, embedding.*", [(12, 18)]),
        ("*", []),
    ],
)
def test_the_parts_that_decay(text: str, decayed: list[tuple[int, int]]) -> None:
    assert [(part.start, part.stop) for part in DecaySkips.parse(text).decayed(LAYOUT)] == decayed


def test_a_name_that_no_parameter_has_is_told() -> None:
    assert DecaySkips.parse("vectors, *.biass, seen").unmatched(LAYOUT) == ("*.biass", "seen")
    assert DecaySkips.parse("vectors, *.bias").unmatched(LAYOUT) == ()


@pytest.mark.parametrize("text", [" ", "a,,b", "bias;", "[ab]", "x" * 1025])
def test_what_is_not_a_list_of_names_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="decay_skips"):
        DecaySkips.parse(text)


def test_a_step_is_that_of_adamw_with_two_groups() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    layout = Layout.of((name, tuple(each.shape), "parameter") for name, each in model.named_parameters())
    groups = [
        {"params": [each for each in model.parameters() if each.dim() >= 2], "weight_decay": 0.5},
        {"params": [each for each in model.parameters() if each.dim() < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=0.01)
    rule = OuterRule(kind="adamw", rate=0.01, momentum=0.9, weight_decay=0.5, inner_rate=1.0)
    state, decayed = OuterState.zeros(rule, layout.size), DecaySkips.parse("vectors").decayed(layout)
    weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy().copy()
    chance = torch.Generator().manual_seed(3)
    for _ in range(5):
        for each in model.parameters():
            each.grad = torch.randn(each.shape, generator=chance)
        gradient = torch.cat([each.grad.reshape(-1) for each in model.parameters() if each.grad is not None]).numpy()
        optimiser.step()
        change, state = outer_step(rule, state, -gradient, weights=weights, decayed=decayed)
        weights = weights + change
    wanted = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy()
    np.testing.assert_allclose(weights, wanted, atol=2e-7)
