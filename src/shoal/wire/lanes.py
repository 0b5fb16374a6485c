"""The two streams between a pair of nodes, and which of them a message takes. Knows no sockets."""

from __future__ import annotations

from enum import StrEnum

from shoal.wire.messages import (
    Admit,
    Assign,
    Bar,
    Call,
    Conclude,
    Dismiss,
    HandOver,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    Leads,
    Leave,
    Message,
    Noted,
    OutOfReach,
    Progress,
    Release,
    Released,
    Standing,
    StepDown,
    SteppedDown,
    Want,
    Welcome,
)


class Lane(StrEnum):
    """Two streams on two connections: what is small and urgent never waits behind a model."""

    CONTROL = "Control"
    WORK = "Work"


_CONTROL = frozenset(
    (
        Hello,
        Welcome,
        Heartbeat,
        HeartbeatSeen,
        Leave,
        Assign,
        Dismiss,
        Progress,
        Release,
        Released,
        Leads,
        Admit,
        Bar,
        Conclude,
        HandOver,
        StepDown,
        SteppedDown,
        OutOfReach,
        Noted,
        Standing,
        Call,
        Want,
    )
)


def lane_of(message: Message) -> Lane:
    return Lane.CONTROL if type(message) in _CONTROL else Lane.WORK
