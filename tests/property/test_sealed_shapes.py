"""Wherever masked words meet, whatever aggregators forget or lose: what is opened is the exact sum of the members that
are named, or nothing is."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sealed_group import SealedGroup, updates_of
from sealed_shapes import NAMES, ShapedTroupe

from shoal.roles.aggregator.sealed_tray import SealedTray
from shoal.roles.leader.gathering.sealed_sums import GroupSums, WordsSum, counted
from shoal.sealing.fixed import word_type
from shoal.sim.invariants import Violation
from shoal.wire.messages import Message, Reduce, ReduceResult, ShardAck, Update, UpdateShard

SIZE = 61
HEAD = {"job": "job", "term": 1, "formation": 1}

leases = st.frozensets(st.integers(1, 9))


@given(
    sums=st.dictionaries(st.sampled_from("vwxyz"), leases, max_size=5),
    routes=st.dictionaries(st.integers(1, 9), st.frozensets(st.sampled_from("vwxyz"), min_size=1)),
)
def test_every_sum_that_is_used_is_of_members_that_all_their_aggregators_have(
    sums: dict[str, frozenset[int]], routes: dict[int, frozenset[str]]
) -> None:
    made = {node: WordsSum(of, np.zeros(1, dtype="<u4")) for node, of in sums.items()}
    whole, used = counted(routes, made)
    for lease in whole:
        assert all(lease in used[node].leases for node in routes[lease])
    for each in used.values():
        assert each.leases <= whole
    # Nothing is thrown away without need: where all sums are of whole members, all are used.
    if all(all(lease in sums.get(node, ()) for node in routes.get(lease, "!")) for of in sums.values() for lease in of):
        assert set(used) == set(sums)


@given(
    devices=st.integers(3, 8),
    bits=st.sampled_from((16, 32)),
    cuts=st.lists(st.integers(1, SIZE - 1), max_size=3, unique=True),
    is_tree=st.booleans(),
    straight=st.frozensets(st.integers(0, 7)),
    forgotten=st.frozensets(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=3),
    lost=st.frozensets(st.integers(0, 3), max_size=2),
)
def test_the_total_is_of_exactly_the_members_that_count(
    devices: int,
    bits: int,
    cuts: list[int],
    is_tree: bool,
    straight: frozenset[int],
    forgotten: frozenset[tuple[int, int]],
    lost: frozenset[int],
) -> None:
    party = SealedGroup(devices, bits=bits)
    label, made = party.label().digest(), updates_of(devices, SIZE)
    words = [party.sealed(place, each, label)[0] for place, each in enumerate(made)]
    ends = [0, *sorted(cuts), SIZE]
    spans = [(0, SIZE)] * (len(cuts) + 1) if is_tree else list(itertools.pairwise(ends))
    parts = {f"a{at}": slice(*span) for at, span in enumerate(spans)}
    nodes = list(parts)
    hops = {
        place: (nodes[place % len(nodes)],) if is_tree else tuple(nodes)
        for place in range(devices)
        if place not in straight
    }
    sums, total = GroupSums(1, parts, hops), np.zeros(SIZE, dtype=word_type(bits))
    trays = {node: SealedTray(part.stop - part.start, bits) for node, part in parts.items()}
    for place in range(devices):
        if place in straight:
            np.add(total, words[place], out=total)
        for node in hops.get(place, ()):
            if (nodes.index(node), place) not in forgotten:
                part = words[place][parts[node].start : parts[node].stop]
                trays[node].take(
                    f"d{place}",
                    UpdateShard(**HEAD, lease=place, version=0, group=3, tensors={"words": part}),  # type: ignore[arg-type]
                )
    for node, asked in sums.ask(range(devices), now_s=0.0).items():
        found, summed = trays[node].total(3, asked)
        if nodes.index(node) in lost or not found:
            sums.lost.add(node)
            continue
        result = ReduceResult(**HEAD, version=1, leases=found, group=3, tensors={"words": summed})  # type: ignore[arg-type]
        sums.on_reduce_result(node, result, word_type(bits))
    whole = sums.settle(total)
    present = sorted(whole | {place for place in straight if place < devices})
    wanted = np.zeros_like(total)
    for place in present:
        np.add(wanted, words[place], out=wanted)
    assert np.array_equal(total, wanted)
    if not forgotten and not lost:
        assert len(present) == devices


WORDS = (UpdateShard, ShardAck, Update, Reduce, ReduceResult)


@given(
    kind=st.sampled_from(("tree", "shard")),
    word=st.sampled_from(WORDS),
    heard=st.integers(0, 12),
    unheard=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(WORDS)), max_size=2, unique=True),
    victim=st.integers(0, 8),
)
def test_whoever_dies_and_whatever_is_not_heard_versions_are_exact(
    kind: str, word: type[Message], heard: int, unheard: list[tuple[str, type[Message]]], victim: int
) -> None:
    troupe = ShapedTroupe(kind)
    troupe.joins(*NAMES)
    troupe.forms()
    left = set(unheard)

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        for each in left:
            if sender in (each[0], "home") and isinstance(message, each[1]) and getattr(message, "group", 0):
                left.discard(each)
                return []
        return [message]

    troupe.lies = lies
    seen = [heard]

    def is_it(message: Message) -> bool:
        seen[0] -= isinstance(message, word)
        return seen[0] < 0

    troupe.run(lambda: any(is_it(message) for *_, message in troupe.queue), most=300)
    # An aggregator, mostly; in a shard everybody is one.
    nodes = sorted(troupe.leader.aggregators) or sorted(troupe.devices)
    troupe.loses(nodes[victim % len(nodes)])
    # A message that is lost and a session that is not: nobody says it again, until a lease or a sum is too late.
    troupe.lies = lambda sender, to, message: [message]
    try:
        troupe.is_exact(versions=2)
    except Violation as found:
        if "no version after" not in str(found):
            raise
