"""What an attack comes to is one of three words, and only harm is called harm."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.attacks import run as attacks
from testbed.attacks.kit import Attack, NotTried, Outcome
from testbed.attacks.run import judged, told
from testbed.attacks.task import rise_judged


def attack(come_to: Callable[[], Outcome], name: str = "any") -> Attack:
    async def run(folder: Path, scale: float) -> Outcome:
        """Any."""
        return come_to()

    return Attack(name=name, finding=0, run=run)


def raises(error: Exception) -> Callable[[], Outcome]:
    def come_to() -> Outcome:
        raise error

    return come_to


OUTCOMES: dict[str, Callable[[], Outcome]] = {
    "kept_out": lambda: Outcome(True, "refused"),
    "let_in": lambda: Outcome(False, "it read the key"),
    "unset": raises(NotTried("no lie was told")),
    "late": raises(TimeoutError("not within 60 s: an evaluation")),
    "broken": raises(OSError("nothing could be started")),
}
WORDS = {"kept_out": "held", "let_in": "harmed", "unset": "not tried", "late": "not tried", "broken": "not tried"}


def test_harm_and_what_could_not_be_tried_are_different_words() -> None:
    outcomes = {name: asyncio.run(judged(attack(come_to), scale=1.0)) for name, come_to in OUTCOMES.items()}
    assert {name: outcome.word for name, outcome in outcomes.items()} == WORDS
    said = told(outcomes)
    assert (said["attacks"], said["held"], said["harmed"], said["not_tried"]) == (5, 1, 1, 3)
    assert said["details"]["let_in"] == "harmed: it read the key"
    assert said["details"]["unset"] == "not tried: no lie was told"
    assert said["details"]["late"].startswith("not tried: its time was over: not within 60 s")
    assert said["details"]["broken"].startswith("not tried: the attack itself failed: OSError")


@pytest.mark.parametrize(("names", "status"), [(["kept_out"], 0), (["kept_out", "let_in"], 1), (["unset"], 1)])
def test_the_last_line_is_json_and_only_all_held_is_success(
    names: list[str], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attacks, "ATTACKS", tuple(attack(OUTCOMES[name], name) for name in names))
    monkeypatch.setattr(attacks.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["attacks", "--quick", "--json"])
    assert attacks.main() == status
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(said) == {"attacks", "held", "harmed", "not_tried", "details", "seconds"}
    assert said["attacks"] == len(names)


def test_a_task_of_root_is_held_for_its_reason_only() -> None:
    """A job can fail for any reason. Only one of them says that the agent kept root from a task."""
    assert rise_judged("it does not train: a task does not run as root, and nobody cannot read it", "").held
    for why in ("the job failed: no worker joined", "it does not train: torch is missing", "nothing was heard of it"):
        with pytest.raises(NotTried, match=why):
            rise_judged(why, "")
    assert not rise_judged({"read the key": "YES 400 bytes"}, "").held
    assert rise_judged({"read the key": "no: PermissionError"}, "").held
