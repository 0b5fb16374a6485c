"""Values that are well formed and still not to be believed: what would overflow, or command a terminal."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.runtime.journal import Journal
from shoal.store.registry import Registry
from shoal.wire.checks import check_told, dense
from shoal.wire.limits import JOULES_MAX, LOSS_SUM_MAX, SECONDS_MAX
from shoal.wire.messages import Facts, Heartbeat, Update, clip


def update(**said: float) -> Update:
    delta = {"delta": np.zeros(3, np.float32)}
    return Update(job="a", term=1, lease=1, version=0, examples=1, tensors=delta, **said)


def checked(sent: Update) -> np.ndarray:
    check_told(sent, examples_max=1)
    return dense("delta", sent.tensors, size=3)


@pytest.mark.parametrize("train_s", [math.inf, -math.inf, -1.0, SECONDS_MAX * 2, 1e308])
def test_a_time_that_cannot_be_averaged_is_refused(train_s: float) -> None:
    """The median of inf and -inf is no number, and a leader that puts it into a report would fail on it."""
    with pytest.raises(PeerViolation, match=r"Update\.train_s is"):
        checked(update(train_s=train_s))
    assert checked(update(train_s=SECONDS_MAX)).size == 3


@pytest.mark.parametrize("joules", [math.inf, -math.inf, -1.0, JOULES_MAX * 2, 1e308])
def test_an_energy_that_leases_cannot_be_sized_by_is_refused(joules: float) -> None:
    with pytest.raises(PeerViolation, match=r"Update\.joules is"):
        checked(update(joules=joules))
    assert checked(update(joules=JOULES_MAX)).size == 3


@pytest.mark.parametrize("loss_sum", [1e308, -1e308, LOSS_SUM_MAX * 1.01, math.inf])
def test_a_loss_that_cannot_be_added_up_is_refused(loss_sum: float) -> None:
    with pytest.raises(PeerViolation, match="the training loss"):
        checked(update(loss_sum=loss_sum))
    assert checked(update(loss_sum=LOSS_SUM_MAX)).size == 3


@pytest.mark.parametrize("load", [math.inf, -math.inf, math.nan])
def test_a_load_is_a_number(load: float) -> None:
    with pytest.raises(PeerViolation):
        Heartbeat(seq=1, load=load)


@pytest.mark.parametrize("name", ["host", "arch", "python", "torch", "shoal"])
@pytest.mark.parametrize("text", ["\x1b[2J", "a\nb", "a\rb", "\x9b2J", "\u202egnp"])
def test_facts_command_no_terminal(name: str, text: str) -> None:
    with pytest.raises(PeerViolation, match="cannot be printed"):
        Facts(**{name: text})
    assert getattr(Facts(**{name: "Gerät 1"}), name) == "Gerät 1"


def test_clipped_text_commands_no_terminal_and_keeps_its_lines() -> None:
    assert clip("a\x1b[2J\x00b\rc\x7f\x9bd\n\te") == "a [2J b c  d\n\te"


def test_no_words_of_a_peer_pass_for_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Registry(tmp_path / "registry.sqlite") as registry, caplog.at_level(logging.INFO, logger="shoal.events"):
        journal = Journal(registry)
        journal.add("", "node", "liar is lost: left\n12:00:00 refused: device-1 lied\x1b[2J")
        journal.flush()
        (event,) = registry.events_after("cluster", 0, limit=10)
    assert caplog.messages == ["node: liar is lost: left\n    12:00:00 refused: device-1 lied [2J"]
    assert event.text == "liar is lost: left\n12:00:00 refused: device-1 lied [2J"
