"""Tokens as a person reads them."""

from __future__ import annotations

import pytest
from rich.console import Console

from shoal.cli.render.tables import tokens_table
from shoal.wire.messages import TokenView

NOW_S = 1_790_000_000.0


def drawn(*tokens: TokenView) -> str:
    console = Console(width=140, force_terminal=False)
    with console.capture() as capture:
        console.print(tokens_table(tokens, now_s=NOW_S))
    return capture.get()


def test_a_token_shows_what_is_left_of_it() -> None:
    text = drawn(
        TokenView(
            token="3fa2b1c0", role="node", uses_left=5, expires_s=NOW_S + 7200, made_s=NOW_S - 60, label="\x1b[2Jlab"
        ),
        TokenView(token="00000001", role="operator", uses_left=0, expires_s=NOW_S - 1, made_s=NOW_S - 60),
        TokenView(token="00000002", role="node", uses_left=1, made_s=NOW_S),
    )
    lines = {line[:8]: line for line in text.splitlines()}
    fresh, dead, lasting = (lines[token] for token in ("3fa2b1c0", "00000001", "00000002"))
    assert "in 2 h 00 min" in fresh
    assert "1 min 00 s ago" in fresh
    assert "lab" in fresh
    assert "\x1b" not in fresh
    assert "used up" in dead
    assert "expired" in dead
    assert "never" in lasting


def test_the_qr_code_of_a_link_is_what_a_camera_reads() -> None:
    segno = pytest.importorskip("segno")
    from shoal.cli.commands.token import _qr_code

    link = "https://shoal.example:7075/#join=" + "0f" * 16
    dark = [[bool(each) for each in row] for row in segno.make(link, error="l").matrix_iter(border=2)]
    halves = {"█": (False, False), "▀": (False, True), "▄": (True, False), " ": (True, True)}
    read: list[list[bool]] = []
    for line in _qr_code(link).splitlines():
        above, below = zip(*(halves[each] for each in line), strict=True)
        read += [list(above), list(below)]
    assert read[: len(dark)] == dark
    assert not any(any(row) for row in read[len(dark) :])
