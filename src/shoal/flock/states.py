"""The states of a flock that can be listed. Messages carry them as text, and refuse other text.

``wire`` lies below the roles and keeps the words in tuples of its own: a test holds the two lists equal.
"""

from __future__ import annotations

from enum import StrEnum


class PeerPhase(StrEnum):
    """What a peer does in the round."""

    IDLE = "idle"
    TRAINING = "training"
    #: The peer holds a sum of updates, at first its own alone.
    HOLDING = "holding"
    #: The peer handed its sum to another peer, and waits for the next version.
    RESTING = "resting"
    #: Its training failed: the round goes on without it.
    FAILED = "failed"


class CommandKind(StrEnum):
    """What the coordinator tells a peer to do. Each command replaces the one before."""

    #: Train from the version that the command names.
    TRAIN = "train"
    #: Keep the sum it holds: the merge it was told to make is off.
    KEEP = "keep"
    #: Ask another peer for its sum, and add it.
    TAKE = "take"
    #: Drop the sum: another peer has it.
    REST = "rest"
    #: Hold its own update again, and nothing else.
    ANEW = "anew"
    #: Apply the sum: it holds all updates of the round.
    MAKE = "make"
    #: Ask another peer for a version.
    FETCH = "fetch"
    #: The last version is made, and every peer holds it.
    OVER = "over"
