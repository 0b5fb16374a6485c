"""What a fleet needs, in numbers that can be worked out on paper; and the benchmark that measures what it rests on."""

from __future__ import annotations

import dataclasses
import json
import math
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import capacity as benchmark
from shoal.errors import Misuse
from shoal.topology.capacity import Costs, FleetLoad, Limit, MeasuredCosts, Needs, Site, levels, limits, needs

COSTS = Costs(
    fold_core_s_per_byte=2e-10,
    update_core_s=1e-3,
    update_core_s_per_byte=1e-9,
    heartbeat_core_s=1e-4,
    connection_core_s=5e-3,
    device_bytes=1e5,
    manager_bytes=1e8,
    leader_bytes=5e7,
    history_bytes=100.0,
)
MEASURED = MeasuredCosts(costs=COSTS, machine="a machine", date="2026-01-01", devices_tried=200, load=1.0)

#: Half full, so that a core does half a second of work in a second.
SITE = Site(
    link_bytes_per_s=1e9,
    cores_per_machine=4,
    memory_bytes_per_machine=1e10,
    full=0.5,
    files_per_process=100_000,
    price_core_hour=0.1,
    price_gb_down=0.01,
)


def fleet(devices: int = 100_000, **changes: Any) -> FleetLoad:
    return FleetLoad(**{"devices": devices, "model_bytes": 2e6, "every_s": 100.0, **changes})


def limit_of(found: tuple[Limit, ...], part: str) -> Limit:
    return next(limit for limit in found if limit.part == part)


def test_what_a_hundred_thousand_devices_need() -> None:
    answer = needs(fleet(), MEASURED, SITE)
    expected = {
        "updates_per_s": 1000.0,
        # 1 ms, and 4 MB at 1 ns a byte.
        "update_core_ms": 5.0,
        "leader_cores": 10.0,
        "leaders": 10,
        # 2 MB at 0.2 ns a byte, a thousand times a second, on cores that are half full.
        "fold_cores": 0.8,
        "levels": 2,
        "heartbeats_per_s": 1e5,
        # 10 cores of work on cores that are half full.
        "managers": 20,
        "up_bytes_per_s": 2e9,
        "down_bytes_per_s": 2e9,
        "links": 4,
        "connections": 200_000,
        # 10 GB of devices, 30 processes of 100 MB, 10 times 50 MB to lead.
        "memory_bytes": 1.35e10,
        # 200,000 handshakes of 5 ms on 30 cores.
        "back_s": 1000 / 30,
        # 1,000 rows a second of 100 bytes.
        "history_bytes_per_day": 8.64e9,
        # 30 processes on 4 cores each: more than the links and the memory ask for.
        "machines": 8,
        # 32 cores for 730 hours at 0.1; 2 GB/s for 2,628,000 s at 0.01.
        "cores_price": 2336.0,
        "down_price": 52_560.0,
    }
    assert {name: answer[name] for name in expected} == pytest.approx(expected)


def test_every_figure_says_what_it_rests_on() -> None:
    answer = needs(fleet(), MEASURED, SITE)
    by_basis = {
        basis: {each.name for each in answer.figures if each.basis == basis} for basis in ("measured", "assumed")
    }
    assert by_basis["measured"] == {"heartbeat_core_us", "connection_core_ms", "device_bytes"}
    assert by_basis["assumed"] == {"cores_price", "down_price"}
    assert all(each.how for each in (*answer.figures, *answer.limits))
    with pytest.raises(Misuse, match=r"figure 'sheep' does not exist; the figures are .*leaders"):
        answer["sheep"]


def test_what_gives_way_first() -> None:
    found = limits(fleet(), MEASURED, SITE)
    assert [(limit.part, limit.devices) for limit in found] == [
        ("heartbeats", 5_000),  # half a second of 100 µs each
        ("merging", 10_000),  # 50 s of 5 ms
        ("coming back", 10_000),  # 100 s of 2 · 5 ms
        ("link", 25_000),  # 50 s of 1 GB/s, 2 MB each
        ("sockets", 50_000),
        ("memory", 98_500),  # 10 GB less 150 MB, 100 kB each
    ]


def test_the_limits_and_the_needs_are_one_arithmetic() -> None:
    # As many as one leader bears need one leader, and one device more needs two. Likewise links and managers.
    for part, name in (("merging", "leaders"), ("link", "links"), ("heartbeats", "managers")):
        most = limit_of(limits(fleet(), MEASURED, SITE), part).devices
        assert needs(fleet(most), MEASURED, SITE)[name] == 1, part
        assert needs(fleet(most + 1), MEASURED, SITE)[name] == 2, part


