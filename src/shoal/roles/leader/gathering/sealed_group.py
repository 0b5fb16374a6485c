"""One group of a sealed sum, and the questions that its leader has for an opener. Pure state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from shoal.roles.leader.gathering.formation import ArrivedUpdate
from shoal.roles.leader.gathering.sealed_sums import GroupSums
from shoal.sealing.graph import GraphShape
from shoal.sealing.group import MaskGraph
from shoal.sealing.label import Label
from shoal.sealing.opening import SumOpening
from shoal.states import SEAL_MOVES, SealPhase
from shoal.wire.messages import Agreed, Opened

#: Members answer a question within this, or have vanished.
ANSWER_S = 5.0


class Unopened(Exception):
    """The sum of a group cannot be opened: the group is void."""


@dataclass(slots=True)
class SealedGroup:
    """A group from its binding to its sum."""

    number: int
    label: Label
    graph: MaskGraph
    #: In the order of places.
    members: tuple[str, ...]
    leases: tuple[int, ...]
    total: np.ndarray
    sums: GroupSums
    #: Where its words lie in the model, or None if everywhere.
    at: np.ndarray | None = None
    phase: SealPhase = SealPhase.UPLOADING
    #: When its members were asked what they are asked now.
    asked_s: float = 0.0
    #: Places whose updates are in the sum, and what came with them.
    reports: dict[int, ArrivedUpdate] = field(default_factory=dict)
    seals: dict[int, bytes] = field(default_factory=dict)
    figures: dict[int, np.ndarray] = field(default_factory=dict)
    #: Places that are not waited for any longer.
    lost: set[int] = field(default_factory=set)
    opening: SumOpening | None = None

    def enter(self, phase: SealPhase) -> None:
        assert phase in SEAL_MOVES[self.phase], f"a group that is {self.phase} cannot become {phase}"
        self.phase = phase

    def place_of(self, node: str) -> int | None:
        return self.members.index(node) if node in self.members else None


class Opener(Protocol):
    """Takes the masks off the sum of a group."""

    def held_up(self) -> str | None:
        """Return why no sum could be opened now, however many devices offer updates, or None if one could."""

    def shape(self, devices: int) -> GraphShape:
        """Return which members of a group of this size mask with each other."""

    def begin(self, group: SealedGroup) -> None:
        """Ask for what takes the masks off. The updates in the sum are fixed from now on."""

    def ask_again(self, group: SealedGroup, place: int) -> None:
        """Repeat the question to a member whose session broke."""

    def on_answer(self, group: SealedGroup, place: int, message: Agreed | Opened) -> None:
        """Take the answer of a member. Raises PeerViolation for an answer that breaks the protocol."""

    def look(self, group: SealedGroup) -> bool:
        """Return whether the masks are off. Raises Unopened if they never will be."""
