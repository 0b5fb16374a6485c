"""The benchmark of offloading: what it counts, and what it takes from the cost model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.offload import freivalds_share, in_process
from shoal.offload.cost import Home, Shape, worth
from shoal.offload.products import Advert
from testbed.one_core import VARIABLES, one_thread

HOME = Home(
    operation_s=2e-10,
    byte_s=1e-9,
    check_s=1e-9,
    probe_s=5e-9,
    mask_s=1e-8,
    unmask_s=1e-8,
    check_exactly_s=1e-8,
    probe_exactly_s=4e-8,
    share_factor=3.0,
)
POOL = Advert(executors=8, operations_per_s=1e11, bytes_per_s=0.0, latency_s=0.01, pools=2)


def test_tiles_move_a_ninetieth_of_the_bytes() -> None:
    told = in_process((4_000, 784, 128), ("tiles",))
    # 784 outer products of 4,000 x 128, and the sides once; eight executors have the weights each.
    outer = 4 * (4_000 * 784 + 784 * 128 + 784 * 4_000 * 128)
    assert outer / told["tiles"]["bytes"] == pytest.approx(90.9, abs=0.1)
    assert told["tiles"]["analyst_ops_share"] == 0


def test_a_share_is_of_the_products_time() -> None:
    told = freivalds_share((64, 256, 256), turns=3)
    assert told["share"] == pytest.approx(told["check_s"] / told["product_s"])
    assert told["share_with_version"] > told["share"]


def test_the_width_from_which_on_it_pays_is_the_cost_models() -> None:
    from benchmarks.offload_real import predicted

    def pays(width: int, pool: Advert) -> bool:
        shape = Shape(rows=width, inner=width, columns=width)
        return worth(shape, "left", home=HOME, pool=pool, privacy="none", verify="freivalds").sends

    pools = [replace(POOL, bytes_per_s=mbps * 1e6 / 8) for mbps in (1_000.0, 100.0)]
    fast, slow = (predicted(HOME, pool, privacy="none") for pool in pools)
    assert fast is not None
    assert slow is not None
    assert fast < slow
    assert pays(fast, pools[0])
    assert not pays(fast - 64, pools[0])
    masked = predicted(HOME, pools[0], privacy="mask")
    assert masked is None or masked > fast
    assert predicted(HOME, replace(POOL, pools=1), privacy="mask") is None


def test_one_thread_for_every_library() -> None:
    made = one_thread({"PATH": "x", "OMP_NUM_THREADS": "8"})
    assert made["PATH"] == "x"
    assert all(made[name] == "1" for name in VARIABLES)
