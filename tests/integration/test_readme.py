"""What the README says to type works: its quickstart is run as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import site_pages  # noqa: E402

MARK = "run by tests/integration/test_readme.py"


def quickstart() -> str:
    """The Python block that the README marks as run by this test."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- quickstart:.*?-->\n```python\n(.*?)```", text, flags=re.DOTALL)
    assert found, "README.md has no marked quickstart"
    return found[1]


@pytest.mark.gate("README: its program")
@pytest.mark.slow
@pytest.mark.timeout(720)
def test_the_quickstart_runs(tmp_path: Path, real_data: Path) -> None:
    script = tmp_path / "quickstart.py"
    script.write_text(quickstart(), encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = re.search(r"([\d.]+)% after (\d+) versions", done.stdout)
    assert found, done.stdout
    assert float(found[1]) >= 95.0


@pytest.mark.slow
@pytest.mark.timeout(720)
def test_the_demo_reaches_97_percent(tmp_path: Path, real_data: Path) -> None:
    # As the README and docs/start.md say it, with the figures as JSON.
    pages = [ROOT / "README.md", ROOT / "docs" / "start.md"]
    typed = [block.commands for page in pages for block in site_pages.blocks(ROOT, page) if block.mark == MARK]
    assert typed == ["shoal demo\n"] * len(pages)
    command = [sys.executable, "-m", "shoal.cli.main", *typed[0].split()[1:], "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["accuracy"] >= 0.97
    assert told["workers"] == 4
    assert told["seconds"] > 0


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_demo_trains_made_up_digits_where_nothing_can_be_downloaded(tmp_path: Path) -> None:
    # Downloads go by a proxy that does not listen; the cluster itself is on loopback.
    closed = {"https_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1,localhost"}
    outside = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    command = [sys.executable, "-m", "shoal.cli.main", "demo", "--workers", "1", "--json"]
    data = tmp_path / "data"
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, cwd=tmp_path,
        env=outside | closed | {"SHOAL_DATA": str(data), "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert (told["data"], told["reached"]) == ("made-up digits", True)
    assert "MNIST cannot be downloaded: no server can be reached" in done.stderr
    assert f"put its four .gz files into {data / 'mnist'}" in done.stderr
    assert "of 2,000 made-up digits (not MNIST) nobody trained on" in done.stderr


@pytest.mark.gate("README: its links")
def test_every_link_in_the_readme_leads_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    local = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []


@pytest.mark.gate("README: what it installs")
def test_what_the_readme_says_to_install_is_in_this_repository() -> None:
    """Nothing is published under the project's name: an index would give a stranger's code."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    assert first
    assert "pip install '.[torch]'" in first[1]
    named = re.findall(r"pip install '?\.\[(\w+)\]", text + (ROOT / "docs" / "flock.md").read_text(encoding="utf-8"))
    assert {"torch", "discovery"} <= set(named) <= set(extras)
    told = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    by_name = re.compile(r"pip install (?:-\S+ )*'?shoal\b")
    assert [path.name for path in told if by_name.search(path.read_text(encoding="utf-8"))] == []
