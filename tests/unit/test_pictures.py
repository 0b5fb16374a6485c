"""The pictures of docs/images are what `tasks.py pictures` draws, in colours for light and dark pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import pictures  # noqa: E402
import pictures_layers  # noqa: E402
import pictures_trust  # noqa: E402
from pictures_canvas import STYLES, Canvas  # noqa: E402

#: Drawn by hand.
OTHERS = {"roles.svg"}


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_a_picture_is_what_the_command_draws(name: str) -> None:
    file = ROOT / pictures.FOLDER / name
    assert file.read_text(encoding="utf-8") == pictures.DRAWN[name](), "run `python tools/tasks.py pictures`"


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_every_colour_has_one_for_dark_pages(name: str) -> None:
    text = (ROOT / pictures.FOLDER / name).read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    light, _, dark = text.partition("</style>")[0].partition("prefers-color-scheme: dark")
    used = set(re.findall(r'class="(\w+)"', text))
    for sheet in (light, dark):
        assert used <= set(re.findall(r"\.(\w+) \{", sheet))
    assert "<title>" in text
    assert "<desc>" in text


def test_every_picture_is_on_a_page() -> None:
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
    shown = set(re.findall(r"images/([\w-]+\.svg)", "\n".join(page.read_text(encoding="utf-8") for page in pages)))
    drawn = {file.name for file in (ROOT / pictures.FOLDER).glob("*.svg")}
    assert shown == drawn == {*pictures.DRAWN, *OTHERS}


def test_texts_stay_inside_the_picture() -> None:
    """By a width per character above that of most texts, since no font is at hand."""
    for name, drawn in pictures.DRAWN.items():
        root = ElementTree.fromstring(drawn())
        width, height = (float(root.attrib[side]) for side in ("width", "height"))
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            words = text.text or ""
            at = {"middle": 0.5, "end": 1.0}.get(text.attrib.get("text-anchor", ""), 0.0)
            long = float(text.attrib.get("textLength", 0.52 * float(text.attrib["font-size"]) * len(words)))
            left = float(text.attrib["x"]) - at * long
            assert left >= 0, (name, words)
            assert left + long <= width, (name, words)
            assert float(text.attrib["y"]) <= height - 4, (name, words)


def test_the_layers_are_those_of_the_list() -> None:
    rows = pictures_layers.rows()
    assert len(rows) > 10
    assert all(names and holds for names, holds in rows)
    packages = {name for names, _ in rows for name in re.split(r" [·|] ", names)}
    assert {"roles", "wire", "runtime", "sim", "store"} <= packages
    source = ROOT / "src" / "shoal"
    assert all((source / name).is_dir() or (source / f"{name}.py").exists() for name in packages)


def test_a_cell_that_shows_single_updates_stands_out() -> None:
    head, rows = pictures_trust.table()
    assert head == ["who", "identity", "sealed", "private", "sealed + private"]
    cells = {
        (row[0], name): pictures_trust.kind_of(cell)[0] for row in rows for name, cell in zip(head, row, strict=True)
    }
    assert cells["the leader", "identity"] == "band"
    assert cells["the leader", "sealed"] == "plain"
    assert cells["the leader", "sealed + private"] == "box"


def test_a_class_without_colours_is_refused() -> None:
    canvas = Canvas(10, 10, title="t", says="s")
    with pytest.raises(ValueError, match="no class 'bright'"):
        canvas.box(0, 0, 1, 1, "bright")
    assert all(len(each) == 2 for each in STYLES.values())
