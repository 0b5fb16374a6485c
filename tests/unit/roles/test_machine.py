"""The base of every role: actions come out in order, and none outlives an event that raised."""

from __future__ import annotations

import pytest

from shoal.roles.actions import CancelTimer, Record, Send, SetTimer
from shoal.roles.events import Event, Started, TimerFired
from shoal.roles.machine import Machine
from shoal.wire.messages import HeartbeatSeen


class Echo(Machine):
    def on_event(self, event: Event) -> None:
        self.record("echo", f"{type(event).__name__} at {self.now_s}")
        if isinstance(event, TimerFired):
            raise ValueError("a bug")
        self.send("a", HeartbeatSeen(seq=1))
        self.timer("again", 2.0)
        self.cancel("before")


def test_actions_come_out_in_order_and_once() -> None:
    echo = Echo()
    assert echo.handle(Started(), 5.0) == [
        Record(kind="echo", reason="Started at 5.0"),
        Send(to="a", message=HeartbeatSeen(seq=1)),
        SetTimer(name="again", after_s=2.0),
        CancelTimer(name="before"),
    ]
    assert echo.take_actions() == []


def test_actions_of_an_event_that_raised_are_lost_with_it() -> None:
    echo = Echo()
    with pytest.raises(ValueError, match="a bug"):
        echo.handle(TimerFired(name="again"), 6.0)
    assert echo.handle(Started(), 7.0)[0] == Record(kind="echo", reason="Started at 7.0")
