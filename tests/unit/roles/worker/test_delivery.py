"""An update leaves its worker by itself: the delivery needs the job, its leader and the routes, no other part of it."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.roles.actions import CancelTimer, Send, SetTimer
from shoal.roles.worker.delivery import SENT, TAKEN_FIRST_S, TAKEN_TIMER, Held, UpdateDelivery
from shoal.roles.worker.machine import WorkerMachine
from shoal.roles.worker.routes import Routes
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
    delivery.on_shard_ack(lease, "a", ShardAck(job="digits", term=1, formation=3, lease=5))
    cancel, report = worker.take_actions()
    assert cancel == CancelTimer(name=TAKEN_TIMER)
    assert isinstance(report, Send)
    assert isinstance(report.message, Update)
    assert (report.message.formation, dict(report.message.tensors)) == (3, {})
    assert lease.is_reported
