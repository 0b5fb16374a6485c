"""One device of a flock: trains, hands its updates on in pairs, holds the versions they make; conducts if it must.

There is no manager. Each tells all others how it stands; whoever is first by name among those who hear each other
conducts, in a term of its own, until it is silent. A mate keeps its own update until the next version, so nobody takes
one with them that cannot be merged again; and it keeps one sum, so its memory does not grow with the flock.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.learning.partial import Partial
from shoal.roles.actions import Action, End, Evaluate, Interrupt, Prepare, Record, Save, Send, SetTimer, Train
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
from shoal.roles.exam import EXAM_CHUNK
from shoal.roles.flock.conductor import Conductor, Decisions
from shoal.roles.flock.settings import JOULES_PER_BYTE, FlockSettings
from shoal.topology.chain.resources import USUAL, Thresholds, judge
from shoal.wire.checks import dense, flat
from shoal.wire.limits import LABELLED_MAX, VALUE_BYTES
from shoal.wire.messages import Call, Given, JobSpec, Message, Part, Standing, Want, clip

BEAT = "beat"
TRAINING = "training"

#: So many trainings in a row may fail before a mate gives up: its task does not run here.
FAILURES_MAX = 5

#: After the last version, how long a mate stays for those that it met and that have not said that they have it.
LINGER_BEATS = 10


def digest_of(model: np.ndarray) -> str:
    """What a version is recognised by."""
    return hashlib.blake2b(np.ascontiguousarray(model, np.float32).data, digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A model that a mate holds. Never changed: it may be on its way to another."""

    number: int
    model: np.ndarray
    digest: str = ""
    #: How many updates were in it; whose, where it was made here.
    made_of: int = 0
    of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.model.flags.writeable = False
        if not self.digest:
            object.__setattr__(self, "digest", digest_of(self.model))


@dataclass(slots=True)
class _Peer:
    standing: Standing | None = None
    heard_s: float = -math.inf


