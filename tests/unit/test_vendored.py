"""A file of others that was changed, or that nobody named, fails the run."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import vendored  # noqa: E402

ENTRY = """
[[file]]
path = "plot.js"
name = "plot"
version = "1.0"
source = "https://example.org/plot.js"
sha256 = "{}"
licence = "MIT"
"""


def _folder(path: Path, content: bytes = b"plot()") -> Path:
    (path / "plot.js").write_bytes(content)
    (path / "LICENSE-plot").write_text("MIT")
    (path / "VENDORED.toml").write_text(ENTRY.format(hashlib.sha256(b"plot()").hexdigest()))
    return path


def test_a_file_as_it_was_named_passes(tmp_path: Path) -> None:
    assert vendored.problems(_folder(tmp_path)) == []
    assert vendored.problems(tmp_path / "nothing") == []


def test_a_changed_file_fails(tmp_path: Path) -> None:
    (problem,) = vendored.problems(_folder(tmp_path, b"plot() // and more"))
    assert "plot.js is not the file" in problem


def test_a_file_that_nobody_named_fails(tmp_path: Path) -> None:
    _folder(tmp_path)
    (tmp_path / "more.js").write_text("more()")
    assert vendored.problems(tmp_path) == ["more.js is not named in VENDORED.toml"]
    (tmp_path / "VENDORED.toml").unlink()
    assert len(vendored.problems(tmp_path)) == 3


def test_a_name_without_its_file_or_licence_fails(tmp_path: Path) -> None:
    _folder(tmp_path)
    (tmp_path / "plot.js").unlink()
    assert vendored.problems(tmp_path) == ["plot.js is named in VENDORED.toml, and is not there"]
    (tmp_path / "VENDORED.toml").write_text('[[file]]\npath = "plot.js"\n')
    assert "plot.js: VENDORED.toml does not say its licence" in vendored.problems(tmp_path)


def test_the_files_of_this_repository_pass() -> None:
    assert vendored.problems(ROOT / "src" / "shoal" / "console" / "static" / "vendor") == []
