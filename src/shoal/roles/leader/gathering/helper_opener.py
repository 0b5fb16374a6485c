"""A helper opens sealed sums: the leader asks this node for the sum of masks, once per group.

An opener of the leader's sealed sums. A device speaks once, and a device that is lost after its upload costs nothing.
While the helper is away, nothing is leased and no group is bound.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.roles.leader.gathering.key_roster import KeyRoster
from shoal.roles.leader.gathering.sealed_group import SealedGroup, Unopened
from shoal.roles.leader.parts import Shared
from shoal.roles.machine import Machine
from shoal.sealing.graph import GraphShape, helped_shape
from shoal.sealing.group import HELPER_ENVELOPE_BYTES, bits_of
from shoal.sealing.opening import covers_in, unmask
from shoal.states import SealPhase
from shoal.wire.messages import Agreed, AskMasks, MaskSum, MemberKey, Message, Opened, Ready, SealKey, SealRefused, Wait

#: A helper adds up the masks of a sum within this, or the sum is given up: 256 masks of 100 million words take a core
#: 40 s.
MASKS_S = 90.0


class HelperOpener:
    def __init__(self, machine: Machine, shared: Shared, *, roster: KeyRoster) -> None:
        self._machine = machine
        self._job, self._term = shared.spec.job, shared.term
        trust = shared.spec.plan.believes
        if trust.helper is None or trust.sealed is None:
            raise Misuse("this plan has no helper")
        self.node = trust.helper
        self._sealed = trust.sealed
        self._roster = roster
        #: The helper's answer about the present group.
        self._masks: np.ndarray | None = None

    # The helper ----------------------------------------------------------------------------------------

    def held_up(self) -> str | None:
        if self.node in self._roster.keys:
            return None
        return f"{self.node} is away: it is the helper that opens sums, and nothing is trained without it"

    def on_message(self, message: Message, group: SealedGroup | None) -> str | None:
        """Return why the present group is void by what the helper says, or None if it is not."""
        match message:
            case SealKey() if message.term == self._term and message.key.node == self.node:
                return self._on_key(message.key, group)
            case MaskSum() if group is not None and self.awaits(message, group):
                return self._on_mask_sum(message, group)
            case SealRefused() if message.term == self._term:
                if group is not None and group.phase is SealPhase.OPENING and message.group == group.number:
                    return f"{self.node} refused: {message.reason}"
            case Ready():
                self._tell_to_wait()
            case _:
                pass
        return None

    def _on_key(self, key: MemberKey, group: SealedGroup | None) -> str | None:
        is_new = self._roster.on_key(key)
        self._tell_to_wait()
        if is_new:
            self._machine.record("helper.connected", f"{self.node} is ready to open sums")
            return f"{self.node} has another key now: it began again"
        if group is not None and group.phase is SealPhase.OPENING:
            # The question or the answer may be lost with its session. If the answer is, it says so.
            self._ask(group)
        return None

    def _tell_to_wait(self) -> None:
        self._machine.send(self.node, Wait(job=self._job, reason="it opens sums, and trains nothing"))

    def on_gone(self, node: str, reason: str) -> bool:
        """Return whether it is the helper that is gone. No group can be opened then."""
        if node != self.node or not self._roster.remove(node):
            return False
        self._machine.record("helper.lost", f"{self.node}: {reason}")
        return True

    # Its sum -------------------------------------------------------------------------------------------

    def shape(self, devices: int) -> GraphShape:
        return helped_shape(devices, self._sealed.liars_of(devices))

    def begin(self, group: SealedGroup) -> None:
        """Nobody but the helper is asked about the set of members."""
        self._masks = None
        group.enter(SealPhase.OPENING)
        group.asked_s = self._machine.now_s
        self._ask(group)

    def ask_again(self, group: SealedGroup, place: int) -> None:
        """Do nothing: members are asked nothing."""

    def on_answer(self, group: SealedGroup, place: int, message: Agreed | Opened) -> None:
        """Do nothing: a member that answers was not asked."""

    def _ask(self, group: SealedGroup) -> None:
        present, nodes = sorted(group.reports), [key.node for key in self._roster.now]
        self._roster.tell(self.node)
        ask = AskMasks(
            job=self._job,
            term=self._term,
            group=group.number,
            roster=self._roster.number,
            members=bits_of([nodes.index(node) for node in group.members], len(nodes)),
            bound=group.label.bound,
            weight_most=group.label.weight_most,
            base=group.label.base,
            places=group.label.places,
            words=group.total.size,
            present=bits_of(present, len(group.members)),
            # The seeds of covers stay here: the helper knows the other masks.
            envelopes=b"".join(group.seals[place][:HELPER_ENVELOPE_BYTES] for place in present),
        )
        self._machine.send(self.node, ask)

    def awaits(self, message: MaskSum, group: SealedGroup | None) -> bool:
        """Whether the helper was asked for this sum, and it has not come."""
        if group is None or group.phase is not SealPhase.OPENING or self._masks is not None:
            return False
        return (message.term, message.group) == (self._term, group.number)

    def _on_mask_sum(self, message: MaskSum, group: SealedGroup) -> str | None:
        try:
            self._masks = _words_of(message, group.total)
        except PeerViolation as violation:
            return f"{self.node} answered with {violation.reason}"
        return None

    def look(self, group: SealedGroup) -> bool:
        if self._masks is not None:
            np.subtract(group.total, self._masks, out=group.total)
            unmask(group.total, covers_in(group.seals.values()), group.label.digest())
            self._masks = None
            return True
        if self._machine.now_s - group.asked_s > MASKS_S:
            raise Unopened(f"{self.node} has not answered for {MASKS_S:.0f} s")
        return False


def _words_of(message: MaskSum, total: np.ndarray) -> np.ndarray:
    words = message.tensors.get("words")
    if words is None or words.dtype != total.dtype or words.shape != total.shape:
        raise PeerViolation(f"what is not {total.size} words of {8 * total.itemsize} bits")
    return np.array(words)
