"""The layers of the code, drawn from the list in ARCHITECTURE.md."""

from __future__ import annotations

from pathlib import Path

from pictures_canvas import Canvas

ROOT = Path(__file__).resolve().parent.parent
_ROW_PX, _TOP = 30, 66
#: Where the second column of that list begins.
_COLUMN = 39
#: Layers that decide and compute, and use no clock, socket or file.
_PURE = ("roles", "wire", "learning", "task", "compress", "states")


def rows() -> list[tuple[str, str]]:
    """Return each layer's packages and what they hold, from the top layer down."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = text.partition("\n## Layers\n")[2].partition("```\n")[2].partition("```")[0]
    return [(line[:_COLUMN].strip(), line[_COLUMN:].strip().replace("`", "")) for line in block.splitlines()]


def drawn() -> str:
    """Return the picture: a row per layer; a layer imports only from the rows below it."""
    layers = rows()
    bottom = _TOP + len(layers) * _ROW_PX
    canvas = Canvas(
        900,
        bottom + 44,
        title="The layers of the code",
        says=f"{len(layers)} layers from features down to states. Imports go downward only.",
    )
    canvas.text(24, 32, "Layers: a package imports only from rows below its own", bold=True, size=16)
    canvas.text(24, 52, "Roles decide, without clock, socket or file; drivers (runtime, sim) act", "dim", size=12)
    for place, (names, holds) in enumerate(layers):
        y = _TOP + place * _ROW_PX
        kind = "strong" if names.startswith("roles") else "box" if names.startswith(_PURE) else "plain"
        canvas.box(46, y, 270, _ROW_PX - 5, kind, round_=4)
        canvas.text(181, y + 17, names, "on" if kind == "strong" else "text", size=12, at="middle", bold=True)
        canvas.text(328, y + 17, holds, "dim", size=12)
    canvas.path([(28, _TOP + 4), (28, bottom - 8)], tip=True)
    for x, kind, label in ((46, "plain", "may act"), (160, "strong", "decides"), (274, "box", "values and equations")):
        canvas.box(x, bottom + 12, 18, 12, kind, round_=3)
        canvas.text(x + 26, bottom + 23, label, "dim", size=12)
    return canvas.written()
