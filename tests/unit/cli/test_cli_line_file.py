"""A join line that no shell's history holds: from a file that goes after use, or from standard input."""

import io
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.exits import Exit
from shoal.cli.line_file import STANDARD_INPUT, read_line, remove_line
from shoal.errors import Misuse
from shoal.identity.enrolment import Enrolled
from shoal.identity.identity import Authority
from shoal.identity.join_code import JoinCode, new_secret

pytestmark = pytest.mark.timeout(60)


def test_the_first_line_that_is_no_comment_is_the_join_line(tmp_path: Path) -> None:
    file = tmp_path / "line"
    file.write_text("# made on Monday\n\n  shoal://10.0.0.1:7071/abc  \nmore\n")
    assert read_line(file, may_be_absent=False) == "shoal://10.0.0.1:7071/abc"


def test_the_whole_command_may_be_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "line"
    file.write_text("shoal join shoal://10.0.0.1:7071/abc\n")
    assert read_line(file, may_be_absent=False) == "shoal://10.0.0.1:7071/abc"


def test_a_missing_file_is_an_error_only_for_a_device_that_never_joined(tmp_path: Path) -> None:
    assert read_line(tmp_path / "line", may_be_absent=True) == ""
    with pytest.raises(Misuse, match="shoal token create"):
        read_line(tmp_path / "line", may_be_absent=False)


@pytest.mark.parametrize("content", [b"", b"\n\n# nothing\n", b"#\n" * 1000, b"\xff\xfe\x00"])
def test_a_file_without_a_line_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "line"
    file.write_bytes(content)
    with pytest.raises(Misuse, match=r"begins with shoal://|text file"):
        read_line(file, may_be_absent=True)


def test_a_file_of_one_endless_line_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "line"
    file.write_text("x" * 10_000_000)
    assert len(read_line(file, may_be_absent=False)) < 1000


def test_standard_input_gives_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("shoal://10.0.0.1:7071/abc\n"))
    assert read_line(STANDARD_INPUT, may_be_absent=False) == "shoal://10.0.0.1:7071/abc"


def test_a_file_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "line"
    folder.mkdir()
    assert "remove it yourself" in remove_line(folder)
    assert remove_line(tmp_path / "gone") == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--remove-line"], "name that file"),
        (["shoal://10.0.0.1:7071/abc", "--line-file", "line"], "given twice"),
        (["--line-file", "-", "--remove-line"], "standard input cannot be removed"),
        (["--line-file", "no/such/file"], "there is no file no/such/file"),
    ],
)
def test_what_does_not_fit_together_is_said(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["join", "--home", str(tmp_path), *arguments]) == Exit.MISUSE
    assert words in capsys.readouterr().err


def test_a_member_moves_by_a_line_in_a_file_which_is_removed_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, command: became.append(command))
    authority = Authority.create(tmp_path / "authority", "home")
    home, file = tmp_path / "home", tmp_path / "line"
    Enrolled(
        identity=authority.identity(node="attic", role="node"),
        manager_node="manager",
        manager_endpoint="10.0.0.1:7070",
        enrol_endpoint="10.0.0.1:7071",
    ).save(home / "node")
    line = JoinCode(host="10.0.0.9", port=7071, ca_sha256=authority.fingerprint, secret=new_secret())
    file.write_text(f"{line}\n")
    started = ["join", "--home", str(home), "--line-file", str(file), "--remove-line"]
    assert main.run(started) == Exit.OK
    assert Enrolled.load(home / "node").manager_endpoint == "10.0.0.9:7070"
    assert not file.exists()
    # A service starts the same command at every boot.
    assert main.run(started) == Exit.OK
    assert len(became) == 2
    assert not any(line.secret in word for command in became for word in command)


def test_a_line_that_was_not_used_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "line"
    file.write_text("shoal://10.0.0.1:7071/abc\n")
    assert main.run(["join", "--home", str(tmp_path), "--line-file", str(file), "--remove-line"]) == Exit.MISUSE
    assert "cut off" in capsys.readouterr().err
    assert file.exists()
