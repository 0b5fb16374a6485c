"""A worker's part in sealed sums: what it seals, agrees to and opens, and what it refuses. A part of the worker.

The promises of a device, whatever its leader does:

- it trains with the learning rate and the number of examples that the signed plan says, not with the leader's word;
- it takes no label that is not above its newest, so that no mask is used twice;
- it seals an update once. Others may open a sum with it without asking this device, so an update that was sealed is
  never in a second group, and no lease is trained twice;
- it seals only with members whose keys the cluster's devices signed, with as many as the plan says, and with none that
  trained on more than ``EXAMPLES_APART`` times as many examples. All count alike: weights would tell whose a value is;
- it agrees to one set of members per label, and opens nothing before enough members agreed to the same
  (``sealing.device``);
- figures of its training are words of the sum, and nothing else of a training leaves it.

Where the plan is private too, it counts a participation for each group before it seals for it, and refuses groups in
which its share of noise would be too little.

Keys and chance are the driver's. A process that starts again has new keys.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shoal.compress.codec import Codec
from shoal.errors import Misuse, PeerViolation
from shoal.learning.privacy import SharedPrivacy
from shoal.roles.actions import Seal
from shoal.roles.aggregation.delivery import Held, SealedWords, UpdateDelivery
from shoal.roles.events import Participated, RosterChecked, SealKeyMade, Trained, UpdateSealed
from shoal.roles.participation import Participation
from shoal.roles.seal_roster import SealKeyRoster, label_of
from shoal.roles.worker_machine import WorkerMachine
from shoal.sealing.figures import LOSS_MAX
from shoal.sealing.fixed import BOUND_MAX
from shoal.sealing.graph import helped_shape, shape_of
from shoal.sealing.group import MaskGraph, bits_of, members_of
from shoal.sealing.request import SealRequest
from shoal.states import WorkerPhase
from shoal.trust import EXAMPLES_APART
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
    Work,
    clip,
)

if TYPE_CHECKING:
    from shoal.sealing.device import SealedUpdate


#: What a leader is told of a training that failed under a sealed plan.
UNTOLD = "the training failed: its device's journal says why (`shoal logs`)"

#: How far the learning rate of a lease may differ from the plan's, as a part of it: processors round differently.
RATE_ROUNDING = 1e-6


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
        #: The group of the update that was sealed last, and what is kept of it.
        self._kept: tuple[int, SealedUpdate] | None = None
        #: (term, lease) of the last update whose words left sealed: a sum with it may be opened.
        self._spent = (0, 0)
        #: (term, lease) of the newest training.
        self._begun = (0, 0)
        #: The digest of the model that the update in hand was trained on, and figures that only the sum tells.
        self._trained: tuple[bytes, tuple[float, float]] = (b"", (0.0, 0.0))
        #: Drawn by this device and told to nobody.
        self._chance = b""

    @property
    def is_on(self) -> bool:
        """Updates of this job are sealed."""
        return self._sealed is not None

    @property
    def spent(self) -> tuple[int, int]:
        """Term and lease of the last update whose words left sealed."""
        return self._spent

    # Leases --------------------------------------------------------------------------------------------

    def refusal(self, work: Work) -> str | None:
        """Return why this device does not train a lease that differs from the plan which the operator signed. A leader
        that chose a rate or a size for each device could make a sum of many the update of one."""
        plan = self._spec.plan
        if self._sealed is None or work.kind != "train":
            return None
        rate = plan.rate_at(work.version)
        if abs(work.rate - rate) > RATE_ROUNDING * abs(rate):
            return f"the leader names a learning rate of {work.rate:g}, where the plan has {rate:g}"
        if plan.data != "local":
            return None
        if not self._chance:
            return "this device has not drawn its key yet"
        least, most = plan.sealed_examples
        if not least <= work.examples <= most:
            asked = f"{least}" if least == most else f"{least} to {most}"
            return f"the leader lends {work.examples} examples, where the plan has {asked}"
        return None

    def was_begun(self, work: Work) -> bool:
        """Whether this lease, or a newer one, was trained before. Trained again, its update would be the same, in a
        second sum; and of two trainings under one number, one could be sealed as the other."""
        return self._sealed is not None and work.kind == "train" and (work.term, work.lease) <= self._begun

    def begin(self, work: Work) -> tuple[int, ...]:
        """Begin a training. Returns the turn by which this device chooses and orders its own examples, drawn by itself:
        a leader that could name it would have the same update twice, in two sums that differ by it only."""
        self._begun = (work.term, work.lease)
        if self._sealed is None or self._spec.plan.data != "local":
            return work.batches
        told = self._chance + f" {work.term} {work.lease}".encode()
        return (int.from_bytes(hashlib.sha256(told).digest()[:4], "big") >> 1,)

    def note(self, event: Trained, *, has_diverged: bool) -> Trained:
        """Keep what a training tells for the sum, and return it without. A training that diverged is sealed as zeros:
        whether one device's did would tell of its examples. The update is copied: the trainer uses its memory again."""
        loss = 0.0 if has_diverged else event.loss_sum / max(1, event.examples)
        self._trained = (event.model, (loss / LOSS_MAX, float(has_diverged)))
        delta = event.tensors["delta"]
        tensors = {"delta": np.zeros_like(delta) if has_diverged else delta.copy()}
        return replace(event, tensors=tensors, loss_sum=0.0, fresh=0, fresh_metrics=(), labels=(), logged=())

    # Keys ----------------------------------------------------------------------------------------------

    def announce(self, *, again: bool = False) -> None:
        """Tell the leader this device's key, once a session and term; again where it may not have been heard."""
        if self._sealed is not None and self._roster.announce(again=again):
            # Nothing of an older term is of use: its labels are void.
            self._waiting = self._kept = None

    def on_disconnected(self) -> None:
        self._roster.on_disconnected()

    def on_key(self, event: SealKeyMade) -> None:
        self._chance = event.chance
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
            request = self._request(held.work, held.result, bind)
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

    def _request(self, work: Work, update: Update, bind: Bind) -> SealRequest:
        """What is to be sealed. Raises where this device would hide among too few, or among strangers."""
        sealed, key = self._sealed, self._roster.key
        assert sealed is not None
        if (update.term, update.lease) == self._spent:
            raise PeerViolation("this update was sealed before, and a sum with it may be opened")
        members = self._roster.members(bind)
        if key is None or key not in members:
            raise PeerViolation("the group does not have this device's key")
        privacy, count = self._privacy, len(members)
        if privacy is not None and count > privacy.devices:
            raise PeerViolation(f"a group of {count}, where the plan's share of liars is of {privacy.devices}")
        if not 0 < update.examples <= bind.weight_most or abs(bind.bound) > BOUND_MAX:
            raise PeerViolation(f"an update of {update.examples} examples, of at most {bind.weight_most}")
        if privacy is None and self._spec.plan.data == "local" and EXAMPLES_APART * update.examples < bind.weight_most:
            raise PeerViolation(f"an update of {update.examples} examples beside one of {bind.weight_most}")
        delta, codec = update.tensors["delta"], Codec.parse(self._spec.plan.codec)
        words_at = None
        if codec.form == "led":
            words_at = decode_places(bind.tensors, count=entries_max(codec, (delta.size,)), size=delta.size)
        helper, liars = self._helper_of(bind, members), sealed.liars_of(count)
        shape = shape_of(count, liars, sealed.lost) if helper is None else helped_shape(count, liars)
        if count < (least := shape.least(self._least)):
            raise PeerViolation(f"a group of {count}, where at least {least} hide each other")
        return SealRequest(
            label=label_of(self._spec.signature, bind, members, places=places_digest(bind.tensors)),
            model=self._trained[0],
            version=work.version,
            epoch=work.epoch,
            group=MaskGraph.of(shape, tuple(one.nonce for one in members), least=self._least),
            place=members.index(key),
            word_bits=codec.word_bits,
            places=words_at,
            noise=privacy.point if privacy is not None else None,
            helper=helper,
            update=delta,
            figures=self._trained[1],
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
        # Nobody has to ask this device whether a sum with it is opened. So an update is sealed for one sum.
        self._spent = (held.work.term, event.lease)
        if self._spec.plan.believes.helper is None:
            self._kept = (event.group, event.kept)
        sealed = SealedWords(event.group, event.tensors["words"], event.tensors["seals"])
        self._delivery.send_sealed(held, sealed, formation=self._way)

    # Opening -------------------------------------------------------------------------------------------

    def on_agree(self, message: Agree) -> None:
        if (kept := self._of(message)) is None:
            return
        try:
            macs = kept.agree(frozenset(members_of(message.present, kept.size)))
        except PeerViolation as violation:
            self._refuse(message.group, violation.reason)
            return
        worker = self._worker
        worker.send(worker.leader, Agreed(job=worker.job, term=message.term, group=message.group, macs=macs))

    def on_open(self, message: Open) -> None:
        if (kept := self._of(message)) is None:
            return
        try:
            vanished = members_of(message.vanished or bytes((kept.size + 7) // 8), kept.size)
            part = kept.open(message.macs, message.envelopes, kept.envelopes_of(vanished, message.vanished_envelopes))
        except PeerViolation as violation:
            self._refuse(message.group, violation.reason)
            return
        worker = self._worker
        opened = Opened(
            job=worker.job,
            term=message.term,
            group=message.group,
            shares=part.shares,
            edges=part.edges,
            vanished=bits_of(vanished, kept.size),
            vanished_edges=part.vanished_edges,
        )
        worker.send(worker.leader, opened)

    def _of(self, message: Agree | Open) -> SealedUpdate | None:
        """What is kept of the update that a question is about; None: nothing, so that it is not answered."""
        is_ours = message.term == self._worker.term and self._kept is not None and self._kept[0] == message.group
        return self._kept[1] if is_ours and self._kept is not None else None

    def _refuse(self, group: int, reason: str, *, about: str = "") -> None:
        worker = self._worker
        worker.record("seal-refused", f"group {group}: {reason}", job=worker.job)
        if worker.is_connected:
            refused = SealRefused(job=worker.job, term=worker.term, group=group, reason=clip(reason), node=about)
            worker.send(worker.leader, refused)
