"""`shoal flock`: what it asks for, and what it says when it is not given."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shoal.cli.exits import Exit
from shoal.cli.main import run
from shoal.flock.cli import SECRET_VARIABLE
from shoal.flock.secret import FlockSecret
from shoal.identity import discovery


def test_a_secret_is_written_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    try:
        assert run(["flock", "secret", "-o", "flock.key"]) == Exit.OK
    finally:
        os.umask(before)
    key = Path("flock.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    drawn = key.read_text()
    FlockSecret.parse(drawn)
    assert drawn.strip() not in "".join(capsys.readouterr())
    # A second one would lock every device of the first out.
    assert run(["flock", "secret", "-o", "flock.key"]) == Exit.MISUSE
    assert "exists already" in capsys.readouterr().err
    assert key.read_text() == drawn
    assert run(["flock", "secret", "-o", "nowhere/flock.key"]) == Exit.MISUSE


def test_a_secret_that_others_can_read_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("flock.key").write_text(FlockSecret.draw().text)
    train = ["flock", "train", "nowhere.py", "--devices", "3", "--peer", "bee=10.0.0.2:7100"]
    for mode, warned in ((0o644, True), (0o640, True), (0o600, False), (0o400, False)):
        Path("flock.key").chmod(mode)
        assert run([*train, "--secret-file", "flock.key"]) == Exit.MISUSE
        assert ("chmod 600 flock.key" in capsys.readouterr().err) is warned


def test_the_package_it_needs_is_asked_for_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discovery, "is_installed", lambda: False)
    Path("flock.key").write_text(FlockSecret.draw().text)
    words = ["flock", "train", "nowhere.py", "--devices", "3", "--secret-file", "flock.key", "--home", str(tmp_path)]
    assert run(words) == Exit.MISUSE
    complaint = capsys.readouterr().err
    assert "a flock" in complaint
    assert "pip install zeroconf" in complaint
    # Where each is named, nobody is looked for: the next thing that is missing is the task.
    assert run([*words, "--peer", "bee=10.0.0.2:7100"]) == Exit.MISUSE
    complaint = capsys.readouterr().err
    assert "zeroconf" not in complaint
    assert "nowhere.py" in complaint


def test_a_secret_is_drawn_and_is_another_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flock", "secret"]) == Exit.OK
    first = FlockSecret.parse(capsys.readouterr().out)
    assert run(["flock", "secret"]) == Exit.OK
    assert FlockSecret.parse(capsys.readouterr().out) != first


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "shoal flock secret -o flock.key"),
        (["--secret-file", "nowhere.key"], "--secret-file nowhere.key"),
        (["--secret-file", "wrong.key"], "Copy all of it"),
        (["--secret-file", "right.key", "--data", "nowhere"], "there is no such folder"),
        (["--secret-file", "right.key", "--name", "Not A Name"], "cannot be the name of a device"),
        (["--secret-file", "right.key", "--peer", "bee"], "NAME=HOST:PORT"),
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
