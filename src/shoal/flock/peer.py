"""A peer of a flock: trains, merges updates in pairs, holds the versions they make, and coordinates if it must.

There is no manager. Every peer sends its status to all others. Among peers that receive each other's statuses, the
first by name coordinates, in its own term, until it becomes silent. A peer keeps its own update until the next version,
so the loss of another peer never loses an update. It keeps only one sum, so its memory does not grow with the flock.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.flock.coordinator import Coordinator
from shoal.flock.pairing.resources import USUAL, Thresholds, judge
from shoal.flock.settings import JOULES_PER_BYTE, FlockSettings
from shoal.flock.states import CommandKind, PeerPhase
from shoal.learning.partial import Partial
from shoal.roles.actions import End, Evaluate, Interrupt, Prepare, Save, Train
from shoal.roles.evaluation_rows import figures_text
from shoal.roles.events import (
    Connected,
    Disconnected,
    EvaluationDone,
    Event,
    Felt,
    Prepared,
    PrepareFailed,
    Received,
    Saved,
    SaveFailed,
    Started,
    StopRequested,
    TimerFired,
    Trained,
    TrainerFailed,
)
from shoal.roles.leader.evaluation import EVALUATION_CHUNK
from shoal.roles.machine import Machine
from shoal.wire.checks import dense, flat
from shoal.wire.limits import LABELLED_MAX, VALUE_BYTES
from shoal.wire.messages import (
    Command,
    JobSpec,
    Message,
    MetricView,
    ModelTransfer,
    PartialSum,
    PeerStatus,
    Request,
    clip,
    views_of,
)

BEAT = "beat"
TRAINING = "training"

#: Trainings that may fail in a row before a peer gives up: its task does not run here.
FAILURES_MAX = 5

#: Beats that a peer stays after the last version, for peers that have not confirmed that they have it.
LINGER_BEATS = 10

#: A coordinator acts on its own commands at once and decides again, at most this often per event.
LOOKS_MAX = 8


def digest_of(model: np.ndarray) -> str:
    """Return the hash that identifies a version."""
    return hashlib.blake2b(np.ascontiguousarray(model, np.float32).data, digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A model that a peer holds. It never changes, since it may be on its way to another peer."""

    number: int
    model: np.ndarray
    digest: str = ""
    #: Number of updates in it, and their owners if it was made here.
    made_of: int = 0
    of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.model.flags.writeable = False
        if not self.digest:
            object.__setattr__(self, "digest", digest_of(self.model))


@dataclass(slots=True)
class _Heard:
    """The last status of another peer."""

    status: PeerStatus | None = None
    at_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class _MergeOutcome:
    """How the last merge into this peer ended."""

    number: int
    is_taken: bool


@dataclass(frozen=True, slots=True)
class _TestResult:
    """The evaluation of a version on the held-out examples of this device."""

    version: int
    metrics: tuple[MetricView, ...]
    examples: int


