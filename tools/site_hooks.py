"""Hooks of mkdocs: pages that lie outside docs/, and links that hold on the site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import site_pages

ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Any, config: Any) -> Any:
    """Add the pages whose files lie elsewhere in the repository."""
    from mkdocs.structure.files import File

    for file, page in site_pages.PAGES.items():
        if file == "README.md":
            continue  # docs/index.md is the site's own
        text = (ROOT / file).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=site_pages.relinked(text, file=file, root=ROOT)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Mend the links of a page of docs/; pages from elsewhere were mended when they were added."""
    if page.file.generated_by is not None:
        return markdown
    return site_pages.relinked(markdown, file=f"docs/{page.file.src_uri}", root=ROOT)
