"""Momentum on a device: what it keeps, sends and takes back."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.learning.device_momentum import DeviceMomentum


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float32)


def test_updates_add_up_and_fade() -> None:
    momentum = DeviceMomentum(2, momentum=0.5, gain=1.0)
    assert momentum.add(values(1, 2)).tolist() == [1, 2]
    assert momentum.add(values(1, 0)).tolist() == [1.5, 1]
    assert momentum.add(values(0, 0)).tolist() == [0.75, 0.5]


def test_buffers_are_sent_as_they_are() -> None:
    momentum = DeviceMomentum(1, momentum=0.5, gain=0.5)
    assert momentum.add(values(4, 7)).tolist() == [2, 7]
    assert momentum.add(values(4, 7)).tolist() == [3, 7]


def test_an_update_in_no_version_is_taken_back() -> None:
    momentum = DeviceMomentum(1, momentum=0.5, gain=1.0)
    momentum.add(values(1))
    momentum.add(values(100))
    momentum.take_back()
    assert momentum.add(values(1)).tolist() == [1.5]


def test_the_mean_is_what_the_leaders_momentum_would_be() -> None:
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((6, 3, 5)).astype(np.float32)
    devices = [DeviceMomentum(5, momentum=0.9, gain=1.0) for _ in range(3)]
    velocity = np.zeros(5)
    for of_version in updates:
        sent = np.mean([device.add(update) for device, update in zip(devices, of_version, strict=True)], axis=0)
        velocity = 0.9 * velocity + of_version.mean(axis=0)
        np.testing.assert_allclose(sent, velocity, rtol=1e-5, atol=1e-6)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(Misuse, match="above 0 and below 1"):
        DeviceMomentum(1, momentum=1.0, gain=1.0)
