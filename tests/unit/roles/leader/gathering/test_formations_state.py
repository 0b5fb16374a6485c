"""The life of a formation as the leader's shape knows it: set up, tried, held, summed up, broken, replaced.

The model has six values, of which the first four are parameters. In a shard a and b lead three values each; in a tree
a leads for itself and c, b for itself and d.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.learning.layout import Layout
from shoal.roles.actions import Action, Record, Send
from shoal.roles.leader.gathering.formation import AggregatorShare, ArrivedUpdate, Formation
from shoal.roles.leader.gathering.formations import FORM_S, GATHER_S, Formations
from shoal.roles.leader.training_state import TrainingState
from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Lease
from shoal.wire.messages import (
    AggregatorReady,
    Go,
    Hop,
    JobSpec,
    Message,
    Reduce,
    ReduceResult,
    RelayModel,
    Route,
    Routed,
    SetUpAggregator,
    TearDown,
    Update,
)

M = TypeVar("M", bound=Message)
WORKERS = ("a", "b", "c", "d")
#: Where each of their leases goes in the tree.
UNDER = {"a": "a", "b": "b", "c": "a", "d": "b"}


def shares_of(kind: str) -> list[AggregatorShare]:
    if kind == "shard":
        return [AggregatorShare("a", 0, 3, list(WORKERS)), AggregatorShare("b", 3, 6, list(WORKERS))]
    return [AggregatorShare("a", 0, 6, ["a", "c"]), AggregatorShare("b", 0, 6, ["b", "d"])]


def lease(number: int, worker: str, version: int = 0) -> Lease:
    return Lease(id=number, worker=worker, epoch=0, batches=(number,), version=version, issued_s=0.0, deadline_s=60.0)


def sent(actions: list[Action], kind: type[M]) -> list[tuple[str, M]]:
    said = [action for action in actions if isinstance(action, Send)]
    return [(action.to, action.message) for action in said if isinstance(action.message, kind)]


def recorded(actions: list[Action], kind: str) -> list[str]:
    return [action.reason for action in actions if isinstance(action, Record) and action.kind == kind]


class Shaped:
    """A shape, its course, and a clock that stands still unless moved."""

    def __init__(self, spec: JobSpec) -> None:
        layout = Layout.of([("w", (4,), "parameter"), ("b", (2,), "buffer")])
        self.machine = Machine()
        self.training = TrainingState(self.machine, spec, layout, np.arange(6, dtype=np.float32))
        self.training.velocity = np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32)
        self.shape = Formations(self.machine, spec=spec, term=1, layout=layout, training=self.training)
        self.now_s = self.machine.now_s = 50.0

    def at(self, after_s: float = 0.0) -> Formations:
        """The shape, so much later."""
        self.machine.now_s = self.now_s + after_s
        return self.shape

    def does(self, act: Callable[..., object], *given: Any, **named: Any) -> list[Action]:
        """The actions that follow from this call alone."""
        self.machine.take_actions()
        act(*given, **named)
        return self.machine.take_actions()

    def begins(self, kind: str) -> list[Action]:
        return self.does(self.shape.begin, kind, shares_of(kind), reason="it is worth it")

    def says_formed(self, node: str, formation: int = 1, **changes: Any) -> list[Action]:
        given: dict[str, Any] = {"endpoint": f"{node}:7071"} | changes
        return self.does(
            self.shape.on_aggregator_ready, node, AggregatorReady(job="digits", term=1, formation=formation, **given)
        )

    def says_routed(self, *nodes: str, formation: int = 1, unreached: tuple[str, ...] = ()) -> None:
        for node in nodes:
            self.shape.on_routed(node, Routed(job="digits", term=1, formation=formation, unreached=unreached))

    def set_up(self, kind: str, formation: int = 1) -> list[Action]:
        self.begins(kind)
        for node in ("a", "b"):
            self.says_formed(node, formation)
        self.says_routed(*WORKERS, formation=formation)
        return self.does(self.shape.hold)

    def passes_on(self, node: str) -> tuple[str, RelayModel]:
        passed = self.shape.relay.pass_on(self.shape.now, node, nothing)
        assert passed is not None
        return passed

    def lends(self, *workers: str) -> list[Lease]:
        """One lease each, by what holds, numbered from 1 on."""
        leases = [lease(number, worker) for number, worker in enumerate(workers, start=1)]
        for one in leases:
            self.shape.lend(one.id, self.shape.way(one.worker))
        return leases

    def reports(self, *leases: Lease, scale: float = 1.0) -> list[Action]:
        actions: list[Action] = []
        for one in leases:
            update = Update(job="digits", term=1, lease=one.id, version=one.version, examples=10 * one.id, formation=1)
            actions += self.does(self.shape.note_arrival, ArrivedUpdate(one, update, scale))
        return actions

    def gathered(self, node: str, leases: tuple[int, ...], *values: float, **changes: Any) -> Any:
        given: dict[str, Any] = {"job": "digits", "term": 1, "formation": 1, "version": 1, "leases": leases}
        given |= {"weight": float(sum(10 * one for one in leases))}
        mean = np.array(values, dtype=np.float32)
        return self.shape.on_reduce_result(node, ReduceResult(tensors={"mean": mean}, **given | changes))

    def goes(self, leases: list[Lease]) -> list[tuple[str, int, int]]:
        """Who is told by which formation its update of which lease goes."""
        actions = [action for one in leases for action in self.does(self.shape.go, one)]
        return [(to, go.lease, go.formation) for to, go in sent(actions, Go)]

    @property
    def now(self) -> Formation:
        assert self.shape.now is not None
        return self.shape.now


def nothing(node: str) -> int:
    """No member holds any version."""
    return -1


@pytest.fixture
def shaped(make_spec: Callable[..., JobSpec]) -> Shaped:
    return Shaped(make_spec(momentum=0.5))


# Setting up -----------------------------------------------------------------------------------------------------


def test_it_begins_as_a_star(shaped: Shaped) -> None:
    shape = shaped.shape
    assert (shape.kind, shape.notation, shape.reason, shape.next_kind) == ("star", "star", None, None)
    assert (shape.way("a"), shape.relay.values_by("a"), shape.hindrance("a"), shape.held_up()) == (0, 0, None, None)
    assert shape.trouble() is None
    assert shaped.at(1e9).late(allowance_s=0.0) is None
    assert not shape.is_ready()
    assert not shape.gather([])
    assert shaped.does(shape.star, "as it was") == [], "nobody is told what was so before"
    assert shape.reason == "as it was"


def test_aggregators_are_told_their_part_and_members_first(shaped: Shaped) -> None:
    actions = shaped.begins("shard")
    forms = sent(actions, SetUpAggregator)
    assert [(to, form.start, form.stop, form.parameters) for to, form in forms] == [("a", 0, 3, 3), ("b", 3, 6, 1)]
    assert {form.members for _, form in forms} == {WORKERS}
    assert {(form.formation, form.momentum, form.kind, form.version) for _, form in forms} == {(1, 0.5, "shard", 0)}
    assert not any(form.tensors for _, form in forms), "where it stands is told when it begins to hold"
    assert recorded(actions, "topology.planned") == ["shard over 2 of 4 workers: it is worth it"]
    assert shaped.shape.kind == "star"
    assert shaped.shape.next_kind == "shard"


def test_routes_are_told_once_every_aggregator_is_set_up(shaped: Shaped) -> None:
    shaped.begins("tree")
    assert shaped.says_formed("b") == []
    routes = sent(shaped.says_formed("a"), Route)
    assert {to: route.hops for to, route in routes} == {
        node: (Hop(node=UNDER[node], endpoint=f"{UNDER[node]}:7071", start=0, stop=6),) for node in WORKERS
    }
    assert shaped.says_formed("a") == [], "said twice is heard once"


def test_in_a_shard_everyone_has_every_hop(shaped: Shaped) -> None:
    shaped.begins("shard")
    shaped.says_formed("a")
    routes = sent(shaped.says_formed("b"), Route)
    assert [to for to, _ in routes] == list(WORKERS)
    assert {tuple((hop.node, hop.start, hop.stop) for hop in route.hops) for _, route in routes} == {
        (("a", 0, 3), ("b", 3, 6))
    }


def test_what_is_said_of_another_formation_or_by_another_is_not_heard(shaped: Shaped) -> None:
    shaped.begins("tree")
    assert shaped.says_formed("c") == [], "c was not asked"
    assert shaped.says_formed("a", 2) == []
    shaped.says_routed("stranger")
    shaped.says_routed("a", formation=2)
    assert shaped.shape.next is not None
    assert not shaped.shape.next.is_formed
    assert shaped.shape.next.routed == set()


def test_it_is_ready_once_everyone_reaches_everyone(shaped: Shaped) -> None:
    shaped.begins("tree")
    shaped.says_routed(*WORKERS)
    assert not shaped.at().is_ready(), "no aggregator is set up"
    shaped.says_formed("a")
    shaped.says_formed("b")
    assert shaped.at().is_ready()
    actions = shaped.does(shaped.at(1.5).hold)
    assert recorded(actions, "topology.changed") == ["tree 1-2-4, after 1.5 s: it is worth it"]
    assert not sent(actions, SetUpAggregator), "a tree has no part to tell"
    assert (shaped.shape.kind, shaped.shape.notation, shaped.shape.next) == ("tree", "tree 1-2-4", None)
    assert {shaped.shape.way(node) for node in WORKERS} == {1}


def test_a_few_who_are_out_of_reach_do_not_hold_it_up(shaped: Shaped) -> None:
    shaped.begins("tree")
    shaped.says_formed("a")
    shaped.says_formed("b")
    shaped.says_routed("a", "b", "c")
    assert not shaped.at().is_ready(), "d may only be slow"
    assert shaped.at(FORM_S + 0.1).is_ready(), "but it had its time"
    shaped.says_routed("d", unreached=("b",))
    assert shaped.at().is_ready(), "or says that it does not"
    shaped.does(shaped.at().hold)
    assert shaped.shape.way("d") == 0
    assert shaped.shape.way("c") == 1
    shaped.says_routed("d")
    assert shaped.shape.way("d") == 1, "it found a way after all"


def test_those_out_of_reach_of_a_shard_must_wait_and_hear_why(shaped: Shaped) -> None:
    shaped.begins("shard")
    shaped.says_formed("a")
    shaped.says_formed("b")
    shaped.says_routed("a", "b", "c")
    shaped.says_routed("d", unreached=("b",))
    shaped.does(shaped.at().hold)
    assert shaped.shape.hindrance("c") is None
    assert shaped.shape.hindrance("d") == "does not reach b that leads a share of the model"
    assert shaped.shape.hindrance("new") == "does not reach every node that leads a share of the model"


def test_many_who_are_out_of_reach_are_trouble_and_who_is_not_reached_is_named(shaped: Shaped) -> None:
    shaped.begins("tree")
    shaped.says_formed("a")
    shaped.says_formed("b")
    shaped.says_routed("c", unreached=("a",))
    assert shaped.at().trouble() is None
    shaped.says_routed("d", unreached=("b",))
    assert shaped.at().trouble() == ("2 workers do not reach a, b", ["a", "b"])
    assert not shaped.at(99).is_ready()


@pytest.mark.parametrize("kind", ["tree", "shard"])
def test_an_aggregator_that_several_do_not_reach_is_complained_of(shaped: Shaped, kind: str) -> None:
    assert shaped.shape.complaints() == []
    shaped.set_up(kind)
    # In the tree c and d alone send to another; another one comes for each of the two.
    shaped.does(shaped.shape.on_joined, "e")
    shaped.does(shaped.shape.on_joined, "f")
    assert shaped.shape.complaints() == []
    shaped.says_routed("d", unreached=("b",))
    assert shaped.shape.complaints() == [], "the fault of one is its own"
    shaped.says_routed("f", unreached=("b",))
    assert shaped.shape.complaints() == ["b"]
    shaped.says_routed("f")
    assert shaped.shape.complaints() == [], "it answered after all"
    shaped.says_routed("f", unreached=("b",))
    shaped.shape.mark_broken("b is done without")
    assert shaped.shape.complaints() == [], "once"


def test_a_third_of_those_who_send_there_must_complain(shaped: Shaped) -> None:
    shaped.set_up("shard")
    for node in "efg":
        shaped.does(shaped.shape.on_joined, node)
    shaped.says_routed("c", "d", unreached=("a",))
    assert shaped.shape.complaints() == [], "two of seven"
    shaped.says_routed("e", unreached=("a", "b"))
    assert shaped.shape.complaints() == ["a"]


def test_in_a_shard_of_two_the_other_ones_word_is_enough(shaped: Shaped) -> None:
    shaped.set_up("shard")
    for node in ("c", "d"):
        shaped.does(shaped.shape.on_left, node, "gone")
    shaped.says_routed("a", unreached=("b",))
    assert shaped.shape.complaints() == ["b"]


def test_one_who_cannot_lead_is_the_trouble_and_not_one_who_did_not_answer_yet(shaped: Shaped) -> None:
    shaped.begins("tree")
    assert shaped.says_formed("b", endpoint="", reason="no door") == []
    assert shaped.at().trouble() == ("b could not be set up: no door", ["b"])
    assert not shaped.at().is_ready()


def test_one_who_does_not_answer_in_time_is_trouble(shaped: Shaped) -> None:
    shaped.begins("tree")
    shaped.says_formed("a")
    assert shaped.at(FORM_S).trouble() is None
    assert shaped.at(FORM_S + 0.1).trouble() == ("b did not answer in 12 s", ["b"])


def test_too_few_routes_in_time_are_trouble_that_is_nobodys(shaped: Shaped) -> None:
    shaped.begins("tree")
    shaped.says_formed("a")
    shaped.says_formed("b")
    shaped.says_routed("a", "b")
    late_s = FORM_S + 0.1
    assert shaped.at(late_s).trouble() == ("too few workers reached their aggregators in 12 s", [])


def test_what_came_to_nothing_is_forgotten_by_all_who_heard_of_it(shaped: Shaped) -> None:
    shaped.begins("tree")
    disbanded = sent(shaped.does(shaped.shape.give_up_next), TearDown)
    assert {(to, tear_down.formation) for to, tear_down in disbanded} == {(node, 1) for node in WORKERS}
    assert shaped.shape.next is None
    actions = shaped.begins("shard")
    assert {form.formation for _, form in sent(actions, SetUpAggregator)} == {2}, "no number is used twice"


def test_while_one_holds_what_came_to_nothing_is_forgotten_with_it(shaped: Shaped) -> None:
    shaped.set_up("tree")
    shaped.shape.mark_broken("a lied")
    shaped.begins("shard")
    assert {form.formation for _, form in sent(shaped.does(shaped.shape.on_joined, "e"), SetUpAggregator)} == {2}, (
        "what is broken gets nobody new"
    )
    assert shaped.does(shaped.shape.give_up_next) == [], "a number up to it would end the one that holds"
    shaped.begins("shard")
    shaped.does(shaped.shape.on_joined, "e")
    for node in ("a", "b"):
        shaped.says_formed(node, 3)
    shaped.says_routed(*WORKERS, formation=3)
    disbanded = sent(shaped.does(shaped.at().hold), TearDown)
    assert {to for to, _ in disbanded} == {*WORKERS, "e"}
    assert {tear_down.formation for _, tear_down in disbanded} == {2}


# Holding ----------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_shard_are_told_where_they_stand(shaped: Shaped) -> None:
    forms = dict(sent(shaped.set_up("shard"), SetUpAggregator))
    assert forms["a"].tensors["model"].tolist() == [0, 1, 2]
    assert forms["b"].tensors["model"].tolist() == [3, 4, 5]
    assert forms["a"].tensors["velocity"].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert forms["b"].tensors["velocity"].tolist() == pytest.approx([0.4]), "buffers have no momentum"


def test_the_parts_of_a_shard_get_their_squares_and_the_steps_taken(make_spec: Callable[..., JobSpec]) -> None:
    plan: dict[str, Any] = {"outer": "adamw", "outer_rate": 0.01, "weight_decay": 0.2, "learning_rate": 0.4}
    shaped = Shaped(make_spec(**plan, schedule="warmup 4"))
    shaped.training.second = np.array([1, 2, 3, 4], dtype=np.float32)
    shaped.training.outer_steps = 5
    forms = dict(sent(shaped.set_up("shard"), SetUpAggregator))
    assert forms["a"].tensors["second"].tolist() == [1, 2, 3]
    assert forms["b"].tensors["second"].tolist() == [4], "buffers have none"
    assert {form.outer_steps for form in forms.values()} == {5}
    assert {form.outer_rule for form in forms.values()} == {shaped.training._rule}
    # How far a step goes the leader says with the last count.
    assert shaped.shape._count([], last=True).outer_rate == pytest.approx(0.01 / 4)
    assert shaped.shape._count([]).outer_rate == 0.0


def test_a_step_of_a_part_is_no_longer_than_the_adaptive_step_that_it_should_be(
    make_spec: Callable[..., JobSpec],
) -> None:
    shaped = Shaped(make_spec(outer="adam", outer_rate=0.01, codec_down="top100%"))
    shaped.set_up("shard")
    assert shaped.shape.now is not None
    a, b = shaped.shape.now.shares
    mean = np.array([1, -2, 3], dtype=np.float32)
    # First steps of Adam from nothing but this mean: all of its values move, each by about the rate.
    shaped.training.velocity = np.zeros(4, np.float32)
    assert shaped.shape._step_max(mean, a) == pytest.approx(0.01 * 3**0.5, rel=1e-3)
    # One parameter and two buffers, which take the mean itself.
    assert shaped.shape._step_max(mean, b) == pytest.approx((0.01**2 + 2**2 + 3**2) ** 0.5, rel=1e-3)


def test_a_part_without_parameters_has_no_velocity(shaped: Shaped) -> None:
    shares = [AggregatorShare("a", 0, 5, list(WORKERS)), AggregatorShare("b", 5, 6, list(WORKERS))]
    forms = dict(sent(shaped.does(shaped.shape.begin, "shard", shares, reason=""), SetUpAggregator))
    assert (forms["a"].parameters, forms["b"].parameters) == (4, 0)
    for node in ("a", "b"):
        shaped.says_formed(node)
    forms = dict(sent(shaped.does(shaped.at().hold), SetUpAggregator))
    assert forms["b"].tensors["velocity"].size == 0


def test_a_star_again_ends_everything(shaped: Shaped) -> None:
    shaped.set_up("tree")
    shaped.begins("shard")
    actions = shaped.does(shaped.shape.star, "it is not worth it")
    assert recorded(actions, "topology.changed") == ["star: it is not worth it"]
    disbanded = sent(actions, TearDown)
    assert {(to, tear_down.formation, tear_down.reason) for to, tear_down in disbanded} == {
        (node, 2, "it is not worth it") for node in WORKERS
    }
    assert (shaped.shape.now, shaped.shape.next, shaped.shape.reason) == (None, None, "it is not worth it")


def test_what_is_broken_holds_everyone_up_and_its_first_reason_stays(shaped: Shaped) -> None:
    shaped.shape.mark_broken("there is none to break")
    assert shaped.shape.held_up() is None
    shaped.set_up("tree")
    shaped.shape.mark_broken("a lied")
    shaped.shape.mark_broken("b lied")
    assert shaped.shape.held_up() == "regrouping devices: a lied"
    assert shaped.shape.way("c") == 0
    assert shaped.does(shaped.at().gather, shaped.lends("a")) == []


# Workers come and go ---------------------------------------------------------------------------------------------


def test_a_joiner_of_a_tree_goes_where_the_fewest_are(shaped: Shaped) -> None:
    shaped.set_up("tree")
    shaped.does(shaped.shape.on_left, "d", "gone")
    actions = shaped.does(shaped.shape.on_joined, "e")
    assert [(to, form.members) for to, form in sent(actions, SetUpAggregator)] == [("b", ("b", "e"))]
    assert not dict(sent(actions, SetUpAggregator))["b"].tensors
    assert [(to, [hop.node for hop in route.hops]) for to, route in sent(actions, Route)] == [("e", ["b"])]
    assert shaped.shape.way("e") == 0
    shaped.says_routed("e")
    assert shaped.shape.way("e") == 1
    assert shaped.does(shaped.shape.on_joined, "e") == [], "it has its place"


def test_a_joiner_of_a_shard_is_told_to_all(shaped: Shaped) -> None:
    shaped.set_up("shard")
    actions = shaped.does(shaped.shape.on_joined, "e")
    assert [(to, form.members) for to, form in sent(actions, SetUpAggregator)] == [
        ("a", (*WORKERS, "e")),
        ("b", (*WORKERS, "e")),
    ]
    ((to, route),) = sent(actions, Route)
    assert (to, [hop.node for hop in route.hops]) == ("e", ["a", "b"])
    assert shaped.shape.hindrance("e") is not None
    shaped.says_routed("e")
    assert shaped.shape.hindrance("e") is None


def test_a_joiner_while_one_is_set_up_is_part_of_it(shaped: Shaped) -> None:
    shaped.begins("tree")
    actions = shaped.does(shaped.shape.on_joined, "e")
    assert sent(actions, SetUpAggregator)
    assert not sent(actions, Route), "routes come when all are set up"
    shaped.says_formed("a")
    assert "e" in dict(sent(shaped.says_formed("b"), Route))


def test_one_who_leaves_is_a_member_no_more(shaped: Shaped) -> None:
    shaped.set_up("shard")
    actions = shaped.does(shaped.shape.on_left, "d", "gone")
    assert [(to, form.members) for to, form in sent(actions, SetUpAggregator)] == [
        ("a", ("a", "b", "c")),
        ("b", ("a", "b", "c")),
    ]
    assert shaped.shape.held_up() is None
    assert shaped.does(shaped.shape.on_left, "d", "gone") == []


def test_with_an_aggregator_the_formation_is_gone(shaped: Shaped) -> None:
    shaped.set_up("tree")
    assert shaped.shape.is_aggregator("a")
    assert not shaped.shape.is_aggregator("c")
    assert shaped.does(shaped.shape.on_left, "a", "silent") == []
    assert shaped.shape.held_up() == "regrouping devices: a, an aggregator, is gone: silent"


def test_an_aggregator_that_leaves_while_one_is_set_up_is_nobodys_fault(shaped: Shaped) -> None:
    shaped.begins("tree")
    shaped.says_formed("a")
    shaped.does(shaped.shape.on_left, "a", "silent")
    assert shaped.at().trouble() == ("a, an aggregator, is gone: silent", [])
    assert not shaped.at().is_ready()


# Values -----------------------------------------------------------------------------------------------------------


def test_in_a_tree_one_model_for_all_of_a_group(shaped: Shaped) -> None:
    shaped.set_up("tree")
    to, passed = shaped.passes_on("c")
    assert (to, passed.version, passed.formation) == ("a", 0, 1)
    assert passed.tensors["model"].tolist() == [0, 1, 2, 3, 4, 5]
    assert shaped.shape.relay.pass_on(shaped.shape.now, "a", nothing) is None, "a is of that group"
    assert (
        shaped.shape.relay.values_by("a"),
        shaped.shape.relay.values_by("c"),
        shaped.shape.relay.values_by("b"),
    ) == (1, 1, 0)
    shaped.training.version = 1
    assert shaped.shape.relay.values_by("a") == 0
    assert shaped.passes_on("a")


def test_values_are_not_promised_to_one_who_does_not_reach_its_aggregator(shaped: Shaped) -> None:
    shaped.set_up("tree")
    shaped.does(shaped.shape.on_joined, "e")
    shaped.passes_on("a")
    assert shaped.shape.relay.values_by("e") == 0
    assert shaped.shape.relay.pass_on(shaped.shape.now, "e", nothing) is None


def test_one_who_lacks_its_values_is_not_promised_them_again(shaped: Shaped) -> None:
    shaped.set_up("tree")
    shaped.passes_on("a")
    shaped.shape.relay.on_missing("c")
    assert (shaped.shape.relay.values_by("a"), shaped.shape.relay.values_by("c")) == (1, 0)
    assert shaped.shape.relay.pass_on(shaped.shape.now, "c", nothing) is None, "it is sent the model by itself"


def test_values_of_a_formation_that_is_over_are_not_promised(shaped: Shaped) -> None:
    shaped.set_up("tree")
    shaped.passes_on("a")
    shaped.set_up("tree", 2)
    assert shaped.shape.relay.values_by("a") == 0
    shaped.passes_on("a")
    assert shaped.shape.relay.values_by("a") == 2
    shaped.does(shaped.shape.star, "")
    assert shaped.shape.relay.values_by("a") == 0


# Summing up in a tree ---------------------------------------------------------------------------------------------


def test_in_a_tree_updates_are_counted_as_they_come_and_summed_up_by_group(shaped: Shaped) -> None:
    shaped.set_up("tree")
    leases = shaped.lends(*WORKERS)
    ((to, count),) = sent(shaped.reports(leases[0], scale=0.5), Reduce)
    assert (to, count.leases, count.weights, count.scales, count.last) == ("a", (1,), (10.0,), (0.5,), False)
    assert count.version == 1
    assert shaped.reports(leases[0]) == [], "told twice counts once"
    assert shaped.shape.has_arrived(1)
    assert shaped.shape.awaits_sum("a")
    assert not shaped.shape.awaits_sum("c")
    assert shaped.does(shaped.at().gather, leases) == [], "c of its group is awaited"
    shaped.reports(leases[2])
    ((to, count),) = sent(shaped.does(shaped.at().gather, leases), Reduce)
    assert (to, count.leases, count.last) == ("a", (), True), "they were counted before"
    assert shaped.does(shaped.at().gather, leases) == [], "asked once"
    summed = shaped.gathered("a", (1, 3), 1, 2, 3, 4, 5, 6)
    assert [report.lease.id for report in summed.reports] == [1, 3]
    assert summed.mean.tolist() == [1, 2, 3, 4, 5, 6]
    assert summed.weight == 40.0
    assert not shaped.shape.has_arrived(1)
    assert (shaped.shape.lent_by(1), shaped.shape.lent_by(2)) == (0, 1)


def test_in_a_tree_an_update_counts_where_it_is_although_its_worker_is_gone(shaped: Shaped) -> None:
    shaped.set_up("tree")
    leases = shaped.lends(*WORKERS)
    shaped.reports(leases[2])
    shaped.does(shaped.shape.on_left, "c", "silent")
    assert shaped.shape.has_arrived(3)
    shaped.reports(leases[0])
    ((to, _),) = sent(shaped.does(shaped.at().gather, leases), Reduce)
    assert to == "a"
    assert shaped.gathered("a", (3, 1), 1, 2, 3, 4, 5, 6) is not None


def test_a_group_is_not_asked_for_nothing(shaped: Shaped) -> None:
    shaped.set_up("tree")
    leases = shaped.lends("b")
    shaped.reports(leases[0])
    assert [to for to, _ in sent(shaped.does(shaped.at().gather, leases), Reduce)] == ["b"]


def test_one_who_joins_a_group_that_was_summed_up_is_summed_up_again(shaped: Shaped) -> None:
    shaped.set_up("tree")
    first, second = lease(1, "a"), lease(2, "c")
    shaped.shape.lend(1, 1)
    shaped.reports(first)
    shaped.does(shaped.at().gather, [first])
    shaped.shape.lend(2, 1)
    shaped.reports(second)
    assert shaped.does(shaped.at().gather, [first, second]) == [], "the first sum is under way"
    # What was counted meanwhile may not be in it.
    assert shaped.gathered("a", (1,), 1, 1, 1, 1, 1, 1) is not None
    ((_, count),) = sent(shaped.does(shaped.at().gather, [second]), Reduce)
    assert count.last
    assert shaped.gathered("a", (2,), 1, 1, 1, 1, 1, 1) is not None


def test_in_a_tree_a_counted_lease_that_is_taken_back_spoils_the_sum(shaped: Shaped) -> None:
    shaped.set_up("tree")
    leases = shaped.lends(*WORKERS)
    shaped.shape.forget(2)
    assert shaped.shape.held_up() is None, "it was not counted yet"
    assert (shaped.shape.lent_by(1), shaped.shape.lent_by(2)) == (1, 0)
    shaped.reports(leases[0])
    shaped.shape.forget(1)
    assert shaped.shape.held_up() == "regrouping devices: lease 1 is in a sum and was taken back"


# Summing up in a shard --------------------------------------------------------------------------------------------


def test_in_a_shard_every_part_is_of_the_same_leases_and_whole_when_all_have_come(shaped: Shaped) -> None:
    shaped.set_up("shard")
    leases = shaped.lends("a", "c")
    assert shaped.reports(leases[0]) == []
    assert shaped.does(shaped.at().gather, leases) == [], "c is awaited"
    shaped.reports(leases[1])
    counts = sent(shaped.does(shaped.at().gather, leases), Reduce)
    assert [to for to, _ in counts] == ["a", "b"]
    assert {(count.leases, count.weights, count.last) for _, count in counts} == {((1, 2), (10.0, 20.0), True)}
    assert shaped.does(shaped.at().gather, leases) == []
    assert shaped.shape.hindrance("d") == "version 1 is being summed up", "no other can be part of it any more"
    assert shaped.gathered("b", (1, 2), 4, 5, 6) is None
    assert shaped.gathered("b", (1, 2), 4, 5, 6) is None, "said twice is no second part"
    summed = shaped.gathered("a", (2, 1), 1, 2, 3)
    assert summed.mean.tolist() == [1, 2, 3, 4, 5, 6]
    assert summed.weight == 30.0
    assert shaped.shape.hindrance("d") is None
    shaped.training.version = 1
    assert shaped.shape.relay.values_by("d") == 1, "its aggregators give it out already"
    assert shaped.gathered("a", (2, 1), 1, 2, 3) is None, "nothing is asked any more"


def test_in_a_shard_a_lease_that_is_taken_back_spoils_only_what_was_asked_for(shaped: Shaped) -> None:
    shaped.set_up("shard")
    leases = shaped.lends("a", "c")
    shaped.reports(*leases)
    shaped.shape.forget(2)
    assert shaped.shape.held_up() is None
    shaped.does(shaped.at().gather, leases[:1])
    shaped.shape.forget(1)
    assert shaped.shape.held_up() == "regrouping devices: lease 1 is in a sum and was taken back"
    assert shaped.gathered("a", (1,), 1, 2, 3) is None


# Sums that are not ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tree", "shard"])
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"leases": (1,)}, "its sum is of leases"),
        ({"leases": (1, 3, 3)}, "its sum is of leases"),
        ({"leases": (1, 2)}, "its sum is of leases"),
        ({"weight": 41.0}, "ReduceResult.weight is 41; its updates have 40"),
        ({"tensors": {"mean": np.ones(5, dtype=np.float32)}}, "the model is float32"),
        ({"tensors": {"mean": np.full(6, np.nan, dtype=np.float32)}}, "the model is float32|not finite"),
        ({"tensors": {}}, "one tensor named mean"),
    ],
)
def test_a_sum_of_something_else_is_refused(shaped: Shaped, kind: str, changes: dict[str, Any], why: str) -> None:
    shaped.set_up(kind)
    leases = shaped.lends("a", "b", "c")
    shaped.reports(leases[0], leases[2])
    shaped.does(shaped.at().gather, [leases[0], leases[2]])
    given: dict[str, Any] = {"job": "digits", "term": 1, "formation": 1, "version": 1, "leases": (1, 3), "weight": 40.0}
    given |= {"tensors": {"mean": np.ones(6 if kind == "tree" else 3, dtype=np.float32)}}
    with pytest.raises(PeerViolation, match=why):
        shaped.shape.on_reduce_result("a", ReduceResult(**given | changes))
    shaped.shape.on_reduce_result("a", ReduceResult(**given))


def test_a_sum_that_nobody_asked_for_is_not_heard(shaped: Shaped) -> None:
    shaped.set_up("tree")
    leases = shaped.lends("a", "c")
    shaped.reports(*leases)
    assert shaped.gathered("a", (1, 2), 1, 1, 1, 1, 1, 1) is None, "not asked yet"
    shaped.does(shaped.at().gather, leases)
    assert shaped.gathered("c", (1, 2), 1, 1, 1, 1, 1, 1) is None, "c is no aggregator"
    assert shaped.gathered("a", (1, 2), 1, 1, 1, 1, 1, 1, formation=2) is None
    shaped.shape.mark_broken("it is over")
    assert shaped.gathered("a", (1, 2), 1, 1, 1, 1, 1, 1) is None


@pytest.mark.parametrize("kind", ["tree", "shard"])
def test_who_owes_a_sum_for_too_long_is_late(shaped: Shaped, kind: str) -> None:
    shaped.set_up(kind)
    leases = shaped.lends(*WORKERS)
    shaped.reports(*leases)
    shaped.does(shaped.at().gather, leases)
    assert shaped.at(GATHER_S).late(allowance_s=3.0) is None
    assert shaped.at(GATHER_S + 0.1).late(allowance_s=30.0) is None, "as long as a lease may take"
    assert shaped.at(GATHER_S + 0.1).late(allowance_s=3.0) == "a"
    if kind == "tree":
        shaped.gathered("a", (1, 3), 1, 1, 1, 1, 1, 1)
    else:
        shaped.gathered("a", (1, 2, 3, 4), 1, 1, 1)
    assert shaped.at(GATHER_S + 0.1).late(allowance_s=3.0) == "b", "a did what was asked of it"
    shaped.shape.mark_broken("b is late")
    assert shaped.at(1e9).late(allowance_s=3.0) is None


# Going another way ------------------------------------------------------------------------------------------------


def test_what_was_lent_by_one_goes_by_the_next(shaped: Shaped) -> None:
    shaped.set_up("tree")
    leases = shaped.lends(*WORKERS)
    shaped.reports(leases[0])
    assert shaped.shape.redeliver(leases, lambda node: True) == ([], []), "what holds still holds"
    shaped.set_up("tree", 2)
    going, astray = shaped.shape.redeliver(leases, lambda node: node != "c")
    assert shaped.goes(going) == [("a", 1, 2), ("b", 2, 2), ("d", 4, 2)]
    assert [one.id for one in astray] == [3], "its worker is gone"
    assert not shaped.shape.has_arrived(1), "it is with nobody who sums it up"
    assert shaped.shape.is_due(leases[0], 2)
    assert not shaped.shape.is_due(leases[0], 1)


def test_in_a_star_again_it_goes_whole_to_the_leader(shaped: Shaped) -> None:
    shaped.set_up("shard")
    leases = shaped.lends("a", "b")
    shaped.does(shaped.shape.star, "too few")
    going, astray = shaped.shape.redeliver(leases, lambda node: True)
    assert shaped.goes(going) == [("a", 1, 0), ("b", 2, 0)]
    assert astray == []
    assert shaped.shape.redeliver(leases, lambda node: True) == ([], []), "told once"


@pytest.mark.parametrize("kind", ["tree", "shard"])
def test_one_who_does_not_reach_the_next_goes_straight_or_not_at_all(shaped: Shaped, kind: str) -> None:
    shaped.set_up(kind)
    leases = shaped.lends("d")
    shaped.begins(kind)
    for node in ("a", "b"):
        shaped.says_formed(node, 2)
    shaped.says_routed("a", "b", "c", formation=2)
    shaped.says_routed("d", formation=2, unreached=("b",))
    shaped.does(shaped.at().hold)
    going, astray = shaped.shape.redeliver(leases, lambda node: True)
    if kind == "tree":
        assert (shaped.goes(going), astray) == ([("d", 1, 0)], [])
    else:
        assert (going, [one.id for one in astray]) == ([], [1]), "no share would have a part of it"


def test_a_report_is_due_by_the_way_it_was_lent_alone(shaped: Shaped) -> None:
    shaped.set_up("tree")
    (one,) = shaped.lends("a")
    assert shaped.shape.is_due(one, 1)
    assert not shaped.shape.is_due(one, 0)
    assert not shaped.shape.is_due(lease(9, "a"), 1)
    shaped.shape.mark_broken("gone")
    assert not shaped.shape.is_due(one, 1)


def test_an_update_comes_whole_only_where_no_aggregator_has_it_or_must(shaped: Shaped) -> None:
    shaped.set_up("tree")
    leases = shaped.lends("a", "c")
    shaped.reports(leases[0])
    assert shaped.shape.bars_whole(1) == "lease 1 is with the aggregators already"
    assert shaped.shape.bars_whole(2) is None, "one who cannot reach its aggregator any more"
    shaped.set_up("shard", 2)
    shaped.shape.redeliver(leases, lambda node: True)
    assert shaped.shape.bars_whole(2) == "lease 2 goes to the aggregators of a shard"
    shaped.shape.mark_broken("gone")
    assert shaped.shape.bars_whole(2) is not None, "the next shard would not know of it either"
    shaped.does(shaped.shape.star, "too few")
    assert shaped.shape.bars_whole(2) is None
