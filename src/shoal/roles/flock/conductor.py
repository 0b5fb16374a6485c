"""Who calls the pairs of a flock: from how all mates stand, what each is to do next. Holds no model, hears no network.

It looks at what is, not at what happened: whoever is not heard is not there, and an update that no living mate holds is
begun anew by whose it is, for each keeps its own until the next version. So the loss of any mate, in whatever state it
was, is no case of its own, and one who conducts from now on needs nothing of whoever did before.

MDLdroid's Eq. 3 and Algorithm 1, with what is wrong there put right: θ begins as the number of examples; the *receiver*
has θᵢ + θⱼ, and the sender waits for the next version; the root's W is the weighted mean already, and is applied once,
not N - 1 times; the root gives the version out itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.roles.flock.settings import FlockSettings
from shoal.topology.chain import pairs
from shoal.topology.chain.ahead import LookAhead
from shoal.topology.chain.pairs import Pairing
from shoal.wire.messages import Call, Standing

#: A mate whose updates could not be handed on so often in a round is left out of it.
SPOILT_MAX = 3

#: Merges that take less are alike: most of it is the talk about them, and energy decides.
ALIKE_BELOW_S = 0.1


@dataclass(slots=True)
class _Merge:
    number: int
    sender: str
    receiver: str
    since_s: float
    #: The number of the call that took it back; 0: it goes on.
    voided: int = 0


@dataclass(slots=True)
class _Fetch:
    giver: str
    since_s: float


class Ways:
    """How long merges took, pair by pair. Of a pair that never met: as others took with one of the two, or anyone."""

    def __init__(self) -> None:
        self._took_s: dict[tuple[str, str], float] = {}

    @property
    def is_known(self) -> bool:
        return bool(self._took_s)

    def took(self, sender: str, receiver: str, seconds: float) -> None:
        """The newest counts for half: what a link carries changes."""
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
    """What one look at the mates led to."""

    calls: list[tuple[str, Call]] = field(default_factory=list)
    #: Kind and reason of what is to be written down.
    notes: list[tuple[str, str]] = field(default_factory=list)


class Conductor:
    """One term of one mate at calling the pairs."""

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
        #: The last call to each; said again until it is heeded.
        self.calls: dict[str, Call] = {}
        self.version = -1
        self.digest = ""
        self.made_of = 0
        self._fetches: dict[str, _Fetch] = {}
        self.is_halted = False
        self.left_out: set[str] = set()
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        self._merges: list[_Merge] = []
        #: Who became free when, with what.
        self._ready_s: dict[tuple[str, tuple[str, ...]], float] = {}
        self._took_s: dict[str, float] = {}
        #: Who was not waited for in the last round, and is not in this.
        self.left_out_before, self.left_out = self.left_out, set()
        #: Who was in this round, and who of them is not heard now.
        self._met: set[str] = set()
        self._gone: set[str] = set()
        #: Merges that came to nothing: how many of each sender, and into whom.
        self._spoilt: dict[str, int] = {}
        self._apart: set[tuple[str, str]] = set()
        #: Since when only those are missing who train or are busy.
        self._waiting_s: float | None = None
        self._is_hurried = False
        self._root = ""

    @property
    def round(self) -> int:
        return self.version + 1

    def unheeded(self, standings: Mapping[str, Standing]) -> Iterator[tuple[str, Call]]:
        """Calls to say once more."""
        for name, standing in standings.items():
            call = self.calls.get(name)
            if call is not None and not self._heeds(standing, call):
                yield name, call

    def _heeds(self, standing: Standing, call: Call) -> bool:
        return standing.term == self.term and standing.heard >= call.number

    # One look --------------------------------------------------------------------------------------------

    def decide(self, now_s: float, standings: Mapping[str, Standing]) -> Decisions:
        """``standings``: of all mates that are heard, the conductor's own among them."""
        out = Decisions()
        self._follow(now_s, standings, out)
        holders = {name: each for name, each in standings.items() if self._holds(each)}
        self._hand_out(now_s, standings, holders, out)
        if self.version >= self._settings.rounds:
            if len(holders) == len(standings):
                for name in holders:
                    self._call(out, name, "over", reason=f"version {self.version} is the last")
            return out
        if self._is_too_few(standings, out):
            return out
        in_round = {name: each for name, each in holders.items() if each.round == self.round}
        held = self._held(in_round)
        for name, standing in holders.items():
            # One that started anew after its update was handed on is in this round already.
            if standing.round != self.round and name not in self.left_out and name not in held:
                self._call(out, name, "train", version=self.version, digest=self.digest)
        self._settle(now_s, in_round, out)
        self._restart(in_round, out)
        self._pair(now_s, standings, in_round, out)
        return out

    def _holds(self, standing: Standing) -> bool:
        return (standing.version, standing.digest) == (self.version, self.digest)

    def _is_too_few(self, standings: Mapping[str, Standing], out: Decisions) -> bool:
        """A part of the flock that is cut off does not go on by itself, unless it is half of it."""
        flock = self.made_of or self._settings.devices
        is_few = 2 * len(standings) < flock
        if is_few and not self.is_halted:
            reason = f"{len(standings)} of the {flock} that made version {self.version} are here: half is needed"
            out.notes.append(("waits", reason))
        self.is_halted = is_few
        return is_few

    # The version that counts, and who lacks it -----------------------------------------------------------------

    def _follow(self, now_s: float, standings: Mapping[str, Standing], out: Decisions) -> None:
        held: dict[tuple[int, int, str], int] = {}
        for each in standings.values():
            key = (each.version, each.made_of, each.digest)
            held[key] = held.get(key, 0) + 1
        is_held = any((version, digest) == (self.version, self.digest) for version, _, digest in held)
        others = [key for key in held if key[0] > self.version or not is_held]
        if not others:
            return
        # Of two versions of one number, made by two halves: that of more updates, then that of more mates.
        version, made_of, digest = max(others, key=lambda key: (key[0], key[1], held[key], key[2]))
        if version > self.version >= 0 and self._root:
            out.notes.append(("version", f"version {version} of {made_of} updates, merged by {self._root}"))
        self.version, self.made_of, self.digest = version, made_of, digest
        self._fetches.clear()
        self._begin(now_s)

    def _hand_out(
        self, now_s: float, standings: Mapping[str, Standing], holders: Mapping[str, Standing], out: Decisions
    ) -> None:
        """Every holder gives to one at a time, who then gives in turn: a binomial broadcast (§3.2), which needs no
        repair. Those who spent least forward first."""
        for name, fetch in list(self._fetches.items()):
            gone = name not in standings or fetch.giver not in holders or name in holders
            if gone or now_s - fetch.since_s > self._transfer_max_s:
                del self._fetches[name]
        givers = {fetch.giver for fetch in self._fetches.values()}
        free = sorted((n for n in holders if n not in givers), key=lambda n: _richest(n, holders[n]))
        lacking = [n for n in standings if n not in holders and n not in self._fetches]
        for name in sorted(lacking, key=lambda n: _richest(n, standings[n])):
            if not free:
                return
            giver = free.pop(0)
            self._fetches[name] = _Fetch(giver, now_s)
            reason = f"{giver} has version {self.version}"
            self._call(
                out, name, "fetch", version=self.version, digest=self.digest, other=giver, reason=reason, again=True
            )

    # The round -------------------------------------------------------------------------------------------

    def _settle(self, now_s: float, mates: Mapping[str, Standing], out: Decisions) -> None:
        """What became of the merges under way."""
        for merge in list(self._merges):
            sender, receiver = mates.get(merge.sender), mates.get(merge.receiver)
            if receiver is None or (receiver.phase != "holding" and self._is_up_to_date(merge.receiver, receiver)):
                # What the sender holds is as it was.
                self._merges.remove(merge)
            elif receiver.took == merge.number and receiver.term == self.term:
                self._merges.remove(merge)
                self._ways.took(merge.sender, merge.receiver, now_s - merge.since_s)
                if sender is not None:
                    self._call(out, merge.sender, "rest", reason=f"{merge.receiver} has it")
            elif merge.voided:
                if receiver.heard >= merge.voided and receiver.term == self.term:
                    self._merges.remove(merge)
            elif reason := self._spoilt_by(now_s, merge, sender, receiver):
                self._spoilt[merge.sender] = self._spoilt.get(merge.sender, 0) + 1
                self._apart.add((merge.sender, merge.receiver))
                call = self._call(out, merge.receiver, "keep", reason=reason, again=True)
                merge.voided = call.number
                out.notes.append(("merge undone", f"merge {merge.number} into {merge.receiver}: {reason}"))

    def _spoilt_by(self, now_s: float, merge: _Merge, sender: Standing | None, receiver: Standing) -> str:
        """Why a merge comes to nothing; empty while it may come to something."""
        if sender is None or sender.phase != "holding":
            return f"{merge.sender} is gone"
        if receiver.took == -merge.number:
            return f"{merge.receiver} does not take it: {receiver.reason}"
        if now_s - merge.since_s > self._transfer_max_s:
            return f"{merge.sender} does not reach {merge.receiver}"
        return ""

    def _restart(self, mates: Mapping[str, Standing], out: Decisions) -> None:
        """Whose update no living mate holds begins anew with its own; all do that under a new conductor.

        So does one that was not heard for a while, whatever it held: others have begun anew without it. Unless its
        update had been handed on before.
        """
        self._gone |= self._met - mates.keys()
        self._met |= mates.keys()
        held = self._held(mates)
        for name, each in mates.items():
            if each.phase not in ("holding", "resting"):
                self._gone.discard(name)
            elif each.token_term != self.term:
                self._gone.discard(name)
                self._call(out, name, "anew", reason=f"{name} begins anew in term {self.term}")
            elif name in self._gone:
                self._gone.discard(name)
                is_held = any(
                    name in other.of for key, other in mates.items() if key != name and self._is_token(key, other)
                )
                self._call(out, name, "rest" if is_held else "anew", reason="was not heard for a while", again=True)
            elif each.phase == "resting" and name not in held and self._is_up_to_date(name, each):
                self._call(out, name, "anew", reason="who held its update is gone", again=True)

    def _held(self, mates: Mapping[str, Standing]) -> set[str]:
        """Whose updates someone holds."""
        return {of for name, each in mates.items() if self._is_token(name, each) for of in each.of}

    def _is_token(self, name: str, standing: Standing) -> bool:
        """What this one holds counts."""
        call = self.calls.get(name)
        is_void = call is not None and (
            self._is_told_to_rest(name) or (call.kind == "anew" and not self._heeds(standing, call))
        )
        is_held = standing.phase == "holding" and standing.token_term == self.term
        return is_held and not is_void and name not in self._gone

    def _is_told_to_rest(self, name: str) -> bool:
        call = self.calls.get(name)
        return call is not None and call.kind == "rest" and call.round == self.round

    def _is_up_to_date(self, name: str, standing: Standing) -> bool:
        call = self.calls.get(name)
        return call is None or self._heeds(standing, call)

    def _pair(
        self, now_s: float, standings: Mapping[str, Standing], mates: Mapping[str, Standing], out: Decisions
    ) -> None:
        engaged = {name for merge in self._merges for name in (merge.sender, merge.receiver)}
        tokens = {
            name: each for name, each in mates.items() if self._is_token(name, each) and self._is_up_to_date(name, each)
        }
        for name, each in tokens.items():
            self._took_s.setdefault(name, now_s - self._began_s)
            self._ready_s.setdefault((name, each.of), now_s)
        idle = {name: each for name, each in tokens.items() if name not in engaged}
        free = {name: each for name, each in idle.items() if each.is_free or self._is_hurried}
        coming = [name for name, each in mates.items() if name in engaged or each.phase == "training"]
        while pair := self._next_pair(free, coming):
            self._merge_number += 1
            merge = _Merge(self._merge_number, pair.sender, pair.receiver, now_s)
            self._merges.append(merge)
            self._call(out, pair.receiver, "take", merge=merge.number, other=pair.sender, reason=pair.reason)
            out.notes.append(("pair", f"round {self.round}: {pair.sender} gives to {pair.receiver}: {pair.reason}"))
            del free[pair.sender], free[pair.receiver]
            del idle[pair.sender], idle[pair.receiver]
        if self._merges or any(not self._is_up_to_date(name, each) for name, each in mates.items()):
            self._waiting_s = None
            return
        training = [name for name, each in mates.items() if each.phase == "training"]
        held = self._held(mates)
        training += [name for name in standings if name not in mates and name not in held]
        training = [name for name in training if name not in self.left_out]
        self._conclude(now_s, mates, idle, training, out)

    def _next_pair(self, free: Mapping[str, Standing], coming: Sequence[str]) -> pairs.Pair | None:
        fit = [
            pairs.Standing(
                name=name, ready_s=self._ready_s[name, each.of], spent_joules=each.spent_joules, weight=each.weight
            )
            for name, each in free.items()
            if self._spoilt.get(name, 0) < SPOILT_MAX
        ]
        # When they come, nobody here can tell: nobody waits for them.
        others = [pairs.Standing(name=name, ready_s=math.inf) for name in coming]
        links = self._ways if self._ways.is_known else None
        while pair := self._pairing.next_pair(fit, links=links, coming=others):
            if (pair.sender, pair.receiver) not in self._apart:
                return pair
            if (pair.receiver, pair.sender) not in self._apart:
                return pairs.Pair(sender=pair.receiver, receiver=pair.sender, reason="the other way did not work")
            fit = [each for each in fit if each.name != pair.sender]
        return None

    def _conclude(
        self,
        now_s: float,
        mates: Mapping[str, Standing],
        idle: Mapping[str, Standing],
        training: list[str],
        out: Decisions,
    ) -> None:
        """Nothing more can be merged now: wait for those who are missing, or make the version."""
        useful = {name: each for name, each in idle.items() if self._spoilt.get(name, 0) < SPOILT_MAX}
        if len(useful) > 1 or training:
            self._wait(now_s, useful, training, out)
            return
        if not useful:
            self._try_again(now_s, mates, out)
            return
        (root,) = useful
        if self._root != root:
            out.notes.append(("root", f"{root} holds all {len(useful[root].of)} updates of round {self.round}"))
        self._root = root
        self._call(out, root, "make", version=self.version, digest=self.digest)

    def _try_again(self, now_s: float, mates: Mapping[str, Standing], out: Decisions) -> None:
        """Nobody has anything: those who failed train once more, after a while."""
        if not mates or now_s - self._began_s < self._settings.patience_s:
            return
        self._begin(now_s)
        out.notes.append(("round again", f"nobody has an update for round {self.round}"))
        for name in mates:
            self._call(out, name, "train", version=self.version, digest=self.digest, again=True)

    def _wait(self, now_s: float, idle: Mapping[str, Standing], training: list[str], out: Decisions) -> None:
        if not idle:
            self._waiting_s = None
            return
        if self._waiting_s is None:
            self._waiting_s = now_s
        usual_s = statistics.median(self._took_s.values()) if self._took_s else 0.0
        if now_s - self._waiting_s < max(self._settings.patience_s, 2 * usual_s):
            return
        if len(idle) > 1 and not self._is_hurried:
            self._is_hurried = True
            busy = ", ".join(sorted(name for name, each in idle.items() if not each.is_free))
            out.notes.append(("hurried", f"busy for longer than a round waits, merged all the same: {busy}"))
        elif training:
            self.left_out.update(training)
            out.notes.append(
                ("left out", f"round {self.round} goes on without {', '.join(sorted(training))}: too late")
            )

    # Calls -----------------------------------------------------------------------------------------------

    def _call(
        self,
        out: Decisions,
        name: str,
        kind: str,
        *,
        version: int = -1,
        digest: str = "",
        merge: int = 0,
        other: str = "",
        reason: str = "",
        again: bool = False,
    ) -> Call:
        """Say it, unless that is what was said last; ``again``: then too."""
        last = self.calls.get(name)
        same = last is not None and (last.kind, last.round, last.version, last.digest, last.merge, last.other) == (
            kind,
            self.round,
            version,
            digest,
            merge,
            other,
        )
        if last is not None and same and not again:
            return last
        self._number += 1
        call = Call(
            term=self.term,
            number=self._number,
            kind=kind,
            round=self.round,
            version=version,
            digest=digest,
            merge=merge,
            other=other,
            reason=reason,
        )
        self.calls[name] = call
        out.calls.append((name, call))
        return call


def _richest(name: str, standing: Standing) -> tuple[bool, float, str]:
    return (not standing.is_free, standing.spent_joules, name)
