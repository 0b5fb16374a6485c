"""Writes what a package index shows of Shoal: where the project is, and the README with links that work there.

An index shows the README far from the repository, so relative links and pictures would lead nowhere. The build is told
the repository's address by ``SHOAL_REPOSITORY`` (the release workflow sets it); without it, links become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A link or a picture of Markdown; a picture may be the text of a link.
_LINK = re.compile(r"(?P<mark>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_ELSEWHERE = ("https://", "http://", "mailto:", "#")


class CustomMetadataHook(MetadataHookInterface):
    """Adds ``readme`` and ``urls``, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("SHOAL_REPOSITORY", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        page = page_of(text, repository=repository, tag=f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
        if repository:
            metadata["urls"] = urls_of(repository)


def urls_of(repository: str) -> dict[str, str]:
    """Return the links that an index shows beside a package."""
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }


def page_of(text: str, *, repository: str, tag: str) -> str:
    """Return a README whose relative links lead to this tag of the repository; plain text if no repository is named."""

    def placed(found: re.Match[str]) -> str:
        mark, words, target = found["mark"], found["text"], found["target"]
        if target.startswith(_ELSEWHERE):
            return found[0]
        if not repository:
            return "" if mark else words
        return f"{mark}[{words}]({repository}/{'raw' if mark else 'blob'}/{tag}/{target})"

    return _LINK.sub(placed, text)
