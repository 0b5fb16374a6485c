"""Dead references, handlers unlike their message, long functions and branches on features, in tiny trees."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import house  # noqa: E402
import house_words  # noqa: E402
import plain_words  # noqa: E402

TREE = {
    "__init__.py": '"""``small.top`` and ``Top.found`` are there, ``Top.lost`` and ``gone.away`` are not."""\n',
    "top.py": (
        "class Top:\n    def found(self, record):\n        # `record.leader` is of this file, `_nowhere` is of none.\n"
        "        return record.leader\n"
    ),
    "wire/messages/said.py": "class Message: ...\n\n\nclass SetUpPlace(Message): ...\n",
    "roles/one.py": (
        "class One:\n    def on_set_up_place(self, message: SetUpPlace): ...\n\n"
        "    def _on_place(self, message: SetUpPlace): ...\n\n    def on_form(self, message: SetUpPlace): ...\n\n"
        "    def on_late_set_up_place(self, message: m.SetUpPlace): ...\n\n"
        "    def on_places(self, message: m.SetUpPlace): ...\n"
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "src" / "small" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"):
        (tmp_path / page).write_text(
            "See `src/small/top.py::Top` and `small/none.py`.\n" if page == "README.md" else ""
        )
    return tmp_path


def test_a_reference_is_dead_if_no_code_has_its_name(root: Path) -> None:
    modules = house.read(root / "src" / "small")
    assert sorted(house_words.dead_references(modules, root)) == [
        "README.md: small/none.py",
        "small/__init__.py: Top.lost",
        "small/__init__.py: gone.away",
        "small/top.py: _nowhere",
    ]


def test_a_handler_has_the_name_of_its_message(root: Path) -> None:
    modules = house.read(root / "src" / "small")
    assert house_words.handlers_unlike_their_message(modules) == [
        "small/roles/one.py: on_form(SetUpPlace)",
        "small/roles/one.py: on_places(SetUpPlace)",
    ]


def test_the_rule_of_the_words_finds_the_same_handlers(root: Path) -> None:
    paths = sorted((root / "src").rglob("*.py"))
    found = [(each.path.name, each.quote, each.hint) for each in plain_words.handler_findings(paths)]
    assert found == [
        ("one.py", "on_form(SetUpPlace)", "on_set_up_place"),
        ("one.py", "on_places(SetUpPlace)", "on_set_up_place"),
    ]


def test_a_file_may_not_have_more_markers_than_it_is_allowed(root: Path) -> None:
    for folder in ("docs", "src/shoal", "tools"):
        (root / folder).mkdir()
    for name in ("old.md", "new.md"):
        (root / "docs" / name).write_text("The hub alone sends it.\n")
    allowed = {"docs/old.md": 1, "docs/gone.md": 3}
    (root / "tools" / "plain_words.json").write_text(json.dumps(allowed))
    assert house_words.more_markers(root) == ["docs/new.md: 1 markers, 0 before"]


def test_a_baseline_only_falls() -> None:
    found, allowed = {"grown": 5, "less": 1, "new": 2, "same": 4}, {"gone": 7, "grown": 3, "less": 6, "same": 4}
    assert house_words.lowered(found, allowed) == {"grown": 3, "less": 1, "same": 4}
    assert house_words.grown(found, allowed) == ["grown: 5 markers, 3 before", "new: 2 markers, 0 before"]


def test_the_longest_function_comes_first(root: Path) -> None:
    modules = house.read(root / "src" / "small")
    assert next(iter(house_words.function_lines(modules.values()).items())) == ("small/top.py::found", 3)


def test_branches_on_features_are_counted_once_a_line() -> None:
    text = (
        "def f(self):\n    if self._sealing is not None and self.ok:\n        pass\n    self._sealing.go()\n"
        "    x = 1 if self._online else 2\n    y = [e for e in x if e.kind == 'shard']\n    if self.ok:\n        pass\n"
    )
    module = house.Module(name="m", path="m.py", lines=8, tree=ast.parse(text))
    assert house_words.feature_tests(module) == [2, 5, 6]
