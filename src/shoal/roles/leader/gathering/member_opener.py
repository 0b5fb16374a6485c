"""The members of a group open its sum: they agree on whose updates are in it, then tell shares of the masks.

An opener of the leader's sealed sums.
"""

from __future__ import annotations

from shoal.errors import Misuse, PeerViolation
from shoal.roles.leader.gathering.sealed_group import ANSWER_S, SealedGroup, Unopened
from shoal.roles.leader.parts import Shared
from shoal.roles.machine import Machine
from shoal.sealing.graph import GraphShape, shape_of
from shoal.sealing.group import OpenedPart, bits_of, members_of
from shoal.sealing.opening import SumOpening, unmask
from shoal.states import SealPhase
from shoal.wire.messages import Agree, Agreed, Open, Opened


class MemberOpener:
    def __init__(self, machine: Machine, shared: Shared) -> None:
        self._machine = machine
        self._job, self._term = shared.spec.job, shared.term
        sealed = shared.spec.plan.believes.sealed
        if sealed is None:
            raise Misuse("updates of this plan are not sealed")
        self._sealed = sealed

    def held_up(self) -> str | None:
        """Return None: members that offer updates are there."""
        return None

    def shape(self, devices: int) -> GraphShape:
        return shape_of(devices, self._sealed.liars_of(devices), self._sealed.lost)

    def begin(self, group: SealedGroup) -> None:
        group.enter(SealPhase.AGREEING)
        group.opening = SumOpening(group.graph, group.seals, group.label.digest())
        self._ask(group, sorted(group.reports))

    def ask_again(self, group: SealedGroup, place: int) -> None:
        if group.opening is not None and place in group.reports and place not in group.lost:
            self._ask(group, [place])

    def _ask(self, group: SealedGroup, places: list[int]) -> None:
        opening = group.opening
        assert opening is not None
        group.asked_s = self._machine.now_s
        head = {"job": self._job, "term": self._term, "group": group.number}
        size = group.graph.size
        for place in places:
            if place in group.lost:
                continue
            if group.phase is SealPhase.AGREEING:
                self._machine.send(group.members[place], Agree(**head, present=bits_of(opening.present, size)))  # type: ignore[arg-type]
                continue
            if place not in opening.agreed:
                continue
            request = opening.request(place)
            question = Open(
                **head,  # type: ignore[arg-type]
                macs=request.macs,
                envelopes=request.envelopes,
                vanished=bits_of(request.vanished, size),
                vanished_envelopes=request.vanished_envelopes,
            )
            self._machine.send(group.members[place], question)

    def on_answer(self, group: SealedGroup, place: int, message: Agreed | Opened) -> None:
        if group.opening is None:
            return
        if isinstance(message, Agreed):
            if group.phase is SealPhase.AGREEING and place in group.reports:
                group.opening.on_agreed(place, message.macs)
        elif group.phase is SealPhase.OPENING and place in group.opening.agreed:
            part = OpenedPart(message.shares, message.edges, message.vanished_edges)
            group.opening.on_opened(place, part, members_of(message.vanished, group.graph.size))

    def look(self, group: SealedGroup) -> bool:
        if group.phase is SealPhase.AGREEING:
            self._look_for_agreement(group)
            return False
        return self._look_for_shares(group)

    def _look_for_agreement(self, group: SealedGroup) -> None:
        opening = group.opening
        assert opening is not None
        if opening.present - opening.agreed - group.lost and not self._is_overdue(group):
            return
        if not opening.may_open:
            raise Unopened(f"{len(opening.agreed)} of {len(opening.present)} members agreed")
        opening.begin()
        group.enter(SealPhase.OPENING)
        self._ask(group, sorted(opening.agreed))

    def _look_for_shares(self, group: SealedGroup) -> bool:
        opening = group.opening
        assert opening is not None
        is_over = not (opening.awaited - group.lost) or self._is_overdue(group)
        if opening.is_enough:
            try:
                unmask(group.total, opening.masks(), opening.label)
                return True
            except PeerViolation as violation:
                if is_over:
                    raise Unopened(violation.reason) from None
                return False
        if is_over and opening.begin_again():
            # Some vanished after they agreed: their neighbours have shares of their edges.
            self._ask(group, sorted(opening.opened))
        elif is_over:
            raise Unopened(f"{len(opening.opened)} of {len(opening.agreed)} members opened")
        return False

    def _is_overdue(self, group: SealedGroup) -> bool:
        return self._machine.now_s - group.asked_s > ANSWER_S
