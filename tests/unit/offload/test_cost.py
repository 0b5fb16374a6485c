"""The cost model, on a device and a pool whose seconds are round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.errors import Misuse
from shoal.offload.cost import MARGIN, Home, Shape, Traffic, link_rate, own_seconds, pool_seconds, traffic, worth
from shoal.offload.products import Advert

HOME = Home(
    operation_s=1e-9,
    byte_s=1e-9,
    check_s=2e-9,
    probe_s=2e-9,
    mask_s=10e-9,
    unmask_s=5e-9,
    check_exactly_s=4e-9,
    probe_exactly_s=6e-9,
    share_factor=4.0,
)
POOL = Advert(executors=8, operations_per_s=8e9, bytes_per_s=1e9, latency_s=0.001, pools=2)
WIDE = Shape(rows=1000, inner=1000, columns=1000)


def test_what_crosses_the_link() -> None:
    shape = Shape(rows=10, inner=20, columns=30)
    # left 200, right 600, result 300 values of 4 bytes.
    assert traffic(shape, masked=False, verify="freivalds") == Traffic(bytes_out=3_200, bytes_in=1_200)
    # A share to one pool, a seed to the other; to both, 2 digits of 2 bytes a value; from both, 2 numbers of 4 a value.
    assert traffic(shape, masked=True, verify="freivalds") == Traffic(bytes_out=5_600, bytes_in=4_800)
    assert traffic(shape, masked=False, verify="replicate") == Traffic(bytes_out=4_800, bytes_in=3_600)


def test_what_sending_takes_here() -> None:
    # 3 million values checked: 6 ms.
    assert own_seconds(WIDE, HOME, masked=False, verify="freivalds") == pytest.approx(0.006)
    assert own_seconds(WIDE, HOME, masked=False, verify="none") == 0.0
    # A million values masked and as many unmasked: 15 ms; 14 ms of checks.
    assert own_seconds(WIDE, HOME, masked=True, verify="freivalds") == pytest.approx(0.015 + 0.014)


def test_what_the_pool_takes() -> None:
    assert pool_seconds(WIDE, HOME, POOL, masked=False, verify="none") == pytest.approx(0.125)
    assert pool_seconds(WIDE, HOME, POOL, masked=False, verify="replicate") == pytest.approx(0.375)
    # Both pools do all of it, and shares take four times as long.
    assert pool_seconds(WIDE, HOME, POOL, masked=True, verify="freivalds") == pytest.approx(1.0)
    # Two rows are for two executors at most.
    few = Shape(rows=2, inner=1000, columns=1000)
    assert pool_seconds(few, HOME, POOL, masked=False, verify="none") == pytest.approx(0.001)


def test_a_wide_product_pays() -> None:
    verdict = worth(WIDE, "left", home=HOME, pool=POOL, privacy="none", verify="freivalds")
    assert verdict.home_s == pytest.approx(1.0)
    # 6 ms here, 1 ms there and back; 32 ms for 4 MB to each of eight executors and 125 ms of work, which together are
    # more than the 12 ms of our own link.
    assert verdict.away_s == pytest.approx(0.164)
    assert verdict.sends
    assert verdict.speedup == pytest.approx(1 / 0.164)
    assert verdict.reason == "6.1 times as fast away: 164.00 ms against 1.00 s"


@pytest.mark.parametrize(
    ("pool", "most"),
    [
        (replace(POOL, bytes_per_s=1e6, executors=1), "12.00 s the link (8 Mb/s)"),
        (replace(POOL, bytes_per_s=1e6), "32.12 s the pool"),
        (replace(POOL, operations_per_s=5e8), "2.03 s the pool"),
        (replace(POOL, latency_s=3.0), "3.00 s there and back"),
    ],
)
def test_what_does_not_pay_says_what_is_in_the_way(pool: Advert, most: str) -> None:
    verdict = worth(WIDE, "left", home=HOME, pool=pool, privacy="none", verify="freivalds")
    assert not verdict.sends
    assert verdict.speedup == 1.0
    assert verdict.reason.endswith(f"of which {most}")


def test_a_narrow_layer_is_not_worth_its_checks() -> None:
    narrow = Shape(rows=60_000, inner=784, columns=10)
    slow_hands = replace(HOME, check_s=20e-9)
    verdict = worth(narrow, "left", home=slow_hands, pool=POOL, privacy="none", verify="freivalds")
    assert not verdict.sends
    assert "masks and checks here" in verdict.reason


def test_a_link_is_no_faster_than_the_hands_that_serve_it() -> None:
    # 8 ns a byte of the link, and 1 ns of ours.
    assert link_rate(1000.0, HOME) == pytest.approx(1e9 / 9)
    assert link_rate(1e9, HOME) == pytest.approx(1e9, rel=1e-4)


def test_masks_hide_one_side_and_take_two_pools() -> None:
    both = worth(WIDE, "both", home=HOME, pool=POOL, privacy="mask", verify="freivalds")
    assert (both.sends, both.away_s) == (False, None)
    assert both.reason == "both sides are secret, and a mask hides one"
    one = worth(WIDE, "left", home=HOME, pool=replace(POOL, pools=1), privacy="mask", verify="freivalds")
    assert one.reason == "masking takes 2 pools that do not collude; there is 1"
    # What is no secret needs no mask.
    assert worth(WIDE, "none", home=HOME, pool=replace(POOL, pools=1), privacy="mask", verify="freivalds").sends
    assert worth(WIDE, "both", home=HOME, pool=POOL, privacy="none", verify="freivalds").sends


def test_an_empty_pool_gets_nothing() -> None:
    verdict = worth(WIDE, "left", home=HOME, pool=replace(POOL, executors=0), privacy="none", verify="none")
    assert verdict.reason == "the pool has no executor"


def test_a_link_that_is_not_known_yet_is_not_in_the_way() -> None:
    verdict = worth(WIDE, "left", home=HOME, pool=replace(POOL, bytes_per_s=0.0), privacy="none", verify="spot")
    assert verdict.sends
    assert (verdict.link_s, verdict.own_s, verdict.pool_s) == (0.0, pytest.approx(0.006), pytest.approx(0.125))


def test_a_pool_slower_than_it_said_is_reckoned_with() -> None:
    slow = worth(WIDE, "left", home=HOME, pool=POOL, privacy="none", verify="freivalds", pace=10.0)
    assert not slow.sends
    assert slow.away_s == pytest.approx(1.64)


def test_a_near_tie_stays_at_home() -> None:
    tie = replace(POOL, operations_per_s=1e9 * MARGIN, bytes_per_s=0.0, latency_s=0.0)
    free = replace(HOME, byte_s=0.0, check_s=0.0)
    assert not worth(WIDE, "left", home=free, pool=tie, privacy="none", verify="none").sends
    better = replace(tie, operations_per_s=1e9 * MARGIN * 1.01)
    assert worth(WIDE, "left", home=free, pool=better, privacy="none", verify="none").sends


def test_misuse() -> None:
    with pytest.raises(Misuse, match="verify is freivalds, replicate, spot, none; not 'vote'"):
        worth(WIDE, "left", home=HOME, pool=POOL, privacy="none", verify="vote")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="has no values"):
        Shape(rows=0, inner=1, columns=1)
