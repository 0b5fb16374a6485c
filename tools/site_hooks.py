"""Hooks of mkdocs: pages that lie outside docs/, links that hold on the site, its version, and a list for programs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import site_pages

ROOT = Path(__file__).resolve().parent.parent
#: What https://llmstxt.org asks for: a page that names the others, for programs that read the site.
LIST_FOR_PROGRAMS = "llms.txt"
#: The first sentence of each page that was built.
_first: dict[str, str] = {}
_navigation: list[Any] = []


def on_config(config: Any) -> Any:
    """Name the version at the foot of every page."""
    text = (ROOT / "src" / "shoal" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    config.copyright = f"Shoal {found[1] if found else ''} · Apache-2.0"
    return config


def on_nav(nav: Any, *, config: Any, files: Any) -> Any:
    _navigation[:] = nav.items
    return nav


def on_post_build(*, config: Any) -> None:
    """Write the list for programs beside the home page; without the site's address it has no links to write."""
    if config.site_url:
        lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
        for item in _navigation:
            pages = item.children if item.is_section else [item]
            named = f"## {item.title}" if item.is_section else "## Start"
            listed = [_line(page) for page in pages if page.is_page]
            lines += [named, "", *listed, ""]
        (Path(config.site_dir) / LIST_FOR_PROGRAMS).write_text("\n".join(lines), encoding="utf-8")


def _line(page: Any) -> str:
    about = _first.get(page.file.src_uri, "")
    return f"- [{page.title}]({page.canonical_url})" + (f": {about}" if about else "")


def first_sentence(markdown: str) -> str:
    """Return the first sentence of a page's first paragraph, without marks, or nothing if it begins otherwise."""
    plain = re.sub(r"<!--.*?-->", "", markdown, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", plain):
        text = " ".join(paragraph.split())
        if text and text[0] not in "#!|>`-*<":
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
            return re.split(r"(?<=[.!?:])\s", text.replace("*", "").replace("`", ""))[0]
    return ""


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
    _first[page.file.src_uri] = first_sentence(markdown)
    if page.file.generated_by is not None:
        return markdown
    return site_pages.relinked(markdown, file=f"docs/{page.file.src_uri}", root=ROOT)
