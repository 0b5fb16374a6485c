"""When a device that does other work rests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.runtime.device_limits import DeviceLimits


def why(limits: DeviceLimits, hour: float, *, temperature_c: float | None = None, rests: bool = False) -> str | None:
    return limits.why_rest(minute=round(hour * 60), temperature_c=temperature_c, rests=rests)


def test_a_device_without_limits_always_works() -> None:
    assert why(DeviceLimits(), 3, temperature_c=200.0) is None
    assert DeviceLimits.of() == DeviceLimits()


@pytest.mark.parametrize(
    ("hours", "works", "rests"),
    [
        ("22-6", (22, 23.5, 0, 5.9), (6, 12, 21.9)),
        ("9-17", (9, 16.9), (8.9, 17, 0)),
        ("20:30-6:15, 12-13", (20.5, 6.2, 12.5), (20.4, 6.25, 13)),
        ("0-24:00,1-2", (0, 1.5), ()),
        ("18-24", (18, 23.9), (0, 17.9)),
    ],
)
def test_hours_are_spans_of_the_day(hours: str, works: tuple[float, ...], rests: tuple[float, ...]) -> None:
    if hours.startswith("0-24"):
        with pytest.raises(Misuse, match="is not a span"):
            DeviceLimits.of(hours=hours)
        return
    limits = DeviceLimits.of(hours=hours)
    assert [hour for hour in works if why(limits, hour)] == []
    assert [hour for hour in rests if not why(limits, hour)] == []


def test_it_says_when_it_works_again() -> None:
    limits = DeviceLimits.of(hours="22-6,12:30-13")
    assert why(limits, 8) == "it works from 12:30 on"
    assert why(limits, 14) == "it works from 22:00 on"


def test_a_warm_device_rests_until_it_is_cooler_by_some_degrees() -> None:
    limits = DeviceLimits.of(max_temperature_c=75)
    assert why(limits, 0, temperature_c=75.0) is None
    assert why(limits, 0, temperature_c=76.0) == "it is too warm: 76 degrees, it works up to 75"
    assert why(limits, 0, temperature_c=72.0) is None
    assert why(limits, 0, temperature_c=72.0, rests=True) == "it is too warm: 72 degrees, it works up to 70"
    assert why(limits, 0, temperature_c=None) is None


@pytest.mark.parametrize("hours", ["22", "22-", "25-6", "6:60-7", "a-b", "7-7", "1-2,"])
def test_hours_that_are_none_are_refused(hours: str) -> None:
    with pytest.raises(Misuse, match="--hours"):
        DeviceLimits.of(hours=hours)


@pytest.mark.parametrize("limit", [-1.0, 12.0, 500.0, float("nan")])
def test_a_temperature_that_no_board_has_is_refused(limit: float) -> None:
    with pytest.raises(Misuse, match="--max-temperature"):
        DeviceLimits.of(max_temperature_c=limit)


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 1439))
def test_a_span_and_its_complement_cover_the_day(start: int, stop: int, minute: int) -> None:
    if start == stop:
        return
    within, beyond = DeviceLimits(hours=((start, stop),)), DeviceLimits(hours=((stop, start),))
    told = [limits.why_rest(minute=minute, temperature_c=None, rests=False) for limits in (within, beyond)]
    assert (told[0] is None) != (told[1] is None)
