"""The states of a flock: messages carry the same words as the roles' enums."""

from __future__ import annotations

from shoal.flock.states import CommandKind, PeerPhase
from shoal.wire.messages import CALLS, PEER_PHASES


def test_messages_know_every_phase_and_command_and_no_others() -> None:
    assert set(PEER_PHASES) == set(PeerPhase)
    assert set(CALLS) == set(CommandKind)
