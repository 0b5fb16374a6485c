"""Sealed sums: groups of offered updates, their words, and how the sum of those is opened. A part of the leader.

The leader sees masked words and their sum, and holds no key. A group is bound when no device trains any more: from
then on no lease is made until its sum is in a version, or the group is void. A group is void if too few of its members
are left. A device seals an update once, so that updates of a void group are in no sum: their batches are leased again.

Where updates are summed by aggregators, words go there, and what goes with them comes here. The leader has the sums of
all aggregators before it asks devices to agree (``sealed_sums``).

The states of a group are ``SealPhase``; docs/roles.md has their table, and docs/sealed-protocol.md says what each
message proves, to whom, and what remains open to a leader that lies.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.led import LedPlaces
from shoal.compress.sparse import Sparse
from shoal.errors import Misuse, PeerViolation
from shoal.learning.clipping import CLIP_ROUNDING, length_of
from shoal.learning.privacy import SharedPrivacy
from shoal.roles.leader.gathering.controller import AggregationController
from shoal.roles.leader.gathering.formation import ArrivedUpdate
from shoal.roles.leader.gathering.gathering import (
    AggregatorMessage,
    BadUpdate,
    Gathering,
    Hopeless,
    MemberMessage,
    Outcome,
    Progressed,
    Summed,
    Underway,
)
from shoal.roles.leader.gathering.helper_opener import HelperOpener
from shoal.roles.leader.gathering.key_roster import KeyRoster
from shoal.roles.leader.gathering.member_opener import MemberOpener
from shoal.roles.leader.gathering.plain import PlainGathering
from shoal.roles.leader.gathering.sealed_group import ANSWER_S, Opener, SealedGroup, Unopened
from shoal.roles.leader.gathering.sealed_sums import GroupSums
from shoal.roles.leader.leases import Leases
from shoal.roles.leader.participants import is_spent
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Lease
from shoal.sealing.figures import FIGURES, LOSS_MAX, decode_figures, words_per_figure
from shoal.sealing.fixed import BOUND_FIRST, FixedPoint, bound_after, word_type
from shoal.sealing.group import MaskGraph, bits_of
from shoal.sealing.label import Label, trained_on
from shoal.states import SealPhase, WorkerState
from shoal.wire.coded import encode_places, places_digest
from shoal.wire.messages import (
    SEAL_FORM,
    Agreed,
    Bind,
    MaskSum,
    Message,
    Offer,
    Opened,
    Reduce,
    ReduceResult,
    SealKey,
    SealRefused,
    Unbind,
    Update,
    clip,
)

#: A sum is not merged if more than this share of its trainings diverged; after this many in a row the job fails.
DIVERGED_SHARE = 0.5
DIVERGED_TIMES = 3

#: So many devices that find fault with a member's key, and it is in no further group.
ACCUSERS_LEAST = 2


class Sealing:
    def __init__(
        self,
        machine: Machine,
        shared: Shared,
        *,
        leases: Leases,
        aggregation: AggregationController,
        roster: KeyRoster,
        opener: Opener,
    ) -> None:
        self._machine = machine
        self._aggregation = aggregation
        self._checks = shared.checks
        self._roster, self._opener = roster, opener
        self._helper = opener if isinstance(opener, HelperOpener) else None
        self._spec, self._term = shared.spec, shared.term
        self._training, self._workers, self._online = shared.training, shared.workers, shared.online
        self._leases, self._formations = leases, shared.formations
        sealed = shared.spec.plan.believes.sealed
        if sealed is None:
            raise Misuse("updates of this plan are not sealed")
        self._sealed = sealed
        #: A sum of fewer devices is not opened.
        self._least = shared.spec.plan.opened_least
        privacy = shared.spec.plan.privacy
        #: Where devices add noise: their sum is divided by a number that is known before, and each counts as one.
        self._privacy = privacy if isinstance(privacy, SharedPrivacy) else None
        self._size = shared.training.model.size
        self._number = 0
        self._group: SealedGroup | None = None
        #: Leases whose update is ready to be sealed.
        self._offered: set[int] = set()
        self._accused: dict[str, set[str]] = {}
        codec = Codec.parse(shared.spec.plan.codec)
        self._bits = codec.word_bits
        #: Words of figures in a sum, after those of the update. Where devices add noise, they tell none.
        self._figure_words = 0 if self._privacy is not None else FIGURES * words_per_figure(self._bits)
        #: Leases of the last group: their devices seal them for no other.
        self._bound_once: set[int] = set()
        #: Under the codec ``led``: which places the next sum has.
        self._led: LedPlaces | None = None
        if codec.form == "led":
            self._led = LedPlaces(self._size, share_ppm=codec.share_ppm, seed=shared.spec.plan.seed)
            self._size = self._led.count
        #: Worker -> the formation by which it could not send its words.
        self._strayed: dict[str, int] = {}
        #: Workers, and formations whose aggregators lacked words that these had reported.
        self._lacked: set[tuple[str, int]] = set()
        self._bound = BOUND_FIRST[self._bits]
        #: A version, and the digest of its model.
        self._base: tuple[int, bytes] = (-1, b"")
        #: How many sums in a row were of trainings most of which diverged.
        self._diverged = 0
        #: Sums that were opened, and groups that came to nothing.
        self.opened = 0
        self.void = 0

    # A helper, where the plan names one ------------------------------------------------------------------

    @property
    def helper(self) -> str | None:
        """The node that opens sums. It is leased nothing."""
        return self._helper.node if self._helper is not None else None

    def on_helper(self, message: Message) -> None:
        """The helper speaks. It is leased nothing, whatever it says."""
        group = self._current()
        why = self._helper.on_message(message, group) if self._helper is not None else None
        if why is not None and group is not None:
            self._make_void(group, why)

    def on_gone(self, node: str, reason: str) -> None:
        """A node is lost, or the manager wants it back: it may be the helper."""
        if self._helper is None or not self._helper.on_gone(node, reason):
            return
        if (group := self._current()) is not None:
            self._make_void(group, f"{node} is away")

    # Workers -------------------------------------------------------------------------------------------

    def on_member(self, sender: str, message: MemberMessage) -> Outcome:
        match message:
            case SealKey():
                self._on_key(sender, message)
            case SealRefused():
                self._on_refused(sender, message)
            case _:
                self._on_answer(sender, message)
        return Progressed()

    def _on_answer(self, node: str, message: Agreed | Opened) -> None:
        group = self._current()
        place = group.place_of(node) if group is not None else None
        if group is None or place is None or message.group != group.number:
            return
        try:
            self._opener.on_answer(group, place, message)
        except PeerViolation as violation:
            self._machine.record("seal.refused", f"answer of {node}: {violation.reason}")

    def _on_key(self, node: str, message: SealKey) -> None:
        if message.key.node == node and message.key.form != SEAL_FORM:
            self._machine.record(
                "seal.refused", f"{node} seals by form {message.key.form}, not {SEAL_FORM}: upgrade it"
            )
        elif message.key.node == node:
            self._roster.on_key(message.key)

    def route(self, node: str, lease: Lease) -> tuple[int, bool]:
        """Every update is offered: groups are made of what was offered, and each says where its words go."""
        return 0, False

    def on_offer(self, worker: WorkerRecord, offer: Offer, lease: Lease) -> Outcome:
        """An update is ready. It does not age while it waits for others."""
        self._take_offer(lease)
        worker.state, worker.reason = WorkerState.WAITING, "its update waits for others to be sealed with"
        return Progressed(worker.node)

    def _take_offer(self, lease: Lease) -> None:
        self._leases.hold(lease)
        self._offered.add(lease.id)
        # With the first offer, while others train: all of them wait for what is done after the last.
        self._model_digest()
        group = self._current()
        place = group.place_of(lease.worker) if group is not None else None
        if group is None or place is None:
            return
        if group.phase is SealPhase.UPLOADING:
            # Its session broke, and what it was told or sent may be lost with it.
            if place not in group.reports:
                group.lost.add(place)
                self._strayed[lease.worker] = group.sums.goes_by(lease.id)
        else:
            self._opener.ask_again(group, place)

    def _current(self) -> SealedGroup | None:
        """The present group. It is void where its leases were taken back: its updates are of no version then."""
        group, gone = self._group, self._leases.given_up
        if group is not None and gone:
            # A worker that is lost or begins again answers nothing about the present group.
            group.lost.update(place for place, node in enumerate(group.members) if node in gone)
        gone.clear()
        if group is not None and any(self._training.ledger.get(r.lease.id) is None for r in group.reports.values()):
            self._drop()
            return None
        return group

    def _drop(self, end: SealPhase = SealPhase.VOID) -> None:
        if self._group is not None:
            self._group.enter(end)
        self._group = None
        self._leases.sealed_in.clear()
        self._end_sums()

    # Groups --------------------------------------------------------------------------------------------

    def has_only_offers(self) -> bool:
        """Return whether every open lease is an update that waits for a group, and there is none."""
        return self._current() is None and all(lease.id in self._offered for lease in self._training.ledger.leases())

    def held_up(self) -> str | None:
        """Return why the leader could open no sum now, however many devices offer updates, or None if it could."""
        return self._opener.held_up()

    def gather(self, *, is_last: bool) -> Summed | Underway | Hopeless | None:
        """Move on. Nothing is leased for a version while the group of its updates is under way."""
        summed = self._move_on(is_last=is_last)
        if self._diverged >= DIVERGED_TIMES:
            times = f"training gave values that are not finite in {self._diverged} sums in a row"
            return Hopeless(f"{times}: try a lower learning rate")
        if summed is None and self._current() is not None:
            return Underway(is_closed=True)
        return summed

    def _move_on(self, *, is_last: bool) -> Summed | None:
        """Bind a group, or move the present one on, where that is due."""
        group = self._current()
        if group is None:
            self._gather_offers(is_last=is_last)
            return None
        match group.phase:
            case SealPhase.UPLOADING:
                self._look_for_uploads(group)
            case SealPhase.SUMMING:
                self._look_for_sums(group)
            case SealPhase.AGREEING | SealPhase.OPENING:
                return self._look_for_masks(group)
            case SealPhase.OPENED | SealPhase.VOID:
                raise AssertionError(f"group {group.number} is over, and is still the present one")
        return None

    def _gather_offers(self, *, is_last: bool) -> None:
        ledger = self._training.ledger
        for number in sorted(self._offered & self._bound_once):
            if (lease := ledger.get(number)) is not None:
                self._unbind(lease, "nothing came of its group, and its device seals it for no other")
        offers = [lease for lease in ledger.leases() if lease.id in self._offered]
        self._offered = {lease.id for lease in offers}
        if not offers or len(offers) < ledger.outstanding:
            # Somebody trains still.
            return
        by_worker = {lease.worker: lease for lease in offers if lease.worker in self._roster.keys}
        able = [lease for node, lease in sorted(by_worker.items()) if not self._is_accused(node)]
        able = able[: self._roster.members_most]
        if len(able) >= self._least and self.held_up() is None and self._bind(able):
            return
        is_last = is_last or self._are_spent()
        for lease in offers:
            if is_last or lease.worker in self._workers.leaving or self._is_accused(lease.worker):
                self._unbind(lease, "too few others are left to hide it among")

    def _are_spent(self) -> bool:
        """The accounts of too many devices are spent for another sum."""
        return self._privacy is not None and sum(not is_spent(one) for one in self._workers.able()) < self._least

    def _is_accused(self, node: str) -> bool:
        return len(self._accused.get(node, ())) >= ACCUSERS_LEAST

    def _bind(self, leases: list[Lease]) -> bool:
        try:
            shape = self._opener.shape(len(leases))
        except Misuse:
            return False
        if len(leases) < shape.least(self._least):
            return False
        members = tuple(lease.worker for lease in leases)
        self._roster.make(members)
        places = [place for place, key in enumerate(self._roster.now) if key.node in members]
        keys = [self._roster.now[place] for place in places]
        self._number += 1
        weight_most = max(self._weight_most(lease) for lease in leases)
        at = self._led.next() if self._led is not None else None
        told = encode_places(at, self._training.model.size) if at is not None else {}
        label = Label(
            origin=self._spec.signature,
            job=self._spec.job,
            term=self._term,
            formation=0,
            group=self._number,
            members=tuple((key.node, key.public) for key in keys),
            bound=self._bound,
            weight_most=weight_most,
            base=trained_on(self._model_digest(), version=leases[0].version, epoch=leases[0].epoch),
            places=places_digest(told),
        )
        self._group = SealedGroup(
            number=self._number,
            label=label,
            graph=MaskGraph.of(shape, tuple(key.nonce for key in keys), least=self._least),
            members=members,
            leases=tuple(lease.id for lease in leases),
            total=np.zeros(self._size + self._figure_words, dtype=word_type(self._bits)),
            at=at,
            sums=self._ways(leases),
            asked_s=self._machine.now_s,
        )
        self._training.groups += 1
        self._bound_once = {lease.id for lease in leases}
        bits = bits_of(places, len(self._roster.now))
        for lease in leases:
            self._leases.extend(lease)
            self._roster.tell(lease.worker)
            bind = Bind(
                job=self._spec.job,
                term=self._term,
                lease=lease.id,
                group=self._number,
                roster=self._roster.number,
                members=bits,
                bound=self._bound,
                weight_most=weight_most,
                tensors=told,
                formation=self._group.sums.goes_by(lease.id),
            )
            self._machine.send(lease.worker, bind)
        if self._helper is not None:
            self._roster.tell(self._helper.node)
        return True

    def _model_digest(self) -> bytes:
        version = self._training.version
        if self._base[0] != version:
            self._base = (version, hashlib.sha256(self._training.model.data).digest())
        return self._base[1]

    def _ways(self, leases: list[Lease]) -> GroupSums:
        """Where the words of each go. A worker that could not send its words by this formation sends them here."""
        formations = self._formations
        now = formations.now
        if now is None or now.broken:
            return GroupSums(0, {}, {})
        hops = {
            lease.id: tuple(share.node for share in now.shares_of(lease.worker))
            for lease in leases
            if formations.way(lease.worker)
            and self._strayed.get(lease.worker) != now.number
            and (lease.worker, now.number) not in self._lacked
        }
        formations.keeps_words = bool(hops)
        return GroupSums(now.number, {share.node: slice(share.start, share.stop) for share in now.shares}, hops)

    def _weight_most(self, lease: Lease) -> int:
        return self._online.examples_max(lease.id) if self._online is not None else self._training.examples_in(lease)

    # Uploads -------------------------------------------------------------------------------------------

    def on_update(self, worker: WorkerRecord, update: Update, lease: Lease) -> Outcome:
        """Take the words of an update, or the report that aggregators have them."""
        self._leases.end_upload(lease.id)
        try:
            self._checks.check_report(update, lease)
            self._add_words(update, lease)
        except PeerViolation as violation:
            return BadUpdate(worker, update, lease, violation)
        return Progressed(worker.node)

    def _add_words(self, update: Update, lease: Lease) -> None:
        """Add the words of an update to the sum of its group. Raises PeerViolation for an update that is not sealed."""
        group = self._current()
        place = group.place_of(lease.worker) if group is not None else None
        if group is None or place is None or update.group != group.number or lease.id != group.leases[place]:
            # Of a group that is void.
            return
        if group.phase is not SealPhase.UPLOADING or place in group.reports or place in group.lost:
            return
        words, seals = update.tensors.get("words"), update.tensors.get("seals")
        by = group.sums.goes_by(lease.id)
        if update.formation != by or (by and words is not None):
            raise PeerViolation(f"Update.formation is {update.formation}; the words of this group go by {by}")
        if not by and (words is None or words.dtype != group.total.dtype or words.shape != (self._size,)):
            raise PeerViolation(f"a sealed update is {self._size} words of {self._bits} bits")
        size = group.graph.seals_bytes(place, is_summed_elsewhere=by > 0)
        all_bytes = size + self._figure_words * group.total.itemsize
        if seals is None or seals.dtype != np.uint8 or seals.shape != (all_bytes,):
            raise PeerViolation("a sealed update has to bring the shares of its masks, and its figures")
        if words is not None:
            np.add(group.total[: self._size], words, out=group.total[: self._size])
        group.seals[place] = seals[:size].tobytes()
        group.figures[place] = np.frombuffer(seals[size:].tobytes(), dtype=group.total.dtype)
        group.reports[place] = ArrivedUpdate(lease, replace(update, tensors={}), 1.0)
        self._leases.sealed_in.add(lease.id)
        self._leases.hold(lease)

    def _look_for_uploads(self, group: SealedGroup) -> None:
        ledger = self._training.ledger
        awaited = [
            place
            for place, lease in enumerate(group.leases)
            if place not in group.reports and place not in group.lost and ledger.get(lease) is not None
        ]
        if self._is_broken(group):
            # Words that were not there yet do not come there any more: their devices keep the updates.
            gone = {place for place in awaited if group.sums.goes_by(group.leases[place])}
            group.lost |= gone
            awaited = [place for place in awaited if place not in gone]
        if awaited:
            return
        if self._is_void(group):
            return
        reported = [report.lease.id for report in group.reports.values()]
        asked = group.sums.ask(reported, now_s=self._machine.now_s)
        if not asked:
            self._open(group)
            return
        group.enter(SealPhase.SUMMING)
        self._ask_for_sums(group, asked)
        self._look_for_sums(group)

    def _is_void(self, group: SealedGroup) -> bool:
        if len(group.reports) < group.graph.least:
            self._make_void(group, f"{len(group.reports)} of at least {group.graph.least} updates came")
            return True
        return False

    # Sums of aggregators -------------------------------------------------------------------------------

    def _is_broken(self, group: SealedGroup) -> bool:
        now = self._formations.now
        return now is None or bool(now.broken) or now.number != group.sums.formation

    def _ask_for_sums(self, group: SealedGroup, asked: dict[str, tuple[int, ...]]) -> None:
        for node, leases in asked.items():
            reduce = Reduce(
                job=self._spec.job,
                term=self._term,
                formation=group.sums.formation,
                version=self._training.version + 1,
                leases=leases,
                weights=(1.0,) * len(leases),
                scales=(1.0,) * len(leases),
                last=True,
                group=group.number,
            )
            self._machine.send(node, reduce)
            self._mark_asked(node, leases)

    def _mark_asked(self, node: str, leases: tuple[int, ...] | None) -> None:
        """A sum that does not come in time breaks the formation, as any does."""
        now = self._formations.now
        share = now.share_led_by(node) if now is not None else None
        if share is not None:
            share.asked, share.asked_s = leases, self._machine.now_s

    def awaits(self, sender: str, message: ReduceResult | MaskSum) -> bool:
        """Return whether this aggregator or helper was asked for this sum, and it has not come."""
        group = self._group
        if isinstance(message, MaskSum):
            return self._helper is not None and sender == self._helper.node and self._helper.awaits(message, group)
        if group is None or group.phase is not SealPhase.SUMMING or message.group != group.number:
            return False
        return message.formation == group.sums.formation and sender in group.sums.awaited

    def on_aggregator(self, sender: str, message: AggregatorMessage) -> Outcome:
        if not isinstance(message, ReduceResult):
            return self._aggregation.on_message(sender, message)
        self._aggregation.count_sealed_sum(sender, message, self._on_reduce_result(sender, message))
        return Progressed()

    def _on_reduce_result(self, sender: str, message: ReduceResult) -> str | None:
        """Return what is wrong with a sum that was awaited, or None if nothing is or it was not awaited."""
        group = self._current()
        if group is None or not self.awaits(sender, message):
            return None
        self._mark_asked(sender, None)
        try:
            group.sums.on_reduce_result(sender, message, word_type(self._bits))
        except PeerViolation as violation:
            group.sums.lost.add(sender)
            return violation.reason
        return None

    def _look_for_sums(self, group: SealedGroup) -> None:
        sums = group.sums
        is_late = self._is_broken(group) and self._machine.now_s - sums.asked_s > ANSWER_S
        for node in sums.awaited:
            if is_late or self._workers.find(node) is None or node in self._workers.suspects:
                sums.lost.add(node)
        if sums.awaited:
            return
        lacking, whole = sums.lacking, sums.settle(group.total)
        self._end_sums()
        for place, report in sorted(group.reports.items()):
            if sums.goes_by(report.lease.id) and report.lease.id not in whole:
                if report.lease.id in lacking:
                    # Whichever node is at fault: by this way it would spoil a shard's sums again and again.
                    self._lacked.add((report.lease.worker, sums.formation))
                self._leave_out(group, place, report.lease)
        if not self._is_void(group):
            self._open(group)

    def _leave_out(self, group: SealedGroup, place: int, lease: Lease) -> None:
        """Its words were lost with an aggregator: it is not in the sum."""
        del group.reports[place], group.seals[place], group.figures[place]
        self._leases.sealed_in.discard(lease.id)
        if self._training.ledger.get(lease.id) is not None:
            self._unbind(lease, "its words were lost with an aggregator")

    def _end_sums(self) -> None:
        """Nothing of a sum is with aggregators any more."""
        if self._formations.keeps_words:
            self._formations.keeps_words = False
            for share in self._formations.now.shares if self._formations.now is not None else ():
                share.asked = None

    def _close(self, group: SealedGroup) -> None:
        """The set of members is fixed: add the figures of those that are in it."""
        figures = group.total[self._size :]
        for each in group.figures.values():
            np.add(figures, each, out=figures)
        self._end_sums()

    # Opened --------------------------------------------------------------------------------------------

    def _open(self, group: SealedGroup) -> None:
        """The set of members is fixed: have the masks taken off."""
        self._close(group)
        self._opener.begin(group)

    def _look_for_masks(self, group: SealedGroup) -> Summed | None:
        try:
            return self._opened_sum(group) if self._opener.look(group) else None
        except Unopened as why:
            self._make_void(group, str(why))
            return None

    def _on_refused(self, node: str, message: SealRefused) -> None:
        """A member does not seal, agree or open. It is left out of this group, and what it found fault with is kept."""
        group = self._current()
        place = group.place_of(node) if group is not None else None
        if group is None or place is None or message.group != group.number:
            return
        self._machine.record("seal.refused", f"{node}, group {group.number}: {message.reason}")
        group.lost.add(place)
        if message.node in group.members:
            self._accused.setdefault(message.node, set()).add(node)
        elif (lease := self._training.ledger.get(group.leases[place])) is not None and place not in group.reports:
            self._unbind(lease, f"its device refused: {message.reason}")

    def _opened_sum(self, group: SealedGroup) -> Summed | None:
        """The masks are off. Return the sum, or None if honest devices cannot have sent it."""
        reports = tuple(group.reports[place] for place in sorted(group.reports))
        weight = sum(report.update.examples for report in reports)
        if self._privacy is not None:
            mean = self._privacy.point.decode(group.total, times=1.0 / self._privacy.devices)
        else:
            fixed, times = FixedPoint(group.label.bound, group.graph.size, self._bits), 1.0 / len(reports)
            mean = fixed.decode(group.total[: self._size], times=times)
            loss, diverged = decode_figures(group.total[self._size :], fixed, times=times)
            # Nobody knows the loss of one device: each is said to have that of all.
            reports = tuple(_with_loss(report, loss * LOSS_MAX) for report in reports)
            self._diverged = self._diverged + 1 if diverged > DIVERGED_SHARE else 0
            if self._diverged:
                self._make_void(group, f"{min(diverged, 1.0):.0%} of its trainings gave values that are not finite")
                return None
            if (too_long := self._too_long(mean, off=1.0 / fixed.steps)) is not None:
                self._make_void(group, too_long)
                return None
        self._bound = bound_after(mean, bits=self._bits, before=self._bound)
        if self._led is not None and group.at is not None:
            self._led.opened(mean)
            mean = Sparse(self._training.model.size, group.at, mean).dense()
        self.opened += 1
        self._strayed.clear()
        self._drop(SealPhase.OPENED)
        taken = {report.lease.id for report in reports}
        for lease in self._training.ledger.leases():
            if lease.id not in taken:
                self._unbind(lease, "came too late for its group, and no other is made of this version")
        return Summed(reports=reports, mean=mean, weight=float(weight), is_news=True)

    def _too_long(self, mean: np.ndarray, *, off: float) -> str | None:
        """Return why a mean cannot be of devices that clip themselves, or None if it can or they do not. ``off``: the
        most that each value is rounded by. Nobody can see which device lied; how far it moves the model is bounded."""
        if not self._spec.plan.is_cut_unseen:
            return None
        most, length = self._spec.plan.clip_update, length_of(mean)
        if length <= most * (1 + CLIP_ROUNDING) + math.sqrt(mean.size) * off:
            return None
        return f"its mean is {length:.3g} long, and each device cuts its update to {most:g}: one of them lies"

    # Nothing came of it --------------------------------------------------------------------------------

    def _make_void(self, group: SealedGroup, reason: str) -> None:
        """Its updates are in no version: devices seal them for no other group."""
        self.void += 1
        self._machine.record("group.voided", f"group {group.number} of {len(group.members)}: {reason}")
        self._drop()
        for number in group.leases:
            if (lease := self._training.ledger.get(number)) is not None:
                self._unbind(lease, f"group {group.number} is void: {reason}")

    def _unbind(self, lease: Lease, reason: str) -> None:
        self._offered.discard(lease.id)
        self._leases.sealed_in.discard(lease.id)
        self._leases.take_back(self._training.ledger, lease, fate=f"was taken back: {reason}")
        unbind = Unbind(job=self._spec.job, term=self._term, lease=lease.id, reason=clip(reason))
        self._machine.send(lease.worker, unbind)

    def let_go(self, reason: str) -> None:
        """Nothing more is trained: devices that wait for a sum are free for other work."""
        self._drop()
        for lease in list(self._training.ledger.leases()):
            if lease.id in self._offered:
                self._unbind(lease, reason)

    def waive_rest(self) -> None:
        """End an epoch in which fewer leases are left than a sum needs."""
        ledger = self._training.ledger
        left = ledger.batches - ledger.applied
        if 0 < left < self._least:
            ledger.waive()
            self._machine.record("lease.waived", f"{left} of {ledger.batches} leases: a sum needs {self._least}")


def _with_loss(report: ArrivedUpdate, mean: float) -> ArrivedUpdate:
    """A report with the mean loss of its group."""
    return replace(report, update=replace(report.update, loss_sum=mean * report.update.examples))


def gathering_of(machine: Machine, shared: Shared, *, leases: Leases, aggregation: AggregationController) -> Gathering:
    """Return how the updates of this job become sums, by the trust that its plan has."""
    trust = shared.spec.plan.believes
    if trust.sealed is None:
        return PlainGathering(shared, leases=leases, aggregation=aggregation)
    roster = KeyRoster(machine, shared.workers, job=shared.spec.job, term=shared.term, helper=trust.helper)
    opener: Opener = MemberOpener(machine, shared)
    if trust.helper is not None:
        opener = HelperOpener(machine, shared, roster=roster)
    return Sealing(machine, shared, leases=leases, aggregation=aggregation, roster=roster, opener=opener)
