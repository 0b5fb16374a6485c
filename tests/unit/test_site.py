"""The documents: their blocks are marked, their links hold, and the page of commands is what the commands say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import cli_reference  # noqa: E402
import site_pages  # noqa: E402


def test_every_block_is_run_or_says_why_not() -> None:
    found = [block for document in site_pages.documents(ROOT) for block in site_pages.blocks(ROOT, document)]
    assert len(found) > 50
    assert [f"{block.page}:{block.line}" for block in found if block.problem(ROOT)] == []


@pytest.mark.parametrize(
    ("mark", "problem"),
    [
        ("run", None),
        ("run by tests/unit/test_site.py: here", None),
        ("not run: needs a board", None),
        ("", "has no mark"),
        ("not run:", "has no mark"),
        ("run by tests/unit/test_gone.py", "which is not there"),
        ("run by tests/unit/test_tiers.py: here", "does not read docs/a.md"),
        ("run by tests/unit/test_site.py::test_links_hold_on_the_site", None),
        ("run by tests/unit/test_site.py::test_gone", "test_gone, which is not in"),
    ],
)
def test_a_mark_is_understood(mark: str, problem: str | None) -> None:
    told = site_pages.Block(page="docs/a.md", line=1, language="sh", mark=mark, text="").problem(ROOT)
    assert told is None if problem is None else told is not None and problem in told


def test_a_page_of_operations_names_the_test() -> None:
    def problem(mark: str) -> str | None:
        return site_pages.Block(
            page="docs/operations/b.md", line=1, language="sh", mark=mark, text=""
        ).problem(ROOT)  # fmt: skip

    told = problem("run by tests/unit/test_site.py")
    assert told is not None
    assert "names no test" in told
    assert problem("run by tests/unit/test_site.py::test_links_hold_on_the_site") is None


def test_links_hold_on_the_site() -> None:
    def linked(text: str, file: str = "docs/decisions/0001-grpc-with-mutual-tls.md") -> str:
        return site_pages.relinked(text, file=file, root=ROOT)

    assert linked("[a](../plan.md#numbers)") == "[a](../plan.md#numbers)"
    assert linked("[a](../../SECURITY.md)") == "[a](../security.md)"
    assert linked("[the code](../../src/shoal/plan.py)") == "the code (`src/shoal/plan.py`)"
    assert linked("[`plan.py`](../../src/shoal/plan.py)") == "`src/shoal/plan.py`"
    assert linked("![picture](demo.svg)", "docs/index.md") == "![picture](demo.svg)"
    assert linked("[a](https://example.org/x)") == "[a](https://example.org/x)"
    # mkdocs complains about it.
    assert linked("[a](gone.md)") == "[a](gone.md)"


def test_the_page_of_commands_is_what_they_say() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == cli_reference.written(), "run `python tools/tasks.py reference`"
    for command in ("shoal up", "shoal model pull", "shoal nodes revoke"):
        assert f"`{command}`" in page
