"""The aggregation controller by itself: which messages it returns to its leader, and when another shape holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shoal.errors import BadValues
from shoal.learning.layout import Layout
from shoal.roles.actions import Record, Send
from shoal.roles.leader.gathering.controller import AggregationController
from shoal.roles.leader.gathering.formation import AggregatorShare
from shoal.roles.leader.gathering.gathering import BadUpdate, Progressed
from shoal.roles.leader.gathering.policy import TopologyPolicy
from shoal.roles.leader.leases import Leases
from shoal.roles.leader.parts import shared_parts
from shoal.roles.leader.round_stats import RoundStats
from shoal.roles.machine import Machine
from shoal.scheduling.admission import Admission
from shoal.scheduling.ledger import Lease
from shoal.states import WorkerState
from shoal.wire.messages import (
    AggregatorReady,
    BadShard,
    Go,
    JobSpec,
    Message,
    ReduceResult,
    Routed,
    TearDown,
    UpdateReady,
)

WORKERS = ("a", "b", "c", "d")


class Controlled:
    """A controller with four workers and its parts, whose clock stands at 100 s. In a tree a leads c, and b leads d."""

    def __init__(self, spec: JobSpec) -> None:
        layout = Layout.of([("w", (6,), "parameter")])
        self.machine = machine = Machine()
        machine.now_s = 100.0
        shared = shared_parts(machine, spec, term=1, layout=layout, model=np.zeros(6, np.float32))
        self.training, self.workers, self.formations = shared.training, shared.workers, shared.formations
        self.leases = Leases(machine, shared, admission=Admission(update_bytes=24, budget_bytes=24), model_bytes=24)
        self.controller = AggregationController(
            machine,
            shared,
            policy=TopologyPolicy(machine, spec.plan, size=6),
            leases=self.leases,
            stats=RoundStats(machine, pace="sync"),
        )
        for node in WORKERS:
            self.workers.make_idle(self.workers.add(node))

    def holds_a_tree(self) -> None:
        shares = [AggregatorShare("a", 0, 6, ["a", "c"]), AggregatorShare("b", 0, 6, ["b", "d"])]
        self.formations.begin("tree", shares, reason="it is worth it")
        for node in ("a", "b"):
            self.hears(node, AggregatorReady(job="digits", term=1, formation=1, endpoint=f"{node}:1"))
        for node in WORKERS:
            self.hears(node, Routed(job="digits", term=1, formation=1))
        self.formations.hold()
        self.machine.take_actions()

    def hears(self, sender: str, message: AggregatorReady | Routed | BadShard | ReduceResult) -> object:
        return self.controller.on_message(sender, message)

    def lends(self, node: str) -> Lease:
        worker = self.workers.get(node)
        assert worker is not None
        lent = self.leases.lend(worker, in_step=True)
        assert lent is not None
        self.workers.make_busy(worker, WorkerState.WORKING)
        self.formations.lend(lent[0].id, self.formations.way(node))
        return lent[0]

    def sent(self, kind: type[Message]) -> list[str]:
        actions = self.machine.take_actions()
        return [each.to for each in actions if isinstance(each, Send) and isinstance(each.message, kind)]

    def records(self) -> list[str]:
        return [each.kind for each in self.machine.take_actions() if isinstance(each, Record)]


@pytest.fixture
def tree(make_spec: Callable[..., JobSpec]) -> Controlled:
    controlled = Controlled(make_spec(topology="tree"))
    controlled.holds_a_tree()
    return controlled


def test_only_an_aggregator_finds_an_update_spoilt(tree: Controlled) -> None:
    lease = tree.lends("c")
    spoilt = BadShard(job="digits", term=1, formation=1, node="c", lease=lease.id, reason="not finite")
    assert tree.hears("d", spoilt) is None
    found = tree.hears("a", spoilt)
    assert isinstance(found, BadUpdate)
    assert (found.worker.node, found.lease) == ("c", lease)
    assert isinstance(found.violation, BadValues)
    assert found.violation.reason == "not finite (found by a)"
    assert tree.training.ledger.get(lease.id) is not None, "the leader decides"


def test_a_worker_that_found_its_route_may_be_lent_a_lease(tree: Controlled) -> None:
    assert tree.hears("c", Routed(job="digits", term=1, formation=1)) == Progressed("c")
    assert tree.hears("gone", Routed(job="digits", term=1, formation=1)) is None


def test_a_suspect_breaks_a_formation_only_if_it_is_an_aggregator(tree: Controlled) -> None:
    assert not tree.controller.on_suspect("c", "silent")
    assert tree.formations.held_up() is None
    assert tree.controller.on_suspect("a", "silent")
    assert tree.formations.held_up() == "regrouping devices: a, an aggregator, is suspect: silent"


def test_a_broken_formation_is_a_star_for_a_leader_that_steps_down(tree: Controlled) -> None:
    lease = tree.lends("c")
    assert not tree.controller.reshape(parting="another node is better")
    tree.formations.mark_broken("a lied")
    assert tree.controller.reshape(parting="another node is better")
    assert tree.formations.now is None
    actions = tree.machine.take_actions()
    told = [(each.to, type(each.message)) for each in actions if isinstance(each, Send)]
    assert [to for to, kind in told if kind is TearDown] == ["a", "c", "b", "d"]
    assert [to for to, kind in told if kind is Go] == ["c"], "its update comes straight to the leader"
    assert tree.formations.lent_by(lease.id) == 0


def test_updates_of_a_broken_formation_come_to_the_leader_in_their_turn(tree: Controlled) -> None:
    first, *_ = [tree.lends(node) for node in ("c", "d", "b")]
    tree.formations.mark_broken("a lied")
    assert tree.controller.reshape(parting="another node is better")
    assert tree.sent(Go) == ["c", "d"], "there is room for two"
    tree.leases.end_upload(first.id)
    assert tree.sent(Go) == ["b"]


def test_an_update_on_its_way_to_aggregators_is_given_time(tree: Controlled) -> None:
    lease, worker = tree.lends("c"), tree.workers.get("c")
    assert worker is not None
    tree.machine.now_s += 5.0
    tree.controller.on_update_ready(worker, UpdateReady(job="digits", term=1, lease=lease.id))
    after = tree.training.ledger.get(lease.id)
    assert after is not None
    assert after.deadline_s == lease.latest_s + 5.0
    assert worker.state is WorkerState.DELIVERING


def test_a_leader_that_stood_still_gives_leases_as_much_longer(tree: Controlled) -> None:
    lease = tree.lends("c")
    tree.leases.on_pause(0.05)
    assert tree.training.ledger.get(lease.id) == lease
    tree.leases.on_pause(3.0)
    after = tree.training.ledger.get(lease.id)
    assert after is not None
    assert after.deadline_s > lease.deadline_s + 3.0
    assert tree.records() == ["leader.paused"]
