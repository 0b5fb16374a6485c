"""The version is in one place, and the changelog can be closed for it. Changes neither."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from release_place import Failed

_VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)"$', re.MULTILINE)
#: Keep a Changelog 1.1 has six headings, and we add one.
_HEADINGS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits"}


def version_of(root: Path) -> str:
    """Return the version in src/shoal/version.py, the only place that has it."""
    found = _VERSION.findall((root / "src" / "shoal" / "version.py").read_text(encoding="utf-8"))
    if len(found) != 1:
        raise Failed("src/shoal/version.py must assign one version, such as 0.1.0 or 0.1.0rc1, to __version__")
    return str(found[0])


def check_one_place(root: Path) -> str:
    """Return the version, or raise if another file states one of its own."""
    version = version_of(root)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    if "version" in project["project"] or "version" not in project["project"]["dynamic"]:
        raise Failed("pyproject.toml states a version of its own: it must be dynamic")
    if project["tool"]["hatch"]["version"] != {"path": "src/shoal/version.py"}:
        raise Failed("pyproject.toml must read the version from src/shoal/version.py")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8") if (root / "CITATION.cff").exists() else ""
    if re.search(r"^version:", citation, re.MULTILINE):
        raise Failed("CITATION.cff states a version of its own: leave it out, a release's archive has it")
    return version


def check_changelog(text: str, version: str) -> int:
    """Return how many entries the open section has, or raise if it cannot be closed for this version."""
    opened = re.findall(r"^## \[Unreleased\].*$", text, re.MULTILINE)
    if opened != [f"## [Unreleased] - {version}"]:
        raise Failed(f"CHANGELOG.md must have one open section, '## [Unreleased] - {version}', not {opened}")
    if re.search(rf"^## \[{re.escape(version)}\]", text, re.MULTILINE):
        raise Failed(f"CHANGELOG.md has a section for {version} already")
    return _entries(text, opened[0])


def check_closed(text: str, version: str) -> int:
    """Return how many entries the section of a release has, or raise if it was not closed with a date."""
    dated = re.findall(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$", text, re.MULTILINE)
    if len(dated) != 1:
        raise Failed(f"CHANGELOG.md must have one section '## [{version}] - YYYY-MM-DD' before the tag is pushed")
    return _entries(text, dated[0])


def _entries(text: str, title: str) -> int:
    """Return how many entries a section has, or raise if its headings are not those of a changelog."""
    section = text.partition(title)[2].partition("\n## ")[0]
    parts = re.split(r"^### (.+)$", section, flags=re.MULTILINE)
    headings = dict(zip(parts[1::2], parts[2::2], strict=True))
    if len(headings) != len(parts[1::2]) or not headings.keys() <= _HEADINGS:
        raise Failed(f"{title} has the headings {parts[1::2]}: use each of {sorted(_HEADINGS)} once at most")
    counts = {name: len(re.findall(r"^- ", body, re.MULTILINE)) for name, body in headings.items()}
    if not counts or not all(counts.values()):
        raise Failed(f"{title} has headings without entries: {counts}")
    return sum(counts.values())


def closed(text: str, *, version: str, date: str) -> str:
    """Return a changelog whose open section is this version's, as the person who makes the release writes it."""
    return text.replace(f"## [Unreleased] - {version}", f"## [{version}] - {date}", 1)
