"""A node that stands still: its peers' silence is what it could have heard, whatever pauses there are, and no less."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.roles.events import Liveness
from shoal.roles.node import host_router
from shoal.roles.node.failure_detector import FailureDetector, Patience
from shoal.roles.node.host_router import LATE_HEARTBEATS, HostRouter

PATIENCE = Patience()

#: A device says goodbye to nobody at this time.
DIES_S = 40.0
ENDS_S = 160.0

#: (runs for so long, then stands still for so long).
PAUSES = st.lists(
    st.tuples(st.floats(0.0, 12.0), st.sampled_from((0.0, 2.0, 7.0, 12.0, 60.0)) | st.floats(0.0, 30.0)),
    min_size=1,
    max_size=8,
)


def hear(members: FailureDetector, spoken_s: float, now_s: float) -> float:
    """What lay in the sockets since, all of it at this moment. When the last of it was said."""
    while spoken_s + 1.0 <= now_s:
        spoken_s += 1.0
        members.on_heard("well", now_s)
        if spoken_s < DIES_S:
            members.on_heard("mortal", now_s)
    return spoken_s


def story(pauses: list[tuple[float, float]], *, hears_first: bool) -> None:
    """Two devices speak each second, until one dies. The manager looks twice a second, or stands still."""
    home = HostRouter(node="home", patience=PATIENCE)
    members = home.membership
    home.check(0.0)
    for node in ("well", "mortal"):
        members.on_heard(node, 0.0)
    now_s, spoken_s, watched_s = 0.0, 0.0, 0.0
    stops = iter([*pauses, (ENDS_S, 0.0)])
    runs_s, stands_s = next(stops)
    while now_s < ENDS_S:
        gap_s = home.check_every_s
        if runs_s <= 0:
            gap_s += stands_s
            runs_s, stands_s = next(stops, (ENDS_S, 0.0))
        runs_s -= home.check_every_s
        now_s += gap_s
        if hears_first:
            spoken_s = hear(members, spoken_s, now_s)
        home.check(now_s)
        assert members.state("well") is Liveness.ALIVE
        spoken_s = hear(members, spoken_s, now_s)
        if now_s > DIES_S + 1.0:
            # The manager watched this much of the silence: a pause counts for 1.5 heartbeats at most.
            watched_s += min(gap_s, LATE_HEARTBEATS * PATIENCE.heartbeat_s)
    if watched_s > PATIENCE.lost_after_s + 2.0:
        assert members.state("mortal") is Liveness.LOST, "silence adds up over pauses"


@settings(max_examples=150, deadline=None)
@given(pauses=PAUSES, hears_first=st.booleans())
def test_a_device_that_speaks_is_never_lost_and_one_that_died_is(
    pauses: list[tuple[float, float]], hears_first: bool
) -> None:
    story(pauses, hears_first=hears_first)


def counted_as_silence() -> AbstractContextManager[object]:
    return patch.object(FailureDetector, "pass_over", lambda self, unheard_s, now_s: None)


def begins_again() -> AbstractContextManager[object]:
    """Each pause wipes the silence before it: on a machine that stutters nobody is ever lost."""

    def pass_over(self: FailureDetector, unheard_s: float, now_s: float) -> None:
        for peer in self._peers.values():
            peer.hurried_s = now_s

    return patch.object(FailureDetector, "pass_over", pass_over)


def never_noticed() -> AbstractContextManager[object]:
    return patch.object(host_router, "LATE_HEARTBEATS", 1e9)


#: Stutters: two seconds of every four and a half.
STUTTER = [(2.5, 2.0)] * 60
STOPPED = [(10.0, 12.0)]


@pytest.mark.parametrize(
    ("mutant", "pauses", "is_caught"),
    [
        (nullcontext, STOPPED, False),
        (nullcontext, STUTTER, False),
        (counted_as_silence, STOPPED, True),
        (never_noticed, STOPPED, True),
        (begins_again, STUTTER, True),
    ],
)
def test_mutants_are_caught(
    mutant: Callable[[], AbstractContextManager[object]], pauses: list[tuple[float, float]], is_caught: bool
) -> None:
    with mutant(), pytest.raises(AssertionError) if is_caught else nullcontext():
        story(pauses, hears_first=False)
