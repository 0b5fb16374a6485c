"""A worker's part in sealed sums: what it seals, agrees to and opens, and what it refuses. A part of the worker.

The promises of a device, whatever its leader is: it takes no label that is not above its newest, so that no mask is
used twice; it agrees to one set of members a label (``sealing.device``); it never seals an update again for which it
answered ``Open``, so that no two sums differ by it alone; and it seals only with members whose keys the cluster's
devices signed, and with at least as many as the plan says. Where a helper opens sums, a device seals an update once and
answers nothing: it cannot know whether the sum was opened. Where the plan is private too, it counts a participation for
each group before it seals for it, and refuses groups in which its share of noise would be too little.

Keys and chance are the driver's. A process that starts again has new keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.compress.codec import Codec
from shoal.errors import Misuse, PeerViolation
from shoal.learning.privacy import SharedPrivacy
from shoal.roles.actions import Seal
from shoal.roles.aggregation.delivery import Held, SealedWords, UpdateDelivery
from shoal.roles.events import Participated, RosterChecked, SealKeyMade, UpdateSealed
from shoal.roles.participation import Participation
from shoal.roles.seal_roster import SealKeyRoster, label_of
from shoal.roles.worker_machine import WorkerMachine
from shoal.sealing.fixed import BOUND_MAX
from shoal.sealing.graph import helped_shape, shape_of
from shoal.sealing.group import MaskGraph, members_of
from shoal.sealing.request import SealRequest
from shoal.states import WorkerPhase
from shoal.wire.coded import decode_places, entries_max, places_digest
from shoal.wire.messages import (
    Agree,
    Agreed,
    Bind,
    JobSpec,
    MemberKey,
    Open,
    Opened,
    SealRefused,
    SealRoster,
    Update,
    clip,
)

if TYPE_CHECKING:
    from shoal.sealing.device import SealedUpdate


class DeviceSealing:
    """Keeps no lease itself: inputs that concern one name the one in hand."""

    def __init__(
        self, worker: WorkerMachine, spec: JobSpec, participation: Participation, delivery: UpdateDelivery
    ) -> None:
        self._worker = worker
        self._delivery = delivery
        self._spec = spec
        self._sealed = spec.plan.believes.sealed
        #: A sum of fewer devices is not helped to.
        self._least = spec.plan.opened_least
        privacy = spec.plan.privacy
        #: Where the plan is private too.
        self._privacy = privacy if isinstance(privacy, SharedPrivacy) else None
        self._participation = participation
        #: A group that is being counted, and what is to be sealed for it then.
        self._counting: SealRequest | None = None
        self._roster = SealKeyRoster(worker)
        #: A group to seal for once the roster was looked at.
        self._waiting: Bind | None = None
        #: (term, group) of the newest label.
        self._newest = (0, 0)
        #: The formation whose aggregators its words go to; 0: straight to the leader.
        self._way = 0
        #: The group of the update that was sealed last, its lease, and what is kept of it.
        self._kept: tuple[int, int, SealedUpdate] | None = None
        #: (term, lease) of the last update for which this device answered ``Open``; with a helper, that it sent sealed.
        self._spent = (0, 0)

    @property
    def is_on(self) -> bool:
        """Updates of this job are sealed."""
        return self._sealed is not None

    # Keys ----------------------------------------------------------------------------------------------

    def announce(self, *, again: bool = False) -> None:
        """Tell the leader this device's key, once a session and term; again where it may not have been heard."""
        if self._sealed is not None and self._roster.announce(again=again):
            # Nothing of an older term is of use: its labels are void.
            self._waiting = self._kept = None

    def on_disconnected(self) -> None:
        self._roster.on_disconnected()

    def on_key(self, event: SealKeyMade) -> None:
        self._roster.on_key(event)

    def on_roster(self, message: SealRoster) -> None:
        if self._sealed is not None:
            self._roster.on_roster(message)

    def on_checked(self, event: RosterChecked, held: Held | None) -> None:
        if self._roster.on_checked(event) and self._waiting is not None and held is not None:
            waiting, self._waiting = self._waiting, None
            self.on_bind(held, waiting)

    # Sealing -------------------------------------------------------------------------------------------

    def on_bind(self, held: Held, bind: Bind) -> None:
        """The leader has a group for the update in hand."""
        if self._sealed is None or not isinstance(held.result, Update) or bind.term != self._worker.term:
            return
        if (bind.term, bind.group) <= self._newest:
            # Heard before, or made up: a mask is used once.
            self._worker.record("seal-refused", f"group {bind.group} is not above {self._newest[1]}", job=bind.job)
            return
        if self._roster.is_looked_at(bind.roster):
            self._waiting = bind
            return
        self._newest, self._way = (bind.term, bind.group), bind.formation
        self._kept = self._counting = None
        try:
            request = self._request(held.result, bind)
        except (PeerViolation, Misuse) as problem:
            self._refuse(bind.group, str(problem), about=getattr(problem, "peer", None) or "")
            return
        if (why := self._participation.refusal(held.work)) is not None:
            self._refuse(bind.group, why)
            return
        self._worker.become(WorkerPhase.WAITING, f"the update is being sealed with {request.group.size - 1} others")
        if self._participation.may_leave(held.work, group=bind.group):
            self._worker.act(Seal(lease=held.work.lease, request=request))
        else:
            self._counting = request

    def on_counted(self, held: Held, event: Participated) -> None:
        """A participation is durable: the update may be sealed for the group that it was counted for."""
        request = self._counting
        if request is not None and request.label.turn == (event.term, event.group):
            self._counting = None
            self._worker.act(Seal(lease=held.work.lease, request=request))

    def _request(self, update: Update, bind: Bind) -> SealRequest:
        """What is to be sealed. Raises where this device would hide among too few, or among strangers."""
        sealed, key = self._sealed, self._roster.key
        assert sealed is not None
        if (update.term, update.lease) == self._spent:
            raise PeerViolation("spent: a sum with this update was opened, or may be")
        members = self._roster.members(bind)
        if key is None or key not in members:
            raise PeerViolation("the group does not have this device's key")
        least, privacy = self._least, self._privacy
        if len(members) < least:
            raise PeerViolation(f"a group of {len(members)}, where at least {least} hide each other")
        if privacy is not None and len(members) > privacy.devices:
            raise PeerViolation(f"a group of {len(members)}, where the plan's share of liars is of {privacy.devices}")
        if not 0 < update.examples <= bind.weight_most or abs(bind.bound) > BOUND_MAX:
            raise PeerViolation(f"an update of {update.examples} examples, of at most {bind.weight_most}")
        delta, codec = update.tensors["delta"], Codec.parse(self._spec.plan.codec)
        words_at = None
        if codec.form == "led":
            count = entries_max(codec, (delta.size,))
            words_at = decode_places(bind.tensors, count=count, size=delta.size)
        helper = self._helper_of(bind, members)
        count = len(members)
        shape = shape_of(count, sealed.colluding, sealed.lost) if helper is None else helped_shape(count)
        return SealRequest(
            label=label_of(self._spec.signature, bind, members, places=places_digest(bind.tensors)),
            group=MaskGraph.of(shape, tuple(one.nonce for one in members), least=least),
            place=members.index(key),
            factor=update.examples / bind.weight_most if privacy is None else 1.0,
            word_bits=codec.word_bits,
            places=words_at,
            noise=privacy.point if privacy is not None else None,
            helper=helper,
            update=delta,
        )

    def _helper_of(self, bind: Bind, members: list[MemberKey]) -> tuple[str, bytes] | None:
        """The name and the key of the helper that opens sums; None: the plan has none. Raises PeerViolation where it is
        one with the leader or a member: then it would know what it is to take off."""
        helper = self._spec.plan.believes.helper
        if helper is None:
            return None
        if helper == self._worker.leader or any(one.node == helper for one in members):
            raise PeerViolation(f"{helper} is to open sums, so that it neither leads this job nor trains for it")
        return helper, self._roster.get(helper, bind.roster).public

    def on_sealed(self, held: Held, event: UpdateSealed) -> None:
        """The masked update goes its way. It stays here unmasked until the leader is done with it."""
        worker = self._worker
        if (held.work.term, event.group) != self._newest or not isinstance(held.result, Update):
            return
        if event.kept is None:
            self._refuse(event.group, event.reason)
            return
        if not worker.is_connected:
            # It is offered again with the next session, and sealed in another group.
            return
        if self._spec.plan.believes.helper is None:
            self._kept = (event.group, event.lease, event.kept)
        else:
            # Nobody asks this device whether the sum is opened. So it seals an update once, and not for a second sum.
            self._spent = (held.work.term, event.lease)
        sealed = SealedWords(event.group, event.tensors["words"], event.tensors["seals"])
        self._delivery.send_sealed(held, sealed, formation=self._way)

    # Opening -------------------------------------------------------------------------------------------

    def on_agree(self, message: Agree) -> None:
        if (kept := self._of(message)) is None:
            return
        try:
            agreement = kept.agree(frozenset(members_of(message.present, kept.size)))
        except PeerViolation as violation:
            self._refuse(message.group, violation.reason)
            return
        worker = self._worker
        agreed = Agreed(
            job=worker.job, term=message.term, group=message.group, macs=agreement.macs, edges=agreement.edges
        )
        worker.send(worker.leader, agreed)

    def on_open(self, message: Open) -> None:
        if (kept := self._of(message)) is None or self._kept is None:
            return
        try:
            vanished = kept.envelopes_of(
                members_of(message.vanished or bytes((kept.size + 7) // 8), kept.size), message.vanished_envelopes
            )
            shares, edges = kept.open(message.macs, message.envelopes, vanished)
        except PeerViolation as violation:
            self._refuse(message.group, violation.reason)
            return
        worker = self._worker
        self._spent = (message.term, self._kept[1])
        opened = Opened(job=worker.job, term=message.term, group=message.group, shares=shares, edges=edges)
        worker.send(worker.leader, opened)

    def _of(self, message: Agree | Open) -> SealedUpdate | None:
        """What is kept of the update that a question is about; None: nothing, so that it is not answered."""
        is_ours = message.term == self._worker.term and self._kept is not None and self._kept[0] == message.group
        return self._kept[2] if is_ours and self._kept is not None else None

    def _refuse(self, group: int, reason: str, *, about: str = "") -> None:
        worker = self._worker
        worker.record("seal-refused", f"group {group}: {reason}", job=worker.job)
        if worker.is_connected:
            refused = SealRefused(job=worker.job, term=worker.term, group=group, reason=clip(reason), node=about)
            worker.send(worker.leader, refused)
