"""The states of a flock that have names. Messages carry them as text and refuse other text.

``wire`` is below the roles and has its own tuples of these names: a test checks that the two lists are equal.
"""

from __future__ import annotations

from enum import StrEnum


class PeerPhase(StrEnum):
    """What a peer does in the round."""

    IDLE = "idle"
    TRAINING = "training"
    #: The peer holds a sum of updates, at first only its own.
    HOLDING = "holding"
    #: The peer sent its sum to another peer, and waits for the next version.
    RESTING = "resting"
    #: Its training failed: the round continues without it.
    FAILED = "failed"


class CommandKind(StrEnum):
    """The coordinator's commands to a peer. Each command replaces the one before."""

    #: Train from the version that the command names.
    TRAIN = "train"
    #: Keep the sum it holds: the merge that it was told to make is cancelled.
    KEEP = "keep"
    #: Request another peer's sum, and add it.
    TAKE = "take"
    #: Drop the sum: another peer has it.
    REST = "rest"
    #: Hold only its own update again.
    ANEW = "anew"
    #: Apply the sum: it holds all updates of the round.
    MAKE = "make"
    #: Request a version from another peer.
    FETCH = "fetch"
    #: The last version is made, and every peer holds it.
    OVER = "over"
