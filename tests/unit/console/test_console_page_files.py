"""What the page takes from others is what VENDORED.toml says, and the page's own files keep its promises."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import shoal

STATIC = Path(shoal.__file__).parent / "console" / "static"
VENDOR = STATIC / "vendor"


def test_every_vendored_file_has_its_hash_and_a_licence() -> None:
    listed = tomllib.loads((VENDOR / "VENDORED.toml").read_text(encoding="utf-8"))["file"]
    for each in listed:
        assert hashlib.sha256((VENDOR / each["path"]).read_bytes()).hexdigest() == each["sha256"], each["path"]
        assert each["name"]
        assert each["version"]
        assert each["source"].startswith("https://")
        for named in re.findall(r"LICENSE-\w+\.txt", each["licence"]):
            assert (VENDOR / named).exists()
    present = {path.name for path in VENDOR.iterdir()} - {"VENDORED.toml"}
    assert present == {each["path"] for each in listed}


def test_the_page_names_every_file_once_and_nothing_else() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'"a/([\w./-]+)"', page)
    files = {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.suffix in (".js", ".css")}
    assert sorted(named) == sorted(files)
    assert "http" not in page, "nothing comes from elsewhere"


def test_own_scripts_put_no_text_into_the_page_as_markup() -> None:
    for path in sorted(STATIC.glob("*.js")):
        text = path.read_text(encoding="utf-8")
        for banned in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert banned not in text, f"{path.name}: {banned}"
        assert "style=" not in text, f"{path.name}: the policy forbids inline styles; set them by CSSOM"
        assert not re.search(r"https?:", text), f"{path.name}: nothing comes from elsewhere"
        assert len(text.splitlines()) < 400, path.name
