"""Estimate the memory of a leader and of a device from a plan and the size of its model. Pure.

    leader = process + B · (model + outer state + residual + updates and their sum)
    device = agent + PyTorch + B · (two shared vectors + parameters + gradients + optimiser state + residual)

B is the bytes of the trained values in float32. Activations and examples are the task's, and are not known here.
``benchmarks.memory`` compares the leader's figure with a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.compress.codec import Codec
from shoal.plan import Plan
from shoal.wire.limits import UPLOAD_SHARED_MAX_BYTES, VALUE_BYTES

#: A manager or agent that leads, without any model: its code, its connections, and the memory that malloc keeps.
LEADER_PROCESS_BYTES = 100_000_000

#: A trainer that has imported PyTorch, and its agent, both without any model.
DEVICE_PROCESS_BYTES = 280_000_000

#: Vectors that an inner optimiser keeps for each trained value.
_INNER_STATE = {"sgd": 0, "adam": 2, "adamw": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeeded:
    """Bytes that cannot be dropped. The frozen base is not among them: it is mapped from its files."""

    model_bytes: int
    leader_models: float
    leader_bytes: int
    device_models: float
    device_bytes: int


def memory_needed(plan: Plan, *, values: int, devices: int = 0) -> MemoryNeeded:
    """Return what a leader and a device of a job need at most. ``devices``: how many train, or 0 if not known."""
    model_bytes = VALUE_BYTES * values
    leader, device = leader_models(plan, values=values, devices=devices), device_models(plan)
    return MemoryNeeded(
        model_bytes=model_bytes,
        leader_models=leader,
        leader_bytes=LEADER_PROCESS_BYTES + round(leader * model_bytes),
        device_models=device,
        device_bytes=DEVICE_PROCESS_BYTES + round(device * model_bytes),
    )


def leader_models(plan: Plan, *, values: int, devices: int = 0) -> float:
    """Return how many times the model's bytes a leader holds at its peak, in a star."""
    rule, up, down = plan.outer_rule, Codec.parse(plan.codec), Codec.parse(plan.down)
    velocity, second = int(rule.momentum != 0), int(rule.is_adaptive)
    residual = int(down.form != "dense")
    kept = 1 + velocity + second + residual
    is_plain = plan.believes.rule is None and plan.believes.sealed is None and plan.privacy is None
    if up.form == "dense" and is_plain and VALUE_BYTES * values > UPLOAD_SHARED_MAX_BYTES:
        # Two updates, in whose memory others are summed and the step is made, and one more that arrives.
        updates = min(devices or 3, 3)
        return kept + updates + second + (2 * residual)
    # A float64 sum, an update that arrives or is decoded, the mean; the next model, velocity, squares and residual.
    return kept + 2 + 1 + 1 + 1 + velocity + second + (2 * residual) + (0 if is_plain else 2)


def device_models(plan: Plan) -> float:
    """Return how many times the model's bytes a device holds: its agent and its trainer together."""
    feedback = int(Codec.parse(plan.codec).feedback)
    # The model and the update that the agent shares with its trainer; parameters and gradients; what is sent.
    return 2 + 2 + _INNER_STATE.get(plan.inner, 2) + feedback + int(bool(plan.device_momentum)) + 0.5
