"""The wheel says who makes Shoal and where it is, and its page on an index has no link that leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml

from shoal.version import __version__

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://forge.example/someone/shoal"


def metadata(folder: Path, **environment: str) -> Message:
    """Build the wheel as a release does, and return its METADATA."""
    outside = {name: value for name, value in os.environ.items() if name != "SHOAL_REPOSITORY"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=outside | environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as parts:
        (name,) = (each for each in parts.namelist() if each.endswith(".dist-info/METADATA"))
        return message_from_bytes(parts.read(name))


def relative(page: str) -> list[str]:
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    return [target for target in targets if not target.startswith(("https://", "http://", "#"))]


def page_of(told: Message) -> str:
    page = told.get_payload()
    assert isinstance(page, str)
    return page


def test_the_wheel_of_a_release_names_the_project_and_links_to_its_tag(tmp_path: Path) -> None:
    told = metadata(tmp_path, SHOAL_REPOSITORY=f"{REPOSITORY}/")
    urls = dict(str(each).split(", ", 1) for each in told.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= set(urls)
    assert urls["Source"] == REPOSITORY
    assert told["Author"] == "The Shoal maintainers"
    page = page_of(told)
    assert relative(page) == []
    assert f"({REPOSITORY}/raw/v{__version__}/docs/demo.svg)" in page
    links = re.findall(rf"\({re.escape(REPOSITORY)}/blob/v{re.escape(__version__)}/([^)#]+)", page)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_a_wheel_that_knows_no_repository_has_no_link_that_leads_nowhere(tmp_path: Path) -> None:
    told = metadata(tmp_path)
    assert told.get_all("Project-URL") is None
    page = page_of(told)
    assert relative(page) == []
    assert "shoal demo" in page
    assert "docs/demo.svg" not in page


def test_the_release_says_where_it_is_built_from() -> None:
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    build = release["jobs"]["build"]
    assert build["env"]["SHOAL_REPOSITORY"] == "${{ github.server_url }}/${{ github.repository }}"
    assert any("tasks.py release --rehearse --closed" in step.get("run", "") for step in build["steps"])
