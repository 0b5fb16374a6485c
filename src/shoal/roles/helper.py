"""The helper of a job with sealed sums: it adds up masks for somebody else's leader. It decides; a driver acts.

Devices mask their updates and tell this node alone, in envelopes that the leader passes on, what they masked them with.
The helper never sees an update, masked or not; the leader never sees a seed. What keeps the two apart:

- it answers for a label at most once: a (term, group) that is not above its newest is refused, so that one pair of
  numbers is all it has to keep. An older term's leader is not answered, and a process that starts again has another
  key, for which no older envelope was closed;
- it answers for no fewer members than the plan says, which the operator of the job signed;
- it opens no envelope that its device did not close for the very label it is asked about (``sealing.helped``).

It trains nothing, and asks for no work.
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
from shoal.roles.worker_machine import WorkerMachine
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

#: What was said while a leader was being set up may be lost: until it is heard, it is told the key again after this.
ANNOUNCE_S = 3.0

_ANNOUNCE = "announce"


class Helper(WorkerMachine):
    def __init__(self, *, spec: JobSpec, node: str, leader: str, term: int) -> None:
        super().__init__(job=spec.job, leader=leader, term=term)
        self._spec = spec
        self._node = node
        #: It answers for no fewer.
        self._least = spec.plan.opened_least
        privacy = spec.plan.privacy
        self._most = privacy.devices if isinstance(privacy, SharedPrivacy) else None
        self._roster = SealKeyRoster(self)
        #: The leader was heard in this session and term: it knows the key.
        self._is_heard = False
        #: (term, group) of the newest label that it was asked about.
        self._newest = (0, 0)
        #: A question that waits until its roster is here and was looked at.
        self._waiting: AskMasks | None = None
        #: The driver adds up masks for the newest question.
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
        # Also where nothing changed: the manager repeats the leader to a node that was lost for a while, and a leader
        # that lost it has dropped its key.
        self._is_heard = False
        self._announce()

    # Questions -----------------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        match message:
            case SealRoster():
                self._is_heard = True
                self._roster.on_roster(message)
            case AskMasks():
                self._is_heard = True
                self._on_question(message)
            case Wait():
                self._is_heard = True
                self.become(WorkerPhase.WAITING, message.reason)
            case Finished():
                self.act(End(reason=message.reason))
            case _:
                pass

    def _on_question(self, ask: AskMasks) -> None:
        if ask.term != self.term:
            return
        if (ask.term, ask.group) == self._newest and (self._is_summing or self._waiting is not None):
            # Asked again over another session: the answer is under way.
            return
        if (ask.term, ask.group) <= self._newest:
            self._refuse(ask.group, f"group {ask.group} is not above {self._newest[1]}: a sum is opened once")
            return
        # Whatever comes of it: the label is not asked about again.
        self._newest = (ask.term, ask.group)
        self._waiting = None
        if self._roster.is_to_come(ask.roster):
            # It may be lost with the last session: the leader says it again once it has heard the key over this one.
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
        """What is to be added up. Raises PeerViolation where the sum would tell of too few, or of strangers."""
        key, members = self._roster.key, self._roster.members(ask)
        present = members_of(ask.present, len(members))
        if key is None or any(one.node == self._node for one in members):
            raise PeerViolation("a group with its helper in it, or without a key of this helper")
        sealed = self._spec.plan.believes.sealed
        assert sealed is not None
        least = helped_shape(len(members), sealed.liars_of(len(members))).least(self._least)
        if len(present) < least:
            raise PeerViolation(f"a sum of {len(present)} members, where at least {least} hide each other")
        if self._most is not None and len(members) > self._most:
            raise PeerViolation(f"a group of {len(members)}, where the plan's share of liars is of {self._most}")
        if len(ask.envelopes) != HELPER_ENVELOPE_BYTES * len(present) or len(ask.base) != DIGEST_BYTES:
            raise PeerViolation("envelopes of another size than this group's")
        word_bits = Codec.parse(self._spec.plan.codec).word_bits
        if not 0 < ask.words <= 8 * PAYLOAD_MAX_BYTES // word_bits:
            raise PeerViolation(f"a sum of {ask.words} words, where one message has its answer")
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
        self.record("seal-refused", f"group {group}: {reason}", job=self.job)
        if self.is_connected:
            refused = SealRefused(job=self.job, term=self.term, group=group, reason=clip(reason))
            self.send(self.leader, refused)