class Peer(Machine):
    def __init__(
        self,
        *,
        node: str,
        spec: JobSpec,
        plan_sha256: str,
        settings: FlockSettings,
        first: Version,
        thresholds: Thresholds = USUAL,
    ) -> None:
        super().__init__()
        self.node = node
        self._spec = spec
        self._settings = settings
        self._thresholds = thresholds
        self._plan = plan_sha256
        self.version = first
        self._others: dict[str, _Heard] = {}
        #: Peers to which this one has an open link.
        self._lines: set[str] = set()
        self._strangers: set[str] = set()
        self._is_ready = False
        self._is_over = False
        self._over_beats = 0
        self._failures = 0

        self.term = 0
        #: The peer that this one follows; itself while it coordinates.
        self.coordinator: str | None = None
        self._coordinator_heard_s = -math.inf
        self._in_touch = False
        self._coordinating: Coordinator | None = None
        self._newcomer_s = 0.0

        self._phase = PeerPhase.IDLE
        self._round = 0
        self._heard = 0
        self._lease = 0
        self._testing = 0
        #: Its own update and its weight, until the next version.
        self._own: np.ndarray | None = None
        self._own_weight = 0.0
        #: The sum it holds, once it has two updates or more.
        self._partial: Partial | None = None
        self._of: tuple[str, ...] = ()
        self._token_term = 0
        self._merged: _MergeOutcome | None = None
        #: The command to get something from another peer; requested again when the link to that peer opens.
        self._expects: Command | None = None
        #: Requests from peers to which this one had no link.
        self._owes: dict[str, Request] = {}

        self._is_free = True
        self._reason: str | None = None
        self._spent_joules = 0.0
        self._tested: _TestResult | None = None
        self._told: PeerStatus | None = None

    # Events ----------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        match event:
            case Started():
                self.act(Prepare(spec=self._spec))
                self.timer(BEAT, self._settings.beat_s)
            case Prepared():
                if not self._is_ready:
                    self._note("peer.prepared", f"has version {self.version.number}; waiting for its peers")
                self._is_ready = True
            case PrepareFailed():
                self.act(End(reason=f"the task does not run here: {event.reason}"))
            case TimerFired(name=name) if name == BEAT:
                self._on_beat()
            case TimerFired(name=name) if name == TRAINING:
                if self._phase is PeerPhase.TRAINING:
                    reason = f"training did not end within {self._settings.train_max_s:g} s"
                    self.act(Interrupt(lease=self._lease, reason=reason))
            case Felt():
                self._on_felt(event)
            case Connected():
                self._lines.add(event.node)
                self._on_connected(event.node)
            case Disconnected():
                self._lines.discard(event.node)
            case Received():
                self._on_message(event)
            case Trained():
                self._on_trained(event)
            case EvaluationDone():
                self._on_evaluated(event)
            case TrainerFailed():
                self._on_failed(event)
            case StopRequested():
                self.act(End(reason=event.reason))
            case SaveFailed():
                self._note("save.failed", event.reason)
            case Saved():
                pass
            case _:
                raise Misuse(f"a peer cannot handle {type(event).__name__}")
        self._coordinate()
        self._tell_status()

    def _note(self, kind: str, reason: str) -> None:
        self.record(kind, reason, job=self._spec.job)

    def _on_felt(self, felt: Felt) -> None:
        """Decide from the sensors whether this device may be asked for a merge now."""
        told = judge(felt.condition, self._thresholds, was_free=self._is_free)
        self._is_free, self._reason = told.is_free, clip(told.reason)

    # Statuses --------------------------------------------------------------------------------------------------

    def status(self) -> PeerStatus:
        # On the wire "", 0 and -1 mean none, and a refused merge is a negative number.
        merged, tested = self._merged, self._tested
        return PeerStatus(
            plan=self._plan,
            term=self.term,
            coordinator=self.coordinator or "",
            in_touch=self._in_touch,
            heard=self._heard,
            version=self.version.number,
            digest=self.version.digest,
            made_of=self.version.made_of,
            phase=self._phase.value,
            round=self._round,
            of=self._of,
            weight=self._weight,
            token_term=self._token_term,
            took=0 if merged is None else merged.number if merged.is_taken else -merged.number,
            is_free=self._is_free,
            reason=self._reason or "",
            spent_joules=self._spent_joules,
            tested=-1 if tested is None else tested.version,
            metrics=() if tested is None else tested.metrics,
            examples=0 if tested is None else tested.examples,
            is_over=self._is_over,
        )

    @property
    def _weight(self) -> float:
        if not self._of:
            return 0.0
        return self._partial.weight if self._partial is not None else self._own_weight

    def _tell_status(self, *, anyway: bool = False) -> None:
        now = self.status()
        if now == self._told and not anyway:
            return
        self._told = now
        for name in sorted(self._lines):
            self.send(name, now)

    @property
    def is_halted(self) -> bool:
        """Whether it coordinates too few peers to continue."""
        return self._coordinating is not None and self._coordinating.is_halted

    @property
    def left_out(self) -> frozenset[str]:
        """The peers that it excluded as coordinator, in this round or the last."""
        coordinating = self._coordinating
        return frozenset() if coordinating is None else frozenset(coordinating.left_out | coordinating.left_out_before)

    def _statuses(self) -> dict[str, PeerStatus]:
        """Return the status of every live peer with the same plan, including this one."""
        heard = {
            name: other.status
            for name, other in self._others.items()
            if other.status is not None and self.now_s - other.at_s < self._settings.lost_after_s
        }
        heard[self.node] = self.status()
        return dict(sorted(heard.items()))

    def _on_beat(self) -> None:
        self.timer(BEAT, self._settings.beat_s)
        self._check_coordinator()
        if self._coordinating is not None:
            for name, call in list(self._coordinating.unheeded(self._statuses())):
                self._command(name, call)
        self._tell_status(anyway=True)
        if self._is_over:
            self._leave()

    def _leave(self) -> None:
        """End once every peer it ever met has the last version. It waits a while for silent ones, which may return."""
        self._over_beats += 1
        others = [other.status for other in self._others.values() if other.status is not None]
        is_tested = not self._spec.test.examples or self._is_tested
        if (is_tested and all(each.is_over for each in others)) or self._over_beats > LINGER_BEATS:
            self.act(End(reason=f"version {self.version.number} of {self._settings.rounds} is made"))

    # The coordinator --------------------------------------------------------------------------------------

    @property
    def _followed(self) -> tuple[int, str]:
        """Term and name of its coordinator: a peer follows the one with the highest term."""
        return self.term, self.coordinator or ""

    def _check_coordinator(self) -> None:
        """Become the coordinator if there is none and this peer is first by name."""
        self._in_touch = self.coordinator is not None and (
            self.coordinator == self.node or self.now_s - self._coordinator_heard_s < self._settings.lost_after_s
        )
        if self._in_touch or not self._is_ready or self._is_over:
            return
        peers = self._statuses()
        if (
            not self.term
            and len(self._others) + 1 < self._settings.devices
            and not any(each.term for each in peers.values())
        ):
            return
        if self.now_s - self._newcomer_s < 2 * self._settings.beat_s:
            return
        followers = [each for name, each in peers.items() if name != self.node and each.term >= self.term]
        if any(each.in_touch for each in followers):
            # Other peers have a coordinator, which this device cannot reach.
            return
        if min(peers) == self.node:
            why = f"{self.coordinator} is silent" if self.coordinator else f"first of {len(peers)} by name"
            self._enter_term(max(each.term for each in peers.values()) + 1, self.node)
            self._coordinating = Coordinator(
                term=self.term,
                settings=self._settings,
                size_bytes=VALUE_BYTES * self.version.model.size,
                now_s=self.now_s,
            )
            self._note("coordinator.elected", f"{self.node} coordinates in term {self.term}: {why}")

    def _follow(self, coordinator: str, term: int) -> None:
        self._note("coordinator.followed", f"{coordinator} coordinates in term {term}")
        self._enter_term(term, coordinator)
        self._coordinating = None

    def _enter_term(self, term: int, coordinator: str) -> None:
        self.term, self.coordinator = term, coordinator
        self._heard, self._merged, self._expects, self._token_term = 0, None, None, 0
        self._in_touch = True

    def _coordinate(self) -> None:
        if self._coordinating is None:
            return
        # A command to this peer itself changes its status, and so the next commands.
        for _ in range(LOOKS_MAX):
            decided = self._coordinating.decide(self.now_s, self._statuses())
            for kind, reason in decided.notes:
                self._note(kind, reason)
            for name, call in decided.calls:
                self._command(name, call)
            if all(name != self.node for name, _ in decided.calls):
                return

    def _command(self, name: str, call: Command) -> None:
        if name == self.node:
            self._on_command(call)
        else:
            self.send(name, call)

    # Messages of other peers --------------------------------------------------------------------------------

    def _on_message(self, event: Received) -> None:
        message, sender = event.message, event.sender
        match message:
            case PeerStatus():
                self._on_status(sender, message)
            case Command():
                if sender in self._others and (message.term, sender) >= self._followed:
                    if (message.term, sender) > self._followed:
                        self._follow(sender, message.term)
                    self._coordinator_heard_s = self.now_s
                    self._on_command(message)
            case Request():
                self._on_request(sender, message)
            case PartialSum():
                self._spent_joules += JOULES_PER_BYTE * event.size_bytes
                self._on_sum(sender, message)
            case ModelTransfer():
                self._spent_joules += JOULES_PER_BYTE * event.size_bytes
                self._on_model(message)
            case _:
                raise Misuse(f"a peer cannot handle {type(message).__name__}")

    def _on_status(self, sender: str, status: PeerStatus) -> None:
        if status.plan != self._plan:
            if sender not in self._strangers:
                self._strangers.add(sender)
                self._note("peer.refused", f"{sender} has another task or plan, and trains with others")
            return
        other = self._others.get(sender)
        if other is None:
            other = self._others[sender] = _Heard()
            self._newcomer_s = self.now_s
            self._note("peer.joined", f"{sender}, which has version {status.version}")
        if self.now_s - other.at_s > self._settings.lost_after_s:
            # The peer is back, and may lack the last version.
            self._over_beats = 0
        other.status, other.at_s = status, self.now_s
        if sender == self.coordinator:
            # A coordinator that restarted no longer coordinates.
            goes_on = (status.coordinator, status.term) == (sender, self.term)
            self._coordinator_heard_s = self.now_s if goes_on else -math.inf
        if status.coordinator == sender and (status.term, sender) > self._followed:
            self._follow(sender, status.term)
            self._coordinator_heard_s = self.now_s

    def _on_connected(self, node: str) -> None:
        """Request again what was on its way, and answer a request that had to wait for the link."""
        self.send(node, self.status())
        if self._expects is not None and self._expects.other == node:
            self._ask(self._expects)
        want = self._owes.pop(node, None)
        if want is not None:
            self._on_request(node, want)

    # Commands -------------------------------------------------------------------------------------------------

    def _on_command(self, call: Command) -> None:
        if call.number <= self._heard:
            return
        self._heard = call.number
        self._expects = None
        is_round = call.round == self._round
        is_holding = self._phase is PeerPhase.HOLDING
        match CommandKind(call.kind):
            case CommandKind.TRAIN if (call.version, call.digest) == (self.version.number, self.version.digest):
                self._train(call.round)
            case CommandKind.TAKE if is_round and is_holding:
                self._expects = call
                self._ask(call)
            case CommandKind.REST if is_round and is_holding:
                self._phase, self._of, self._partial = PeerPhase.RESTING, (), None
            case CommandKind.ANEW if is_round and self._own is not None:
                self._begin_with_own()
            case CommandKind.MAKE if is_round and is_holding:
                self._make_version()
            case CommandKind.FETCH if call.version >= self.version.number:
                # Never go back: a coordinator that was disconnected may have an older version than this peer.
                self._expects = call
                self._ask(call)
            case CommandKind.OVER if not self._is_over:
                self._is_over = True
                self._note("job.finished", call.reason)
                self._test()
            case _:
                pass

    def _ask(self, call: Command) -> None:
        want = Request(
            term=self.term,
            coordinator=self.coordinator or "",
            round=call.round,
            merge=call.merge,
            version=call.version,
            digest=call.digest,
        )
        self.send(call.other, want)

    def _on_request(self, sender: str, want: Request) -> None:
        if sender not in self._lines:
            self._owes[sender] = want
            return
        message: Message
        if not want.merge:
            if (want.version, want.digest) != (self.version.number, self.version.digest):
                return
            message = ModelTransfer(
                version=self.version.number,
                digest=self.version.digest,
                made_of=self.version.made_of,
                tensors={"model": self.version.model},
            )
        elif (want.term, want.coordinator, want.round) == (*self._followed, self._round) and self._of:
            message = PartialSum(
                term=self.term,
                coordinator=self.coordinator or "",
                round=self._round,
                merge=want.merge,
                of=self._of,
                weight=self._weight,
                tensors={"mean": self._mean()},
            )
        else:
            return
        self._spent_joules += JOULES_PER_BYTE * VALUE_BYTES * self.version.model.size
        self.send(sender, message)

    # A round ----------------------------------------------------------------------------------------------

    def _train(self, number: int) -> None:
        self._round, self._phase = number, PeerPhase.TRAINING
        self._own, self._partial, self._of = None, None, ()
        self._lease += 1
        self._test()
        model = {"model": self.version.model}
        examples = self._settings.examples or LABELLED_MAX
        self.timer(TRAINING, self._settings.train_max_s)
        version = self.version.number
        train = Train(
            lease=self._lease,
            epoch=number,
            batches=(number,),
            rate=self._spec.plan.rate_at(version),
            version=version,
            examples=examples,
            tensors=model,
        )
        self.act(train)

    @property
    def _is_tested(self) -> bool:
        return self._tested is not None and self._tested.version == self.version.number

    def _test(self) -> None:
        """Evaluate the version on the held-out examples of this device, once."""
        held_out = self._spec.test.examples
        if held_out and not self._is_tested:
            self._testing = self.version.number
            chunks = tuple(range(math.ceil(held_out / EVALUATION_CHUNK)))
            self.act(Evaluate(lease=self._lease, chunks=chunks, tensors={"model": self.version.model}))

    def _on_trained(self, trained: Trained) -> None:
        if trained.lease != self._lease or self._phase is not PeerPhase.TRAINING:
            return
        try:
            own = dense("delta", trained.tensors, size=self.version.model.size)
        except PeerViolation as error:
            self._on_failed(TrainerFailed(lease=trained.lease, reason=error.reason))
            return
        if trained.examples < 1:
            self._on_failed(TrainerFailed(lease=trained.lease, reason="this device has no examples"))
            return
        self._failures = 0
        self._spent_joules += max(0.0, trained.joules)
        self._own, self._own_weight = own, float(trained.examples)
        self._begin_with_own()

    def _begin_with_own(self) -> None:
        self._phase, self._of, self._partial = PeerPhase.HOLDING, (self.node,), None
        self._token_term = self.term

    def _on_failed(self, failed: TrainerFailed) -> None:
        if failed.lease != self._lease or self._phase is not PeerPhase.TRAINING:
            return
        self._failures += 1
        self._phase = PeerPhase.FAILED
        self._note("training.failed", f"round {self._round}: {failed.reason}")
        if self._failures >= FAILURES_MAX:
            self.act(End(reason=f"training failed {self._failures} times in a row: {failed.reason}"))
        else:
            self.act(Prepare(spec=self._spec))

    def _on_evaluated(self, done: EvaluationDone) -> None:
        if done.lease == self._lease and done.examples:
            metrics = views_of(done.metrics)
            self._tested = _TestResult(self._testing, metrics, done.examples)
            told = f"{figures_text(metrics)} on {done.examples} held-out examples here"
            self._note("job.evaluated", f"version {self._testing}: {told}")

    def _mean(self) -> np.ndarray:
        if self._partial is not None:
            return self._partial.mean()
        if self._own is None:
            raise Misuse("a peer that holds no update has no mean")
        return self._own

    def _on_sum(self, sender: str, part: PartialSum) -> None:
        """MDLdroid Eq. 3: (θᵢgᵢ + θⱼgⱼ) / (θᵢ + θⱼ), and the receiver has θᵢ + θⱼ."""
        call = self._expects
        wanted = call is not None and (call.merge, call.other) == (part.merge, sender)
        is_now = (part.term, part.coordinator, part.round) == (*self._followed, self._round)
        if not wanted or not is_now or self._phase is not PeerPhase.HOLDING:
            return
        self._expects = None
        try:
            mean = dense("mean", part.tensors, size=self.version.model.size)
            if set(part.of) & set(self._of) or not part.of:
                raise PeerViolation(f"the sum has updates of {', '.join(part.of)}, and some of them are here already")
            if part.weight > (most := (self._settings.examples or LABELLED_MAX) * len(part.of)):
                raise PeerViolation(
                    f"{len(part.of)} updates have the weight {part.weight:g}; at most {most} is possible"
                )
        except PeerViolation as error:
            self._merged, self._reason = _MergeOutcome(part.merge, is_taken=False), clip(error.reason)
            self._note("merge.rejected", f"merge {part.merge} of {sender}: {error.reason}")
            return
        if self._partial is None:
            self._partial = Partial(mean.size)
            self._partial.add(self._mean_of_own(), weight=self._own_weight)
        self._partial.add(mean, weight=part.weight)
        self._of = tuple(sorted((*self._of, *part.of)))
        self._merged = _MergeOutcome(part.merge, is_taken=True)

    def _mean_of_own(self) -> np.ndarray:
        if self._own is None:
            raise Misuse("a peer that holds a sum must have its own update")
        return self._own

    # Versions ---------------------------------------------------------------------------------------------

    def _make_version(self) -> None:
        """Apply the mean of all updates, once, as the root."""
        model = self.version.model + self._mean()
        self._note(
            "version.made", f"version {self.version.number + 1} of {len(self._of)} updates: {', '.join(self._of)}"
        )
        self._hold(Version(number=self.version.number + 1, model=model, made_of=len(self._of), of=self._of))

    def _on_model(self, given: ModelTransfer) -> None:
        call = self._expects
        if (
            call is None
            or call.kind != CommandKind.FETCH
            or (call.version, call.digest) != (given.version, given.digest)
        ):
            return
        self._expects = None
        try:
            model = flat("model", given.tensors, size=self.version.model.size).copy()
            if digest_of(model) != given.digest:
                raise PeerViolation("the model does not match its digest")
            if not np.isfinite(model).all():
                raise PeerViolation("the model has values that are not finite")
        except PeerViolation as error:
            self._note("model.invalid", f"version {given.version}: {error.reason}")
            return
        self._hold(Version(number=given.version, model=model, digest=given.digest, made_of=given.made_of))

    def _hold(self, version: Version) -> None:
        self.version = version
        self._phase, self._own, self._partial, self._of = PeerPhase.IDLE, None, None, ()
        self._lease += 1
        self.act(
            Save(
                version=version.number,
                tensors={"model": version.model},
                state={"digest": version.digest, "made_of": version.made_of},
            )
        )
