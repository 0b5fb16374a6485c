"""Commands by which an operator signs members and a device pins the operator's key, without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.commands import join, nodes, token
from shoal.cli.commands.nodes import operator_key_text
from shoal.cli.exits import NoCluster
from shoal.errors import Misuse
from shoal.identity.card_files import card_key_of, pinned_operator
from shoal.identity.cards import CardKey, key_text, parse_key
from shoal.identity.identity import Authority
from shoal.identity.join_code import JoinCode, new_secret

LINE = JoinCode(host="10.0.0.1", port=7071, ca_sha256=bytes(20), secret=new_secret())


def operated(home: Path, *, has_manager: bool = False) -> Path:
    authority = Authority.create(home / ("cluster/authority" if has_manager else "elsewhere"), "pond")
    authority.identity(node="ann", role="operator").save(home / "operator")
    return home


def test_an_operators_key_is_made_once_and_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home = operated(tmp_path)
    text = operator_key_text(home)
    own = card_key_of(home / "operator")
    assert own is not None
    assert parse_key(text) == own.public
    assert operator_key_text(home) == text
    assert "manager's machine" not in capfd.readouterr().err


def test_a_key_beside_the_manager_is_warned_of(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    operator_key_text(operated(tmp_path, has_manager=True))
    told = " ".join(capfd.readouterr().err.split())
    assert "whoever controls that machine can sign members too" in told


def test_without_an_operator_there_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match="no cluster is operated from"):
        operator_key_text(tmp_path)
    assert not (tmp_path / "operator").exists()


def test_a_line_gets_this_operators_key(tmp_path: Path) -> None:
    home = operated(tmp_path)
    made = JoinCode.parse(token._pinned(str(LINE), home))
    assert key_text(made.operator_key) == operator_key_text(home)
    assert (made.secret, made.endpoint) == (LINE.secret, LINE.endpoint)


@pytest.mark.parametrize("wrong", ["--browser", "--role=operator"])
def test_only_lines_for_devices_are_pinned(tmp_path: Path, wrong: str) -> None:
    result = CliRunner().invoke(token.app, ["create", "--pin", wrong, "--home", str(tmp_path)])
    assert result.exit_code == 2
    assert "only a device pins" in " ".join(result.output.split())


def test_a_mistyped_key_is_told_before_the_cluster_is_asked(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="14 groups of 4 characters"):
        nodes.approve("pi", key="abcd", days=90, home=tmp_path)


def test_a_device_pins_by_its_line_and_changes_only_when_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, first, second = tmp_path / "node", CardKey.new().public, CardKey.new().public

    def pinned_line(key: bytes) -> str:
        return str(JoinCode(host="h", port=1, ca_sha256=bytes(20), secret=new_secret(), operator_key=key))

    join._pin(tmp_path, str(LINE), "", anew=False)
    assert pinned_operator(folder) == b""
    own = card_key_of(folder)
    assert own is not None
    assert key_text(own.public) in capfd.readouterr().out
    join._pin(tmp_path, pinned_line(first), "", anew=False)
    assert pinned_operator(folder) == first
    assert f"of the operator with the key {key_text(first)}" in capfd.readouterr().out
    join._pin(tmp_path, "", "", anew=False)
    assert pinned_operator(folder) == first
    with pytest.raises(Misuse, match=r"pinned another operator's key"):
        join._pin(tmp_path, pinned_line(second), "", anew=False)
    join._pin(tmp_path, "", key_text(second), anew=False)
    assert pinned_operator(folder) == second
    join._pin(tmp_path, "", "none", anew=False)
    assert pinned_operator(folder) == b""
    join._pin(tmp_path, pinned_line(first), "", anew=True)
    join._pin(tmp_path, str(LINE), "", anew=True)
    assert pinned_operator(folder) == b""
    assert card_key_of(folder) == own
