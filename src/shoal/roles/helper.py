"""The helper of a job with sealed sums: it adds up masks for somebody else's leader. It decides; a driver acts.

Devices send the seeds of their masks only to this node, in envelopes that the leader passes on. The helper never sees
an update, masked or not; the leader never sees a seed. These rules keep the two apart:

- it answers for a label at most once: it refuses a (term, group) that is not above its newest, so that it has to keep
  only one pair of numbers. It does not answer the leader of an older term, and a process that starts again has another
  key, which no older envelope was closed for;
- it answers for at least as many members as the plan says, which the operator of the job signed;
- it opens only envelopes that the device closed for exactly the label in question (``sealing.helped``).

It does not train, and asks for no work.
"""

from __future__ import annotations

from shoal.compress.codec import Codec
from shoal.errors import PeerViolation
from shoal.learning.privacy import SharedPrivacy
from shoal.roles.actions import End, SumMasks
from shoal.roles.events import (
    Connected,
    Disconnected,
    Event,
    MasksSummed,
    Reassigned,
    Received,
    RosterChecked,
    SealKeyMade,
    StopRequested,
    TimerFired,
)
from shoal.roles.seal_roster import SealKeyRoster, label_of
from shoal.roles.worker.machine import WorkerMachine
from shoal.sealing.graph import helped_shape
from shoal.sealing.group import HELPER_ENVELOPE_BYTES, members_of
from shoal.sealing.request import MasksRequest
from shoal.states import WorkerPhase
from shoal.wire.limits import PAYLOAD_MAX_BYTES
from shoal.wire.messages import (
    DIGEST_BYTES,
    AskMasks,
    Finished,
    JobSpec,
    MaskSum,
    Message,
    SealRefused,
    SealRoster,
    Wait,
    clip,
)

#: How often to repeat the key until the leader sends something: messages may be lost while a leader is set up.
ANNOUNCE_S = 3.0

_ANNOUNCE = "announce"


