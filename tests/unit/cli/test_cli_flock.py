"""`shoal flock`: what it asks for, and what it says when it is not given."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.exits import Exit
from shoal.cli.flock import SECRET_VARIABLE
from shoal.cli.main import run
from shoal.transport.flock_secret import FlockSecret


def test_a_secret_is_drawn_and_is_another_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flock", "secret"]) == Exit.OK
    first = FlockSecret.parse(capsys.readouterr().out)
    assert run(["flock", "secret"]) == Exit.OK
    assert FlockSecret.parse(capsys.readouterr().out) != first


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "shoal flock secret > flock.key"),
        (["--secret-file", "nowhere.key"], "--secret-file nowhere.key"),
        (["--secret-file", "wrong.key"], "copy it whole"),
        (["--secret-file", "right.key", "--data", "nowhere"], "there is no such folder"),
        (["--secret-file", "right.key", "--name", "Not A Name"], "cannot be the name of a device"),
        (["--secret-file", "right.key", "--mate", "bee"], "NAME=HOST:PORT"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    secret = FlockSecret.draw().text
    Path("right.key").write_text(secret)
    Path("wrong.key").write_text(secret[:-1])
    Path("task.py").write_text("import shoal\n\n\nclass Nothing(shoal.Task):\n    pass\n")
    assert run(["flock", "train", "task.py", "--devices", "3", *words]) == Exit.MISUSE
    assert complaint in capsys.readouterr().err
