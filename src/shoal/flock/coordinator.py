"""The coordinator of a flock: decides what each peer does next from all statuses. Holds no model, uses no network.

The coordinator decides from the present statuses and not from history. A silent peer counts as absent. If no living
peer holds an update, its owner begins again with it, since each peer keeps its own update until the next version. So
the loss of a peer needs no special handling, whatever it held, and a new coordinator needs nothing from the last one.

MDLdroid's Eq. 3 and Algorithm 1, with these corrections. θ begins as the number of examples. The *receiver* has θᵢ +
θⱼ, and the sender waits for the next version. The root's W is the weighted mean already, and is applied once, not N - 1
times. The root distributes the version itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.flock.pairing import pairs
from shoal.flock.pairing.ahead import LookAhead
from shoal.flock.pairing.pairs import Pairing
from shoal.flock.settings import FlockSettings
from shoal.flock.states import CommandKind, PeerPhase
from shoal.wire.messages import Command, PeerStatus

#: A peer with this many failed merges in a round is excluded from the round.
SPOILT_MAX = 3

#: Merges that take less than this count as equally long: messages take most of that time. Then energy decides.
ALIKE_BELOW_S = 0.1


@dataclass(slots=True)
class _Merge:
    number: int
    sender: str
    receiver: str
    since_s: float
    #: The number of the command that cancelled the merge, or None if it is running.
    voided: int | None = None


@dataclass(slots=True)
class _Fetch:
    giver: str
    since_s: float


class _Candidate(NamedTuple):
    """A version that some peers hold."""

    version: int
    made_of: int
    digest: str


class Ways:
    """How long merges took, pair by pair. A pair that never merged gets the mean of pairs with either peer, or of
    all."""

    def __init__(self) -> None:
        self._took_s: dict[tuple[str, str], float] = {}

    @property
    def is_known(self) -> bool:
        return bool(self._took_s)

    def took(self, sender: str, receiver: str, seconds: float) -> None:
        """Add a measurement. The newest counts for half: a link's rate changes."""
        seconds = max(seconds, ALIKE_BELOW_S)
        before_s = self._took_s.get((sender, receiver), seconds)
        self._took_s[sender, receiver] = (before_s + seconds) / 2

    def merge_s(self, sender: str, receiver: str) -> float:
        known_s = self._took_s.get((sender, receiver))
        if known_s is not None:
            return known_s
        near = [took_s for (one, other), took_s in self._took_s.items() if one == sender or other == receiver]
        return statistics.fmean(near or self._took_s.values())


@dataclass(slots=True)
class Decisions:
    """The result of one decision."""

    calls: list[tuple[str, Command]] = field(default_factory=list)
    #: Kind and reason of each decision to record.
    notes: list[tuple[str, str]] = field(default_factory=list)


