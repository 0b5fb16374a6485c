"""What is said of a sealed plan before it is run."""

from __future__ import annotations

import re

from shoal.cli.render.sealed import sealed_facts
from shoal.plan import Plan


def facts(codec: str, devices: int) -> dict[str, str]:
    plan = Plan(trust="sealed", data="local", workers_min=8, workers_max=100, codec=codec)
    return dict(sealed_facts(plan, devices=devices, model_bytes=2.9e6))


def device_ms(told: dict[str, str]) -> int:
    found = re.search(r"about (\d+) ms of a core more a version on a device", told["costs"])
    assert found is not None, told["costs"]
    return int(found[1])


def test_a_sealed_plan_says_who_opens_what_it_costs_and_what_is_learnt() -> None:
    told = facts("dense", 16)
    assert "each masks with every other; 10 of them open a mask" in told["trust"]
    assert "sums of at least 8 devices, also if it lies" in told["learns"]
    assert "if it follows the protocol" in facts("dense", 64)["learns"]


def test_masks_of_16_bits_cost_half() -> None:
    # Rounding and hashing 725,000 values take 10 ms, each of 25 masks of 32 bits 1.1 ms.
    assert device_ms(facts("dense", 64)) == 37
    assert device_ms(facts("int16", 64)) == 24
