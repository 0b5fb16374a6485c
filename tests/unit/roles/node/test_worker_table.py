"""The table of the workers of a device, on a driver that writes down what it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shoal.roles.actions import Role
from shoal.roles.events import Connected, Event, Received
from shoal.roles.node.device_router import DeviceRouter, Redial, Say, ToHosted, ToWorker
from shoal.roles.node.worker_table import WorkerTable
from shoal.roles.worker.worker import Worker
from shoal.wire.messages import Admit, Assign, JobSpec, Leave, Message, Wait


@dataclass
class Hosted:
    role: Role | None = None
    ended: bool = False
    inbox: list[Event] = field(default_factory=list)

    def post(self, event: Event) -> None:
        self.inbox.append(event)

    def start(self, role: Role) -> None:
        self.role = role


@dataclass
class Employed:
    host: Hosted


class Device:
    def __init__(self) -> None:
        self.station = DeviceRouter(node="w1", incarnation="1", manager="manager")
        self.table: WorkerTable[Employed] = WorkerTable(self.station, self)
        self.done: list[tuple[Any, ...]] = []

    def employ(self, assign: Assign) -> Employed:
        return Employed(Hosted())

    def send(self, to: str, message: Message) -> None:
        self.done.append(("send", to, message))

    def dial(self, node: str, endpoint: str) -> None:
        self.done.append(("dial", node, endpoint))

    def part(self, node: str, reason: str) -> None:
        self.done.append(("part", node))

    def hang_up(self, node: str, reason: str) -> None:
        self.done.append(("hang up", node))

    def tell_hosted(self, duty: ToHosted) -> None:
        self.done.append(("hosted", duty.message))


@pytest.fixture
def device(make_spec: Callable[..., JobSpec]) -> Device:
    """It works for one job, whose leader is on another device."""
    device = Device()
    assign = Assign(
        job="digits", role="worker", term=1, leader="lead", leader_endpoint="lead:1", spec=make_spec(), reason=""
    )
    device.table.carry(device.station.on_received(Received(sender="manager", message=assign)))
    return device


def test_a_worker_is_set_up_and_its_leader_dialled(device: Device) -> None:
    assert device.table.jobs == ("digits",)
    worker = device.table.get("digits")
    assert worker is not None
    assert isinstance(worker.host.role, Worker)
    assert device.table.workers == (worker,)
    assert device.done == [("dial", "lead", "lead:1")]


def test_a_message_is_read_by_its_worker_and_other_events_are_posted(device: Device) -> None:
    worker = device.table.get("digits")
    assert worker is not None
    said = Received(sender="lead", message=Wait(job="digits", reason="no work"))
    (duty,) = device.station.on_received(said)
    assert device.table.reading(duty) == (worker, said)
    there = ToWorker("digits", Connected(node="lead"))
    assert device.table.reading(there) is None
    device.table.carry([there, duty])
    assert worker.host.inbox == [Connected(node="lead"), said]


def test_everything_else_is_for_the_driver(device: Device) -> None:
    device.done.clear()
    admit = Admit(job="other", term=1, nodes=("w2",))
    device.table.carry([Say("lead", Leave(reason="bye")), Redial("lead", "silent"), ToHosted(admit)])
    assert device.done == [("send", "lead", Leave(reason="bye")), ("hang up", "lead"), ("hosted", admit)]


def test_with_its_worker_the_line_to_the_leader_ends(device: Device) -> None:
    device.done.clear()
    assert device.table.end("digits") is not None
    assert device.table.jobs == ()
    assert device.done == [("part", "lead")]
    assert device.table.end("digits") is None
