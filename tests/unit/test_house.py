"""The figures of the code, from a tiny tree: a circle, a name twice, a feature, a large class."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "tools"))

import house  # noqa: E402
import tasks  # noqa: E402

TREE = {
    "__init__.py": "from small.top import Top\n",
    # A circle of three, closed by an import inside a function.
    "a.py": "import small.b\n\n\nclass Twice:\n    pass\n",
    "b.py": "from small import c\n",
    "c.py": "def late():\n    from .a import Twice\n\n    return Twice\n",
    # Only a type checker sees the way back.
    "top.py": (
        "from typing import TYPE_CHECKING\n\nfrom small.kit.low import Low\n\n\nclass Top(Low):\n"
        "    @property\n    def one(self): ...\n\n    async def two(self): ...\n\n"
        "    class Inner:\n        def three(self): ...\n"
    ),
    "kit/__init__.py": "",
    "kit/low.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from small.top import Top\n"
        "else:\n    import small.kit\n\n\nclass Low:\n    pass\n\n\nclass _Twice:\n    pass\n"
    ),
    "flock/__init__.py": "",
    "flock/peer.py": "from small.kit import low\n\n\nclass Twice:\n    pass\n\n\nclass _Twice:\n    pass\n",
}


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, object]:
    for name, text in TREE.items():
        path = tmp_path / "small" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found: dict[str, object] = house.read(tmp_path / "small")
    return found


def test_figures_of_a_tiny_tree(modules: dict[str, object]) -> None:
    lines = sum(len(text.splitlines()) for text in TREE.values())
    assert house.figures(modules, None) == {
        "core_lines": lines - len(TREE["flock/peer.py"].splitlines()),
        "src_lines": lines,
        "public_names_twice": 1,
        "class_methods_max": 2,
        "file_lines_max": len(TREE["kit/low.py"].splitlines()),
        "import_circles": 1,
        "handoffs_update": None,
        "handoffs_failover": None,
        "handoffs_sealed": None,
        "files_of_a_sealed_sum": None,
    }


def test_imports_are_those_of_a_running_program(modules: dict[str, object]) -> None:
    imports = {name: sorted(house.imports(module, modules)) for name, module in modules.items()}
    assert imports["small"] == ["small.top"]
    assert imports["small.a"] == ["small.b"]
    assert imports["small.b"] == ["small.c"]
    assert imports["small.c"] == ["small.a"]
    assert imports["small.kit.low"] == ["small.kit"]
    assert imports["small.flock.peer"] == ["small.kit.low"]


def test_a_circle_has_all_its_modules_and_no_other() -> None:
    assert house.circles({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["e"], "e": ["d", "a"]}) == [["b", "c"], ["d", "e"]]
    assert house.circles({"a": ["b"], "b": []}) == []


def test_a_package_imported_from_below_is_a_circle(tmp_path: Path) -> None:
    root = tmp_path / "small"
    root.mkdir()
    (root / "__init__.py").write_text('from small.below import told\n__version__ = "1"\n')
    (root / "below.py").write_text("from small import __version__ as told\n")
    assert house.import_circles(house.read(root)) == [["small", "small.below"]]


def test_what_is_to_mend_is_named(modules: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "CLASS_METHODS_LIMIT", 1)
    monkeypatch.setattr(house, "FILE_LINES_LIMIT", 13)
    assert house.to_mend(modules) == [
        "import circle: small.a <-> small.b <-> small.c",
        "name twice: Twice in small/a.py, small/flock/peer.py",
        "2 methods: small/top.py::Top (at most 1)",
        "14 lines: small/kit/low.py (at most 13)",
    ]


def test_hand_offs_are_the_numbered_steps_that_name_a_method() -> None:
    steps = ("1. `roles/worker/worker.py::Worker.on_trained`", "2. sends it: `net/grpc.py::Stream.send`.")
    other = ["## Another: one", "", "1. `roles/worker/worker.py::Worker` and `roles/worker/worker.py::Held`"]
    text = "\n".join(["# Page", "", "## A walk: two", "", *steps, "", "3. Rest.", "- `a::b`", "", *other])
    assert (house.handoffs(text, "A walk"), house.handoffs(text, "Another")) == (2, 1)
    assert (house.files_opened(text, "A walk"), house.files_opened(text, "Another")) == (2, 1)
    assert house.handoffs(None, "A walk") is None


def test_a_fence_is_broken_by_what_is_not_0() -> None:
    found = {"import_circles": 1, "public_names_twice": 0, "handoffs_update": None}
    assert house.broken(found, ("import_circles", "public_names_twice", "handoffs_update")) == ["import_circles"]


@pytest.mark.parametrize("fence", house.FENCES)
def test_every_fence_fails_the_task_that_names_it(
    fence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clean: dict[str, float] = dict.fromkeys(house.FENCES, 0)
    monkeypatch.setattr(tasks.figures_of, "read", lambda root: {})
    monkeypatch.setattr(tasks.figures_of, "figures", lambda modules, first_hour: clean)
    monkeypatch.setattr(tasks.figures_of, "to_mend", lambda modules: ["a place to mend"])
    monkeypatch.setattr(tasks.plan_table, "figures", dict)
    monkeypatch.setattr(tasks.house_words, "to_mend", lambda modules, root: ["another"])

    monkeypatch.setattr(tasks.house_words, "figures", lambda modules, root: {})
    assert tasks.house(["--json"]) == 0
    assert capsys.readouterr().err == ""

    monkeypatch.setattr(tasks.house_words, "figures", lambda modules, root: {fence: 1})
    assert tasks.house(["--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)[fence] == 1
    assert said.err == f"a place to mend\nanother\nmust be 0: {fence}\n"


def test_words_are_fenced_off() -> None:
    words = {"dead_references", "files_with_more_markers", "handlers_unlike_their_message"}
    assert words <= set(house.FENCES)


# The gate runs the task itself.
@pytest.mark.full
def test_the_task_prints_every_figure_of_this_repository() -> None:
    command = (sys.executable, str(ROOT / "tools" / "tasks.py"), "house", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    told = json.loads(done.stdout)
    assert list(told)[: len(house.figures({}, None))] == list(house.figures({}, None))
    assert [told[fence] for fence in house.FENCES] == [0] * len(house.FENCES)
    assert 0 < told["plan_combinations_of_6400"] < 6400
    assert 0 < told["plan_keys"] < told["plan_rows"]
    assert 0 < told["leader_lines"] < 2000
    assert 0 < told["plain_words_docs"] < 20
    assert 0 < told["core_lines"] < told["src_lines"]
