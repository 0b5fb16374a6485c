"""Tasks typed into cells become modules that import in a clean process and do the same."""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.trainer.bundle import pack
from shoal.trainer.find import source_of
from shoal.trainer.notebook_source import _literal, module_text

Typed = Callable[..., dict[str, Any]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Run cells as IPython does: in the main module, each with a text of its own that linecache knows."""
    main = ModuleType("__main__")
    main.__dict__["In"] = []
    monkeypatch.setitem(sys.modules, "__main__", main)

    def run(*cells: str) -> dict[str, Any]:
        for cell in cells:
            main.__dict__["In"].append(cell)
            name = f"<cell {len(main.__dict__['In'])}>"
            monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
            exec(compile(cell, name, "exec", dont_inherit=True), main.__dict__)  # noqa: S102
        return main.__dict__

    return run


def in_a_clean_process(text: str, expression: str, folder: Path) -> Any:
    (folder / "made.py").write_text(text)
    code = f"import json, made; print(json.dumps({expression}))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, cwd=folder
    )
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return json.loads(done.stdout)


CELLS = (
    "import json, math\nimport xml.etree.ElementTree\nimport collections.abc as abc\nfrom os import path as paths",
    "from math import sqrt as root\nfrom functools import cache\nfrom pathlib import Path\nfrom operator import add",
    "WIDTH = 3\nNAMES = {'a': [1, 2.5], 'b': (True, None)}\nENDLESS = float('inf')\nHERE = Path('data')\nSEEN = {2, 1}",
    "def helper(x):\n    # a comment stays\n    return inner(x) + WIDTH\n\ndef inner(x):\n    return x * 2",
    "@cache\ndef kept(x):\n    return x + 100\n\ndouble = lambda x: 2 * x",
    "def later():\n    return Last.value\n\ndef table():\n    return [inner(i) for i in range(WIDTH)]",
    "import shoal\n\nclass Base(shoal.Task):\n    rows = table()\n    def _base(self):\n        return Other().name\n",
    "class Last:\n    value = 7\n\nclass Other(Base):\n    name = 'other'\n    def model(self):\n        return None",
    """class Digits(Base):
    scale = root(16)
    plan = shoal.Plan(batch_size=WIDTH)
    def __init__(self, depth=WIDTH):
        self.depth = depth
    def model(self):
        total = [helper(i) for i in range(self.depth)]
        xml.etree.ElementTree.fromstring("<a/>")
        parts = [total, kept(1), double(4), later(), NAMES, ENDLESS > 1, str(HERE / "x"), sorted(SEEN), add(1, 2)]
        return [*parts, self.scale, self.rows, self._base(), math.pi, paths.sep, isinstance([], abc.Sized), len(parts)]
""",
)


def test_a_class_of_cells_does_the_same_in_a_clean_process(typed: Typed, tmp_path: Path) -> None:
    digits = typed(*CELLS)["Digits"]
    text = module_text(digits)
    here = json.loads(json.dumps(digits(depth=2).model()))
    assert in_a_clean_process(text, "made.Digits(depth=2).model()", tmp_path) == here
    assert "# a comment stays" in text
    # The same cells give the same bundle.
    assert module_text(digits) == text


def test_only_what_is_used_is_taken(typed: Typed) -> None:
    cells = (*CELLS, "secret = object()\ndef unused():\n    return secret")
    text = module_text(typed(*cells)["Digits"])
    assert "unused" not in text
    assert "secret" not in text


def test_a_cell_that_was_run_again_counts(typed: Typed, tmp_path: Path) -> None:
    cells = (
        "import shoal",
        "def f():\n    return 1",
        "class T(shoal.Task):\n    def model(self):\n        return f(), K",
        "K = 1",
        "K = 2\ndef f():\n    return 2",
    )
    names = typed(*cells)
    # Typed, and never run to its end: it is not what the name means.
    names["In"].append("raise ValueError\ndef f():\n    return 3")
    assert in_a_clean_process(module_text(names["T"]), "made.T().model()", tmp_path) == [2, 2]


def test_annotations_that_are_not_evaluated_stay_so(typed: Typed, tmp_path: Path) -> None:
    cell = "from __future__ import annotations\nimport shoal\n"
    cell += "class T(shoal.Task):\n    def model(self) -> Absent: return 1"
    assert in_a_clean_process(module_text(typed(cell)["T"]), "made.T().model()", tmp_path) == 1


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("net = object()", "T uses x, a object, which cannot be sent as code"),
        ("import threading\nx = threading.Lock()", "T uses x, a lock"),
        ("x = []\nx.append(x)", "T uses x, a list"),
        ("x = 'long' * 100_000", "T uses x, which is 400,002 characters"),
        ("x = (lambda: 0 for _ in [1])", "T uses x, a generator"),
        (
            "def make():\n    def x(): return 1\n    return x\nx = make()",
            "defined inside something else; T uses it as x",
        ),
        ("x = type('Point', (), {})", r"Point is not defined in a file \(T uses it\)"),
    ],
)
def test_a_name_that_cannot_be_sent_is_named(typed: Typed, cell: str, message: str) -> None:
    names = typed(
        cell.replace("net =", "x ="), "import shoal\nclass T(shoal.Task):\n    def model(self):\n        return x"
    )
    with pytest.raises(Misuse, match=message):
        module_text(names["T"])


def test_a_method_that_was_set_later_is_refused(typed: Typed) -> None:
    names = typed("import shoal\nclass T(shoal.Task):\n    def model(self):\n        return 1")
    names["T"].loss = lambda self, output, y: 0
    with pytest.raises(Misuse, match=r"T\.loss was set after the class was defined"):
        module_text(names["T"])


def test_a_task_of_a_cell_is_packed_with_the_files_beside_it(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    (here / "tools").mkdir(parents=True)
    scratch.mkdir()
    (here / "tools" / "__init__.py").write_text("import shoal_beside\n")
    (here / "shoal_beside.py").write_text("VALUE = 5\n")
    (here / "other.py").write_text("")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    names = typed(
        "import shoal\nimport shoal_beside", "class MyTask(shoal.Task):\n    def model(self): return shoal_beside.VALUE"
    )
    path, entry = source_of(names["MyTask"](), scratch)
    assert (path, entry) == (scratch / "my_task.py", "my_task:MyTask")
    bundle = pack(path, entry)
    assert b"shoal_beside.py" in bundle
    assert b"other.py" not in bundle
    monkeypatch.delitem(sys.modules, "shoal_beside")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers() | st.text())
    ),
    max_leaves=20,
)


@given(plain)
def test_a_constant_is_written_as_code_that_gives_it(value: object) -> None:
    text = _literal(value, "x", "T")
    again = eval(text, {})  # noqa: S307
    assert again == value
    assert repr(again) == repr(value) or isinstance(value, frozenset | dict | list | tuple)


def test_the_prompt_of_python_says_what_to_do(tmp_path: Path) -> None:
    """Before 3.13 Python keeps no text of what is typed; since then it does."""
    typed = (
        "from shoal.task import Task\n"
        "from shoal.trainer.find import source_of\n"
        "class T(Task):\n    def model(self): return 1\n\n"
        "print(source_of(T()))\n"
    )
    done = subprocess.run([sys.executable, "-i", "-q"], input=typed, capture_output=True, text=True, timeout=60)
    if sys.version_info < (3, 13):
        assert "use IPython or a notebook, or put the class in a file such as task.py" in done.stderr
    else:
        assert "t:T" in done.stdout or "put the class in a file" in done.stderr
