"""However devices that cut themselves are weighed and rounded, the leader takes their sum; and no sum that it takes is
longer than one update may be, but for the rounding."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.learning.clipping import clipped, length_of
from shoal.roles.leader.gathering.sealing import Sealing
from shoal.sealing.fixed import FixedPoint, word_type


def looks(clip: float) -> Any:
    plan = SimpleNamespace(is_cut_unseen=True, clip_update=clip)
    return SimpleNamespace(_spec=SimpleNamespace(plan=plan))


@given(
    devices=st.integers(3, 20),
    size=st.integers(1, 300),
    bits=st.sampled_from((16, 32)),
    bound=st.integers(-8, 8),
    clip=st.floats(1e-3, 10.0),
    spread=st.floats(0.0, 50.0),
    alike=st.booleans(),
    weights=st.lists(st.integers(1, 640), min_size=20, max_size=20),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_sum_of_devices_that_cut_is_never_dropped(
    devices: int,
    size: int,
    bits: int,
    bound: int,
    clip: float,
    spread: float,
    alike: bool,
    weights: list[int],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    one = rng.normal(size=size).astype(np.float32) * np.float32(spread)
    fixed, weights = FixedPoint(bound, devices, bits), weights[:devices]
    total = np.zeros(size, dtype=word_type(bits))
    for weight in weights:
        # All pull one way: then the mean is as long as it may be.
        update = one if alike else rng.normal(size=size).astype(np.float32) * np.float32(spread)
        chance, factor = rng.bytes(32), weight / max(weights)
        np.add(total, fixed.encode(clipped(update, clip=clip), factor=factor, chance=chance), out=total)
    times = max(weights) / sum(weights)
    mean, off = fixed.decode(total, times=times), devices * times / fixed.steps
    assert Sealing._too_long(looks(clip), mean, off=off) is None
    # One that is longer than rounding explains is dropped.
    longer = np.zeros(size, dtype=np.float32)
    longer[0] = clip * 1.001 + math.sqrt(size) * off
    assert length_of(longer) > clip
    assert "one of them lies" in str(Sealing._too_long(looks(clip), longer, off=off))
