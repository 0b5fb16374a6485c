"""Deliberate bugs of sealed sums in trees and shards must be caught: by seeds that draw them, and by aggregators that
die, forget or are not heard at a word."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from caught import is_caught
from sealed_shapes import NAMES, ShapedTroupe
from sealed_troupe import HOME

from dst.case import case
from dst.fuzz import CheckedRun
from dst.sealed_shape_oracle import SealedShapeOracle
from shoal.roles.aggregator.sealed_tray import SealedTray
from shoal.roles.events import Connected, Disconnected
from shoal.roles.leader.gathering import sealed_sums
from shoal.roles.leader.gathering.sealed_sums import GroupSums, WordsSum
from shoal.roles.leader.gathering.sealing import Sealing
from shoal.roles.worker.delivery import UpdateDelivery
from shoal.wire.messages import Message, Reduce, ReduceResult, ShardAck, Update

Story = Callable[[], None]


def _troupe(kind: str) -> ShapedTroupe:
    troupe = ShapedTroupe(kind)
    troupe.joins(*NAMES)
    troupe.forms()
    return troupe


def aggregators_die(kind: str, *words: type[Message]) -> None:
    for word in words:
        troupe = _troupe(kind)
        troupe.run_to_word(lambda message, word=word: isinstance(message, word) and bool(getattr(message, "group", 0)))  # type: ignore[misc]
        troupe.loses(sorted(troupe.leader.aggregators)[0])
        troupe.is_exact(versions=2)


def an_aggregator_of_a_tree_dies() -> None:
    aggregators_die("tree", Reduce, ReduceResult)


def an_aggregator_of_a_shard_dies() -> None:
    aggregators_die("shard", ShardAck, ReduceResult)


def a_part_lacks_a_piece() -> None:
    """One aggregator of a shard does not count a member that the others do."""
    troupe = _troupe("shard")
    forgot, pending = sorted(troupe.leader.aggregators)[1], [1]

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, Reduce) and to == forgot and pending:
            pending.pop()
            ones = (1.0,) * (len(message.leases) - 1)
            return [replace(message, leases=message.leases[1:], weights=ones, scales=ones)]
        return [message]

    troupe.lies = lies
    troupe.is_exact(versions=2)


def a_report_is_lost() -> None:
    """An aggregator has words of a member that the leader never hears of."""
    troupe = _troupe("tree")

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        return [] if isinstance(message, Update) and message.formation and sender == "d4" else [message]

    troupe.lies = lies
    troupe.run_to_word(lambda message: isinstance(message, ShardAck))
    troupe.run(lambda: not troupe.queue)
    troupe.loses("d4")
    troupe.is_exact(versions=1)


def a_group_is_made_again() -> None:
    """Too few words come by their aggregators: the same updates are sealed for another group."""
    troupe = _troupe("tree")
    troupe.run_to_word(lambda message: isinstance(message, ShardAck))
    troupe.loses(*sorted(troupe.leader.aggregators)[:2])
    troupe.is_exact(versions=2)


def a_group_is_made_again_in_the_same_tree() -> None:
    """Most sessions break when reports are on their way. Aggregators have words of the group that came to nothing."""
    troupe = _troupe("tree")
    cut = [name for name in NAMES if not troupe.is_aggregator(name)]

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        return [] if isinstance(message, Update) and message.formation and sender in cut else [message]

    troupe.lies = lies
    troupe.run_to_word(lambda message: isinstance(message, ShardAck))
    troupe.run(lambda: not troupe.queue)
    troupe.lies = lambda sender, to, message: [message]
    for name in cut:
        troupe._works(name, Disconnected(node=HOME, reason="cut"))
        troupe._works(name, Connected(node=HOME))
    troupe.is_exact(versions=2)
    if not any(record.kind == "group.voided" for record in troupe.records):
        raise AssertionError("no group was made again")


STORIES: list[Story] = [
    a_group_is_made_again_in_the_same_tree,
    an_aggregator_of_a_tree_dies,
    an_aggregator_of_a_shard_dies,
    a_part_lacks_a_piece,
    a_report_is_lost,
    a_group_is_made_again,
]


@pytest.mark.parametrize("story", STORIES)
def test_without_a_bug_every_story_holds(story: Story) -> None:
    story()


# Bugs -----------------------------------------------------------------------------------------------------------


def one_part_is_enough() -> AbstractContextManager[Any]:
    """A member that one part of a shard has and another lacks is opened with both."""

    def of_any(
        hops: Mapping[int, Collection[str]], sums: Mapping[str, WordsSum]
    ) -> tuple[frozenset[int], dict[str, WordsSum]]:
        return frozenset(lease for each in sums.values() for lease in each.leases), dict(sums)

    return patch.object(sealed_sums, "counted", of_any)


def everything_in_the_tray_is_summed() -> AbstractContextManager[Any]:
    """A sum has the words of a member that the leader did not name, and names those that it did."""
    total = SealedTray.total

    def of_all(self: SealedTray, group: int, leases: Sequence[int]) -> tuple[tuple[int, ...], np.ndarray]:
        found, _ = total(_copy(self), group, leases)
        return found, total(self, group, [piece.lease for piece in self._pieces.values()])[1]

    return patch.object(SealedTray, "total", of_all)


def _copy(tray: SealedTray) -> SealedTray:
    copy = SealedTray(tray._size, 8 * tray._type.itemsize)
    copy._pieces, copy._summed = dict(tray._pieces), tray._summed
    return copy


def whoever_reported_counts() -> AbstractContextManager[Any]:
    """A member whose words were lost with its aggregator is in the set that is opened."""
    settle = GroupSums.settle

    def of_reported(self: GroupSums, total: np.ndarray) -> frozenset[int]:
        settle(self, total)
        return frozenset(lease for each in self.asked.values() for lease in each)

    return patch.object(GroupSums, "settle", of_reported)


def groups_are_mixed_up() -> AbstractContextManager[Any]:
    """Words of an older group are summed up with those of this one."""
    total = SealedTray.total

    def of_any_group(self: SealedTray, group: int, leases: Sequence[int]) -> tuple[tuple[int, ...], np.ndarray]:
        # A lease is in one group: words of another are mixed in under the number of one that is asked for.
        old = [member for member, piece in sorted(self._pieces.items()) if piece.group != group]
        self._pieces = {
            member: replace(piece, group=group, lease=leases[0] if member in old else piece.lease)
            for member, piece in self._pieces.items()
        }
        return total(self, group, leases)

    def first_stays(self: SealedTray, member: str, shard: Any) -> None:
        if member not in self._pieces:
            take(self, member, shard)

    take = SealedTray.take
    stack = ExitStack()
    stack.enter_context(patch.object(SealedTray, "total", of_any_group))
    stack.enter_context(patch.object(SealedTray, "take", first_stays))
    return stack


def pieces_leave_without_masks() -> AbstractContextManager[Any]:
    """What goes to an aggregator is the update as it was trained."""
    send = UpdateDelivery.send_sealed

    def bare(self: UpdateDelivery, held: Any, sealed: Any, *, formation: int) -> None:
        if formation:
            self._is_sealed = False
            held.formation = formation
            self.deliver(held)
        else:
            send(self, held, sealed, formation=formation)

    return patch.object(UpdateDelivery, "send_sealed", bare)


def agreed_before_the_sums_are_here() -> AbstractContextManager[Any]:
    """Devices are asked to agree while an aggregator may still be lost with its words."""

    def at_once(self: Sealing, group: Any) -> None:
        self._open(group)

    return patch.object(Sealing, "_look_for_sums", at_once)


MUTANTS = [
    one_part_is_enough,
    everything_in_the_tray_is_summed,
    whoever_reported_counts,
    groups_are_mixed_up,
    pieces_leave_without_masks,
    agreed_before_the_sums_are_here,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bug_is_caught(mutant: Callable[[], AbstractContextManager[Any]]) -> None:
    assert is_caught(mutant, STORIES), f"{mutant.__name__} went unnoticed"


# Seeds ----------------------------------------------------------------------------------------------------------


def test_seeds_bring_words_to_aggregators() -> None:
    agreed = 0
    for seed in SEEDS[:3]:
        run = CheckedRun(case("sealed-shapes", seed))
        run.run()
        agreed += sum(each.agreed for each in run.world.observers if isinstance(each, SealedShapeOracle))
    assert agreed >= 2


SEEDS = [90_000 + number for number in range(1, 9)]
