"""Who sees what under each kind of trust, drawn from the table in docs/trust.md."""

from __future__ import annotations

import textwrap
from pathlib import Path

from pictures_canvas import Canvas

ROOT = Path(__file__).resolve().parent.parent
HEADING = "## Who sees what"
_LEFT, _TOP, _COLUMN_PX, _ROW_PX = 150, 92, 182, 72
_CHARS = 25


def table() -> tuple[list[str], list[list[str]]]:
    """Return the heads of the columns, and the rows."""
    text = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    if HEADING not in text:
        raise ValueError(f"docs/trust.md has no section {HEADING!r}: the picture is drawn from its table")
    lines = [line for line in text.partition(HEADING)[2].partition("\n## ")[0].splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return head, rows


def drawn() -> str:
    """Return the picture: a column per kind of trust, a row per reader."""
    head, rows = table()
    width, bottom = _LEFT + _COLUMN_PX * (len(head) - 1) + 24, _TOP + _ROW_PX * len(rows)
    canvas = Canvas(
        width,
        bottom + 42,
        title="Who sees what",
        says="For each kind of trust, what other devices, aggregators, the leader and readers of the model see.",
    )
    canvas.text(24, 32, "Who sees what of your device's work", bold=True, size=16)
    canvas.text(24, 52, "Columns: the plan's trust. Rows: who looks.", "dim", size=12)
    for column, name in enumerate(head[1:]):
        canvas.text(_LEFT + (column + 0.5) * _COLUMN_PX, _TOP - 12, name, bold=True, size=14, at="middle")
    for row, (who, *cells) in enumerate(rows):
        y = _TOP + row * _ROW_PX
        words = textwrap.wrap(who, 15)
        for place, line in enumerate(words):
            canvas.text(24, y + _ROW_PX / 2 + 5 - 8.5 * (len(words) - 1) + 17 * place, line, bold=True, size=13)
        for column, cell in enumerate(cells):
            x = _LEFT + column * _COLUMN_PX
            kind, ink = kind_of(cell)
            canvas.box(x + 3, y + 3, _COLUMN_PX - 6, _ROW_PX - 6, kind, round_=5)
            lines = textwrap.wrap(cell, _CHARS)
            for place, line in enumerate(lines):
                at_y = y + _ROW_PX / 2 + 4 - 8 * (len(lines) - 1) + 16 * place
                canvas.text(x + _COLUMN_PX / 2, at_y, line, ink, size=12, at="middle")
    legend = (("band", "single updates"), ("plain", "sums or versions"), ("box", "masked, or with noise"))
    for x, (kind, label) in zip((24, 170, 330), legend, strict=True):
        canvas.box(x, bottom + 14, 18, 12, kind, round_=3)
        canvas.text(x + 26, bottom + 25, label, "dim", size=12)
    return canvas.written()


def kind_of(cell: str) -> tuple[str, str]:
    """Return the classes of a cell's box and text: the more it shows of one device, the stronger."""
    if "update" in cell:
        return "band", "warn"
    return ("box", "text") if "noise" in cell or "random" in cell else ("plain", "text")
