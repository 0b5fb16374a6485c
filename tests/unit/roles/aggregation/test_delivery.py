"""An update leaves its worker by itself: the delivery needs the job, its leader and the routes, no other part of it."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.roles.actions import CancelTimer, Send, SetTimer
from shoal.roles.aggregation.delivery import (
    AT_ONCE_FEW,
    AT_ONCE_MANY,
    LONG_PIECE_S,
    SENT,
    TAKEN_FIRST_S,
    TAKEN_TIMER,
    Held,
    UpdateDelivery,
)
from shoal.roles.aggregation.routes import Routes
from shoal.roles.worker_machine import WorkerMachine
from shoal.states import WorkerPhase
from shoal.wire.messages import Go, Hop, Offer, Route, Routed, ShardAck, Update, UpdateReady, UpdateShard, Work

ROUTE = Route(job="digits", term=1, formation=3, hops=(Hop(node="a", endpoint="a:1", start=0, stop=2),))
UPDATE = Update(
    job="digits", term=1, lease=5, version=0, examples=8, tensors={"delta": np.array([1, 2], dtype=np.float32)}
)


def held(*, credit: bool = True, formation: int = 0) -> Held:
    work = Work(
        job="digits", term=1, lease=5, kind="train", version=0, deadline_s=9.0, credit=credit, formation=formation
    )
    return Held(work, formation=formation or None, result=UPDATE)


@pytest.fixture
def worker() -> WorkerMachine:
    worker = WorkerMachine(job="digits", leader="home", term=1)
    worker.is_connected = True
    return worker


@pytest.fixture
def routes(worker: WorkerMachine) -> Routes:
    return Routes(worker)


@pytest.fixture
def delivery(worker: WorkerMachine, routes: Routes) -> UpdateDelivery:
    return UpdateDelivery(worker, routes)


def test_with_a_credit_the_update_leaves_at_once(worker: WorkerMachine, delivery: UpdateDelivery) -> None:
    assert delivery.deliver(held()), "it is out of hand"
    assert worker.take_actions() == [Send(to="home", message=UPDATE)]
    assert (worker.state, worker.reason) == (WorkerPhase.WAITING, SENT)


def test_without_a_credit_it_is_offered_until_the_leader_says_go(
    worker: WorkerMachine, delivery: UpdateDelivery
) -> None:
    lease = held(credit=False)
    assert not delivery.deliver(lease)
    assert worker.take_actions() == [
        Send(to="home", message=Offer(job="digits", term=1, lease=5, size_bytes=UPDATE.tensors["delta"].nbytes))
    ]
    assert delivery.on_go(lease, Go(job="digits", term=1, lease=5))
    assert worker.take_actions() == [Send(to="home", message=UPDATE)]


def test_without_a_session_it_is_kept(worker: WorkerMachine, delivery: UpdateDelivery) -> None:
    worker.is_connected = False
    assert not delivery.deliver(held())
    assert worker.take_actions() == []


def test_by_a_route_it_goes_in_pieces_and_is_reported(
    worker: WorkerMachine, routes: Routes, delivery: UpdateDelivery
) -> None:
    routes.on_connected("a")
    routes.on_route(ROUTE)
    assert worker.take_actions() == [Send(to="home", message=Routed(job="digits", term=1, formation=3))]
    lease = held(formation=3)
    assert not delivery.deliver(lease), "it is kept until the leader speaks"
    assert worker.take_actions() == [
        Send(to="home", message=UpdateReady(job="digits", term=1, lease=5)),
        Send(to="a", message=UpdateShard(job="digits", term=1, formation=3, lease=5, version=0)),
        SetTimer(name=TAKEN_TIMER, after_s=TAKEN_FIRST_S),
    ]
    delivery.on_taken(lease, "a", ShardAck(job="digits", term=1, formation=3, lease=5))
    cancel, report = worker.take_actions()
    assert cancel == CancelTimer(name=TAKEN_TIMER)
    assert isinstance(report, Send)
    assert isinstance(report.message, Update)
    assert (report.message.formation, dict(report.message.tensors)) == (3, {})
    assert lease.is_reported


def sent_at_first(worker: WorkerMachine, delivery: UpdateDelivery, *, taken_after_s: float) -> int:
    """How many pieces of an update leave before one is taken. All are taken so much later."""
    lease = held(formation=4)
    delivery.deliver(lease)
    first = len(lease.sent)
    worker.now_s += taken_after_s
    for node in NODES:
        assert not lease.is_reported
        delivery.on_taken(lease, node, ShardAck(job="digits", term=1, formation=4, lease=5))
    assert lease.is_reported
    assert lease.sent <= lease.taken, "each piece left before it was taken, or was not needed"
    return first


NODES = tuple(f"n{number:02}" for number in range(AT_ONCE_MANY + 4))


def test_where_a_piece_takes_long_more_of_them_are_under_way(
    worker: WorkerMachine, routes: Routes, delivery: UpdateDelivery
) -> None:
    hops = tuple(Hop(node=node, endpoint=f"{node}:1", start=at, stop=at + 1) for at, node in enumerate(NODES))
    for node in NODES:
        routes.on_connected(node)
    routes.on_route(Route(job="digits", term=1, formation=4, hops=hops))
    slow_s, quick_s = 1.5 * LONG_PIECE_S * len(NODES), 0.5 * LONG_PIECE_S * len(NODES)
    assert sent_at_first(worker, delivery, taken_after_s=slow_s) == AT_ONCE_FEW, "nothing is known yet"
    assert sent_at_first(worker, delivery, taken_after_s=slow_s) == AT_ONCE_MANY
    for _ in range(9):
        sent_at_first(worker, delivery, taken_after_s=quick_s)
    assert sent_at_first(worker, delivery, taken_after_s=quick_s) == AT_ONCE_FEW, "the link is quicker now"
