"""A worker's part in sealed sums: what it seals, agrees to and opens, and what it refuses. A part of the worker.

The promises of a device, whatever its leader does:

- it trains with the learning rate and the number of examples of the signed plan, whatever the leader sends;
- it refuses a label that is not above its newest, so that no mask is used twice;
- it seals an update once. Others may open a sum with it without asking this device, so an update that was sealed is
  never in a second group, and no lease is trained twice;
- it seals only with members whose keys the cluster's devices signed, with at least as many as the plan says, and with
  none that trained on more than ``EXAMPLES_APART`` times as many examples. All count alike: weights would reveal who
  sent a value;
- it agrees to one set of members per label, and opens nothing before enough members agreed to the same set
  (``sealing.device``);
- figures of its training are words of the sum, and nothing else about a training leaves the device.

If the plan is private too, it counts a participation for each group before it seals for it, and refuses groups in which
its noise share would be too small.

The driver makes keys and randomness. A process that starts again has new keys.
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
from shoal.roles.events import Participated, RosterChecked, SealKeyMade, Trained, UpdateSealed
from shoal.roles.seal_roster import SealKeyRoster, label_of
from shoal.roles.worker.delivery import Held, SealedWords, UpdateDelivery
from shoal.roles.worker.machine import WorkerMachine
from shoal.roles.worker.participation import Participation
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


#: The reason that a leader gets for a training that failed under a sealed plan.
UNTOLD = "the training failed: its device's journal says why (`shoal logs`)"

#: How far the learning rate of a lease may differ from the plan's, as a part of it: processors round differently.
RATE_ROUNDING = 1e-6


class DeviceSealing:
    """The worker's part in sealed sums. It keeps no lease itself: inputs about one name the current one."""

    def __init__(
        self, worker: WorkerMachine, spec: JobSpec, participation: Participation, delivery: UpdateDelivery
    ) -> None:
        self._worker = worker
        self._delivery = delivery
        self._spec = spec
        self._sealed = spec.plan.believes.sealed
        #: The fewest devices of a sum that it takes part in.
        self._least = spec.plan.opened_least
        privacy = spec.plan.privacy
        #: The plan's privacy, if it is private too.
        self._privacy = privacy if isinstance(privacy, SharedPrivacy) else None
        self._participation = participation
        #: The request to seal for a group whose participation is not durable yet.
        self._counting: SealRequest | None = None
        self._roster = SealKeyRoster(worker)
        #: A group to seal for once the roster was checked.
        self._waiting: Bind | None = None
        #: (term, group) of the newest label.
        self._newest = (0, 0)
        #: The formation whose aggregators get its words, or 0 to send them straight to the leader.
        self._way = 0
        #: The group of the update that was sealed last, and its secrets.
        self._kept: tuple[int, SealedUpdate] | None = None
        #: (term, lease) of the last update whose words left sealed: a sum with it may be opened.
        self._spent = (0, 0)
        #: (term, lease) of the newest training.
        self._begun = (0, 0)
        #: The digest of the model that the current update was trained on, and figures that only the sum reveals.
        self._trained: tuple[bytes, tuple[float, float]] = (b"", (0.0, 0.0))
        #: Randomness that this device drew and keeps secret.
        self._chance = b""

    @property
    def is_on(self) -> bool:
        """Whether updates of this job are sealed."""
        return self._sealed is not None

    @property
    def spent(self) -> tuple[int, int]:
        """Term and lease of the last update whose words left sealed."""
        return self._spent

    # Leases --------------------------------------------------------------------------------------------

    def refusal(self, work: Work) -> str | None:
        """Return why this device must not train a lease, or None if it follows the plan that the operator signed. A
        leader that chose a rate or a size for each device could make a sum of many the update of one."""
        plan = self._spec.plan
        if self._sealed is None or work.kind != "train":
            return None
        rate = plan.rate_at(work.version)
        if abs(work.rate - rate) > RATE_ROUNDING * abs(rate):
            return f"the lease has a learning rate of {work.rate:g}; the plan has {rate:g}"
        if plan.data != "local":
            return None
        if not self._chance:
            return "this device has not drawn its key yet"
        least, most = plan.sealed_examples
        if not least <= work.examples <= most:
            asked = f"{least}" if least == most else f"{least} to {most}"
            return f"the lease has {work.examples} examples; the plan has {asked}"
        return None

    def was_begun(self, work: Work) -> bool:
        """Whether this lease, or a newer one, was trained before. A second training would put the same update into a
        second sum, or one training of a number could be sealed as the other."""
        return self._sealed is not None and work.kind == "train" and (work.term, work.lease) <= self._begun

    def begin(self, work: Work) -> tuple[int, ...]:
        """Begin a training. Returns the turn by which this device chooses and orders its own examples. The device draws
        it: a leader that could choose it would get the same update twice, in two sums that differ only by it."""
        self._begun = (work.term, work.lease)
        if self._sealed is None or self._spec.plan.data != "local":
            return work.batches
        told = self._chance + f" {work.term} {work.lease}".encode()
        return (int.from_bytes(hashlib.sha256(told).digest()[:4], "big") >> 1,)

    def note(self, event: Trained, *, has_diverged: bool) -> Trained:
        """Keep a training's figures for the sum, and return the event without them. A training that diverged is sealed
        as zeros: that it did would reveal something about the examples. Copies the update, since the trainer reuses its
        memory."""
        loss = 0.0 if has_diverged else event.loss_sum / max(1, event.examples)
        self._trained = (event.model, (loss / LOSS_MAX, float(has_diverged)))
        delta = event.tensors["delta"]
        tensors = {"delta": np.zeros_like(delta) if has_diverged else delta.copy()}
        return replace(event, tensors=tensors, loss_sum=0.0, fresh=0, fresh_metrics=(), labels=(), logged=())

    # Keys ----------------------------------------------------------------------------------------------

    def announce(self, *, again: bool = False) -> None:
        """Send this device's key to the leader, once per session and term, or ``again`` if it may not have arrived."""
        if self._sealed is not None and self._roster.announce(again=again):
            # The labels of an older term are void, so nothing about them is needed.
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
        """Seal the current update for the group that the leader has for it."""
        if self._sealed is None or not isinstance(held.result, Update) or bind.term != self._worker.term:
            return
        if (bind.term, bind.group) <= self._newest:
            # Repeated or forged: a mask is used once.
            self._worker.record("seal.refused", f"group {bind.group} is not above {self._newest[1]}", job=bind.job)
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
        """Seal the update for the group whose participation is durable now."""
        request = self._counting
        if request is not None and request.label.turn == (event.term, event.group):
            self._counting = None
            self._worker.act(Seal(lease=held.work.lease, request=request))

    def _request(self, work: Work, update: Update, bind: Bind) -> SealRequest:
        """Return the request to seal. Raises PeerViolation if this device would hide among too few, or strangers."""
        sealed, key = self._sealed, self._roster.key
        assert sealed is not None
        if (update.term, update.lease) == self._spent:
            raise PeerViolation("this update was sealed before, and a sum with it may be opened")
        members = self._roster.members(bind)
        if key is None or key not in members:
            raise PeerViolation("the group does not have this device's key")
        privacy, count = self._privacy, len(members)
        if privacy is not None and count > privacy.devices:
            raise PeerViolation(f"the group has {count} members; by the plan's privacy it may have {privacy.devices}")
        if not 0 < update.examples <= bind.weight_most or abs(bind.bound) > BOUND_MAX:
            raise PeerViolation(
                f"Bind.weight_most is {bind.weight_most} and its bound {bind.bound}; the update has {update.examples}"
                f" examples, and the bound may be {BOUND_MAX}"
            )
        if privacy is None and self._spec.plan.data == "local" and EXAMPLES_APART * update.examples < bind.weight_most:
            raise PeerViolation(
                f"Bind.weight_most is {bind.weight_most}; with {update.examples} examples here it may be"
                f" {EXAMPLES_APART * update.examples}"
            )
        delta, codec = update.tensors["delta"], Codec.parse(self._spec.plan.codec)
        words_at = None
        if codec.form == "led":
            words_at = decode_places(bind.tensors, count=entries_max(codec, (delta.size,)), size=delta.size)
        helper, liars = self._helper_of(bind, members), sealed.liars_of(count)
        shape = shape_of(count, liars, sealed.lost) if helper is None else helped_shape(count, liars)
        if count < (least := shape.least(self._least)):
            raise PeerViolation(f"the group has {count} members; it must have at least {least} to hide each")
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
            is_covered=helper is not None and bind.formation > 0,
            update=delta,
            figures=self._trained[1],
        )

    def _helper_of(self, bind: Bind, members: list[MemberKey]) -> tuple[str, bytes] | None:
        """Return the name and the key of the helper that opens sums, or None if the plan has none. Raises PeerViolation
        if it is also the leader or a member: it would then see the updates whose masks it takes off."""
        helper = self._spec.plan.believes.helper
        if helper is None:
            return None
        if helper == self._worker.leader or any(one.node == helper for one in members):
            raise PeerViolation(
                f"{helper} is the helper that opens sums; it must neither lead this job nor train for it"
            )
        return helper, self._roster.get(helper, bind.roster).public

    def on_sealed(self, held: Held, event: UpdateSealed) -> None:
        """Send the masked update. It stays here unmasked until the leader is done with it."""
        worker = self._worker
        if (held.work.term, event.group) != self._newest or not isinstance(held.result, Update):
            return
        if event.kept is None:
            self._refuse(event.group, event.reason)
            return
        if not worker.is_connected:
            # It is offered again with the next session, and sealed in another group.
            return
        # A sum with this update can be opened without this device. So an update is sealed for one sum only.
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
        """Return the secrets of the update that a request is about, or None if they are not kept: then it gets no
        answer."""
        is_ours = message.term == self._worker.term and self._kept is not None and self._kept[0] == message.group
        return self._kept[1] if is_ours and self._kept is not None else None

    def _refuse(self, group: int, reason: str, *, about: str = "") -> None:
        worker = self._worker
        worker.record("seal.refused", f"group {group}: {reason}", job=worker.job)
        if worker.is_connected:
            refused = SealRefused(job=worker.job, term=worker.term, group=group, reason=clip(reason), node=about)
            worker.send(worker.leader, refused)
