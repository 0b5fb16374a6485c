"""The first day of a user, with real commands: a read-only disk, a board that joined, a line in a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kit import WAIT_S

from benchmarks.first_day_kit import environment, manager, read_only, running
from shoal.cli.exits import Exit
from shoal.identity.join_code import JoinCode


def shoal(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        env=environment({"SHOAL_HOME": str(home)}),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_a_read_only_home_is_not_called_a_defect(tmp_path: Path) -> None:
    with read_only(tmp_path / "disk") as disk:
        told = shoal("up", "--port", "0", home=disk / "home")
        assert told.returncode == Exit.MISUSE, told.stderr
        assert f"cannot write in {disk / 'home'}" in told.stderr
        assert "SHOAL_HOME" in told.stderr
        assert "defect" not in told.stderr
        examined = shoal("doctor", home=disk / "home")
        assert examined.returncode == Exit.UNFIT
        assert f"cannot write in {disk}" in examined.stdout


def test_a_line_in_a_file_and_a_board_that_joined(tmp_path: Path) -> None:
    boss, board = tmp_path / "boss", tmp_path / "board"
    with manager(tmp_path):
        made = shoal("token", "create", home=boss)
        assert made.returncode == 0, made.stderr
        assert made.stdout == f"{made.stdout.strip()}\n"
        endpoint = JoinCode.parse(made.stdout.strip())
        line = tmp_path / "line.txt"
        line.write_text(made.stdout)
        with read_only(tmp_path / "disk") as disk:
            refused = shoal("join", "--line-file", str(line), home=disk / "home")
            assert refused.returncode == Exit.MISUSE, refused.stderr
            assert "--home DIR" in refused.stderr
        # The line is for one device: that it could not be written has not used it up.
        words = ("join", "--line-file", str(line), "--name", "board", "--home", str(board))
        with running(*words, cwd=tmp_path, log="board.log") as joined:
            joined.wait_for("connected to", within_s=WAIT_S)
        for command in (("status",), ("train", str(Path(__file__).with_name("clouds_task.py")))):
            told = shoal(*command, home=board)
            assert told.returncode == Exit.UNREACHABLE, told.stderr
            assert "this device is board in cluster attic" in told.stderr
            assert f"where its manager is, at {endpoint.host}:" in told.stderr
            assert "shoal up" not in told.stderr
