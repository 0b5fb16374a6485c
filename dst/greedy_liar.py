"""A leader that lies to sealing devices and takes all it can get: an observer that changes what a leader says.

The leader's role is the real one. The liar reads what its leader receives and rewrites what it sends: other leases,
keys, groups, weights and sets of members for single devices, old messages again, and questions of its own. It gives
every device all MACs and envelopes that it has. Everything that devices answer goes to ``joint_oracle``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.roles.actions import Action, Send
from shoal.roles.events import Received
from shoal.sealing.graph import helped_shape, shape_of
from shoal.sealing.group import HELPER_ENVELOPE_BYTES, MAC_BYTES, TAG_BYTES, MaskGraph, bits_of, members_of
from shoal.sealing.shamir import SHARE_BYTES
from shoal.sim.observe import Mark, Step
from shoal.sim.rng import Stream
from shoal.wire.messages import (
    Agree,
    Agreed,
    AskMasks,
    Bind,
    JobSpec,
    MemberKey,
    Message,
    Offer,
    Open,
    SealKey,
    SealRoster,
    Unbind,
    Update,
    Work,
)

#: The messages of one kind that are kept to be sent again.
KEPT = 12

#: The most that it adds to the messages of its leader, so that no run becomes a storm.
EXTRA_MAX = 1500

#: What it changes in a lease.
LEASES = ("rate", "examples", "version", "epoch", "turn", "model", "same turn", "old lease", "two models")

#: How it names the members of a sum.
SETS = ("all", "halves", "few", "any")

#: (term, group).
_Turn = tuple[int, int]


@dataclass(slots=True)
class _Bound:
    """A group as one device was told of it."""

    bind: Bind
    keys: tuple[MemberKey, ...]
    graph: MaskGraph
    #: The members that the device was told are in the sum.
    present: frozenset[int] | None = None
    #: What it answered.
    macs: bytes = b""

    def place_of(self, node: str) -> int | None:
        return next((place for place, key in enumerate(self.keys) if key.node == node), None)


@dataclass(slots=True)
class _Group:
    #: Device -> the group as it was told; and what came with its words.
    bound: dict[str, _Bound] = field(default_factory=dict)
    seals: dict[str, bytes] = field(default_factory=dict)
    #: Devices that were asked about the set, and to open.
    was_asked: bool = False
    opens: int = 0


class GreedyLiar:
    def __init__(
        self, specs: Sequence[JobSpec], draws: Stream, *, until_s: float = math.inf, only: str = "", victim: str = ""
    ) -> None:
        """``only``: the one lie that is told, each time, and about leases only to ``victim``."""
        self._jobs = {
            spec.job: _Liar(spec, Stream(draws.state + number), only=only, victim=victim)
            for number, spec in enumerate(specs)
            if spec.plan.believes.sealed is not None
        }
        self._until_s = until_s

    @property
    def lies(self) -> Counter[str]:
        """Return how often each lie was told."""
        return sum((each.lies for each in self._jobs.values()), Counter())

    def mark(self, mark: Mark) -> None:
        pass

    def step(self, step: Step) -> None:
        if step.role != "leader" or step.job not in self._jobs or step.at_s > self._until_s:
            return
        liar = self._jobs[step.job]
        if isinstance(step.event, Received):
            liar.hears(step.event.sender, step.event.message)
        told = [each for action in step.actions for each in liar.says(action)]
        # The same list: what is in it is what the leader's driver carries out.
        step.actions[:] = [*told, *liar.asks()]


class _Liar:
    """The lies of one job."""

    def __init__(self, spec: JobSpec, draws: Stream, *, only: str = "", victim: str = "") -> None:
        self._only, self._victim = only, victim
        self.lies: Counter[str] = Counter()
        self._spec, self._draws = spec, draws
        #: How often it lies at all: some leaders lie about one thing, and some about everything.
        self._often = draws.pick((0.05, 0.15, 0.4))
        #: The lie about leases that it tells most often: in a sum, one lie hides another.
        self._theme = draws.pick(LEASES)
        #: How it names sets: ``all`` honestly, ``halves``, ``few`` or ``any``.
        self._sets = only if only in SETS else "all" if only else draws.pick(SETS)
        #: Whether it has a version trained once more and wants a sum without one device: the difference would be its
        #: update.
        self._is_replaying = only == "replay" or (not only and draws.happens(0.3))
        #: Whether all devices are given one other model instead of the first.
        self._is_other_first = not only and draws.happens(0.15)
        #: The leases that are trained once more, and the devices that offered their updates again.
        self._replayed: dict[str, Work] = {}
        self._offered: set[str] = set()
        self._extra = 0
        self._keys: dict[str, list[MemberKey]] = defaultdict(list)
        self._weights: dict[_Turn, int] = {}
        self._rosters: dict[tuple[str, int, int], SealRoster] = {}
        self._works: dict[str, list[Work]] = defaultdict(list)
        self._groups: dict[_Turn, _Group] = defaultdict(_Group)

    def _happens(self, times: float = 1.0) -> bool:
        return not self._only and self._draws.happens(min(1.0, self._often * times))

    def _send(self, what: str, to: str, message: Message) -> list[Action]:
        if self._extra >= EXTRA_MAX:
            return []
        self._extra += 1
        self.lies[what] += 1
        return [Send(to=to, message=message)]

    # What it hears ---------------------------------------------------------------------------------------

    def hears(self, sender: str, message: Message) -> None:
        match message:
            case SealKey():
                self._keys[sender].append(message.key)
            case Update(group=group) if group and "seals" in message.tensors:
                self._groups[message.term, group].seals[sender] = message.tensors["seals"].tobytes()
            case Offer() if sender in self._replayed and message.lease == self._replayed[sender].lease:
                self._offered.add(sender)
            case Agreed():
                bound = self._groups[message.term, message.group].bound.get(sender)
                if bound is not None:
                    bound.macs = message.macs
            case _:
                pass

    # What its leader says --------------------------------------------------------------------------------

    def says(self, action: Action) -> list[Action]:
        if not isinstance(action, Send):
            return [action]
        if action.to in self._replayed and not isinstance(action.message, SealRoster):
            # The leader does not know of these leases.
            return []
        match action.message:
            case Work(kind="train") as work:
                return self._lends(action.to, work)
            case SealRoster() as roster:
                return self._tells_keys(action.to, roster)
            case Bind() as bind:
                return self._binds(action.to, bind)
            case Agree() as agree:
                group = self._groups[agree.term, agree.group]
                if action.to not in group.bound:
                    return [action]
                return self._names_sets(agree.term, agree.group, group)
            case Open() as asked:
                return [] if self._groups[asked.term, asked.group].opens else [action]
            case AskMasks() as ask:
                return self._asks_helper(action.to, ask)
            case Unbind() if self._happens():
                self.lies["hid that a group is void"] += 1
                return []
            case _:
                return [action]

    def _lends(self, to: str, work: Work) -> list[Action]:
        if self._is_other_first and work.version == 0 and "model" in work.tensors:
            self.lies["lent another first model"] += 1
            work = _with_other_model(work)
        before = self._works[to]
        self._works[to] = [*before, work][-KEPT:]
        sent: list[Action] = [Send(to=to, message=work)]
        if self._only in LEASES and to == self._victim:
            return self._changed(to, work, self._only, before)
        if not self._happens():
            return sent
        what = self._theme if self._draws.happens(0.7) else self._draws.pick(LEASES)
        return self._changed(to, work, what, before)

    def _changed(self, to: str, work: Work, what: str, before: list[Work]) -> list[Action]:
        """Change a lease, or add another one."""
        sent: list[Action] = [Send(to=to, message=work)]
        self.lies[f"lent {what}"] += 1
        match what:
            case "rate":
                return [Send(to=to, message=replace(work, rate=self._draws.pick((1e-30, 1e6))))]
            case "examples":
                return [Send(to=to, message=replace(work, examples=self._draws.pick((1, 2 * work.examples + 1))))]
            case "version":
                return [Send(to=to, message=replace(work, version=work.version + 1))]
            case "epoch":
                return [Send(to=to, message=replace(work, epoch=work.epoch + 1))]
            case "turn":
                return [Send(to=to, message=replace(work, batches=(self._draws.below(3),)))]
            case "model" if "model" in work.tensors:
                return [Send(to=to, message=_with_other_model(work))]
            case "two models" if "model" in work.tensors:
                # Under one number: the update of one could be sealed as that of the other.
                return [Send(to=to, message=_with_other_model(work)), *sent]
            case "old lease" if before:
                return [Send(to=to, message=replace(work, lease=before[0].lease)), *sent]
            case "same turn" if before:
                return [Send(to=to, message=replace(before[0], lease=work.lease)), *sent]
            case _:
                return sent

    def _tells_keys(self, to: str, roster: SealRoster) -> list[Action]:
        if self._happens(0.5) and len(roster.keys) > 1:
            keys, at = list(roster.keys), self._draws.below(len(roster.keys))
            old = self._keys[keys[at].node]
            other = keys[(at + 1) % len(keys)]
            is_old = len(old) > 1 and self._draws.happens(0.5)
            keys[at] = old[0] if is_old else replace(keys[at], public=other.public, nonce=other.nonce)
            roster = replace(roster, keys=tuple(keys))
            self.lies["told an old key" if is_old else "swapped a key"] += 1
        self._rosters[to, roster.term, roster.roster] = roster
        return [Send(to=to, message=roster)]

    def _binds(self, to: str, bind: Bind) -> list[Action]:
        turn = (bind.term, bind.group)
        if turn not in self._weights:
            heavier = self._only == "weights" or self._happens()
            self._weights[turn] = self._draws.pick((5, 100)) if heavier else 1
            self.lies["bound with a larger weight"] += heavier
        # All members are told alike, so that their masks cancel.
        told = bind = replace(bind, weight_most=bind.weight_most * self._weights[turn])
        if self._happens():
            what = self._draws.pick(("weight", "bound", "members", "places", "number"))
            self.lies[f"bound with another {what}"] += 1
            match what:
                case "weight":
                    told = replace(bind, weight_most=bind.weight_most * self._draws.pick((2, 5, 100)))
                case "bound":
                    told = replace(bind, bound=bind.bound + self._draws.pick((-3, 2)))
                case "members":
                    told = replace(bind, members=self._fewer(to, bind))
                case "places" if bind.tensors:
                    told = replace(bind, tensors={"places": np.roll(bind.tensors["places"], 1)})
                case _:
                    told = replace(bind, group=bind.group + 1)
        return self._remember(to, told)

    def _fewer(self, to: str, bind: Bind) -> bytes:
        """The members without one other device."""
        roster = self._rosters.get((to, bind.term, bind.roster))
        if roster is None:
            return bind.members
        places = members_of(bind.members, len(roster.keys))
        others = [place for place in places if roster.keys[place].node != to]
        gone = self._draws.pick(others) if others else -1
        return bits_of([place for place in places if place != gone], len(roster.keys))

    def _remember(self, to: str, bind: Bind) -> list[Action]:
        roster = self._rosters.get((to, bind.term, bind.roster))
        if roster is not None:
            keys = tuple(roster.keys[place] for place in members_of(bind.members, len(roster.keys)))
            try:
                graph = self._graph(keys)
            except (Misuse, PeerViolation):
                return [Send(to=to, message=bind)]
            self._groups[bind.term, bind.group].bound[to] = _Bound(bind, keys, graph)
        return [Send(to=to, message=bind)]

    def _graph(self, keys: tuple[MemberKey, ...]) -> MaskGraph:
        plan, count = self._spec.plan, len(keys)
        sealed = plan.believes.sealed
        assert sealed is not None
        liars = sealed.liars_of(count)
        shape = shape_of(count, liars, sealed.lost) if sealed.helper is None else helped_shape(count, liars)
        return MaskGraph.of(shape, tuple(key.nonce for key in keys), least=plan.opened_least)

    def _asks_helper(self, to: str, ask: AskMasks) -> list[Action]:
        sent: list[Action] = [Send(to=to, message=ask)]
        if not self._happens(2.0):
            return sent
        size = sum(byte.bit_count() for byte in ask.members)
        present = list(members_of(ask.present, size))
        cut = {
            place: ask.envelopes[HELPER_ENVELOPE_BYTES * at :][:HELPER_ENVELOPE_BYTES]
            for at, place in enumerate(present)
        }
        gone = self._draws.pick(present)
        few = [place for place in present if place != gone]
        if self._draws.happens(0.3):
            few = few[:2]
        fewer = replace(ask, present=bits_of(few, size), envelopes=b"".join(cut[place] for place in few))
        what = self._draws.pick(("fewer", "twice", "again", "weight", "mixed"))
        self.lies[f"asked the helper: {what}"] += 1
        match what:
            case "fewer":
                return [Send(to=to, message=fewer)]
            case "twice":
                return [*sent, Send(to=to, message=fewer)]
            case "again":
                return [Send(to=to, message=fewer), *sent]
            case "weight":
                return [Send(to=to, message=replace(ask, weight_most=ask.weight_most + 1))]
            case _:
                return [Send(to=to, message=replace(ask, group=ask.group + 1)), *sent]

    # What it asks by itself --------------------------------------------------------------------------------

    def asks(self) -> list[Action]:
        """Whatever devices may still answer."""
        made: list[Action] = []
        for (term, number), group in list(self._groups.items())[-3:]:
            made += self._asks_about(term, number, group)
        if self._is_replaying:
            made += self._replays()
        if self._happens(0.06) and self._groups and not self._replayed:
            made += self._binds_again()
        if self._happens(0.1) and self._works:
            to = self._draws.pick(sorted(self._works))
            made += self._send("assigned an old lease again", to, self._draws.pick(self._works[to]))
        return made

    def _asks_about(self, term: int, number: int, group: _Group) -> list[Action]:
        if self._spec.plan.believes.helper is not None or not group.seals:
            return []
        head = {"job": self._spec.job, "term": term, "group": number}
        came = [node for node in group.bound if node in group.seals]
        made: list[Action] = []
        if not group.was_asked and (len(came) == len(group.bound) or self._happens(0.2)):
            made += self._names_sets(term, number, group)
        elif group.was_asked and any(group.bound[node].macs for node in came) and group.opens < 4:
            if self._draws.happens(0.3):
                group.opens += 1
                for node in came:
                    if group.bound[node].present is not None:
                        made += self._send("asked to open", node, self._opening(term, number, group, node))
            elif self._happens(0.3):
                node = self._draws.pick(came)
                bound = group.bound[node]
                other = frozenset(self._draws.below(bound.graph.size) for _ in range(bound.graph.size)) | {
                    bound.place_of(node) or 0
                }
                made += self._send("named another set", node, Agree(**head, present=bits_of(other, bound.graph.size)))  # type: ignore[arg-type]
        return made

    def _names_sets(self, term: int, number: int, group: _Group) -> list[Action]:
        """Tell each device its own set of members, once."""
        if group.was_asked:
            return []
        group.was_asked, made = True, list[Action]()
        came = [node for node in group.bound if node in group.seals]
        for node, present in (self._drawn_sets(group, came) if came else {}).items():
            bound = group.bound[node]
            bound.present = present
            agree = Agree(job=self._spec.job, term=term, group=number, present=bits_of(present, bound.graph.size))
            made += self._send("named a set", node, agree)
        return made

    def _drawn_sets(self, group: _Group, came: list[str]) -> dict[str, frozenset[int]]:
        """Which members each device is told are in the sum."""
        first = came[self._draws.below(len(came))]
        half = set(came[: len(came) // 2])
        sets: dict[str, frozenset[int]] = {}
        for node in came:
            bound = group.bound[node]
            here = [place for place, key in enumerate(bound.keys) if key.node in came]
            mine = bound.place_of(node)
            victim = bound.place_of(first)
            kept = set(here)
            if self._sets == "halves" and node in half and victim is not None and node != first:
                # One device fewer: the edges to it would be given away.
                kept -= {victim}
            elif self._sets == "few":
                near = set(bound.graph.near[victim or 0])
                for place in sorted(near & kept)[: max(1, len(here) // 3)]:
                    kept -= {place} if place != mine else set()
            elif self._sets == "any":
                kept = {place for place in here if self._draws.happens(0.8)}
            if mine is not None:
                sets[node] = frozenset(kept | {mine})
        return sets

    def _opening(self, term: int, number: int, group: _Group, node: str) -> Open:
        """Everything that it has for this device."""
        bound = group.bound[node]
        place, present, graph = bound.place_of(node) or 0, bound.present or frozenset(), bound.graph
        near = graph.present_near(place, present)
        macs = b"".join(self._mac(group, bound.keys[other].node, node) for other in graph.others(place, present))
        envelopes = b"".join(
            self._envelope(group, bound, other, place, size=SHARE_BYTES + TAG_BYTES, edges=False) for other in near
        )
        vanished = [other for other in near if self._draws.happens(0.4)]
        of_vanished = b"".join(
            self._envelope(group, bound, other, place, size=graph.edges_bytes(other), edges=True) for other in vanished
        )
        return Open(
            job=self._spec.job,
            term=term,
            group=number,
            macs=macs,
            envelopes=envelopes,
            vanished=bits_of(vanished, graph.size),
            vanished_envelopes=of_vanished,
        )

    def _mac(self, group: _Group, sender: str, to: str) -> bytes:
        said = group.bound.get(sender)
        place = said.place_of(to) if said is not None else None
        if said is None or said.present is None or place is None or place not in said.present:
            return bytes(MAC_BYTES)
        at = said.graph.others(said.place_of(sender) or 0, said.present).index(place)
        return said.macs[MAC_BYTES * at :][:MAC_BYTES].ljust(MAC_BYTES, b"\0")

    def _envelope(self, group: _Group, bound: _Bound, other: int, to: int, *, size: int, edges: bool) -> bytes:
        seals = group.seals.get(bound.keys[other].node, b"")
        cut = bound.graph.edges_envelope if edges else bound.graph.own_envelope
        return cut(other, seals, to).ljust(size, b"\0")[:size] if seals else bytes(size)

    def _replays(self) -> list[Action]:
        """Have the leases of a group trained again once a later one was sealed, and bind all but one of them."""
        turns = sorted(turn for turn, group in self._groups.items() if group.seals)
        if not self._replayed:
            if len(turns) < 2 or turns[0][0] != turns[-1][0] or not self._groups[turns[0]].opens:
                return []
            first, made = self._groups[turns[0]], list[Action]()
            for node, bound in first.bound.items():
                work = next((each for each in self._works[node] if each.lease == bound.bind.lease), None)
                if work is not None:
                    self._replayed[node] = work
                    made += self._send("had a lease trained again", node, work)
            return made
        if len(self._offered) < len(self._replayed):
            return []
        self._is_replaying, self._sets = False, "all"
        return self._binds_again(turns[0], number=turns[-1][1] + 5)

    def _binds_again(self, turn: _Turn | None = None, *, number: int = 0) -> list[Action]:
        """Bind updates once more, for a group in which one device is missing."""
        term, before = turn or self._draws.pick(sorted(self._groups))
        group, again = self._groups[term, before], number or before + 1 + self._draws.below(2)
        made: list[Action] = []
        gone = self._draws.pick(sorted(group.bound)) if group.bound else ""
        for node, bound in list(group.bound.items()):
            if node == gone:
                continue
            roster = self._rosters.get((node, term, bound.bind.roster))
            if roster is None:
                continue
            places = [place for place, key in enumerate(roster.keys) if key in bound.keys and key.node != gone]
            bind = replace(bound.bind, group=again, members=bits_of(places, len(roster.keys)))
            made += self._send("bound an update again", node, bind)
            self._remember(node, bind)
        return made


def _with_other_model(work: Work) -> Work:
    return replace(work, tensors={**work.tensors, "model": np.array(work.tensors["model"]) + np.float32(1)})
