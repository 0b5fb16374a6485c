"""The live view with notes on what its parts mean, drawn from the recorded run in docs/demo.svg."""

from __future__ import annotations

import html
import re
from pathlib import Path

from pictures_canvas import Canvas

ROOT = Path(__file__).resolve().parent.parent
#: Written by tools/demo_picture.py: the screen of a real run.
RECORDING = ROOT / "docs" / "demo.svg"
#: What a note points at, as the screen has it, and the note. The first line that holds the text has the mark.
NOTES = (
    ("● training", "State of the job, and for how long"),
    ("epoch 3", "Epoch, the end of the job, batches counted"),
    ("accuracy", "Last evaluation, earlier ones, losses"),
    ("version ", "Newest version; the newest saved one"),
    ("lease time", "Typical time of a device for one lease"),
    ("pace", "A device's speed against the others'"),
    ("● working", "State of a device, and why"),
    ("job.evaluated", "What happened, and why"),
)
#: Pixels per column and row in the recording.
_COLUMN_PX, _ROW_PX = 12.2, 24.4
_PX, _LINE_PX, _LEFT, _TOP = 7.4, 17, 34, 34

_STYLE = re.compile(r"\.terminal-\d+-(r\d+) \{ fill: (#\w+);?(font-weight: bold)? ?\}")
_TEXT = re.compile(r'<text class="terminal-\d+-(r\d+)" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>')
#: A colour of the recording -> a class of the canvas.
_KINDS = {"#68a0b3": "c1", "#4e707b": "dim", "#98a84b": "good", "#868887": "dim", "#3a3a3a": "dim"}


def drawn() -> str:
    """Return the picture: the recorded screen with numbered marks, and the notes under it."""
    recording = RECORDING.read_text(encoding="utf-8")
    styles = {name: (_KINDS.get(fill, "text"), bool(bold)) for name, fill, bold in _STYLE.findall(recording)}
    texts = [
        (round(float(x) / _COLUMN_PX), int(float(y) / _ROW_PX), html.unescape(text).replace("\xa0", " "), *styles[name])
        for name, x, y, text in _TEXT.findall(recording)
    ]
    columns = max(column + len(text.rstrip()) for column, _, text, _, _ in texts)
    rows = max(row for _, row, text, _, _ in texts if text.strip()) + 1
    width, under = round(2 * _LEFT + columns * _PX), _TOP + rows * _LINE_PX + 10
    canvas = Canvas(
        width,
        under + 4 * 24 + 20,
        title="The live view of shoal train, with notes",
        says="A job trains on four devices. Eight numbered notes explain the parts of the screen.",
    )
    canvas.box(_LEFT - 16, 14, width - 2 * _LEFT + 32, under - 20, "plain", round_=6)
    for column, row, text, kind, bold in texts:
        if stripped := text.strip():
            start = column + len(text) - len(text.lstrip())
            canvas.text(_LEFT + start * _PX, _line_y(row), stripped, kind, size=12, bold=bold, mono_px=_PX)
    for number, (sought, note) in enumerate(NOTES, 1):
        found = next(((each[0] + each[2].index(sought), each[1]) for each in texts if sought in each[2]), None)
        if found is None:
            raise ValueError(f"docs/demo.svg does not show {sought!r}: record it again, or mend NOTES")
        _mark(canvas, _LEFT + found[0] * _PX - 8.5, _line_y(found[1]) - 4, number)
        x, y = _LEFT + (number - 1) // 4 * (width / 2 - 10), under + 18 + (number - 1) % 4 * 24
        _mark(canvas, x, y - 4, number)
        canvas.text(x + 16, y, note, size=13)
    return canvas.written()


def _line_y(row: int) -> float:
    return _TOP + 6 + row * _LINE_PX


def _mark(canvas: Canvas, x: float, y: float, number: int) -> None:
    canvas.dot(x, y, 6.5, "strong")
    canvas.text(x, y + 3.5, str(number), "on", size=10, at="middle", bold=True)
