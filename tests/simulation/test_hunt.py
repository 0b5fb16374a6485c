"""Seeded disasters: whatever breaks, history stays exact, what was acknowledged survives, and every job ends."""

from __future__ import annotations

import pytest

from shoal.sim.hunt import hunt

SEEDS = 300
BLOCK = 30


@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
def test_no_invariant_breaks(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try:
            hunt(seed)
        except BaseException as error:
            error.add_note(f"python -m benchmarks.protocol_seeds --first {seed} --count 1 --trace {seed}.jsonl")
            raise
