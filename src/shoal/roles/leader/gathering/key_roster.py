"""The keys by which devices seal, and the roster of keys that members of a group have alike. A part of the leader."""

from __future__ import annotations

from shoal.roles.leader.workers import Workers
from shoal.roles.machine import Machine
from shoal.sealing.graph import GROUP_MAX
from shoal.wire.limits import ENVELOPE_MAX_BYTES
from shoal.wire.messages import MemberKey, SealRoster

#: Bytes of a roster per device beside its certificate: names, a key, a nonce, a signature, and where each begins.
KEY_AND_NAME_MAX_BYTES = 224


class KeyRoster:
    def __init__(self, machine: Machine, workers: Workers, *, job: str, term: int, helper: str | None) -> None:
        """``helper``: the node that opens sums, where one does. Every roster has its key too."""
        self._machine, self._workers = machine, workers
        self._job, self._term = job, term
        self._helpers: tuple[str, ...] = () if helper is None else (helper,)
        #: The newest key of each node.
        self.keys: dict[str, MemberKey] = {}
        #: The present roster.
        self.now: tuple[MemberKey, ...] = ()
        self.number = 0
        #: Node -> the roster it was sent last.
        self._told: dict[str, int] = {}

    def on_key(self, key: MemberKey) -> bool:
        """Return whether the key is new. A node says its key in each session: what it was sent before may be lost."""
        is_new = self.keys.get(key.node) != key
        self.keys[key.node] = key
        self._told.pop(key.node, None)
        return is_new

    def remove(self, node: str) -> bool:
        """Return whether there was a key of this node."""
        return self.keys.pop(node, None) is not None

    @property
    def members_most(self) -> int:
        """A roster is one message: where managers have authorities of their own, certificates take twice the room."""
        sizes = (len(key.certificate) + len(key.card) + len(key.card_signature) for key in self.keys.values())
        largest = max(sizes, default=0) + KEY_AND_NAME_MAX_BYTES
        return min(GROUP_MAX, ENVELOPE_MAX_BYTES // largest) - len(self._helpers)

    def make(self, members: tuple[str, ...]) -> None:
        """Make a new roster if a member, or the helper, is missing in it or has another key."""
        needed = (*members, *self._helpers)
        known = {key.node: key for key in self.now}
        if all(known.get(node) == self.keys[node] for node in needed):
            return
        nodes = [node for node in sorted(self.keys) if self._workers.get(node) is not None and node not in needed]
        chosen = sorted([*needed, *nodes[: self.members_most - len(members)]])
        self.now = tuple(self.keys[node] for node in chosen)
        self.number += 1

    def tell(self, node: str) -> None:
        """Send a node the present roster, unless it has it."""
        if self._told.get(node) != self.number:
            self._told[node] = self.number
            roster = SealRoster(job=self._job, term=self._term, roster=self.number, keys=self.now)
            self._machine.send(node, roster)
