"""The documents as a site: which pages there are, where their links lead, and which of their blocks are run.

A block of shell or Python is marked by a comment above it:

    <!-- run -->                       tests/integration/test_documents.py runs it, in a folder of its own
    <!-- run by tests/PATH.py -->      another file of tests runs it: one that names the page
    <!-- run by tests/PATH.py::TEST -->  that test runs it, the only form on pages of operations
    <!-- not run: REASON -->           nobody does, and why
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Files outside docs/ that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
}
#: Pages whose blocks name the test that types them.
OPERATIONS = "docs/operations/"
LANGUAGES = ("sh", "bash", "console", "python")

_FENCE = re.compile(
    r"(?:^<!--(?P<mark>[^\n]*)-->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
#: A block without a language that holds a command is shell, too.
_TYPED = re.compile(r"^(\$ )?(shoal|python|pip|sudo|docker|ssh) ", re.M)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A block of code in a document."""

    page: str
    line: int
    language: str
    mark: str
    text: str

    @property
    def is_run(self) -> bool:
        return self.mark == "run"

    def problem(self, root: Path) -> str | None:
        """Return why nobody knows whether this block works, or None if it is run or says why it is not."""
        if self.is_run or re.match(r"not run: \S", self.mark):
            return None
        found = re.search(r"run by (tests/\S+?\.py)(?:::(\w+))?", self.mark)
        if found is None:
            return "has no mark: write <!-- run -->, <!-- run by tests/FILE.py --> or <!-- not run: REASON --> above it"
        file, test = found.groups()
        if not (root / file).is_file():
            return f"names {file}, which is not there"
        text = (root / file).read_text(encoding="utf-8")
        if test:
            return None if re.search(rf"^def {test}\(", text, re.M) else f"names {test}, which is not in {file}"
        if self.page.startswith(OPERATIONS):
            return f"names no test: write <!-- run by {file}::TEST -->, which has to type the block as it stands"
        return None if os.path.basename(self.page) in text else f"names {file}, which does not read {self.page}"

    @property
    def commands(self) -> str:
        """Return the lines to type; in a console, those after a prompt."""
        if self.language != "console":
            return self.text
        return "\n".join(line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ "))


def documents(root: Path) -> list[Path]:
    """Every document whose blocks are held to what works."""
    return sorted([root / "README.md", *(root / "docs").rglob("*.md")])


def blocks(root: Path, document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        if found["language"] in LANGUAGES or (not found["language"] and _TYPED.search(found["text"])):
            yield Block(
                page=document.relative_to(root).as_posix(),
                line=text[: found.start("language")].count("\n") + 1,
                language=found["language"],
                mark=(found["mark"] or "").strip(),
                text=found["text"],
            )


def page_of(file: str) -> str | None:
    """Return the page of the site that shows this file of the repository, or None if no page does."""
    if file in PAGES:
        return PAGES[file]
    return file.removeprefix("docs/") if file.startswith("docs/") else None


def relinked(text: str, *, file: str, root: Path) -> str:
    """A document with links that hold on the site. A file that is no page is named instead of linked."""
    here = page_of(file) or file

    def link(found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = os.path.normpath(os.path.join(os.path.dirname(file), target))
        page = page_of(path)
        if not (root / path).exists():
            return found[0]  # for mkdocs to complain about
        if page is not None and (root / path).is_file():
            to = os.path.relpath(page, os.path.dirname(here) or ".") + (f"#{anchor}" if anchor else "")
            return f"{found['image']}[{found['text']}]({to})"
        words = found["text"].strip("`")
        return f"`{path}`" if words in (path, target, os.path.basename(path)) else f"{found['text']} (`{path}`)"

    return _LINK.sub(link, text)
