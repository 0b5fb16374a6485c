"""Two lanes of commands run at once, each step is timed, and a failure hides no other step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import lanes  # noqa: E402

pytestmark = pytest.mark.timeout(120)

#: Makes a file, then waits for another.
_MEET = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
"""
#: Uses half a second of processor time in a child that it waits for.
_BURN = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"])
"""


def _step(name: str, code: str, *words: str, **environment: str) -> lanes.Step:
    return lanes.Step(name, (sys.executable, "-c", code, *words), environment)


def test_lanes_run_at_once(tmp_path: Path) -> None:
    done = lanes.side_by_side(tmp_path, [_step("front", _MEET, "a", "b")], [_step("behind", _MEET, "b", "a")])
    assert [(step.name, step.code) for step in done] == [("behind", 0), ("front", 0)]


def test_a_lane_goes_on_after_a_failure_and_says_what_each_step_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    behind = [
        _step("bad", "import sys; print('what is wrong'); print('why', file=sys.stderr); sys.exit(3)"),
        _step("good", "import os; print('all is well in', os.environ['PLACE'])", PLACE="Porto"),
    ]
    done = lanes.side_by_side(tmp_path, [_step("front", "pass")], behind)
    assert [(step.name, step.code) for step in done] == [("bad", 3), ("good", 0), ("front", 0)]
    said = capfd.readouterr().out
    assert "== bad: exit 3" in said
    assert "what is wrong\n" in said
    assert "why\n" in said
    assert "all is well in Porto" in said


def test_processor_time_counts_children_and_a_signal_is_an_exit_code(tmp_path: Path) -> None:
    burnt, killed = lanes.side_by_side(
        tmp_path, [_step("burn", _BURN), _step("killed", "import os; os.kill(os.getpid(), 9)")]
    )
    assert burnt.code == 0
    assert burnt.cpu_s >= 0.5
    assert killed.code == -9


def test_a_program_that_is_missing_fails_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (done,) = lanes.side_by_side(tmp_path, [lanes.Step("lost", ("no-such-program-anywhere",))])
    assert done.code == lanes.NOT_FOUND
    assert "no-such-program-anywhere is not installed" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lane_that_dies_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it did not come to must not count as passed."""

    def full() -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(lanes.tempfile, "TemporaryFile", full)
    with pytest.raises(RuntimeError, match="after 0 of 1 steps"):
        lanes.side_by_side(tmp_path, [_step("front", "pass")], [_step("behind", "pass")])
