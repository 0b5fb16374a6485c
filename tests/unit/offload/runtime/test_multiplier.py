"""A process that multiplies: right results, right sides that are kept, and what happens when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import Corrupt
from shoal.offload.kinds import SEED_BYTES
from shoal.offload.masking import mask, share_product
from shoal.offload.runtime import multiplier as module
from shoal.offload.runtime.arena import Arena
from shoal.offload.runtime.multiplier import Multiplier
from shoal.offload.tiling import product
from shoal.roles.actions import Multiply
from shoal.roles.events import Multiplied, MultiplyFailed


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60.0))


def tile(left: np.ndarray, right: np.ndarray, number: int = 1) -> Multiply:
    sides = {"rows": left.shape[0], "inner": left.shape[1], "columns": right.shape[1]}
    return Multiply(number=number, kind="tile", **sides, tensors={"left": left, "right": right})


def matrices(seed: int, rows: int = 5, inner: int = 7, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    left = chance.standard_normal((rows, inner), dtype=np.float32)
    return left, chance.standard_normal((inner, columns), dtype=np.float32)


def test_right_sides_are_kept_and_dropped_and_results_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 2)

    async def story() -> None:
        multiplier = Multiplier()
        try:
            pairs = [matrices(seed) for seed in range(4)]
            for number in (0, 1, 0, 2, 3, 0, 1):
                left, right = pairs[number]
                done = await multiplier.multiply(tile(left, right, number))
                assert isinstance(done, Multiplied)
                assert done.number == number
                np.testing.assert_array_equal(done.tensors["result"], product(left, right))
                assert len(multiplier._kept) <= 2
            # Far larger than what came before: the memory grows.
            left, right = matrices(9, rows=600, inner=900, columns=300)
            done = await multiplier.multiply(tile(left, right))
            assert isinstance(done, Multiplied)
            np.testing.assert_allclose(done.tensors["result"], left @ right, rtol=1e-3, atol=1e-3)
        finally:
            multiplier.stop()
            multiplier.stop()

    run(story())


def test_both_halves_of_a_mask_come_to_the_product() -> None:
    async def story() -> None:
        multiplier = Multiplier()
        chance = np.random.default_rng(0)
        values = chance.integers(-1000, 1000, (4, 6), dtype=np.int32)
        digits = chance.integers(-512, 512, (6, 3), dtype=np.int16)
        seed = bytes(range(SEED_BYTES))
        share = values.view(np.uint32) - mask(seed, values.shape)
        sides = {"rows": 4, "inner": 6, "columns": 3}
        try:
            one = Multiply(
                number=1,
                kind="mask",
                **sides,
                tensors={"seed": np.frombuffer(seed, dtype=np.uint8), "right": digits},
            )
            other = Multiply(number=2, kind="share", **sides, tensors={"left": share, "right": digits})
            first, second = await multiplier.multiply(one), await multiplier.multiply(other)
        finally:
            multiplier.stop()
        assert isinstance(first, Multiplied)
        assert isinstance(second, Multiplied)
        np.testing.assert_array_equal(second.tensors["result"], share_product(share, digits))
        whole = (first.tensors["result"] + second.tensors["result"]).view(np.int32)
        np.testing.assert_array_equal(whole, values.astype(np.int64) @ digits.astype(np.int64))

    run(story())


def test_what_is_killed_fails_and_the_next_is_done_by_another() -> None:
    async def story() -> None:
        multiplier = Multiplier()
        left, right = matrices(1)
        try:
            assert isinstance(await multiplier.multiply(tile(left, right)), Multiplied)
            assert multiplier.pid is not None
            os.kill(multiplier.pid, signal.SIGKILL)
            failed = await multiplier.multiply(tile(left, right, number=2))
            assert isinstance(failed, MultiplyFailed)
            assert "the process that multiplies" in failed.reason
            again = await multiplier.multiply(tile(left, right, number=3))
            assert isinstance(again, Multiplied)
            np.testing.assert_array_equal(again.tensors["result"], product(left, right))
        finally:
            multiplier.stop()

    run(story())


def test_what_does_not_fit_together_is_refused_and_the_process_lives() -> None:
    async def story() -> None:
        multiplier = Multiplier()
        left, right = matrices(1)
        wrong = Multiply(number=1, kind="tile", rows=9, inner=7, columns=3, tensors={"left": left, "right": right})
        try:
            refused = await multiplier.multiply(wrong)
            assert isinstance(refused, MultiplyFailed)
            assert "came with" in refused.reason
            pid = multiplier.pid
            measured = Multiply(number=2, kind="measure", rows=8, inner=8, columns=8)
            assert isinstance(await multiplier.multiply(measured), Multiplied)
            assert multiplier.pid == pid
        finally:
            multiplier.stop()
        stopped = await_failed(multiplier, measured)
        assert stopped

    def await_failed(multiplier: Multiplier, ask: Multiply) -> bool:
        try:
            return isinstance(multiplier._multiply(ask), MultiplyFailed)
        except RuntimeError:
            return True

    run(story())


def test_an_arena_grows_and_both_ends_see_the_same() -> None:
    ours = Arena()
    theirs = Arena(ours.fd)
    try:
        ours.grow(100)
        end = ours.put(0, np.arange(6, dtype=np.float32).reshape(2, 3))
        assert end == 64
        np.testing.assert_array_equal(theirs.at(0, "float32", (2, 3)), [[0, 1, 2], [3, 4, 5]])
        ours.grow(1 << 20)
        ours.put(1 << 19, np.ones(1000, dtype=np.uint8))
        assert theirs.at(1 << 19, "uint8", (1000,)).sum() == 1000
        assert theirs.at(0, "float32", (2, 3))[1, 2] == 5
    finally:
        theirs.close()
        ours.close()


@pytest.mark.parametrize("has_memfd", [True, False])
def test_a_child_that_cuts_the_memory_short_ends_no_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_memfd: bool
) -> None:
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arena = Arena()
    try:
        arena.grow(20_000)
        values = np.arange(4000, dtype=np.float32)
        arena.put(64, values)
        np.testing.assert_array_equal(arena.copy(64, "float32", (4000,)), values)
        if has_memfd and sys.platform == "linux":
            with pytest.raises(PermissionError):
                os.ftruncate(arena.fd, 0)
            np.testing.assert_array_equal(arena.copy(64, "float32", (4000,)), values)
        else:
            os.ftruncate(arena.fd, 0)
            with pytest.raises(Corrupt, match="cut short"):
                arena.copy(64, "float32", (4000,))
        arena.grow(100_000)
        arena.put(64, values)
    finally:
        arena.close()
