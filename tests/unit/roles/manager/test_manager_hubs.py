"""Hubs as the manager places them: beside the workers of a job, and none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.roles.actions import Action, Record, Send
from shoal.roles.events import Asked, Liveness, MemberHeld, PeerChanged, Received, Started
from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import Patience
from shoal.wire.messages import Assign, Dismiss, Facts, Hello, JobSpec, Progress, Release, Released, Submit, Welcome

Make = Callable[..., JobSpec]


class Place:
    """A manager, and what it said in all."""

    def __init__(self, **options: Any) -> None:
        self.manager = Manager(node="home", patience=Patience(), **options)
        self.said: list[Action] = []
        self.happens(Started())

    def happens(self, event: Any) -> None:
        self.said = self.manager.handle(event, 0.0)

    def hello(self, node: str, *, is_hub: bool = False, incarnation: str = "1") -> None:
        facts = Facts(host=node, torch="" if is_hub else "2.11", is_hub=is_hub)
        self.happens(Received(sender=node, message=Hello(node=node, incarnation=incarnation, facts=facts)))

    def submit(self, spec: JobSpec) -> None:
        self.happens(Asked(question=1, message=Submit(spec=spec)))

    def roles(self) -> dict[str, tuple[str, str]]:
        """Node -> the job and the role that it was just given."""
        sends = [action for action in self.said if isinstance(action, Send) and isinstance(action.message, Assign)]
        assigns = [(send.to, send.message) for send in sends if isinstance(send.message, Assign)]
        return {to: (assign.job, assign.role) for to, assign in assigns if assign.role != "leader"}

    def dismissed(self) -> set[str]:
        return {a.to for a in self.said if isinstance(a, Send) and isinstance(a.message, Dismiss)}

    def told(self, node: str, kind: type) -> list[Any]:
        return [a.message for a in self.said if isinstance(a, Send) and a.to == node and isinstance(a.message, kind)]

    def working(self) -> dict[str, str]:
        return {view.node: view.job for view in self.manager.node_views()}


def test_a_hub_takes_no_workers_place(make_spec: Make) -> None:
    place = Place()
    place.hello("hub", is_hub=True)
    assert [a.reason for a in place.said if isinstance(a, Record)][-1] == (
        "hub connected from hub; a hub: it sums up for others, and trains nothing"
    )
    place.submit(make_spec(topology="tree", workers_min=2, workers_max=2))
    assert place.roles() == {"hub": ("digits", "hub")}
    for name in ("a", "b"):
        place.hello(name)
        assert place.roles() == {name: ("digits", "worker")}
    place.hello("c")
    assert not place.roles(), "two workers are the most, and they are there"


@pytest.mark.parametrize(("topology", "takes"), [("star", 0), ("shard", 0), ("tree", 2), ("auto", 2)])
def test_hubs_are_for_jobs_with_a_tree_and_not_all_for_one(make_spec: Make, topology: str, takes: int) -> None:
    place = Place()
    for number in range(3):
        place.hello(f"hub-{number}", is_hub=True)
    place.submit(make_spec(topology=topology, workers_max=5))
    assert list(place.roles().values()) == [("digits", "hub")] * takes


def test_hubs_are_dealt_to_jobs_and_free_again_at_their_end(make_spec: Make) -> None:
    place = Place()
    for job in ("one", "two"):
        place.submit(make_spec(job=job, topology="tree"))
    for number in range(4):
        place.hello(f"hub-{number}", is_hub=True)
    assert sorted(place.working().values()) == ["one", "one", "two", "two"]
    over = Progress(job="one", term=1, state="finished", reason="done")
    place.happens(Received(sender="home", message=over))
    assert place.dismissed() == {"hub-0", "hub-2"}
    assert sorted(place.working().values()) == ["two"] * 4, "the other job takes them"


def test_a_lost_hub_is_replaced_and_a_drained_one_let_go_by_its_leader(make_spec: Make) -> None:
    place = Place()
    place.submit(make_spec(topology="tree", workers_max=2))
    place.hello("hub-1", is_hub=True)
    place.hello("hub-2", is_hub=True)
    assert place.working() == {"hub-1": "digits", "hub-2": ""}
    place.happens(PeerChanged(node="hub-1", state=Liveness.LOST, reason="silent"))
    assert place.roles() == {"hub-2": ("digits", "hub")}
    place.happens(MemberHeld(node="hub-2", hold="drained", reason=""))
    assert place.told("home", Release)[0].node == "hub-2"
    place.happens(Received(sender="home", message=Released(job="digits", term=1, node="hub-2")))
    assert place.working()["hub-2"] == ""


def test_a_device_started_again_as_a_hub_loses_its_place_as_a_worker(make_spec: Make) -> None:
    place = Place()
    place.submit(make_spec(topology="tree", workers_max=1))
    place.hello("a")
    place.hello("b")
    assert place.working() == {"a": "digits", "b": ""}
    place.hello("a", is_hub=True, incarnation="2")
    assert place.roles() == {"a": ("digits", "hub"), "b": ("digits", "worker")}
    place.hello("a", incarnation="3")
    assert not place.roles()
    assert "a" in place.dismissed()


def test_a_hub_is_not_sent_away_where_others_check_in() -> None:
    place = Place(check_in_s=60.0)
    place.hello("a")
    assert place.told("a", Welcome)[0].come_s > 0
    place.hello("hub", is_hub=True)
    assert not place.told("hub", Welcome)[0].come_s
