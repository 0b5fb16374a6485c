"""The table of the leaders and aggregators of a node, on a driver that writes down what it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import Misuse
from shoal.roles.actions import Answer, End, Prepare, Record, Role, Save
from shoal.roles.events import Event, Liveness, PeerChanged, Received
from shoal.roles.node.failure_detector import Patience
from shoal.roles.node.host_router import HostRouter, ToLeader
from shoal.roles.node.role_table import RoleTable
from shoal.wire.messages import (
    Admit,
    AggregatorReady,
    Assign,
    Checkpoint,
    Done,
    JobSpec,
    Leads,
    Message,
    Ready,
    Reduce,
    SetUpAggregator,
    SteppedDown,
    TearDown,
    UpdateShard,
    Wait,
)

Make = Callable[..., JobSpec]


class Hosted:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.ended = False
        self.role: object = None
        self.inbox: list[Event] = []

    def post(self, event: Event) -> None:
        self.inbox.append(event)

    def start(self, role: Role) -> None:
        self.role = role


class Node:
    """A place and a driver in one. ``done`` holds everything that the table asked for."""

    def __init__(self, *, at_home: bool) -> None:
        self.board = HostRouter(node="here", patience=Patience(), manager="" if at_home else "manager")
        self.table: RoleTable[Hosted] = RoleTable(self.board, self, self)
        self.done: list[tuple[Any, ...]] = []
        self.hosts: list[Hosted] = []

    def _new(self, kind: str) -> Hosted:
        self.hosts.append(Hosted(kind))
        return self.hosts[-1]

    def to_manager(self, event: Event) -> None:
        self.done.append(("manager", event))

    def say(self, to: str, message: Message) -> None:
        self.done.append(("line", to, message))

    def post(self, node: str, message: Message) -> None:
        self.done.append(("session", node, message))

    def hang_up(self, node: str, reason: str) -> None:
        self.done.append(("hang up", node))

    def leader_host(self, assign: Assign) -> Hosted:
        return self._new("leader")

    def aggregator_host(self, form: SetUpAggregator) -> Hosted:
        return self._new("aggregator")

    def set_up_leader(self, host: Hosted, assign: Assign) -> None:
        self.done.append(("set up", host))

    def resume(self, host: Hosted, assign: Assign, checkpoint: Checkpoint) -> None:
        self.done.append(("resume", host, checkpoint.version))

    def set_up_aggregator(self, host: Hosted, form: SetUpAggregator, leader: str) -> None:
        self.done.append(("set up", host))

    def save(self, host: Hosted, job: str, save: Save) -> None:
        self.done.append(("save", host, job))

    def record(self, job: str, record: Record) -> None:
        self.done.append(("record", job, record.kind))

    def end(self, host: Hosted) -> None:
        host.ended = True

    def tell(self, message: Message, *, sender: str = "manager") -> None:
        self.table.carry(self.table.said_to_hosted(sender, message))


@pytest.fixture
def assign(make_spec: Make) -> Assign:
    return Assign(job="digits", role="leader", term=1, leader="here", spec=make_spec())


def form(**changes: Any) -> SetUpAggregator:
    given = {"job": "digits", "term": 1, "formation": 1, "kind": "tree", "version": 0, "start": 0, "stop": 8}
    return SetUpAggregator(**{**given, "members": ("w1",), **changes})


FINISHED: Any = object()


def test_a_leader_is_set_up_resumed_and_begun(assign: Assign) -> None:
    node = Node(at_home=False)
    node.tell(assign)
    (host,) = node.hosts
    assert ("set up", host) in node.done
    assert node.table.jobs == ("digits",)
    assert node.table.leader("digits") is None
    node.tell(Checkpoint(job="digits", term=1, version=-1))
    assert ("resume", host, -1) in node.done
    node.table.begin(host, assign, FINISHED, endpoint="here:1")
    assert host.role is FINISHED
    assert node.table.leader("digits") is FINISHED
    assert node.done[-1] == ("line", "manager", Leads(job="digits", term=1, endpoint="here:1"))


def test_at_home_the_manager_is_not_told_where_a_leader_is_dialled(assign: Assign) -> None:
    node = Node(at_home=True)
    node.table.send("here", assign)
    node.table.begin(node.hosts[0], assign, FINISHED)
    assert node.done == [("set up", node.hosts[0])]


def test_a_leader_that_was_let_go_while_it_was_set_up_does_not_begin(assign: Assign) -> None:
    node = Node(at_home=False)
    node.tell(assign)
    old = node.hosts[0]
    node.tell(Assign(job="digits", role="leader", term=2, leader="here", spec=assign.spec))
    new = node.hosts[1]
    assert (old.ended, new.ended) == (True, False)
    node.done.clear()
    node.table.begin(old, assign, FINISHED, endpoint="here:1")
    node.table.fail(old, "digits", "the file is gone")
    assert old.role is None
    assert not node.done
    assert node.table.jobs == ("digits",)
    assert not new.ended


def test_a_leader_that_could_not_be_set_up_is_let_go_and_the_manager_hears_why(assign: Assign) -> None:
    node = Node(at_home=False)
    node.tell(assign)
    node.table.fail(node.hosts[0], "digits", "the file is gone")
    assert node.hosts[0].ended
    assert not node.table.jobs
    said = SteppedDown(job="digits", term=1, reason="the file is gone", failed=True)
    assert node.done[-1] == ("line", "manager", said)


def test_a_message_is_read_by_its_leader_and_other_events_are_posted(assign: Assign) -> None:
    node = Node(at_home=True)
    node.table.send("here", assign)
    (host,) = node.hosts
    ready = Received(sender="w1", message=Ready(job="digits"))
    assert node.table.reading(ToLeader("digits", ready)) == (host, ready)
    revoked = PeerChanged(node="w1", state=Liveness.LOST, reason="revoked")
    assert node.table.reading(ToLeader("digits", revoked)) is None
    node.table.carry([ToLeader("digits", revoked), ToLeader("digits", ready), ToLeader("another", ready)])
    assert host.inbox == [revoked, ready]


def test_messages_for_managers_and_leaders_go_over_the_line_of_a_device_and_others_over_sessions() -> None:
    ready, wait = Ready(job="digits"), Wait(job="digits", reason="no work")
    device, home = Node(at_home=False), Node(at_home=True)
    for node in (device, home):
        node.table.post("w1", ready)
        node.table.post("w1", wait)
    assert device.done == [("line", "w1", ready), ("session", "w1", wait)]
    assert home.done == [("session", "w1", ready), ("session", "w1", wait)]


def test_a_leader_saves_records_and_ends(assign: Assign) -> None:
    node = Node(at_home=False)
    node.tell(assign)
    node.tell(Admit(job="digits", term=1, nodes=("w1",)))
    (host,) = node.hosts
    node.done.clear()
    node.table.perform_leader(host, "digits", Record(kind="version", reason="1"))
    node.table.perform_leader(host, "digits", Save(version=1, tensors={}, state={}))
    assert node.done == [("record", "digits", "version"), ("save", host, "digits")]
    node.table.perform_leader(host, "digits", End(reason="done"))
    assert host.ended
    assert not node.table.jobs
    assert not node.board.admits("w1")
    with pytest.raises(Misuse, match="a leader must not ask for Prepare"):
        node.table.perform_leader(host, "digits", Prepare(spec=assign.spec))


def test_an_aggregator_is_set_up_hears_its_leader_and_is_let_go() -> None:
    node = Node(at_home=False)
    node.tell(form(), sender="lead")
    (host,) = node.hosts
    assert node.table.aggregating == ("digits",)
    assert list(node.table.hosts) == [host]
    node.table.formed(host, form(), endpoint="here:1")
    said = AggregatorReady(job="digits", term=1, formation=1, endpoint="here:1")
    assert node.done == [("set up", host), ("line", "lead", said)]
    count = Reduce(job="digits", term=1, formation=1, version=0, leases=(1,), weights=(1.0,), scales=(1.0,))
    (reading,) = [node.table.reading(d) for d in node.table.said_to_hosted("lead", count)]
    assert reading == (host, Received(sender="lead", message=count))
    node.table.perform_aggregator("digits", 1, Record(kind="update.invalid", reason="a piece"))
    assert node.done[-1] == ("record", "digits", "update.invalid")
    node.tell(TearDown(job="digits", term=1, formation=1), sender="lead")
    assert host.ended
    assert list(node.table.hosts) == []
    with pytest.raises(Misuse, match="an aggregator must not ask for Answer"):
        node.table.perform_aggregator("digits", 1, Answer(question=1, message=Done(job="digits")))


def test_an_aggregator_without_a_door_is_let_go_and_its_leader_hears_why() -> None:
    node = Node(at_home=False)
    node.tell(form(), sender="lead")
    (host,) = node.hosts
    node.table.formed(host, form(), reason="the port is taken")
    assert host.ended
    assert node.done[-1] == (
        "line",
        "lead",
        AggregatorReady(job="digits", term=1, formation=1, reason="the port is taken"),
    )
    node.done.clear()
    node.table.formed(host, form(), endpoint="here:1")
    assert not node.done


def test_pieces_are_bounded_by_the_part_and_no_memory_is_taken_for_an_unknown_formation() -> None:
    node = Node(at_home=False)
    node.tell(form(), sender="lead")
    piece = UpdateShard(job="digits", term=1, formation=1, lease=1, version=0)
    other = UpdateShard(job="digits", term=1, formation=2, lease=1, version=0)
    assert (node.table.payload_limit(piece), node.table.payload_limit(other)) == (8 * 4, 0)
    assert node.table.awaits_tensors("w1", piece)
    assert not node.table.awaits_tensors("w2", piece)
    assert not node.table.awaits_tensors("w1", other)
