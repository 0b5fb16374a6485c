"""Lagrange coding: worked examples, liars named, and what cannot work refused."""

from __future__ import annotations

import numpy as np
import pytest

from papers.dcl.lagrange import Coding, compute, decode, encode
from shoal.errors import Misuse, PeerViolation
from shoal.offload.field import PRIME

SEED, LOOK = bytes(range(16)), bytes(range(16, 32))


def test_a_line_through_one_block_and_one_mask() -> None:
    # K = T = 1: u(1) = x, u(2) = z, so u(3) = 2z - x and u(4) = 3z - 2x. 2·u(3) - u(4)... = z: two shares give x.
    coding = Coding(blocks=1, shares=2)
    shares = encode(np.array([[[7]]]), coding, seed=SEED)[:, 0, 0]
    x = (3 * int(shares[0]) - 2 * int(shares[1])) % PRIME
    assert x == 7
    assert coding.needed == 2


def test_eight_blocks_and_one_colluder_cost_an_eighth_more() -> None:
    coding = Coding(blocks=8, shares=9)
    assert coding.needed == 9


@pytest.mark.parametrize(("degree", "wanted"), [(1, 4 + 1 - 1 + 2 + 2 + 1), (2, 8 + 2 + 2 + 1)])
def test_too_few_shares_are_refused_with_the_sum(degree: int, wanted: int) -> None:
    with pytest.raises(Misuse, match=rf"\+ 1 = {wanted};"):
        Coding(blocks=4, colluders=1, stragglers=2, liars=1, degree=degree, shares=wanted - 1)
    Coding(blocks=4, colluders=1, stragglers=2, liars=1, degree=degree, shares=wanted)


def test_a_product_of_two_secrets_with_a_straggler_and_a_liar() -> None:
    # The gradient of weights: dYᵀX, as the sum over blocks of rows. Degree 2.
    chance = np.random.default_rng(0)
    coding = Coding(blocks=3, shares=10, stragglers=1, liars=1, degree=2)
    gradients, inputs = chance.integers(-400, 400, (3, 5, 8)), chance.integers(-400, 400, (3, 8, 6))
    left = encode(gradients, coding, seed=SEED, side="left")
    right = encode(inputs, coding, seed=SEED, side="right")
    results = {share: compute(left[share], right[share]) for share in range(10) if share != 4}
    results[7] = results[7].copy()
    results[7][0, 0] ^= 1
    found = decode(results, coding, seed=LOOK)
    assert found.liars == (7,)
    np.testing.assert_array_equal(found.signed.sum(axis=0), np.einsum("kij,kjl->il", gradients, inputs))


def test_more_liars_than_can_be_named_are_noticed() -> None:
    coding = Coding(blocks=2, shares=5, liars=1)
    shares = encode(np.ones((2, 2, 2), dtype=np.int64), coding, seed=SEED)
    results = {share: shares[share].copy() for share in range(5)}
    for liar in (1, 3):
        results[liar][0, 0] += 1 + liar
    with pytest.raises(PeerViolation, match="more than 1 of 5"):
        decode(results, coding, seed=LOOK)


def test_too_few_results_are_waited_for() -> None:
    coding = Coding(blocks=2, shares=5, liars=1)
    shares = encode(np.ones((2, 2, 2), dtype=np.int64), coding, seed=SEED)
    with pytest.raises(Misuse, match="wait for 5 of 5"):
        decode({share: shares[share] for share in range(4)}, coding, seed=LOOK)


def test_shares_of_colluders_are_uniform_whatever_is_coded() -> None:
    # T = 2: any two shares are independent of the block. Black and white look the same: bytes by chi-square.
    coding = Coding(blocks=1, colluders=2, shares=3)
    for value in (0, 1000):
        shares = encode(np.full((1, 100, 200), value), coding, seed=SEED)
        for share in shares[:2]:
            counts = np.bincount((share.reshape(-1) & 0xFF), minlength=256)
            expected = share.size / 256
            assert 142 < float(((counts - expected) ** 2 / expected).sum()) < 368
        assert abs(np.corrcoef(shares[0].reshape(-1), shares[1].reshape(-1))[0, 1]) < 0.03


def test_no_share_is_a_block() -> None:
    coding = Coding(blocks=3, colluders=1, shares=6)
    assert not set(coding.anchors) & {coding.point(share) for share in range(6)}


def test_blocks_of_floats_are_refused() -> None:
    with pytest.raises(Misuse, match="whole numbers"):
        encode(np.ones((1, 2, 2)), Coding(blocks=1, shares=2), seed=SEED)
