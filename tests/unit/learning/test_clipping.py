"""The clip of a version's mean, against torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from shoal.learning import clipping
from shoal.learning.clipping import clipped_mean


def test_a_long_mean_is_cut_in_units_of_its_gradient() -> None:
    # A gradient of (-30, -40), 50 long, at rate 0.1: clipped to 5 it is a tenth of it. The buffer stays.
    mean = np.array([3.0, 4.0, 7.0], np.float32)
    cut = clipped_mean(mean, clip=5.0, rate=0.1, parameters_size=2)
    assert cut.tolist() == pytest.approx([0.3, 0.4, 7.0], rel=1e-6)
    assert mean.tolist() == [3.0, 4.0, 7.0]


def test_a_short_mean_is_left_as_it_is() -> None:
    mean = np.array([3.0, 4.0, 7.0], np.float32)
    assert clipped_mean(mean, clip=51.0, rate=0.1, parameters_size=2) is mean


@pytest.mark.parametrize("clip", [1e-9, 1e-6, 0.3, 100.0])
def test_it_is_what_clip_grad_norm_does(clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "_BLOCK", 7)
    gradient = np.random.default_rng(1).normal(size=40).astype(np.float32) * np.float32(0.1)
    parameter = nn.Parameter(torch.zeros(40))
    parameter.grad = torch.from_numpy(gradient.copy())
    nn.utils.clip_grad_norm_([parameter], clip)
    cut = clipped_mean(gradient * np.float32(-0.05), clip=clip, rate=0.05, parameters_size=40)
    np.testing.assert_allclose(cut / np.float32(-0.05), parameter.grad.numpy(), rtol=1e-6)