class Coordinator:
    """One term of one peer as coordinator.

    ``decide`` is its only entry point: during the call, ``_now_s`` and ``_statuses`` are its arguments, and every
      method
    appends to ``_out``.
    """

    def __init__(
        self,
        *,
        term: int,
        settings: FlockSettings,
        size_bytes: int,
        now_s: float,
        pairing: Pairing | None = None,
    ) -> None:
        self.term = term
        self._settings = settings
        self._transfer_max_s = settings.transfer_max_s(size_bytes)
        self._pairing: Pairing = pairing or LookAhead()
        self._ways = Ways()
        self._number = 0
        self._merge_number = 0
        #: The last command to each peer; repeated until the peer follows it.
        self.calls: dict[str, Command] = {}
        #: The version that the round starts from, or None before the first decision.
        self._current: _Candidate | None = None
        self._fetches: dict[str, _Fetch] = {}
        self.is_halted = False
        self.left_out: set[str] = set()
        self._now_s = now_s
        self._statuses: Mapping[str, PeerStatus] = {}
        self._out = Decisions()
        self._begin()

    def _begin(self) -> None:
        self._began_s = self._now_s
        self._merges: list[_Merge] = []
        #: (peer, owners of the updates it holds) -> when it became free with these.
        self._ready_s: dict[tuple[str, tuple[str, ...]], float] = {}
        self._took_s: dict[str, float] = {}
        #: Peers that the last round excluded, and this one.
        self.left_out_before, self.left_out = self.left_out, set()
        #: Peers that were in this round, and those of them that became silent.
        self._met: set[str] = set()
        self._gone: set[str] = set()
        #: Failed merges: how many per sender, and between which two peers.
        self._spoilt: dict[str, int] = {}
        self._apart: set[tuple[str, str]] = set()
        #: Since when the round waits only for peers that train or are busy.
        self._waiting_s: float | None = None
        self._is_hurried = False
        self._root: str | None = None

    @property
    def _base(self) -> _Candidate:
        assert self._current is not None
        return self._current

    @property
    def round(self) -> int:
        return self._base.version + 1

    def unheeded(self, statuses: Mapping[str, PeerStatus]) -> Iterator[tuple[str, Command]]:
        """Yield the commands to repeat."""
        for name, status in statuses.items():
            call = self.calls.get(name)
            if call is not None and not self._heeds(status, call):
                yield name, call

    def _heeds(self, status: PeerStatus, call: Command) -> bool:
        return status.term == self.term and status.heard >= call.number

    # One decision -------------------------------------------------------------------------------------------

    def decide(self, now_s: float, statuses: Mapping[str, PeerStatus]) -> Decisions:
        """Decide what each peer does next. ``statuses`` are those of all live peers, including the coordinator's
        own."""
        self._now_s, self._statuses, self._out = now_s, statuses, Decisions()
        self._look()
        return self._out

    def _look(self) -> None:
        self._choose_version()
        holders = {name: each for name, each in self._statuses.items() if self._holds(each)}
        self._hand_out(holders)
        if self._base.version >= self._settings.rounds:
            if len(holders) == len(self._statuses):
                for name in holders:
                    self._call(name, CommandKind.OVER, reason=f"version {self._base.version} is the last")
            return
        if self._is_too_few():
            return
        in_round = {name: each for name, each in holders.items() if each.round == self.round}
        held = self._held(in_round)
        for name, status in holders.items():
            # A peer that restarted after it sent its update on is in this round already.
            if status.round != self.round and name not in self.left_out and name not in held:
                self._call(name, CommandKind.TRAIN, names_version=True)
        self._settle(in_round)
        self._restart(in_round)
        self._pair(in_round)

    def _holds(self, status: PeerStatus) -> bool:
        return (status.version, status.digest) == (self._base.version, self._base.digest)

    def _is_too_few(self) -> bool:
        """Return whether this part of the flock is too small to continue: after a network partition it needs half of
        all peers."""
        here, flock = len(self._statuses), self._base.made_of or self._settings.devices
        is_few = 2 * here < flock
        if is_few and not self.is_halted:
            self._note(
                "quorum.lost", f"{here} of the {flock} that made version {self._base.version} are here: half is needed"
            )
        self.is_halted = is_few
        return is_few

    # The version to start from, and the peers that lack it -----------------------------------------------------

    def _choose_version(self) -> None:
        held: dict[_Candidate, int] = {}
        for each in self._statuses.values():
            candidate = _Candidate(each.version, each.made_of, each.digest)
            held[candidate] = held.get(candidate, 0) + 1
        current = self._current
        is_held = any((each.version, each.digest) == (current.version, current.digest) for each in held if current)
        others = [each for each in held if current is None or each.version > current.version or not is_held]
        if not others:
            return
        # Two halves of a flock may each make a version with the same number. The one with more updates wins, then the
        # one with more holders.
        best = max(others, key=lambda each: (each.version, each.made_of, held[each], each.digest))
        if current is not None and best.version > current.version and self._root is not None:
            self._note("version.adopted", f"version {best.version} of {best.made_of} updates, merged by {self._root}")
        self._current = best
        self._fetches.clear()
        self._begin()

    def _hand_out(self, holders: Mapping[str, PeerStatus]) -> None:
        """Distribute the version: each holder sends it to one peer at a time, which then sends it on (a binomial
        broadcast, §3.2). It needs no repair. Peers that spent least energy send first."""
        for name, fetch in list(self._fetches.items()):
            gone = name not in self._statuses or fetch.giver not in holders or name in holders
            if gone or self._now_s - fetch.since_s > self._transfer_max_s:
                del self._fetches[name]
        givers = {fetch.giver for fetch in self._fetches.values()}
        free = sorted((n for n in holders if n not in givers), key=lambda n: _richest(n, holders[n]))
        lacking = [n for n in self._statuses if n not in holders and n not in self._fetches]
        for name in sorted(lacking, key=lambda n: _richest(n, self._statuses[n])):
            if not free:
                return
            giver = free.pop(0)
            self._fetches[name] = _Fetch(giver, self._now_s)
            reason = f"{giver} has version {self._base.version}"
            self._call(name, CommandKind.FETCH, names_version=True, other=giver, reason=reason, again=True)

    # The round -------------------------------------------------------------------------------------------

    def _settle(self, peers: Mapping[str, PeerStatus]) -> None:
        """Find the merges that ended, and cancel those that cannot end."""
        for merge in list(self._merges):
            sender, receiver = peers.get(merge.sender), peers.get(merge.receiver)
            if receiver is None or (
                receiver.phase != PeerPhase.HOLDING and self._is_up_to_date(merge.receiver, receiver)
            ):
                # The sender still holds its sum.
                self._merges.remove(merge)
            elif receiver.took == merge.number and receiver.term == self.term:
                self._merges.remove(merge)
                self._ways.took(merge.sender, merge.receiver, self._now_s - merge.since_s)
                if sender is not None:
                    self._call(merge.sender, CommandKind.REST, reason=f"{merge.receiver} has it")
            elif merge.voided is not None:
                if receiver.heard >= merge.voided and receiver.term == self.term:
                    self._merges.remove(merge)
            elif (reason := self._spoilt_by(merge, sender, receiver)) is not None:
                self._spoilt[merge.sender] = self._spoilt.get(merge.sender, 0) + 1
                self._apart.add((merge.sender, merge.receiver))
                call = self._call(merge.receiver, CommandKind.KEEP, reason=reason, again=True)
                merge.voided = call.number
                self._note("merge.undone", f"merge {merge.number} into {merge.receiver}: {reason}")

    def _spoilt_by(self, merge: _Merge, sender: PeerStatus | None, receiver: PeerStatus) -> str | None:
        """Return why a merge fails, or None while it may succeed."""
        if sender is None or sender.phase != PeerPhase.HOLDING:
            return f"{merge.sender} is lost"
        if receiver.took == -merge.number:
            return f"{merge.receiver} does not take it: {receiver.reason}"
        if self._now_s - merge.since_s > self._transfer_max_s:
            return f"{merge.sender} cannot reach {merge.receiver}"
        return None

    def _restart(self, peers: Mapping[str, PeerStatus]) -> None:
        """Let a peer begin again with its own update if no living peer holds it. Under a new coordinator all do.

        A peer that was silent for a while begins again too, whatever it held, since others have begun again without it.
        It rests instead if it had sent its update on before.
        """
        self._gone |= self._met - peers.keys()
        self._met |= peers.keys()
        held = self._held(peers)
        for name, each in peers.items():
            if each.phase not in (PeerPhase.HOLDING, PeerPhase.RESTING):
                self._gone.discard(name)
            elif each.token_term != self.term:
                self._gone.discard(name)
                self._call(name, CommandKind.ANEW, reason=f"{name} begins again in term {self.term}")
            elif name in self._gone:
                self._gone.discard(name)
                is_held = any(
                    name in other.of for key, other in peers.items() if key != name and self._is_token(key, other)
                )
                kind = CommandKind.REST if is_held else CommandKind.ANEW
                self._call(name, kind, reason="it was silent for a while", again=True)
            elif each.phase == PeerPhase.RESTING and name not in held and self._is_up_to_date(name, each):
                self._call(name, CommandKind.ANEW, reason="the peer that held its update is lost", again=True)

    def _held(self, peers: Mapping[str, PeerStatus]) -> set[str]:
        """Return the owners of all updates that some peer holds."""
        return {of for name, each in peers.items() if self._is_token(name, each) for of in each.of}

    def _is_token(self, name: str, status: PeerStatus) -> bool:
        """Return whether the sum of this peer counts."""
        call = self.calls.get(name)
        is_void = call is not None and (
            self._is_told_to_rest(name) or (call.kind == CommandKind.ANEW and not self._heeds(status, call))
        )
        is_held = status.phase == PeerPhase.HOLDING and status.token_term == self.term
        return is_held and not is_void and name not in self._gone

    def _is_told_to_rest(self, name: str) -> bool:
        call = self.calls.get(name)
        return call is not None and call.kind == CommandKind.REST and call.round == self.round

    def _is_up_to_date(self, name: str, status: PeerStatus) -> bool:
        call = self.calls.get(name)
        return call is None or self._heeds(status, call)

    def _pair(self, peers: Mapping[str, PeerStatus]) -> None:
        engaged = {name for merge in self._merges for name in (merge.sender, merge.receiver)}
        tokens = {
            name: each for name, each in peers.items() if self._is_token(name, each) and self._is_up_to_date(name, each)
        }
        for name, each in tokens.items():
            self._took_s.setdefault(name, self._now_s - self._began_s)
            self._ready_s.setdefault((name, each.of), self._now_s)
        idle = {name: each for name, each in tokens.items() if name not in engaged}
        free = {name: each for name, each in idle.items() if each.is_free or self._is_hurried}
        coming = [name for name, each in peers.items() if name in engaged or each.phase == PeerPhase.TRAINING]
        while pair := self._next_pair(free, coming):
            self._merge_number += 1
            merge = _Merge(self._merge_number, pair.sender, pair.receiver, self._now_s)
            self._merges.append(merge)
            self._call(pair.receiver, CommandKind.TAKE, merge=merge.number, other=pair.sender, reason=pair.reason)
            self._note("merge.started", f"round {self.round}: {pair.sender} gives to {pair.receiver}: {pair.reason}")
            del free[pair.sender], free[pair.receiver]
            del idle[pair.sender], idle[pair.receiver]
        if self._merges or any(not self._is_up_to_date(name, each) for name, each in peers.items()):
            self._waiting_s = None
            return
        training = [name for name, each in peers.items() if each.phase == PeerPhase.TRAINING]
        held = self._held(peers)
        training += [name for name in self._statuses if name not in peers and name not in held]
        training = [name for name in training if name not in self.left_out]
        self._conclude(peers, idle, training)

    def _next_pair(self, free: Mapping[str, PeerStatus], coming: Sequence[str]) -> pairs.Pair | None:
        fit = [
            pairs.Holder(
                name=name, ready_s=self._ready_s[name, each.of], spent_joules=each.spent_joules, weight=each.weight
            )
            for name, each in free.items()
            if self._spoilt.get(name, 0) < SPOILT_MAX
        ]
        # The coordinator cannot predict when a training ends, so nobody waits for these peers.
        others = [pairs.Holder(name=name, ready_s=math.inf) for name in coming]
        links = self._ways if self._ways.is_known else None
        while pair := self._pairing.next_pair(fit, links=links, coming=others):
            if (pair.sender, pair.receiver) not in self._apart:
                return pair
            if (pair.receiver, pair.sender) not in self._apart:
                return pairs.Pair(sender=pair.receiver, receiver=pair.sender, reason="the other direction failed")
            fit = [each for each in fit if each.name != pair.sender]
        return None

    def _conclude(self, peers: Mapping[str, PeerStatus], idle: Mapping[str, PeerStatus], training: list[str]) -> None:
        """Wait for the missing peers or make the version, since nothing more can be merged now."""
        useful = {name: each for name, each in idle.items() if self._spoilt.get(name, 0) < SPOILT_MAX}
        if len(useful) > 1 or training:
            self._wait(useful, training)
            return
        if not useful:
            self._try_again(peers)
            return
        (root,) = useful
        if self._root != root:
            self._note("root.chosen", f"{root} holds all {len(useful[root].of)} updates of round {self.round}")
        self._root = root
        self._call(root, CommandKind.MAKE, names_version=True)

    def _try_again(self, peers: Mapping[str, PeerStatus]) -> None:
        """Let the peers that failed train once more after a while, since no peer has an update."""
        if not peers or self._now_s - self._began_s < self._settings.patience_s:
            return
        self._begin()
        self._note("round.repeated", f"no peer has an update for round {self.round}")
        for name in peers:
            self._call(name, CommandKind.TRAIN, names_version=True, again=True)

    def _wait(self, idle: Mapping[str, PeerStatus], training: list[str]) -> None:
        if not idle:
            self._waiting_s = None
            return
        if self._waiting_s is None:
            self._waiting_s = self._now_s
        usual_s = statistics.median(self._took_s.values()) if self._took_s else 0.0
        if self._now_s - self._waiting_s < max(self._settings.patience_s, 2 * usual_s):
            return
        if len(idle) > 1 and not self._is_hurried:
            self._is_hurried = True
            busy = ", ".join(sorted(name for name, each in idle.items() if not each.is_free))
            self._note("merge.forced", f"busy for longer than a round waits: {busy}")
        elif training:
            self.left_out.update(training)
            self._note("peer.excluded", f"round {self.round} continues without {', '.join(sorted(training))}: too late")

    # Commands --------------------------------------------------------------------------------------------

    def _note(self, kind: str, reason: str) -> None:
        self._out.notes.append((kind, reason))

    def _call(
        self,
        name: str,
        kind: CommandKind,
        *,
        names_version: bool = False,
        merge: int | None = None,
        other: str | None = None,
        reason: str | None = None,
        again: bool = False,
    ) -> Command:
        """Command a peer, unless its last command was the same; with ``again`` also then."""
        last = self.calls.get(name)
        # On the wire -1, "" and 0 mean none.
        version, digest = (self._base.version, self._base.digest) if names_version else (-1, "")
        call = Command(
            term=self.term,
            number=self._number + 1,
            kind=kind.value,
            round=self.round,
            version=version,
            digest=digest,
            merge=merge or 0,
            other=other or "",
            reason=reason or "",
        )
        if last is not None and _content(last) == _content(call) and not again:
            return last
        self._number += 1
        self.calls[name] = call
        self._out.calls.append((name, call))
        return call


def _content(call: Command) -> tuple[object, ...]:
    return call.kind, call.round, call.version, call.digest, call.merge, call.other


def _richest(name: str, status: PeerStatus) -> tuple[bool, float, str]:
    return (not status.is_free, status.spent_joules, name)
