"""The files of the tab's page, read once, and those of its engine, as they were installed."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from shoal.browser import engine_files
from shoal.errors import Misuse

FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    kind: str
    gzipped: bytes
    etag: str
    #: It never changes under this address.
    is_fixed: bool = False


def page_files(home: Path) -> dict[str, PageFile]:
    """Address -> file. All of them are packed: every browser that can train unpacks."""
    found = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in TYPES:
            content = path.read_bytes()
            address = "/" if path.name == PAGE else f"/{path.name}"
            found[address] = _file(path.suffix, gzip.compress(content, 9, mtime=0))
    if "/" not in found:
        raise Misuse("the page of the tab is not there: install shoal again")
    engine = engine_files.there(home)
    if not engine:
        raise Misuse(
            f"tabs train by onnxruntime-web {engine_files.VERSION}, which is not here: run `shoal browser runtime` once"
        )
    for name in engine:
        packed = (engine_files.folder(home) / f"{name}.gz").read_bytes()
        found[f"/engine/{engine_files.VERSION}/{name}"] = _file(Path(name).suffix, packed, is_fixed=True)
    return found


def _file(suffix: str, packed: bytes, *, is_fixed: bool = False) -> PageFile:
    return PageFile(TYPES[suffix], packed, f'"{hashlib.sha256(packed).hexdigest()[:32]}"', is_fixed)
