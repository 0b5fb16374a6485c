"""The README as an index shows it: drawn with PyPI's own renderer, and every link and picture of it resolved.

Runs as a program in the environment that has the renderer: `python release_readme.py WHEEL ROOT REPOSITORY TAG`.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from email import message_from_bytes
from html.parser import HTMLParser
from pathlib import Path

#: The longest README that people read; ours has fewer lines.
_SHORTEST_PAGE_CHARS = 2_000


class _Targets(HTMLParser):
    """Collects where links lead, and which pictures are shown."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "a" and named.get("href"):
            self.links.append(str(named["href"]))
        if tag == "img" and named.get("src"):
            self.pictures.append(str(named["src"]))


def description_of(wheel: Path) -> str:
    """Return the long description that a wheel carries."""
    with zipfile.ZipFile(wheel) as parts:
        (name,) = (each for each in parts.namelist() if each.endswith(".dist-info/METADATA"))
        return str(message_from_bytes(parts.read(name)).get_payload(decode=True), encoding="utf-8")  # type: ignore[arg-type]


def broken_links(html: str, *, root: Path, repository: str, tag: str) -> tuple[int, list[str]]:
    """Return how many links and pictures a page has, and those that lead nowhere in this tree."""
    found = _Targets()
    found.feed(html)
    broken = [each for each in found.links if not _leads(each, root, f"{repository}/blob/{tag}/", html)]
    broken += [each for each in found.pictures if not _leads(each, root, f"{repository}/raw/{tag}/", html)]
    return len(found.links) + len(found.pictures), broken


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a Markdown document's headings, as forges make them."""
    titles = re.findall(r"^#{1,6} (.+?)\s*#*$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def _leads(target: str, root: Path, inside: str, html: str) -> bool:
    if target.startswith("#"):
        return f'id="{target[1:]}"' in html or f'id="user-content-{target[1:]}"' in html
    if not target.startswith(inside):
        # Of other hosts only secure addresses are right, and nobody is asked whether they answer.
        return target.startswith(("https://", "mailto:")) and not target.startswith(inside.partition("/blob/")[0])
    path, _, anchor = target.removeprefix(inside).partition("#")
    if not (root / path).exists():
        return False
    return not anchor or anchor in anchors_of((root / path).read_text(encoding="utf-8"))


def main(arguments: list[str]) -> int:
    wheel, root, repository, tag = arguments
    from readme_renderer import markdown

    html = markdown.render(description_of(Path(wheel)))
    if html is None or len(html) < _SHORTEST_PAGE_CHARS:
        print("the renderer of the index shows this README as plain text", file=sys.stderr)
        return 1
    count, broken = broken_links(html, root=Path(root), repository=repository, tag=tag)
    print(json.dumps({"readme_links": count, "readme_links_broken": len(broken), "broken": broken}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
