"""Failed tests run once more with nothing beside them: those that pass are named, a fault fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import second_look  # noqa: E402

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("few_plugins")]

_TESTS = """
from pathlib import Path

def test_sound():
    pass

def test_once():
    seen = Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first

def test_broken():
    assert {}
"""


def _run(folder: Path, *words: str) -> int:
    command = (sys.executable, "-m", "pytest", "-q", *words)
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, timeout=60).returncode


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_test_that_fails_once_is_named_if_all_pass_then(tmp_path: Path, is_broken: bool) -> None:
    (tmp_path / "test_it.py").write_text(_TESTS.format(not is_broken))
    cache = tmp_path / "cache"
    code = _run(tmp_path, *second_look.arguments(cache), "test_it.py")
    assert code == second_look.TESTS_FAILED
    ran: list[str] = []

    def again(*names: str) -> int:
        ran.extend(names)
        return _run(tmp_path, *names)

    once = "test_it.py::test_once"
    assert second_look.look(code, cache, again) == ([] if is_broken else [once])
    assert ran == ["test_it.py::test_broken"] * is_broken + [once]
    assert second_look.alarm(once) == "ALARM: test_it.py::test_once failed once, mend this test"


def test_many_failures_and_other_ends_get_no_second_look(tmp_path: Path) -> None:
    def never(*names: str) -> int:
        raise AssertionError(names)

    lines = [f"def test_{number}():\n    assert False\n" for number in range(second_look.TESTS_MAX + 1)]
    (tmp_path / "test_it.py").write_text("\n".join(lines))
    cache = tmp_path / "cache"
    code = _run(tmp_path, *second_look.arguments(cache), "test_it.py")
    assert code == second_look.TESTS_FAILED
    assert second_look.look(code, cache, never) == []
    for end in (0, 2, 3, 124):
        assert second_look.look(end, tmp_path / "none", never) == []


def test_failures_under_several_processes_get_a_second_look(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_TESTS.format(True))
    cache = tmp_path / "cache"
    code = _run(tmp_path, "-n", "2", *second_look.arguments(cache), "test_it.py")
    assert second_look.look(code, cache, lambda *names: _run(tmp_path, *names)) == ["test_it.py::test_once"]
