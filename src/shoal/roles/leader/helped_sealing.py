"""Sealed sums that a helper opens: the leader asks one node for the sum of masks, once a group. A part of the leader.

A device speaks once, and a device that is lost after its upload costs nothing. While the helper is away, nothing is
lent and no group is bound.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.roles.aggregation.formations import Summed
from shoal.roles.leader.leases import Leases
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.sealing import SealedGroup, Sealing
from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Lease
from shoal.sealing.graph import GraphShape, helped_shape
from shoal.sealing.group import bits_of
from shoal.states import SealPhase
from shoal.wire.messages import AskMasks, MaskSum, MemberKey, Message, Ready, SealKey, SealRefused, Wait

#: A helper adds up the masks of a sum within this, or the sum is given up: 256 masks of 100 million words take a core
#: 40 s.
MASKS_S = 90.0


class HelpedSealing(Sealing):
    def __init__(self, machine: Machine, shared: Shared, *, leases: Leases) -> None:
        super().__init__(machine, shared, leases=leases)
        if self.helper is None:
            raise Misuse("this plan has no helper")
        self._helper = self.helper
        #: The helper's answer about the present group.
        self._masks: np.ndarray | None = None

    # The helper ----------------------------------------------------------------------------------------

    def held_up(self) -> str | None:
        if self._helper in self._keys:
            return None
        return f"{self._helper} is away: it is the helper that opens sums, and nothing is trained without it"

    def on_helper(self, message: Message) -> None:
        """The helper speaks. It is lent nothing, whatever it says."""
        match message:
            case SealKey() if message.term == self._term and message.key.node == self._helper:
                self._on_helper_key(message.key)
            case MaskSum() if self.awaits_masks(self._helper, message):
                self._on_masks(message)
            case SealRefused() if message.term == self._term:
                group = self._current()
                if group is not None and group.phase is SealPhase.OPENING and message.group == group.number:
                    self._make_void(group, f"{self._helper} refused: {message.reason}")
            case Ready():
                self._tell_to_wait()
            case _:
                pass

    def _on_helper_key(self, key: MemberKey) -> None:
        is_new, group = self._keys.get(self._helper) != key, self._current()
        self._keys[self._helper] = key
        self._told.pop(self._helper, None)
        self._tell_to_wait()
        if is_new:
            self._machine.record("helper", f"{self._helper} is here to open sums")
        if group is None:
            return
        if is_new:
            self._make_void(group, f"{self._helper} has another key now: it began again")
        elif group.phase is SealPhase.OPENING:
            # The question or the answer may be lost with its session. If the answer is, it says so.
            self._ask_helper(group)

    def _tell_to_wait(self) -> None:
        self._machine.send(self._helper, Wait(job=self._spec.job, reason="it opens sums, and trains nothing"))

    def on_gone(self, node: str, reason: str) -> None:
        if node != self._helper or self._keys.pop(node, None) is None:
            return
        self._machine.record("helper", f"{self._helper} is away: {reason}")
        if (group := self._current()) is not None:
            self._make_void(group, f"{self._helper} is away")

    # Groups --------------------------------------------------------------------------------------------

    def _bind(self, leases: list[Lease]) -> bool:
        if not super()._bind(leases):
            return False
        self._masks = None
        self._tell_roster(self._helper)
        return True

    def _shape(self, devices: int) -> GraphShape:
        return helped_shape(devices, self._sealed.liars_of(devices))

    def _make_roster(self, members: tuple[str, ...]) -> None:
        super()._make_roster((*members, self._helper))

    def _group_most(self) -> int:
        """The roster has the helper too."""
        return super()._group_most() - 1

    # Its sum -------------------------------------------------------------------------------------------

    def _agree(self, group: SealedGroup) -> None:
        """Nobody but the helper is asked about the set."""
        self._close(group)
        group.phase, group.asked_s = SealPhase.OPENING, self._machine.now_s
        self._ask_helper(group)

    def _ask_helper(self, group: SealedGroup) -> None:
        present, nodes = sorted(group.reports), [key.node for key in self._roster]
        self._tell_roster(self._helper)
        ask = AskMasks(
            job=self._spec.job,
            term=self._term,
            group=group.number,
            roster=self._roster_number,
            members=bits_of([nodes.index(node) for node in group.members], len(nodes)),
            bound=group.label.bound,
            weight_most=group.label.weight_most,
            base=group.label.base,
            places=group.label.places,
            words=group.total.size,
            present=bits_of(present, len(group.members)),
            envelopes=b"".join(group.seals[place] for place in present),
        )
        self._machine.send(self._helper, ask)

    def awaits_masks(self, sender: str, message: MaskSum) -> bool:
        if sender != self._helper:
            return False
        group = self._group
        is_asked = group is not None and group.phase is SealPhase.OPENING and self._masks is None
        return is_asked and (message.term, message.group) == (self._term, self._number)

    def _on_masks(self, message: MaskSum) -> None:
        group = self._current()
        if group is None:
            return
        try:
            self._masks = _words_of(message, group.total)
        except PeerViolation as violation:
            self._make_void(group, f"{self._helper} answered with {violation.reason}")

    def _look_for_shares(self, group: SealedGroup) -> Summed | None:
        if self._masks is not None:
            np.subtract(group.total, self._masks, out=group.total)
            self._masks = None
            return self._opened_sum(group)
        if self._machine.now_s - group.asked_s > MASKS_S:
            self._make_void(group, f"{self._helper} has not answered for {MASKS_S:.0f} s")
        return None


def _words_of(message: MaskSum, total: np.ndarray) -> np.ndarray:
    words = message.tensors.get("words")
    if words is None or words.dtype != total.dtype or words.shape != total.shape:
        raise PeerViolation(f"what is not {total.size} words of {8 * total.itemsize} bits")
    return np.array(words)


def sealing_of(machine: Machine, shared: Shared, *, leases: Leases) -> Sealing | None:
    """How sums of this job are opened; None: updates are not sealed."""
    trust = shared.spec.plan.believes
    if trust.sealed is None:
        return None
    return (Sealing if trust.helper is None else HelpedSealing)(machine, shared, leases=leases)
