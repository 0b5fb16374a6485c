"""Help is a screen or two: what most people need, and the way to the rest."""

from __future__ import annotations

import re

import pytest
import typer

from shoal.cli import main
from shoal.cli.exits import Exit

#: Two screens of a terminal, and what a person still scrolls.
LINES_MAX = 66


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def all_commands() -> list[tuple[list[str], object]]:
    def below(command: object, words: list[str]) -> list[tuple[list[str], object]]:
        found = [(words, command)]
        for name, each in getattr(command, "commands", {}).items():
            found += below(each, [*words, name])
        return found

    return below(typer.main.get_command(main.app), [])


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.run(words) == Exit.OK
    return capsys.readouterr().out


def test_every_help_is_two_screens_without_bool(capsys: pytest.CaptureFixture[str]) -> None:
    for words, _ in all_commands():
        text = printed(capsys, *words, "--help")
        assert len(text.splitlines()) <= LINES_MAX, words
        assert max(map(len, text.splitlines())) <= 80, words
        assert "bool" not in text.lower(), words


def test_no_option_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    for words, command in all_commands():
        text = printed(capsys, *words, "--help-all")
        options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]  # type: ignore[attr-defined]
        for option in options:
            assert re.search(rf"(^|[ /]){re.escape(option.opts[0])}\b", text, re.MULTILINE), (words, option.opts)


def test_what_is_left_out_is_counted_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    short, whole = printed(capsys, "up", "--help"), printed(capsys, "--help-all", "up")
    found = re.search(r"^(\d+) more options: shoal up --help-all$", short, re.MULTILINE)
    assert found
    assert len(re.findall(r"^  -", whole, re.MULTILINE)) - len(re.findall(r"^  -", short, re.MULTILINE)) == int(
        found[1]
    )
    assert "--store URL" in whole
    assert "--store" not in short
    assert "--advertise" in short
    assert "more options" not in printed(capsys, "status", "--help")


def test_values_and_defaults_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(printed(capsys, "token", "create", "--help").split())
    assert "--role node|operator A node works." in text
    assert "[default: node]" in text
    assert "--browser Print a link" in text, "a flag takes no value"
    assert "[default: 24]" in text
    assert "or SHOAL_HOME]" in text


def test_a_word_behind_the_dashes_is_the_scripts_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "no-such.py", "--", "--help-all"]) == Exit.MISUSE
    assert "is not a Python file" in capsys.readouterr().err
