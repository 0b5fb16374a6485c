"""A node's own key for sealed sums, and the keys of the others as its leader tells them. A part of worker and helper.

Keys last one term: a new leader is told another key, and nothing of an older term is of use.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import PeerViolation
from shoal.roles.actions import CheckRoster, MakeSealKey
from shoal.roles.events import RosterChecked, SealKeyMade
from shoal.roles.worker.machine import WorkerMachine
from shoal.sealing.group import members_of
from shoal.sealing.label import Label
from shoal.wire.messages import AskMasks, Bind, MemberKey, SealKey, SealRoster


def label_of(
    origin: str, about: Bind | AskMasks, members: Sequence[MemberKey], *, places: bytes, base: bytes = b""
) -> Label:
    """The label of the group that a message is about, as its devices and its helper come to it alike."""
    return Label(
        origin=origin,
        job=about.job,
        term=about.term,
        formation=0,
        group=about.group,
        members=tuple((one.node, one.public) for one in members),
        bound=about.bound,
        weight_most=about.weight_most,
        base=base,
        places=places,
    )


class SealKeyRoster:
    def __init__(self, worker: WorkerMachine) -> None:
        self._worker = worker
        #: The term of the key, and the key once it is made.
        self._term = 0
        self.key: MemberKey | None = None
        #: The term whose leader was told the key over the present session.
        self._told = 0
        self._roster: SealRoster | None = None
        #: Whose keys do not hold; None: the roster is still looked at.
        self._bad: dict[str, str] | None = None

    def announce(self, *, again: bool = False) -> bool:
        """Tell the leader this node's key, once a session and term; again where it may not have been heard. True: a
        new term began."""
        worker = self._worker
        if not worker.is_connected:
            return False
        self._told = 0 if again else self._told
        if self._term != worker.term:
            self._term, self.key = worker.term, None
            self._roster = self._bad = None
            worker.act(MakeSealKey(term=worker.term))
            return True
        if self.key is not None and self._told != self._term:
            self._told = self._term
            worker.send(worker.leader, SealKey(job=worker.job, term=self._term, key=self.key))
        return False

    def on_disconnected(self) -> None:
        self._told = 0

    def on_key(self, event: SealKeyMade) -> None:
        if event.term == self._term:
            self.key = event.key
            self.announce()

    def on_roster(self, message: SealRoster) -> None:
        newest = self._roster.roster if self._roster is not None else 0
        if message.term != self._worker.term or message.roster <= newest:
            return
        self._roster, self._bad = message, None
        self._worker.act(CheckRoster(roster=message))

    def on_checked(self, event: RosterChecked) -> bool:
        """Whether this was the look at the present roster."""
        if self._roster is None or (event.term, event.roster) != (self._roster.term, self._roster.roster):
            return False
        self._bad = dict(event.bad)
        return True

    def is_looked_at(self, number: int) -> bool:
        """This roster is the present one, and is looked at still."""
        return self._roster is not None and self._roster.roster == number and self._bad is None

    def is_to_come(self, number: int) -> bool:
        """This roster is not here yet, or is looked at still."""
        return self._roster is None or self._roster.roster < number or self.is_looked_at(number)

    def members(self, about: Bind | AskMasks) -> list[MemberKey]:
        """The members of a group. Raises PeerViolation where a key of theirs does not hold."""
        roster = self._known(about.roster)
        members = [roster.keys[place] for place in members_of(about.members, len(roster.keys))]
        for one in members:
            self._check(one)
        return members

    def get(self, node: str, number: int) -> MemberKey:
        """The key of a node that is in this roster. Raises PeerViolation where it does not hold."""
        for one in self._known(number).keys:
            if one.node == node:
                self._check(one)
                return one
        raise PeerViolation(f"roster {number} does not have the key of {node}")

    def _known(self, number: int) -> SealRoster:
        if self._roster is None or self._roster.roster != number:
            raise PeerViolation(f"roster {number} is not known here")
        return self._roster

    def _check(self, one: MemberKey) -> None:
        if self._bad is not None and one.node in self._bad:
            raise PeerViolation(f"the key of {one.node} does not hold: {self._bad[one.node]}", peer=one.node)