def test_a_small_update_spares_the_way_up_and_not_the_way_down() -> None:
    whole, thin = (needs(each, MEASURED, SITE) for each in (fleet(), fleet(update_bytes=2e4)))
    assert thin["up_bytes_per_s"] == whole["up_bytes_per_s"] / 100
    assert thin["down_bytes_per_s"] == whole["down_bytes_per_s"]
    assert thin["links"] == whole["links"]
    assert thin["down_price"] == whole["down_price"]
    assert thin["leader_cores"] == pytest.approx(6.04)
    # One that is larger than the model makes the way up the wider.
    found = limit_of(limits(fleet(update_bytes=4e6), MEASURED, SITE), "link")
    assert (found.devices, ", up:" in found.how) == (12_500, True)


def test_slower_heartbeats_need_fewer_managers_until_sockets_do() -> None:
    assert [needs(fleet(heartbeat_s=each), MEASURED, SITE)["managers"] for each in (1.0, 5.0, 10.0, 60.0)] == [
        20,
        4,
        2,
        2,
    ]


def test_levels_of_leaders() -> None:
    # One bears 50 s of 5 ms: 10,000 partials.
    assert [levels(count, fleet(), COSTS, SITE) for count in (1, 2, 10_000, 10_001)] == [1, 2, 2, 3]
    # However slow it is, two become one: it ends.
    assert levels(8, fleet(every_s=1e-6), COSTS, SITE) == 4


@given(
    devices=st.integers(1, 10**9),
    model_bytes=st.floats(1.0, 1e12),
    every_s=st.floats(0.01, 1e7),
    heartbeat_s=st.floats(0.01, 1e5),
)
def test_more_devices_never_need_less(devices: int, model_bytes: float, every_s: float, heartbeat_s: float) -> None:
    def of(count: int) -> Needs:
        asked = FleetLoad(devices=count, model_bytes=model_bytes, every_s=every_s, heartbeat_s=heartbeat_s)
        return needs(asked, MEASURED, SITE)

    fewer, more = of(devices), of(2 * devices)
    for figure in more.figures:
        assert math.isfinite(figure.value)
        if figure.name != "back_s":
            assert figure.value >= fewer[figure.name] > 0, figure.name
    assert [each.devices for each in more.limits] == sorted(each.devices for each in more.limits)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"devices": 0}, "at least one device"),
        ({"model_bytes": 0.0}, "a model's size"),
        ({"every_s": math.inf}, "between two updates"),
        ({"update_bytes": -1.0}, "an update's size"),
        ({"heartbeat_s": math.nan}, "between two heartbeats"),
    ],
)
def test_a_fleet_that_makes_no_sense(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        fleet(**changes)


@pytest.mark.parametrize("changes", [{"full": 0.0}, {"full": 1.1}, {"price_gb_down": -1.0}, {"link_bytes_per_s": 0.0}])
def test_a_site_that_makes_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        dataclasses.replace(SITE, **changes)


def test_the_figures_that_come_with_the_package_can_be_read() -> None:
    text = resources.files("shoal.topology").joinpath("measured.json").read_text(encoding="utf-8")
    measured = MeasuredCosts.from_plain(json.loads(text))
    assert measured.devices_tried >= 40
    assert measured.machine
    # An update cannot cost less than what merging it costs.
    moved = 2 * 4 * benchmark.PERNET
    assert measured.costs.update_core_s_of(moved) > measured.costs.fold_core_s_per_byte * moved / 2


@pytest.mark.parametrize("broken", [{}, {"figures": []}, {"figures": {"update_core_s": "fast"}}, {"figures": {"x": 1}}])
def test_figures_that_cannot_be_read(broken: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=r"benchmarks\.capacity --save"):
        MeasuredCosts.from_plain({"machine": "m", "date": "d", "devices_tried": 1, "load": 1.0, **broken})


# The benchmark ---------------------------------------------------------------------------------------


def test_the_benchmark_compares_equal_sums() -> None:
    # It asserts itself that all come to the same model, to the bit.
    result = benchmark.fold(values=5_000, turns=2, round_=15)
    for name in ("dense_updates_per_s", "dense_ratio_to_numpy", "sparse_updates_per_s", "sparse_ratio_to_numpy"):
        assert 0 < result[name] < math.inf, name
    assert "codec not included" in result["sparse_is"]


def test_the_benchmark_notices_other_sums() -> None:
    pool = benchmark.deltas(100)
    contenders = {
        "numpy": benchmark.bare(pool, 5),
        "dense": benchmark.ours(benchmark.at_hand(pool, 6), 100),
    }
    contenders |= dict.fromkeys(("dense_wire", "dense_leader", "sparse_numpy", "sparse"), contenders["numpy"])
    with pytest.raises(AssertionError, match="dense came to another model than numpy"):
        benchmark.take_turns(contenders, 1)
