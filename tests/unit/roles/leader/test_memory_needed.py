"""What a leader and a device need: counted in models, from the plan."""

from __future__ import annotations

import pytest

from shoal.plan import Plan
from shoal.roles.leader.memory_needed import DEVICE_PROCESS_BYTES, LEADER_PROCESS_BYTES, leader_models, memory_needed

LARGE = 25_000_000


@pytest.mark.parametrize(
    ("plan", "devices", "models"),
    [
        # Model, velocity, two updates; a third if there are more devices.
        (Plan(momentum=0.9), 2, 4),
        (Plan(momentum=0.9), 0, 5),
        (Plan(momentum=0.9), 50, 5),
        (Plan(momentum=0.0), 50, 4),
        # Adam's squares of gradients, and those of the next version.
        (Plan(outer="adamw"), 2, 6),
    ],
)
def test_a_leader_of_a_large_model_sums_updates_in_their_own_memory(plan: Plan, devices: int, models: float) -> None:
    assert leader_models(plan, values=LARGE, devices=devices) == models


def test_a_small_model_is_summed_beside_its_updates() -> None:
    # Model, velocity; a sum in float64 (2), an update, its mean, the next model and velocity.
    assert leader_models(Plan(momentum=0.9), values=1000) == 8


def test_bytes_are_those_of_a_process_and_of_its_models() -> None:
    needed = memory_needed(Plan(momentum=0.9), values=LARGE, devices=2)
    assert needed.model_bytes == 100_000_000
    assert needed.leader_bytes == LEADER_PROCESS_BYTES + 400_000_000
    # Two shared vectors, parameters, gradients, and half a model in transit.
    assert needed.device_bytes == DEVICE_PROCESS_BYTES + 450_000_000


def test_an_inner_optimiser_keeps_vectors_on_the_device() -> None:
    plain, adam = (memory_needed(Plan(inner=inner, lease_batches=16), values=LARGE) for inner in ("sgd", "adamw"))
    assert adam.device_bytes - plain.device_bytes == 2 * plain.model_bytes
