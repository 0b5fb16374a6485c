"""Numbers and texts as people read them."""

from __future__ import annotations

import math

import pytest

from shoal.cli.render import format
from shoal.errors import Misuse


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_500_000, "1.5 MB"),
        (999_960_000, "1.0 GB"),
        (1e30, "1000000000000000.0 PB"),
        (math.inf, "∞"),
    ],
)
def test_bytes(size_bytes: float, text: str) -> None:
    assert format.bytes_text(size_bytes) == text


@pytest.mark.parametrize(
    ("span_s", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (75.2, "1 min 15 s"),
        (7800, "2 h 10 min"),
        (200_000, "2 days 7 h"),
        (math.inf, "∞"),
    ],
)
def test_spans(span_s: float, text: str) -> None:
    assert format.span_text(span_s) == text


@pytest.mark.parametrize(
    ("slowness", "text"),
    [
        (1.0, "average"),
        (1.24, "average"),
        (2.34, "2.3x slower"),
        (0.5, "2.0x faster"),
        (0.0, "average"),
        (1e9, "1.0Gx slower"),
        (math.inf, "∞x slower"),
    ],
)
def test_slowness(slowness: float, text: str) -> None:
    assert format.slowness_text(slowness) == text


def test_shares_and_losses_that_are_not_known_yet() -> None:
    assert format.share_text(None) == format.number_text(None) == format.NOTHING
    assert format.share_text(0.97639) == "97.64 %"
    assert format.number_text(0.103456) == "0.1035"
    assert format.number_text(math.inf) == "∞"


def test_a_sparkline_spans_its_own_range() -> None:
    assert format.sparkline([0.1, 0.5, 0.9], 10) == "▁▅█"
    assert format.sparkline([0.5, 0.5], 10) == "▅▅"
    assert format.sparkline([], 10) == format.sparkline([1.0], 0) == ""
    assert format.sparkline([0.0, math.inf, 1.0, 2.0], 2) == "▁█"


def test_a_peers_text_cannot_command_the_terminal() -> None:
    assert format.clean("a\x1b[2Jb\nc\t\u202ed") == "a [2Jb c d"
    assert format.clean("x" * 50, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("text", "span_s"),
    [("10s", 10), ("10", 10), ("0.5 s", 0.5), ("5m", 300), ("5min", 300), ("1h", 3600), (" 2h ", 7200)],
)
def test_spans_are_read(text: str, span_s: float) -> None:
    assert format.parse_span(text) == span_s


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "1e3", "nan", "inf", "10 s 5", "1" * 12])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(Misuse, match="such as 10s"):
        format.parse_span(text)


def test_one_and_many() -> None:
    assert format.plural(1, "device") == "1 device"
    assert format.plural(1200, "device") == "1,200 devices"
