"""Blocks of the documents that are marked <!-- run -->, and the page that starts a newcomer, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit import own_commands

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import site_pages  # noqa: E402

MARKED = [
    block for document in site_pages.documents(ROOT) for block in site_pages.blocks(ROOT, document) if block.is_run
]


def typed(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run shell lines in a folder; `shoal` and `python` are those of this environment."""
    places = {"PATH": f"{own_commands(folder)}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb"}
    return subprocess.run(
        ["sh", "-ec", text],
        cwd=folder,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", MARKED, ids=lambda block: f"{block.page}:{block.line}")
def test_a_marked_block_runs(block: site_pages.Block, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if block.language == "python":
        # What every page has imported by then.
        (tmp_path / "block.py").write_text("import shoal\nimport torch\nfrom torch import nn\n\n" + block.text)
        done = typed("python block.py", tmp_path)
    else:
        done = typed(block.commands, tmp_path)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]


@pytest.mark.slow
def test_the_page_that_starts_a_newcomer_works(tmp_path: Path) -> None:
    page = list(site_pages.blocks(ROOT, ROOT / "docs" / "start.md"))
    task, check, use = (block.text for block in page if "test_documents" in block.mark)
    (tmp_path / "clouds.py").write_text(task, encoding="utf-8")
    done = typed(check, tmp_path)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    (tmp_path / "use.py").write_text(use, encoding="utf-8")
    done = typed("python use.py", tmp_path)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    found = re.search(r"([\d.]+)% right", done.stdout)
    assert found, done.stdout
    assert float(found[1]) > 85
    assert "near (2, 2): 1" in done.stdout
