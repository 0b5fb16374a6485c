"""Leaders that lie to sealing devices: whatever they do, what devices say gives them allowed sums only. And deliberate
bugs, each of which leaves a check out, must be caught.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from greedy import LyingTroupe, greedy, leads_honestly
from seal_mutants import OF_SEALING
from sealed_shapes import NAMES as SHAPED
from sealed_shapes import ShapedTroupe
from sealed_troupe import SealedTroupe, a_plan

from dst.fuzz import fuzz_lying
from dst.greedy_liar import LEASES, SETS, GreedyLiar
from shoal.sealing.group import bits_of
from shoal.sim.invariants import Violation
from shoal.sim.rng import Rng
from shoal.wire.messages import Agree, Agreed, Bind, Message, Opened, Reduce, Unbind, Update, Work
from testbed.attacks.lied_to import Stage, error_of, live_model

pytestmark = pytest.mark.timeout(300)

#: Seeds of roles that only the liar is between, and of whole clusters. More are in the full tier.
SEEDS, MORE_SEEDS, BLOCK = 12, 96, 6
CLUSTERS, MORE_CLUSTERS = 7, 35

NAMES = [f"d{number}" for number in range(6)]

#: Whole clusters whose leaders give devices another first model.
FIRST_MODEL_SEEDS = (19,)

Story = Callable[[], None]


def _blocks(gate: int, every: int, size: int) -> list[object]:
    return [
        pytest.param(first, marks=() if first < gate else pytest.mark.full, id=str(first))
        for first in range(0, every, size)
    ]


@pytest.mark.parametrize("first", _blocks(SEEDS, MORE_SEEDS, BLOCK))
def test_a_greedy_leader_gets_allowed_sums_only(first: int) -> None:
    lies = sum(sum(greedy(seed).lied.values()) for seed in range(first, first + BLOCK))
    assert lies > 10 * BLOCK


@pytest.mark.parametrize("first", _blocks(CLUSTERS, MORE_CLUSTERS, 7))
def test_a_cluster_outlives_leaders_that_lie(first: int) -> None:
    for seed in range(first, first + 7):
        fuzz_lying(seed)


# Stories ----------------------------------------------------------------------------------------------------------


def _lied_to(only: str, *, trust: str = "sealed(4, 0%, 30%)") -> LyingTroupe:
    """Six devices, and a leader that tells one lie again and again. The first device is slow, so that the others wait
    for it."""
    troupe = LyingTroupe("star", trust=trust, aggregators=0, workers_min=6)
    troupe.liar = GreedyLiar([troupe.spec], Rng(1).stream(only), only=only, victim="d0")
    troupe.trains_slowly = True
    troupe.joins(*NAMES)
    troupe.run(most=600)
    return troupe


def one_device_is_lent_another_lease() -> None:
    for what in LEASES:
        leads_honestly(_lied_to(what))


def an_old_lease_is_lent_again() -> None:
    """After another update was sealed, so that the device does not remember that it sealed this one."""
    stage = Stage("sealed(8, 10%, 30%)", 9)
    stage.lend(stage.names)
    first, everyone = stage.lease, stage.bind(stage.names).sum_of(live_model())
    stage.lend(stage.names)
    stage.bind(stage.names)
    for name in stage.names:
        stage.tell(name, stage.work(lease=first))
    others = stage.bind(stage.names[1:], lease=first).sum_of(live_model())
    if everyone is None or others is None:
        return
    found = (everyone - others) / stage.plan.sealed_examples[0]
    if error_of(found, stage.devices[stage.names[0]].made[0].astype(np.float64)) < 0.5:
        raise Violation("an update of one device is the difference of two sums")


def devices_are_named_other_sets() -> None:
    for how in SETS:
        leads_honestly(_lied_to(how, trust="sealed(3, 0%, 30%)"))
    # All six have to be in it.
    leads_honestly(_lied_to("halves", trust="sealed(6, 0%, 30%)"))


def devices_are_named_two_sets() -> None:
    """One after the other, under one label."""
    troupe = LyingTroupe("star", aggregators=0)
    troupe.joins(*NAMES)
    troupe.run_to(Agreed, count=6)
    agree = next(message for *_, message in troupe.said(Agree) if isinstance(message, Agree))
    for node in NAMES[:5]:
        troupe.hears(node, replace(agree, present=bits_of(range(5), 6)))
    troupe.run(most=400)
    leads_honestly(troupe)


def neighbours_are_said_to_have_vanished() -> None:
    """One device is missing, and each other one in turn is said to have vanished: its edges are asked for."""
    troupe = LyingTroupe("star", aggregators=0)
    troupe.liar = GreedyLiar([troupe.spec], Rng(1).stream("vanished"), only="all")
    troupe.joins(*SHAPED)
    troupe.run_to(Update, count=9)
    troupe.loses("d5")
    troupe.run(lambda: len(troupe.said(Opened)) >= 20, most=600)
    if len(troupe.said(Opened)) < 20:
        raise Violation("nobody opened a sum")
    troupe.joint.finish()


def an_update_is_bound_again() -> None:
    """One device is not asked to agree, and is not told that its group is void."""
    troupe = LyingTroupe("star", aggregators=0)

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        is_kept_back = isinstance(message, Agree | Unbind) or (isinstance(message, Work) and bool(troupe.said(Bind)))
        return [] if to == "d0" and is_kept_back else [message]

    troupe.lies = lies
    troupe.joins(*NAMES)
    troupe.run(lambda: troupe.leader.version >= 1)
    bind = next(message for _, to, message in troupe.said(Bind) if isinstance(message, Bind) and to == "d0")
    troupe.hears("d0", replace(bind, group=9))
    troupe.run(lambda: not troupe.queue, most=200)
    troupe.lies = lambda sender, to, message: [message]
    leads_honestly(troupe)


def one_update_weighs_little() -> None:
    leads_honestly(_lied_to("weights"))


def a_version_is_trained_again() -> None:
    leads_honestly(_lied_to("replay"))


def _ring(devices: int, trust: str) -> LyingTroupe:
    plan = {"workers_min": devices, "workers_max": devices, "epoch_leases": devices, "aggregators": 0}
    troupe = LyingTroupe("star", trust=trust, **plan)
    troupe.joins(*(f"d{number:02}" for number in range(devices)))
    return troupe


def neighbours_on_a_ring_are_missing_or_collude() -> None:
    """The neighbours of one device: as many are lost as may be, and as many collude as may."""
    troupe = _ring(34, "sealed(6, 5%, 6%)")
    troupe.run_to(Update, count=34)
    near = troupe.sealed[0][1].request.group.near[0]
    gone = [f"d{place:02}" for place in near[:2]]
    troupe.loses(*gone)
    troupe.run(lambda: troupe.leader.version >= 1, most=1500)
    if troupe.leader.version != 1:
        raise Violation("no sum on a ring")
    troupe.joint.finish()


def halves_of_a_ring_are_named_other_sets() -> None:
    """One half of the ring is told that a device is missing: at its ends, neighbours see both."""
    troupe = _ring(34, "sealed(6, 0%, 6%)")

    def order() -> list[int]:
        near = troupe.sealed[0][1].request.group.near
        way = [0]
        for place in way:
            way += [other for other in near[place] if other not in way]
        return way[:17]

    troupe.liar = GreedyLiar([troupe.spec], Rng(1).stream("ring"), only="all")
    liar = troupe.liar._jobs["job"]
    liar._drawn_sets = lambda group, came: {  # type: ignore[method-assign]
        node: frozenset(range(34)) - ({33} if place in order() and place != 33 else set())
        for place, node in enumerate(sorted(came))
    }
    troupe.run(lambda: len(troupe.said(Opened)) > 34, most=1500)
    troupe.joint.finish()


def all_liars_of_a_fleet_are_in_one_group() -> None:
    troupe = SealedTroupe(a_plan("sealed(12, 25%, 5%, members=32)", workers_min=12, workers_max=12))
    troupe.joins(*(f"d{number:02}" for number in range(12)))
    troupe.run(lambda: troupe.leader.version >= 1)
    troupe.joint.finish()
    if not troupe.joint.sums:
        raise Violation("no sum of a group with signed members")


def a_training_diverges() -> None:
    troupe = SealedTroupe(a_plan())
    troupe.diverges = {"d2"}
    troupe.joins(*NAMES)
    troupe.run(lambda: troupe.leader.version >= 1)
    if troupe.leader.version != 1:
        raise Violation("no sum with a training that diverged")


def words_are_lost_with_an_aggregator() -> None:
    """The loss of each version is that of the updates in it: every device trains with a loss of 1 in all."""
    troupe = ShapedTroupe("tree")
    troupe.joins(*SHAPED)
    troupe.forms()
    _, aggregator, _ = troupe.run_to_word(lambda message: isinstance(message, Reduce) and bool(message.group))
    troupe.loses(aggregator)
    first = troupe.leader.version
    for version in (first + 1, first + 2):
        troupe.run(lambda wanted=version: troupe.leader.version >= wanted, most=6000)
        rows = [row for save in troupe.saves for row in save.applied if row.version == version]
        examples = sum(troupe.made[row.node, troupe.leader.term, row.lease][1] for row in rows)
        loss = troupe.leader._training.train_loss
        if (
            troupe.leader.version < version
            or loss is None
            or not math.isclose(loss, len(rows) / examples, rel_tol=0.01)
        ):
            raise Violation(f"version {version} has a loss of {loss}, its updates {len(rows) / max(1, examples)}")


STORIES: list[Story] = [
    one_device_is_lent_another_lease,
    an_old_lease_is_lent_again,
    devices_are_named_other_sets,
    devices_are_named_two_sets,
    neighbours_are_said_to_have_vanished,
    an_update_is_bound_again,
    one_update_weighs_little,
    a_version_is_trained_again,
    neighbours_on_a_ring_are_missing_or_collude,
    halves_of_a_ring_are_named_other_sets,
    all_liars_of_a_fleet_are_in_one_group,
    a_training_diverges,
    words_are_lost_with_an_aggregator,
]


@pytest.mark.parametrize("story", STORIES)
def test_without_a_bug_every_story_holds(story: Story) -> None:
    story()


# Bugs -------------------------------------------------------------------------------------------------------------

#: Mutant -> the story, or the seeds of whole clusters, that are known to catch it, and a part of what is said of it.
CAUGHT: dict[str, tuple[Story | tuple[int, ...], str]] = {
    "agreement_not_counted": (devices_are_named_other_sets, "opened another set under one label"),
    "macs_not_compared": (devices_are_named_other_sets, "opened another set under one label"),
    "edges_given_with_the_agreement": (devices_are_named_other_sets, "gave a secret away in Agreed"),
    "only_neighbours_agree": (halves_of_a_ring_are_named_other_sets, "opened another set under one label"),
    "two_sets_under_one_label": (devices_are_named_two_sets, "agreed to two sets"),
    "half_of_the_members_are_enough": (devices_are_named_other_sets, "opened another set under one label"),
    "too_few_neighbours": (neighbours_on_a_ring_are_missing_or_collude, "a sum of 1 honest devices can be read"),
    "liars_hold_enough_shares": (all_liars_of_a_fleet_are_in_one_group, "a sum of 1 honest devices can be read"),
    "any_set_is_large_enough": (devices_are_named_other_sets, "agreed to a sum of too few"),
    "opened_again_for_members_in_the_sum": (neighbours_are_said_to_have_vanished, "can be read"),
    "liars_counted_by_the_group": (all_liars_of_a_fleet_are_in_one_group, "a sum of 1 honest devices can be read"),
    "rate_of_the_lease": (one_device_is_lent_another_lease, "trained with a rate of"),
    "any_lease_size": (one_device_is_lent_another_lease, "examples, not 64 to 64"),
    "version_not_in_the_label": (one_device_is_lent_another_lease, "not trained or sealed alike"),
    "epoch_not_in_the_label": (one_device_is_lent_another_lease, "not trained or sealed alike"),
    "weights_not_compared": (one_update_weighs_little, "examples beside"),
    "turn_of_the_leader": (one_device_is_lent_another_lease, "a turn that its leader named"),
    "lease_trained_again": (an_old_lease_is_lent_again, "the difference of two sums"),
    "any_first_model": (FIRST_MODEL_SEEDS, "another first model than the signed one"),
    "loss_told": (one_device_is_lent_another_lease, "told figures of lease"),
    "divergence_told": (a_training_diverges, "told how lease 3 failed"),
    "update_sealed_twice": (an_update_is_bound_again, "sealed an update for groups"),
    "update_spent_when_it_is_opened": (an_update_is_bound_again, "sealed an update for groups"),
    "figures_of_those_left_out": (words_are_lost_with_an_aggregator, "has a loss of"),
}


def test_every_mutant_is_looked_for() -> None:
    assert set(CAUGHT) == set(OF_SEALING)


@pytest.mark.parametrize("name", OF_SEALING)
def test_a_mutant_of_sealing_is_caught(name: str) -> None:
    by, said = CAUGHT[name]
    plays = [by] if callable(by) else [functools.partial(fuzz_lying, seed) for seed in by]
    for play in plays:
        with OF_SEALING[name](), pytest.raises(Violation) as caught:
            play()
        if said in str(caught.value):
            return
    pytest.fail(f"{name} was not caught for the right reason: {caught.value}")
