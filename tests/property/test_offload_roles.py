"""Whatever is lost, late, twice, out of order or a lie: the product is right to the last bit, and liars are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from market import Market, at_home, one_entry

from shoal.offload.roles.product import Policy
from shoal.wire.messages import TileTask

POOLS = ("pond", "lake", "mere")


def negated(result: np.ndarray) -> np.ndarray:
    return -result if result.dtype.kind == "f" else ~result


def lazy(result: np.ndarray) -> np.ndarray:
    return np.zeros_like(result)


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(("kill executor", "kill broker", "freeze", "cut")),
        st.integers(0, 7),
        st.floats(0.0, 0.4),
        st.floats(0.1, 3.0),
    ),
    max_size=6,
)


def afflict(market: Market, faults: list[tuple[str, int, float, float]]) -> None:
    names, pools = (
        sorted(market.devices),
        [pool for pool in POOLS if any(d.pool == pool for d in market.devices.values())],
    )
    for kind, which, at_s, for_s in faults:
        name, pool = names[which % len(names)], pools[which % len(pools)]
        match kind:
            case "kill executor":
                act: Any = lambda name=name, for_s=for_s: market.kill_executor(name, back_after_s=for_s)  # noqa: E731
            case "kill broker":
                act = lambda pool=pool, for_s=for_s: market.kill_broker(pool, back_after_s=for_s)  # noqa: E731
            case "freeze":
                act = lambda name=name, for_s=for_s: market.freeze(name, for_s * 10)  # noqa: E731
            case _:

                def act(name: str = name, for_s: float = for_s) -> None:
                    market.hang_up(name)
                    market.at(for_s, lambda: market.dial(name))

        market.at(at_s, act)


def sides(seed: int, rows: int, inner: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    left = chance.standard_normal((rows, inner), dtype=np.float32)
    return left, chance.standard_normal((inner, columns), dtype=np.float32)


@st.composite
def markets(draw: st.DrawFn, *, privacy: str, verify: str, liars_max: int = 2) -> Market:
    count = draw(st.integers(2 if privacy == "mask" else 1, 3))
    pools = {pool: draw(st.integers(1, 4)) for pool in POOLS[:count]}
    policy = Policy(privacy=privacy, verify=verify, tile_operations=32 * 12 * 8)  # type: ignore[arg-type]
    market = Market(policy, pools=pools, seed=draw(st.integers(0, 1 << 30)), wait_s=5.0)
    market.duplicates = draw(st.sampled_from((0.0, 0.3)))
    market.reorders = draw(st.booleans())
    if draw(st.booleans()):
        market.open()
    for name in draw(st.lists(st.sampled_from(sorted(market.devices)), max_size=liars_max, unique=True)):
        market.devices[name].lie = draw(st.sampled_from((one_entry, negated, lazy)))
    afflict(market, draw(FAULTS))
    return market


@pytest.mark.parametrize("verify", ["freivalds", "replicate"])
@settings(max_examples=25)
@given(data=st.data(), seed=st.integers(0, 1000), rows=st.integers(1, 300))
def test_a_product_is_right_and_every_liar_is_named(verify: str, data: st.DataObject, seed: int, rows: int) -> None:
    market = data.draw(markets(privacy="none", verify=verify))
    for number in (1, 2):
        left, right = sides(seed + number, rows, 12, 8)
        result = market.multiply(left, right, number=number)
        assert result.tobytes() == at_home(left, right, market.policy).tobytes()
    named = set(market.client.report.liars)
    lying = {f"{device.pool}/{device.name}" for device in market.devices.values() if device.lie is not None}
    assert named <= lying, "an honest one was named"
    assert len(market.client.report.liars) == len(named), "each is named once"
    if verify == "freivalds":
        assert named == market.seen_lying, "a liar whose result was looked at was not named"


@settings(max_examples=25)
@given(data=st.data(), seed=st.integers(0, 1000), rows=st.integers(1, 200))
def test_masked_products_are_right_and_no_pool_has_both_halves(data: st.DataObject, seed: int, rows: int) -> None:
    market = data.draw(markets(privacy="mask", verify="freivalds"))
    left, right = sides(seed, rows, 12, 8)
    quiet = Market(market.policy, pools={"pond": 1, "lake": 1}, seed=seed).open()
    assert market.multiply(left, right).tobytes() == quiet.multiply(left, right).tobytes()
    named = set(market.client.report.liars)
    lying = {f"{device.pool}/{device.name}" for device in market.devices.values() if device.lie is not None}
    assert named <= lying
    check_halves(market)


def check_halves(market: Market) -> None:
    """Of every tile, each pool was sent the seed or the share, and never both: by what the seed makes of it."""
    from shoal.offload.masking import mask

    seeds: dict[str, list[bytes]] = {}
    shares: dict[str, list[np.ndarray]] = {}
    for to, message in market.sent:
        if isinstance(message, TileTask) and to in POOLS:
            if message.kind == "mask":
                seeds.setdefault(to, []).append(message.tensors["seed"].tobytes())
            else:
                shares.setdefault(to, []).append(message.tensors["left"])
    for pool, held in seeds.items():
        for share in shares.get(pool, []):
            for seed in set(held):
                # Unmasked with the right seed, numbers are small; with another they are anything.
                whole = (share + mask(seed, share.shape)).view(np.int32).astype(np.int64)
                assert np.abs(whole).max() > 1 << 28, "a pool has both halves of a tile"


@settings(max_examples=25)
@given(data=st.data(), rows=st.integers(1, 300))
def test_with_no_faults_and_no_lies_nothing_is_done_at_home(data: st.DataObject, rows: int) -> None:
    verify = data.draw(st.sampled_from(("freivalds", "replicate", "spot", "none")))
    policy = Policy(verify=verify, tile_operations=32 * 12 * 8)
    market = Market(policy, pools={"pond": data.draw(st.integers(1, 4))}, seed=data.draw(st.integers(0, 99))).open()
    left, right = sides(rows, rows, 12, 8)
    assert market.multiply(left, right).tobytes() == at_home(left, right, policy).tobytes()
    assert not [record for who, record in market.records if "at home" in record.reason]
    done = sum(view.tasks for view in market.role("pond").views())
    copies = min(policy.replicas, len(market.devices)) if verify == "replicate" else 1
    assert done == copies * -(-rows // 32), "each tile is counted once"
