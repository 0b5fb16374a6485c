"""The files of the page, read once and served under the hash of their content, so that browsers keep them.

`index.html` names its files plainly (``a/app.js``); the served page names each by its hash (``/a/SHA256/app.js``).
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Misuse

FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"

#: The types of files that are served; others in the folder are not.
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
ASSETS_MAX = 100
ASSET_MAX_BYTES = 2 << 20

_PLACE = re.compile(r"""(?<=["'])a/([A-Za-z0-9._/-]+)(?=["'])""")


@dataclass(frozen=True, slots=True)
class Asset:
    kind: str
    plain: bytes
    gzipped: bytes
    sha256: str


class Assets:
    def __init__(self, folder: Path = FOLDER) -> None:
        self._assets = dict(_read(folder))
        self.page = _asset("text/html; charset=utf-8", self._page(folder).encode())

    def find(self, sha256: str, name: str) -> Asset | None:
        asset = self._assets.get(name)
        return asset if asset is not None and asset.sha256 == sha256 else None

    def _page(self, folder: Path) -> str:
        def placed(found: re.Match[str]) -> str:
            asset = self._assets.get(found[1])
            if asset is None:
                raise Misuse(f"the page names a/{found[1]}, and there is no such file: install shoal again")
            return f"/a/{asset.sha256}/{found[1]}"

        try:
            return _PLACE.sub(placed, (folder / PAGE).read_text(encoding="utf-8"))
        except OSError as error:
            raise Misuse(f"the page cannot be read ({error.strerror}): install shoal again") from None


def _read(folder: Path) -> list[tuple[str, Asset]]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix in TYPES and path.is_file())
    if len(paths) > ASSETS_MAX or any(path.stat().st_size > ASSET_MAX_BYTES for path in paths):
        raise Misuse(f"{folder} holds more than a page: at most {ASSETS_MAX} files of {ASSET_MAX_BYTES >> 20} MB")
    return [(path.relative_to(folder).as_posix(), _asset(TYPES[path.suffix], path.read_bytes())) for path in paths]


def _asset(kind: str, plain: bytes) -> Asset:
    return Asset(kind, plain, gzip.compress(plain, 9, mtime=0), hashlib.sha256(plain).hexdigest())
