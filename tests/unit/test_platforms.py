"""What Shoal says it runs on is what its CI runs."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
MATRIX = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())["jobs"]["every"]["strategy"][
    "matrix"
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _named(prefix: str) -> list[str]:
    return [each.removeprefix(prefix) for each in PROJECT["classifiers"] if each.startswith(prefix)]


def test_the_classifiers_name_the_versions_and_systems_of_the_matrix() -> None:
    assert _named("Programming Language :: Python :: ") == MATRIX["python"]
    assert PROJECT["requires-python"] == f">={MATRIX['python'][0]}"
    assert {runner.partition("-")[0] for runner in MATRIX["runner"]} == {"ubuntu"}
    assert _named("Operating System :: ") == ["POSIX :: Linux"]


def test_the_readme_names_what_no_workflow_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    untested = text.partition("**Not tested: ")[2].partition("**")[0]
    systems = {runner.partition("-")[0] for runner in MATRIX["runner"]}
    for name, runner in (("macOS", "macos"), ("Windows", "windows")):
        assert (name in untested) is (runner not in systems)
    *_, last = MATRIX["python"]
    following = f"Python 3.{int(last.partition('.')[2]) + 1}"
    assert following in untested


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_documents_promise_no_more(page: str) -> None:
    *first, last = MATRIX["python"]
    assert any(runner.endswith("-arm") for runner in MATRIX["runner"])
    promised = f"Python {', '.join(first)} or {last} on Linux, on x86-64 or 64-bit ARM"
    assert promised in (ROOT / page).read_text(encoding="utf-8")