class Mate:
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
        self.node = node
        self._spec = spec
        self._settings = settings
        self._thresholds = thresholds
        self._plan = plan_sha256
        self.version = first
        self._peers: dict[str, _Peer] = {}
        #: Those that can be spoken to.
        self._lines: set[str] = set()
        self._strangers: set[str] = set()
        self._is_ready = False
        self._is_over = False
        self._over_beats = 0
        self._failures = 0

        self.term = 0
        self.conductor = ""
        self._conductor_heard_s = -math.inf
        self._in_touch = False
        self._conducting: Conductor | None = None
        self._newcomer_s = 0.0

        self._phase = "idle"
        self._round = 0
        self._heard = 0
        self._lease = 0
        self._testing = 0
        #: Its own update and what it weighs, until the next version.
        self._own: np.ndarray | None = None
        self._own_weight = 0.0
        #: The sum of those it holds, once there are two.
        self._partial: Partial | None = None
        self._of: tuple[str, ...] = ()
        self._token_term = 0
        self._took = 0
        #: What it was called to get: said again when there is a line to whom it is to come from.
        self._expects: Call | None = None
        #: Who asked for what, while there was no line to them.
        self._owes: dict[str, Want] = {}

        self._is_free = True
        self._reason = ""
        self._spent_joules = 0.0
        self._tested = (-1, 0, 0)
        self._told: Standing | None = None

    # Events ----------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Action]:
        out: list[Action] = []
        match event:
            case Started():
                out += [Prepare(spec=self._spec), SetTimer(name=BEAT, after_s=self._settings.beat_s)]
            case Prepared():
                if not self._is_ready:
                    self._note(out, "ready", f"holds version {self.version.number}; waits for its mates")
                self._is_ready = True
            case PrepareFailed():
                out.append(End(reason=f"the task does not run here: {event.reason}"))
            case TimerFired(name=name) if name == BEAT:
                self._beat(out, now_s)
            case TimerFired(name=name) if name == TRAINING:
                if self._phase == "training":
                    reason = f"no end after {self._settings.train_max_s:g} s"
                    out.append(Interrupt(lease=self._lease, reason=reason))
            case Felt():
                self._feel(event)
            case Connected():
                self._lines.add(event.node)
                self._connected(out, event.node)
            case Disconnected():
                self._lines.discard(event.node)
            case Received():
                self._received(out, event, now_s)
            case Trained():
                self._trained(out, event)
            case EvaluationDone():
                self._evaluated(out, event)
            case TrainerFailed():
                self._failed(out, event)
            case StopRequested():
                out.append(End(reason=event.reason))
            case SaveFailed():
                self._note(out, "not saved", event.reason)
            case Saved():
                pass
            case _:
                raise Misuse(f"a mate does not hear {type(event).__name__}")
        self._conduct(out, now_s)
        self._tell(out)
        return out

    def _note(self, out: list[Action], kind: str, reason: str) -> None:
        out.append(Record(kind=kind, reason=reason, job=self._spec.job))

    def _feel(self, felt: Felt) -> None:
        """Whether this device may be asked for a merge now, from what it senses."""
        told = judge(felt.condition, self._thresholds, was_free=self._is_free)
        self._is_free, self._reason = told.is_free, clip(told.reason)

    # How it stands, and how the others do --------------------------------------------------------------------

    def standing(self) -> Standing:
        return Standing(
            plan=self._plan,
            term=self.term,
            conductor=self.conductor,
            in_touch=self._in_touch,
            heard=self._heard,
            version=self.version.number,
            digest=self.version.digest,
            made_of=self.version.made_of,
            phase=self._phase,
            round=self._round,
            of=self._of,
            weight=self._weight,
            token_term=self._token_term,
            took=self._took,
            is_free=self._is_free,
            reason=self._reason,
            spent_joules=self._spent_joules,
            tested=self._tested[0],
            correct=self._tested[1],
            examples=self._tested[2],
            is_over=self._is_over,
        )

    @property
    def _weight(self) -> float:
        if not self._of:
            return 0.0
        return self._partial.weight if self._partial is not None else self._own_weight

    def _tell(self, out: list[Action], *, anyway: bool = False) -> None:
        now = self.standing()
        if now == self._told and not anyway:
            return
        self._told = now
        out += [Send(to=name, message=now) for name in sorted(self._lines)]

    @property
    def is_halted(self) -> bool:
        """It conducts, and too few are left to go on."""
        return self._conducting is not None and self._conducting.is_halted

    @property
    def left_out(self) -> frozenset[str]:
        """It conducts, and did not wait for these, in this round or the last."""
        conducting = self._conducting
        return frozenset() if conducting is None else frozenset(conducting.left_out | conducting.left_out_before)

    def mates(self, now_s: float) -> dict[str, Standing]:
        """Those of the same plan that are heard, this one among them."""
        heard = {
            name: peer.standing
            for name, peer in self._peers.items()
            if peer.standing is not None and now_s - peer.heard_s < self._settings.lost_after_s
        }
        heard[self.node] = self.standing()
        return dict(sorted(heard.items()))

    def _beat(self, out: list[Action], now_s: float) -> None:
        out.append(SetTimer(name=BEAT, after_s=self._settings.beat_s))
        self._mind_the_conductor(out, now_s)
        if self._conducting is not None:
            for name, call in list(self._conducting.unheeded(self.mates(now_s))):
                self._say(out, name, call)
        self._tell(out, anyway=True)
        if self._is_over:
            self._leave(out, now_s)

    def _leave(self, out: list[Action], now_s: float) -> None:
        """Once all that it ever met have the last version; others are waited for a while, as they may come back."""
        self._over_beats += 1
        others = [peer.standing for peer in self._peers.values() if peer.standing is not None]
        is_tested = not self._spec.test.examples or self._tested[0] == self.version.number
        if (is_tested and all(each.is_over for each in others)) or self._over_beats > LINGER_BEATS:
            out.append(End(reason=f"version {self.version.number} of {self._settings.rounds} is made"))

    # Who conducts -----------------------------------------------------------------------------------------

    def _mind_the_conductor(self, out: list[Action], now_s: float) -> None:
        self._in_touch = bool(self.conductor) and (
            self.conductor == self.node or now_s - self._conductor_heard_s < self._settings.lost_after_s
        )
        if self._in_touch or not self._is_ready or self._is_over:
            return
        mates = self.mates(now_s)
        if (
            not self.term
            and len(self._peers) + 1 < self._settings.devices
            and not any(each.term for each in mates.values())
        ):
            return
        if now_s - self._newcomer_s < 2 * self._settings.beat_s:
            return
        followers = [each for name, each in mates.items() if name != self.node and each.term >= self.term]
        if any(each.in_touch for each in followers):
            # Others hear one: it is this device that is out of its reach.
            return
        if min(mates) == self.node:
            self.term = max(each.term for each in mates.values()) + 1
            why = f"{self.conductor} is silent" if self.conductor else f"first of {len(mates)} by name"
            self.conductor, self._heard, self._took, self._expects, self._token_term = self.node, 0, 0, None, 0
            self._in_touch = True
            size_bytes = VALUE_BYTES * self.version.model.size
            self._conducting = Conductor(term=self.term, settings=self._settings, size_bytes=size_bytes, now_s=now_s)
            self._note(out, "conducts", f"{self.node} conducts in term {self.term}: {why}")

    def _follow(self, out: list[Action], conductor: str, term: int) -> None:
        self._note(out, "follows", f"{conductor} conducts in term {term}")
        self.term, self.conductor = term, conductor
        self._heard, self._took, self._expects, self._token_term = 0, 0, None, 0
        self._conducting = None
        self._in_touch = True

    def _conduct(self, out: list[Action], now_s: float) -> None:
        if self._conducting is None:
            return
        # What this mate is called to do changes how it stands, and that what is to be called next.
        for _ in range(8):
            decided: Decisions = self._conducting.decide(now_s, self.mates(now_s))
            for kind, reason in decided.notes:
                self._note(out, kind, reason)
            for name, call in decided.calls:
                self._say(out, name, call)
            if all(name != self.node for name, _ in decided.calls):
                return

    def _say(self, out: list[Action], name: str, call: Call) -> None:
        if name == self.node:
            self._called(out, call)
        else:
            out.append(Send(to=name, message=call))

    # What others say ----------------------------------------------------------------------------------------

    def _received(self, out: list[Action], event: Received, now_s: float) -> None:
        message, sender = event.message, event.sender
        match message:
            case Standing():
                self._stands(out, sender, message, now_s)
            case Call():
                if sender in self._peers and (message.term, sender) >= (self.term, self.conductor):
                    if (message.term, sender) > (self.term, self.conductor):
                        self._follow(out, sender, message.term)
                    self._conductor_heard_s = now_s
                    self._called(out, message)
            case Want():
                self._wanted(out, sender, message)
            case Part():
                self._spent_joules += JOULES_PER_BYTE * event.size_bytes
                self._take(out, sender, message)
            case Given():
                self._spent_joules += JOULES_PER_BYTE * event.size_bytes
                self._get(out, message)
            case _:
                raise Misuse(f"a mate does not hear {type(message).__name__}")

    def _stands(self, out: list[Action], sender: str, standing: Standing, now_s: float) -> None:
        if standing.plan != self._plan:
            if sender not in self._strangers:
                self._strangers.add(sender)
                self._note(out, "stranger", f"{sender} has another task or plan: it trains with others")
            return
        peer = self._peers.get(sender)
        if peer is None:
            peer = self._peers[sender] = _Peer()
            self._newcomer_s = now_s
            self._note(out, "met", f"{sender}, which holds version {standing.version}")
        if now_s - peer.heard_s > self._settings.lost_after_s:
            # It is back: it may lack what others have.
            self._over_beats = 0
        peer.standing, peer.heard_s = standing, now_s
        if sender == self.conductor:
            # One that started anew conducts no more.
            goes_on = (standing.conductor, standing.term) == (sender, self.term)
            self._conductor_heard_s = now_s if goes_on else -math.inf
        if standing.conductor == sender and (standing.term, sender) > (self.term, self.conductor):
            self._follow(out, sender, standing.term)
            self._conductor_heard_s = now_s

    def _connected(self, out: list[Action], node: str) -> None:
        """Ask again for what was on its way, and give what was asked for."""
        out.append(Send(to=node, message=self.standing()))
        if self._expects is not None and self._expects.other == node:
            self._ask(out, self._expects)
        want = self._owes.pop(node, None)
        if want is not None:
            self._wanted(out, node, want)

    # What it is called to do ----------------------------------------------------------------------------------

    def _called(self, out: list[Action], call: Call) -> None:
        if call.number <= self._heard:
            return
        self._heard = call.number
        self._expects = None
        is_round = call.round == self._round
        match call.kind:
            case "train" if (call.version, call.digest) == (self.version.number, self.version.digest):
                self._train(out, call.round)
            case "take" if is_round and self._phase == "holding":
                self._expects = call
                self._ask(out, call)
            case "rest" if is_round and self._phase == "holding":
                self._phase, self._of, self._partial = "resting", (), None
            case "anew" if is_round and self._own is not None:
                self._begin_with_own()
            case "make" if is_round and self._phase == "holding":
                self._make(out)
            case "fetch" if call.version >= self.version.number:
                # Never back: a conductor that was away may know less than this mate.
                self._expects = call
                self._ask(out, call)
            case "over" if not self._is_over:
                self._is_over = True
                self._note(out, "over", call.reason)
                self._test(out)
            case _:
                pass

    def _ask(self, out: list[Action], call: Call) -> None:
        want = Want(
            term=self.term,
            conductor=self.conductor,
            round=call.round,
            merge=call.merge,
            version=call.version,
            digest=call.digest,
        )
        out.append(Send(to=call.other, message=want))

    def _wanted(self, out: list[Action], sender: str, want: Want) -> None:
        if sender not in self._lines:
            self._owes[sender] = want
            return
        message: Message
        if not want.merge:
            if (want.version, want.digest) != (self.version.number, self.version.digest):
                return
            message = Given(
                version=self.version.number,
                digest=self.version.digest,
                made_of=self.version.made_of,
                tensors={"model": self.version.model},
            )
        elif (want.term, want.conductor, want.round) == (self.term, self.conductor, self._round) and self._of:
            message = Part(
                term=self.term,
                conductor=self.conductor,
                round=self._round,
                merge=want.merge,
                of=self._of,
                weight=self._weight,
                tensors={"mean": self._mean()},
            )
        else:
            return
        self._spent_joules += JOULES_PER_BYTE * VALUE_BYTES * self.version.model.size
        out.append(Send(to=sender, message=message))

    # A round ----------------------------------------------------------------------------------------------

    def _train(self, out: list[Action], number: int) -> None:
        self._round, self._phase = number, "training"
        self._own, self._partial, self._of = None, None, ()
        self._lease += 1
        self._test(out)
        model = {"model": self.version.model}
        examples = self._settings.examples or LABELLED_MAX
        out.append(SetTimer(name=TRAINING, after_s=self._settings.train_max_s))
        out.append(Train(lease=self._lease, epoch=number, batches=(number,), examples=examples, tensors=model))

    def _test(self, out: list[Action]) -> None:
        """See how the version does on what this device holds out, once."""
        held_out = self._spec.test.examples
        if held_out and self._tested[0] != self.version.number:
            self._testing = self.version.number
            chunks = tuple(range(math.ceil(held_out / EXAM_CHUNK)))
            out.append(Evaluate(lease=self._lease, chunks=chunks, tensors={"model": self.version.model}))

    def _trained(self, out: list[Action], trained: Trained) -> None:
        if trained.lease != self._lease or self._phase != "training":
            return
        try:
            own = dense("delta", trained.tensors, size=self.version.model.size)
        except PeerViolation as error:
            self._failed(out, TrainerFailed(lease=trained.lease, reason=error.reason))
            return
        if trained.examples < 1:
            self._failed(out, TrainerFailed(lease=trained.lease, reason="there are no examples here"))
            return
        self._failures = 0
        self._spent_joules += max(0.0, trained.joules)
        self._own, self._own_weight = own, float(trained.examples)
        self._begin_with_own()

    def _begin_with_own(self) -> None:
        self._phase, self._of, self._partial = "holding", (self.node,), None
        self._token_term = self.term

    def _failed(self, out: list[Action], failed: TrainerFailed) -> None:
        if failed.lease != self._lease or self._phase != "training":
            return
        self._failures += 1
        self._phase = "failed"
        self._note(out, "failed", f"round {self._round}: {failed.reason}")
        if self._failures >= FAILURES_MAX:
            out.append(End(reason=f"training failed {self._failures} times in a row: {failed.reason}"))
        else:
            out.append(Prepare(spec=self._spec))

    def _evaluated(self, out: list[Action], done: EvaluationDone) -> None:
        if done.lease == self._lease and done.examples:
            self._tested = (self._testing, done.correct, done.examples)
            share = done.correct / done.examples
            self._note(out, "tested", f"version {self._testing}: {share:.2%} of {done.examples} held-out examples here")

    def _mean(self) -> np.ndarray:
        if self._partial is not None:
            return self._partial.mean()
        if self._own is None:
            raise Misuse("a mate that holds nothing has no mean")
        return self._own

    def _take(self, out: list[Action], sender: str, part: Part) -> None:
        """MDLdroid Eq. 3: (θᵢgᵢ + θⱼgⱼ) / (θᵢ + θⱼ), and the receiver has θᵢ + θⱼ."""
        call = self._expects
        wanted = call is not None and (call.merge, call.other) == (part.merge, sender)
        is_now = (part.term, part.conductor, part.round) == (self.term, self.conductor, self._round)
        if not wanted or not is_now or self._phase != "holding":
            return
        self._expects = None
        try:
            mean = dense("mean", part.tensors, size=self.version.model.size)
            if set(part.of) & set(self._of) or not part.of:
                raise PeerViolation(f"updates of {', '.join(part.of)}: some are here already")
            if part.weight > (most := (self._settings.examples or LABELLED_MAX) * len(part.of)):
                raise PeerViolation(f"{len(part.of)} updates that weigh {part.weight:g}; their examples are {most}")
        except PeerViolation as error:
            self._took, self._reason = -part.merge, clip(error.reason)
            self._note(out, "not taken", f"merge {part.merge} of {sender}: {error.reason}")
            return
        if self._partial is None:
            self._partial = Partial(mean.size)
            self._partial.add(self._mean_of_own(), weight=self._own_weight)
        self._partial.add(mean, weight=part.weight)
        self._of = tuple(sorted((*self._of, *part.of)))
        self._took = part.merge

    def _mean_of_own(self) -> np.ndarray:
        if self._own is None:
            raise Misuse("a mate that holds updates has its own")
        return self._own

    # Versions ---------------------------------------------------------------------------------------------

    def _make(self, out: list[Action]) -> None:
        """The root's mean is applied once, by the root."""
        model = self.version.model + self._mean()
        self._note(out, "made", f"version {self.version.number + 1} of {len(self._of)} updates: {', '.join(self._of)}")
        self._hold(out, Version(number=self.version.number + 1, model=model, made_of=len(self._of), of=self._of))

    def _get(self, out: list[Action], given: Given) -> None:
        call = self._expects
        if call is None or call.kind != "fetch" or (call.version, call.digest) != (given.version, given.digest):
            return
        self._expects = None
        try:
            model = flat("model", given.tensors, size=self.version.model.size).copy()
            if digest_of(model) != given.digest:
                raise PeerViolation("a model that is not the one it is said to be")
            if not np.isfinite(model).all():
                raise PeerViolation("a model with values that are not finite")
        except PeerViolation as error:
            self._note(out, "not taken", f"version {given.version}: {error.reason}")
            return
        self._hold(out, Version(number=given.version, model=model, digest=given.digest, made_of=given.made_of))

    def _hold(self, out: list[Action], version: Version) -> None:
        self.version = version
        self._phase, self._own, self._partial, self._of = "idle", None, None, ()
        self._lease += 1
        out.append(
            Save(
                version=version.number,
                tensors={"model": version.model},
                state={"digest": version.digest, "made_of": version.made_of},
            )
        )
