"""An SVG that is readable on light and dark pages: shapes and texts by class, all colours in one style sheet."""

from __future__ import annotations

from html import escape

#: Class -> its declarations on a light page, then on a dark one.
STYLES = {
    "page": ("fill: #fbfcfc; stroke: #d5dcdc", "fill: #12191a; stroke: #35494b"),
    "box": ("fill: #ffffff; stroke: #1b6f76; stroke-width: 1.5", "fill: #1d2b2d; stroke: #5fc2c9; stroke-width: 1.5"),
    "strong": ("fill: #1b6f76", "fill: #236f76"),
    "lost": (
        "fill: #fdf1ef; stroke: #b3261e; stroke-width: 1.5; stroke-dasharray: 5 4",
        "fill: #32201e; stroke: #ff9c92; stroke-width: 1.5; stroke-dasharray: 5 4",
    ),
    "plain": ("fill: #eaeff0; stroke: none", "fill: #223133; stroke: none"),
    "band": ("fill: #f7e0dd; stroke: none", "fill: #4a2825; stroke: none"),
    "busy": ("fill: #2b8790; stroke: none", "fill: #4aa9b2; stroke: none"),
    "lead": ("fill: #d98a00; stroke: none", "fill: #f0b84a; stroke: none"),
    "line": ("stroke: #5b6b6d; stroke-width: 1.5; fill: none", "stroke: #9fb0b2; stroke-width: 1.5; fill: none"),
    "hair": ("stroke: #d5dcdc; stroke-width: 1; fill: none", "stroke: #304244; stroke-width: 1; fill: none"),
    "link": ("stroke: #7d9a9d; fill: none", "stroke: #7d9a9d; fill: none"),
    "hot": ("stroke: #b3261e; fill: none", "stroke: #ff8a7e; fill: none"),
    "cut": (
        "stroke: #b3261e; stroke-width: 1.5; stroke-dasharray: 5 4; fill: none",
        "stroke: #ff9c92; stroke-width: 1.5; stroke-dasharray: 5 4; fill: none",
    ),
    "one": ("stroke: #1b6f76; stroke-width: 2.5; fill: none", "stroke: #5fc2c9; stroke-width: 2.5; fill: none"),
    "two": ("stroke: #c15a1b; stroke-width: 2.5; fill: none", "stroke: #ffab70; stroke-width: 2.5; fill: none"),
    "three": ("stroke: #6a4fb0; stroke-width: 2.5; fill: none", "stroke: #b9a2ff; stroke-width: 2.5; fill: none"),
    "tip": ("fill: #5b6b6d; stroke: none", "fill: #9fb0b2; stroke: none"),
    "text": ("fill: #17282a", "fill: #e7f0f0"),
    "dim": ("fill: #4c5d5f", "fill: #a9babc"),
    "on": ("fill: #ffffff", "fill: #ffffff"),
    "warn": ("fill: #a3231b", "fill: #ff9c92"),
    "good": ("fill: #1f6b3a", "fill: #7fd69a"),
    "note": ("fill: #8a5300", "fill: #f0c069"),
    "c1": ("fill: #1b6f76", "fill: #5fc2c9"),
    "c2": ("fill: #a8480f", "fill: #ffab70"),
    "c3": ("fill: #6a4fb0", "fill: #b9a2ff"),
}
_EDGE = 10


class Canvas:
    """A picture that grows shape by shape. Pixels from the upper left corner."""

    def __init__(self, width: int, height: int, *, title: str, says: str) -> None:
        self._width, self._height = width, height
        self._title, self._says = title, says
        self._parts: list[str] = []
        self._classes = {"page", "tip"}

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box", *, round_: float = 8) -> None:
        size = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{_n(round_)}"'
        self._add(f'<rect class="{self._of(kind)}" {size}/>')

    def dot(self, x: float, y: float, radius: float, kind: str) -> None:
        self._add(f'<circle class="{self._of(kind)}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"/>')

    def path(
        self, points: list[tuple[float, float]], kind: str = "line", *, width: float = 0, tip: bool = False
    ) -> None:
        """Draw straight lines through these points, with an arrow's tip at the last if asked."""
        way = "M" + " L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        # A property of the style sheet would win over an attribute.
        thick = f' style="stroke-width: {_n(width)}"' if width else ""
        end = ' marker-end="url(#tip)"' if tip else ""
        self._add(f'<path class="{self._of(kind)}" d="{way}"{thick}{end}/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        kind: str = "text",
        *,
        size: int = 14,
        at: str = "start",
        bold: bool = False,
        mono_px: float = 0,
    ) -> None:
        """Write one line. ``mono_px`` sets it in a fixed width and makes each character this wide."""
        more = f' text-anchor="{at}"' if at != "start" else ""
        more += ' font-weight="600"' if bold else ""
        if mono_px:
            more += (
                f' font-family="ui-monospace, monospace" textLength="{_n(mono_px * len(text))}" xml:space="preserve"'
            )
        words = escape(text, quote=False)
        self._add(f'<text class="{self._of(kind)}" x="{_n(x)}" y="{_n(y)}" font-size="{size}"{more}>{words}</text>')

    def lines(
        self, x: float, y: float, lines: list[str], kind: str = "dim", *, size: int = 12, at: str = "start"
    ) -> None:
        for place, line in enumerate(lines):
            self.text(x, y + place * (size + 5), line, kind, size=size, at=at)

    def labelled(
        self, x: float, y: float, width: float, height: float, text: str, *more: str, kind: str = "box", ink: str = ""
    ) -> None:
        """Draw a box with a heading and smaller lines, all in its middle."""
        self.box(x, y, width, height, kind)
        heading = ink or {"strong": "on", "lost": "warn"}.get(kind, "text")
        under = ink or {"strong": "on", "lost": "warn"}.get(kind, "dim")
        top = y + height / 2 + 5 - 8.5 * len(more)
        self.text(x + width / 2, top, text, heading, at="middle", bold=True)
        self.lines(x + width / 2, top + 17, list(more), under, at="middle")

    def written(self) -> str:
        used = [name for name in STYLES if name in self._classes]
        light = "\n".join(f"  .{name} {{ {STYLES[name][0]} }}" for name in used)
        dark = "\n".join(f"    .{name} {{ {STYLES[name][1]} }}" for name in used)
        size = f'viewBox="0 0 {self._width} {self._height}" width="{self._width}" height="{self._height}"'
        edge = f'x="0.5" y="0.5" width="{self._width - 1}" height="{self._height - 1}" rx="{_EDGE}"'
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui, sans-serif">',
            f"<title>{escape(self._title, quote=False)}</title>",
            f"<desc>{escape(self._says, quote=False)}</desc>",
            f"<style>\n{light}\n  @media (prefers-color-scheme: dark) {{\n{dark}\n  }}\n</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="10" markerHeight="10"'
            ' markerUnits="userSpaceOnUse" orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
            f'<rect class="page" {edge}/>',
        ]
        return "\n".join([*head, *self._parts, "</svg>", ""])

    def _add(self, part: str) -> None:
        self._parts.append(part)

    def _of(self, kind: str) -> str:
        if kind not in STYLES:
            raise ValueError(f"there is no class {kind!r}: add it to STYLES with a colour for dark pages")
        self._classes.add(kind)
        return kind


def _n(number: float) -> str:
    """Return a number as short as SVG takes it: two decimals, without zeros at the end."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
