"""A chain of pairs: how early it ends, and that no update is missing or counted twice, whoever is lost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from holdings import Holdings
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chain_bound import lower_bound_s, lower_bound_unequal_s
from benchmarks.chain_exact import exact_equal, exact_schedule
from benchmarks.chain_links import EqualLinks, TableLinks
from benchmarks.chain_schedule import Schedule, play, ring, tree
from shoal.flock.pairing.ahead import LookAhead
from shoal.flock.pairing.exact import exact
from shoal.flock.pairing.pairs import EarliestTwo, Holder
from shoal.learning.partial import Partial

SIZE = 3
#: Of seconds that are added in another order.
ROUNDING = 1e-9

seconds = st.floats(0, 50, width=32)
merge_times = st.floats(0.125, 8, width=32)


def ready_devices(most: int) -> st.SearchStrategy[list[Holder]]:
    spent = st.floats(0, 100, width=32)
    return st.lists(st.tuples(seconds, spent), min_size=1, max_size=most).map(
        lambda given_devices: [
            Holder(name=f"d{place:02}", ready_s=ready_s, spent_joules=joules, weight=1.0 + place)
            for place, (ready_s, joules) in enumerate(given_devices)
        ]
    )


@st.composite
def uneven(draw: st.DrawFn, most: int) -> tuple[list[Holder], TableLinks]:
    devices = draw(ready_devices(most))
    count = len(devices)
    values = draw(st.lists(merge_times, min_size=count * count, max_size=count * count))
    return devices, TableLinks(
        names=[each.name for each in devices], seconds=np.array(values, dtype=np.float64).reshape(count, count)
    )


def holds(schedule: Schedule, devices: list[Holder]) -> None:
    """All but the root send once, nobody is in two merges at once, nobody before it is ready."""
    senders = [merge.sender for merge in schedule.merges]
    assert sorted([*senders, schedule.root]) == sorted(each.name for each in devices)
    free_s = {each.name: each.ready_s for each in devices}
    for merge in schedule.merges:
        for name in (merge.sender, merge.receiver):
            assert merge.begin_s >= free_s[name] - ROUNDING
            free_s[name] = merge.end_s
    for place, merge in enumerate(schedule.merges):
        later = schedule.merges[place + 1 :]
        assert all(merge.sender not in (other.sender, other.receiver) for other in later), "it had retired"
    assert schedule.makespan_s == pytest.approx(free_s[schedule.root])


@given(ready_devices(16), merge_times)
def test_earliest_two_is_less_than_a_merge_above_the_bound(devices: list[Holder], merge_s: float) -> None:
    links = EqualLinks(each_s=merge_s)
    bound_s = lower_bound_s([each.ready_s for each in devices], merge_s=merge_s)
    schedule = play(EarliestTwo(), devices, links=links)
    holds(schedule, devices)
    assert bound_s - ROUNDING <= schedule.makespan_s < bound_s + merge_s + ROUNDING
    for other in (tree(devices, links=links), tree(devices, links=links, in_step=True), ring(devices, links=links)):
        holds(other, devices)
        assert other.makespan_s >= schedule.makespan_s - ROUNDING


@given(ready_devices(8), merge_times)
def test_earliest_two_is_the_best_there_is_where_merges_are_alike(devices: list[Holder], merge_s: float) -> None:
    best = exact_equal([each.ready_s for each in devices], merge_s=merge_s)
    assert play(EarliestTwo(), devices, links=EqualLinks(each_s=merge_s)).makespan_s == pytest.approx(best.makespan_s)
    # And so is looking ahead, which leaves it to that.
    assert play(LookAhead(), devices, links=EqualLinks(each_s=merge_s)).makespan_s == pytest.approx(best.makespan_s)


@given(uneven(6))
@settings(max_examples=50)
def test_no_schedule_is_better_than_the_exact_one_nor_below_the_bound(case: tuple[list[Holder], TableLinks]) -> None:
    devices, links = case
    ready_s = [each.ready_s for each in devices]
    best_s = exact(ready_s, merge_s=links.seconds).makespan_s
    assert best_s >= lower_bound_unequal_s(ready_s, merge_s=links.seconds) - ROUNDING
    schedule = exact_schedule(devices, links=links)
    holds(schedule, devices)
    assert schedule.makespan_s == pytest.approx(best_s)
    for rule in (EarliestTwo(), LookAhead(), LookAhead(window=3)):
        for foretold in (False, True):
            played = play(rule, devices, links=links, foretold=foretold)
            holds(played, devices)
            assert played.makespan_s >= best_s - ROUNDING
    # Who knows everything, and gives nothing for fairness, is as good.
    assert play(LookAhead(alike_share=0.0), devices, links=links, foretold=True).makespan_s == pytest.approx(best_s)
    for other in (tree(devices, links=links), ring(devices, links=links)):
        holds(other, devices)
        assert other.makespan_s >= best_s - ROUNDING


@given(ready_devices(12), st.randoms(use_true_random=False))
def test_the_order_in_which_devices_are_listed_does_not_matter(devices: list[Holder], chance: object) -> None:
    shuffled = list(devices)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert EarliestTwo().next_pair(devices) == EarliestTwo().next_pair(shuffled)


# Nothing is lost, nothing is counted twice ---------------------------------------------------------------

values = st.floats(-1e6, 1e6, width=32)
updates = st.lists(st.tuples(st.tuples(*[values] * SIZE), st.integers(1, 1000)), min_size=1, max_size=12)


class Round:
    """A round of merges on real partials. As on devices: everyone keeps its own update until the round is over."""

    def __init__(self, own: dict[str, tuple[np.ndarray, int]], *, as_means: bool) -> None:
        self.own = own
        #: Whether a partial travels as its mean in float32 and its weight, as an update does.
        self.as_means = as_means
        self.holdings = Holdings(list(own))
        self.partials = {name: self._begun(name) for name in own}
        self.handed_on: set[str] = set()

    def _begun(self, name: str) -> Partial:
        update, weight = self.own[name]
        partial = Partial(SIZE)
        partial.add(update, weight=weight)
        return partial

    def merge(self, sender: str, receiver: str) -> None:
        sent = self.partials.pop(sender)
        if self.as_means:
            self.partials[receiver].add(sent.mean(), weight=sent.weight)
        else:
            self.partials[receiver].merge(sent)
        self.holdings.merged(sender, receiver)
        self.handed_on.add(sender)

    def lose(self, name: str) -> None:
        self.partials.pop(name, None)
        for again in self.holdings.lost(name):
            self.partials[again] = self._begun(again)
            self.handed_on.discard(again)


@given(updates, st.booleans(), st.data())
@settings(max_examples=200)
def test_with_random_merges_and_losses_the_root_has_the_survivors_weighted_mean(
    given_updates: list[tuple[tuple[float, ...], int]], as_means: bool, data: st.DataObject
) -> None:
    own = {
        f"d{place:02}": (np.array(update, dtype=np.float32), weight)
        for place, (update, weight) in enumerate(given_updates)
    }
    round_ = Round(own, as_means=as_means)
    lost: list[str] = []
    retired_then_lost: set[str] = set()
    # Each loss makes at most all others begin again.
    for _ in range(len(own) ** 2):
        holders = sorted(round_.partials)
        if len(holders) < 2 and not data.draw(st.booleans(), label="one more is lost"):
            break
        alive = sorted(round_.holdings.alive)
        if len(alive) > 1 and (len(holders) < 2 or data.draw(st.integers(0, 3), label="loss") == 0):
            name = data.draw(st.sampled_from(alive), label="lost")
            if name in round_.handed_on:
                retired_then_lost.add(name)
            round_.lose(name)
            lost.append(name)
        elif len(holders) > 1:
            # Any two, in either direction: a random tree.
            sender, receiver = data.draw(st.permutations(holders), label="pair")[:2]
            round_.merge(sender, receiver)
    while len(round_.partials) > 1:
        sender, receiver, *_ = sorted(round_.partials)
        round_.merge(sender, receiver)
    ((root, partial),) = round_.partials.items()
    members = sorted(round_.holdings.members(root))
    survivors = sorted(set(own) - set(lost))
    assert len(set(members)) == len(members), "nobody twice"
    assert set(survivors) <= set(members), "everyone alive"
    assert set(members) - set(survivors) <= retired_then_lost, "and who had handed its update on before it was lost"
    rows = np.array([own[name][0] for name in members], dtype=np.float64)
    weights = [own[name][1] for name in members]
    assert partial.weight == sum(weights)
    truth = np.average(rows, axis=0, weights=weights)
    # A mean that travels is rounded to float32 at each hop.
    atol = 1e-6 * (max(1.0, float(np.abs(rows).max())) if as_means else 1.0)
    np.testing.assert_allclose(partial.mean(), truth, rtol=1e-6, atol=atol)
    assert math.isfinite(partial.weight)