class Helper(WorkerMachine):
    def __init__(self, *, spec: JobSpec, node: str, leader: str, term: int) -> None:
        super().__init__(job=spec.job, leader=leader, term=term)
        self._spec = spec
        self._node = node
        #: The fewest members that it answers for.
        self._least = spec.plan.opened_least
        privacy = spec.plan.privacy
        self._most = privacy.devices if isinstance(privacy, SharedPrivacy) else None
        self._roster = SealKeyRoster(self)
        #: Whether the leader sent something in this session and term, and so has the key.
        self._is_heard = False
        #: (term, group) of the newest label that a leader asked about.
        self._newest = (0, 0)
        #: A request that waits until its roster is here and was checked.
        self._waiting: AskMasks | None = None
        #: Whether the driver is adding up masks for the newest request.
        self._is_summing = False
        self.become(WorkerPhase.WAITING, "it opens sums, and no leader has asked yet")

    def on_event(self, event: Event) -> None:
        match event:
            case Connected() if event.node == self.leader:
                self.is_connected = True
                self._announce()
            case Disconnected() if event.node == self.leader:
                self.is_connected = self._is_heard = False
                self._roster.on_disconnected()
            case Reassigned():
                self._on_reassigned(event)
            case SealKeyMade():
                self._roster.on_key(event)
            case Received():
                self._on_message(event.message)
            case RosterChecked():
                if self._roster.on_checked(event) and self._waiting is not None:
                    waiting, self._waiting = self._waiting, None
                    self._answer(waiting)
            case MasksSummed():
                self._on_summed(event)
            case TimerFired():
                self._announce()
            case StopRequested():
                self.act(End(reason=event.reason))
            case _:
                pass

    # Its key -------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        if self.is_connected and not self._is_heard:
            self._roster.announce(again=True)
            self.timer(_ANNOUNCE, ANNOUNCE_S)

    def _on_reassigned(self, event: Reassigned) -> None:
        if event.term < self.term:
            return
        if event.term > self.term or event.leader != self.leader:
            self._is_summing = False
            self._waiting = None
        self.term, self.leader = event.term, event.leader
        # Even if nothing changed: the manager repeats the leader to a node that was lost for a while, and a leader that
        # lost it has dropped its key.
        self._is_heard = False
        self._announce()

    # Requests ------------------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        match message:
            case SealRoster():
                self._is_heard = True
                self._roster.on_roster(message)
            case AskMasks():
                self._is_heard = True
                self._on_ask_masks(message)
            case Wait():
                self._is_heard = True
                self.become(WorkerPhase.WAITING, message.reason)
            case Finished():
                self.act(End(reason=message.reason))
            case _:
                pass

    def _on_ask_masks(self, ask: AskMasks) -> None:
        if ask.term != self.term:
            return
        if (ask.term, ask.group) == self._newest and (self._is_summing or self._waiting is not None):
            # Asked again over another session: the answer is under way.
            return
        if (ask.term, ask.group) <= self._newest:
            self._refuse(ask.group, f"group {ask.group} is not above {self._newest[1]}: a sum is opened once")
            return
        # Noted now: whatever the outcome, this label is not answered again.
        self._newest = (ask.term, ask.group)
        self._waiting = None
        if self._roster.is_to_come(ask.roster):
            # The roster may be lost with the last session: the leader repeats it once it gets the key over this one.
            self._waiting = ask
        else:
            self._answer(ask)

    def _answer(self, ask: AskMasks) -> None:
        try:
            request = self._request(ask)
        except PeerViolation as violation:
            self._refuse(ask.group, violation.reason)
            return
        self.become(WorkerPhase.WAITING, f"adding up the masks of {len(request.envelopes)} devices")
        self._is_summing = True
        self.act(SumMasks(request=request))

    def _request(self, ask: AskMasks) -> MasksRequest:
        """Return the masks to add up. Raises PeerViolation if the sum would reveal too few devices, or strangers."""
        key, members = self._roster.key, self._roster.members(ask)
        present = members_of(ask.present, len(members))
        if key is None or any(one.node == self._node for one in members):
            raise PeerViolation("the group contains its helper, or this helper has no key for it")
        sealed = self._spec.plan.believes.sealed
        assert sealed is not None
        least = helped_shape(len(members), sealed.liars_of(len(members))).least(self._least)
        if len(present) < least:
            raise PeerViolation(f"the sum has {len(present)} members; it must have at least {least} to hide each")
        if self._most is not None and len(members) > self._most:
            raise PeerViolation(f"the group has {len(members)} members; by the plan's trust it may have {self._most}")
        if len(ask.envelopes) != HELPER_ENVELOPE_BYTES * len(present) or len(ask.base) != DIGEST_BYTES:
            raise PeerViolation("the envelopes do not have the size for this group")
        word_bits = Codec.parse(self._spec.plan.codec).word_bits
        if not 0 < ask.words <= 8 * PAYLOAD_MAX_BYTES // word_bits:
            raise PeerViolation(f"AskMasks.words is {ask.words}; the sum must be above 0 words and fit one message")
        cut = (ask.envelopes[HELPER_ENVELOPE_BYTES * at :][:HELPER_ENVELOPE_BYTES] for at in range(len(present)))
        return MasksRequest(
            label=label_of(self._spec.signature, ask, members, places=ask.places, base=ask.base),
            helper=(self._node, key.public),
            envelopes=dict(zip(present, cut, strict=True)),
            words=ask.words,
            word_bits=word_bits,
        )

    def _on_summed(self, event: MasksSummed) -> None:
        if (event.term, event.group) != self._newest or event.term != self.term:
            return
        self._is_summing = False
        if event.reason:
            self._refuse(event.group, event.reason)
            return
        self.become(WorkerPhase.WAITING, f"the masks of group {event.group} were added up")
        if self.is_connected:
            summed = MaskSum(job=self.job, term=event.term, group=event.group, tensors=event.tensors)
            self.send(self.leader, summed)

    def _refuse(self, group: int, reason: str) -> None:
        self.record("seal.refused", f"group {group}: {reason}", job=self.job)
        if self.is_connected:
            refused = SealRefused(job=self.job, term=self.term, group=group, reason=clip(reason))
            self.send(self.leader, refused)
