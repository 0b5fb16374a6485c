"""What a person sees of a job, in each place."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shoal import notebook
from shoal.history import History
from shoal.plan import Plan
from shoal.progress import WAITS_TOLD_S, EvaluationLines, LiveLine, Quiet, WaitWatch, display_here, line_text
from shoal.states import JobState
from shoal.wire.messages import EvaluationView, JobView, Progress

NAME = "clouds-0000"


def job(state: JobState = JobState.RUNNING, **progress: Any) -> JobView:
    known = {"version": 12, "epoch": 1, "batches_applied": 3, "batches_total": 6, "seconds": 9.0}
    told = Progress(job=NAME, term=1, state="training", **{**known, **progress})
    return JobView(job=NAME, name="clouds", state=state, reason="why", plan=Plan(), progress=told, term=1, heard_s=0.1)


def history(*losses: float) -> History:
    return History(
        EvaluationView(version=i + 1, epoch=i, accuracy=0.5, loss=loss, examples=10, seconds=2.0)
        for i, loss in enumerate(losses)
    )


def test_a_job_in_one_line() -> None:
    text = line_text(job(), history(0.5, 0.25))
    for part in (NAME, "training", "epoch 2 50%", "version 12", "0 workers", "loss 0.25", "accuracy 50.00 %", "9.0 s"):
        assert part in text
    assert "\n" not in text
    assert "why" in line_text(job(JobState.FINISHED), history())


def test_without_a_terminal_there_is_a_line_an_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    display = display_here(wanted=True)
    assert isinstance(display, EvaluationLines)
    rows = history(0.5)
    display.step("reading")
    display.show(job(), rows, tuple(rows))
    display.show(job(), rows, ())
    display.note("read this\x1b[2J")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{NAME}: epoch 0, version 1: loss 0.5, accuracy 50.00 %, 2.0 s\nshoal: read this [2J\n"


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    display = display_here(wanted=False)
    assert isinstance(display, Quiet)
    display.step("a")
    display.note("b")
    display.show(job(), history(1.0), ())
    display.close()
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    display = display_here(wanted=True)
    assert isinstance(display, LiveLine)
    display.step("reading")
    display.show(job(), history(0.5), ())
    display.note("stopping")
    display.show(job(), history(0.5), ())
    display.close()
    display.close()
    drawn = screen.getvalue()
    assert drawn.index("reading") < drawn.index("loss 0.5") < drawn.index("stopping")


def test_a_notebook_shows_one_output_and_updates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            shown.append(html)

    def show(html: str, display_id: bool) -> Handle:
        shown.append(html)
        return Handle()

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=show))
    display = display_here(wanted=True)
    assert isinstance(display, notebook.NotebookTable)
    display.step("reading <data>")
    for _ in range(2):
        display.show(job(), history(0.5, 0.25), ())
    display.close()
    assert len(shown) == 2
    assert "reading &lt;data&gt;" in shown[0]
    assert "<svg" in shown[1]
    assert "<table>" in shown[1]
    assert NAME in shown[1]


def test_a_curve_is_drawn_inside_its_frame() -> None:
    assert notebook.curves(history()) == ""
    assert "polyline" in notebook.curves(history(0.5))
    drawn = notebook.curves(history(0.5, float("inf"), 0.1, 0.3))
    points = drawn.partition('points="')[2].partition('"')[0].split()
    assert len(points) == 3
    for point in points:
        x, y = map(float, point.split(","))
        assert 0 <= x <= 420
        assert 0 <= y <= 140


def test_a_job_that_waits_for_a_minute_is_told_of_also_where_nothing_is_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch, waits = WaitWatch(), replace(job(), progress=None)
    assert watch.look(waits, 100.0) is None
    assert watch.look(waits, 100.0 + WAITS_TOLD_S - 1) is None
    told = watch.look(waits, 100.0 + WAITS_TOLD_S)
    assert told == f"job {NAME} waits for 1 min 00 s: waiting for the first report from its leader"
    assert watch.look(waits, 900.0) is None, "once a reason"
    failing = replace(waits, trouble="a cannot prepare it: no file, at T.model (t.py:9)", failing=1, stalled=True)
    assert "is in trouble for" in (watch.look(failing, 901.0) or "")
    assert watch.look(job(), 902.0) is None
    assert watch.look(waits, 903.0) is None, "it trained meanwhile"
    Quiet().warn(told)
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("shoal", told)]
