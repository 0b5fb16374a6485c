"""What strangers look for first is there, can be read by programs, and promises nothing that is not."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import release  # noqa: E402

FORMS = sorted((ROOT / ".github").glob("*_TEMPLATE/*.yml"))
README_LINES_MAX = 120


@pytest.mark.parametrize("name", ["GOVERNANCE.md", "MAINTAINERS.md", "SUPPORT.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_links_of_these_pages_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    assert [each for each in targets if each and "://" not in each and not (ROOT / each).exists()] == []


def test_the_citation_has_what_its_format_asks_for_and_the_licence_of_the_package() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["license"] == project["license"]
    assert [each["name"] for each in cited["authors"]] == [each["name"] for each in project["authors"]]


def test_a_person_is_asked_for_the_address_until_it_is_there() -> None:
    is_open = "not filled in yet: the owner writes it here" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert is_open == any("SECURITY.md" in each for each in release.BY_HAND)


def test_every_form_can_be_read_and_asks_for_something() -> None:
    assert {each.parent.name for each in FORMS} == {"ISSUE_TEMPLATE", "DISCUSSION_TEMPLATE"}
    for file in FORMS:
        form = yaml.safe_load(file.read_text(encoding="utf-8"))
        if file.name != "config.yml":
            assert any(field.get("validations", {}).get("required") for field in form["body"]), file.name


def test_the_readme_is_short_and_speaks_of_telemetry() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= README_LINES_MAX
    assert "**Telemetry: none.**" in text
