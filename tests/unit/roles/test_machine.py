"""The base of every role: what it decides goes out in order, whole or not at all."""

from __future__ import annotations

import pytest

from shoal.roles.actions import CancelTimer, Record, Send, SetTimer
from shoal.roles.events import Event, Started, TimerFired
from shoal.roles.machine import Machine
from shoal.wire.messages import HeartbeatSeen


class Role(Machine):
    def on_event(self, event: Event) -> None:
        self.timer("look", 2.0)
        self.send("home", HeartbeatSeen(seq=1))
        if isinstance(event, TimerFired):
            raise ZeroDivisionError
        self.cancel("look")
        self.record("looked", f"at {self.now_s:g} s")


DECIDED = [
    SetTimer(name="look", after_s=2.0),
    Send(to="home", message=HeartbeatSeen(seq=1)),
    CancelTimer(name="look"),
    Record(kind="looked", reason="at 3 s"),
]


def test_actions_go_out_in_order_and_once() -> None:
    role = Role()
    assert role.handle(Started(), 3.0) == DECIDED
    assert role.handle(Started(), 3.0) == DECIDED


def test_half_a_decision_is_not_carried_out_with_the_next_event() -> None:
    role = Role()
    with pytest.raises(ZeroDivisionError):
        role.handle(TimerFired(name="look"), 1.0)
    assert role.handle(Started(), 3.0) == DECIDED
