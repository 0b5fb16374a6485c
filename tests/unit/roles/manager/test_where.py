"""Which devices a job is given, by their labels and facts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.roles.actions import Action, Send
from shoal.roles.events import Asked, Event, MemberHeld, Received, Started
from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import Patience
from shoal.where import LABELS_MAX
from shoal.wire.messages import Assign, Facts, Hello, JobSpec, Release, Submit

Make = Callable[..., JobSpec]


class Office:
    """A manager, and what it just did."""

    def __init__(self, *, labels: dict[str, tuple[str, ...]] | None = None, prefers_devices: bool = False) -> None:
        self.manager = Manager(node="home", patience=Patience(), labels=labels, prefers_devices=prefers_devices)
        self.actions: list[Action] = []
        self.happens(Started())

    def happens(self, event: Event) -> None:
        self.actions = self.manager.handle(event, 0.0)

    def hello(self, node: str, *labels: str, memory_mb: int = 1000) -> None:
        facts = Facts(host=node, torch="2.11", memory_mb=memory_mb, labels=labels)
        self.happens(Received(sender=node, message=Hello(node=node, incarnation="1", facts=facts)))

    def submit(self, spec: JobSpec) -> None:
        self.happens(Asked(question=7, message=Submit(spec=spec)))

    def assigned(self, role: str = "worker") -> list[str]:
        sends = [action for action in self.actions if isinstance(action, Send)]
        return [send.to for send in sends if isinstance(send.message, Assign) and send.message.role == role]

    def released(self) -> list[str]:
        sends = [action.message for action in self.actions if isinstance(action, Send)]
        return [message.node for message in sends if isinstance(message, Release)]


def test_a_job_is_given_only_devices_that_its_plan_takes(make_spec: Make) -> None:
    office = Office()
    office.hello("a", "room=3")
    office.hello("b", "room=4")
    office.hello("c", "room=3", memory_mb=500)
    office.hello("d")
    office.submit(make_spec(workers_min=1, workers_max=8, where="room in (3, 4) and memory_mb > 900"))
    assert sorted(office.assigned()) == ["a", "b"]
    office.hello("e", "room=4")
    assert office.assigned() == ["e"]


def test_a_device_that_the_plan_does_not_take_does_not_lead_either(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a", "room=3")
    office.hello("b", "room=4")
    office.submit(make_spec(workers_min=1, workers_max=8, where="room = 4"))
    assert office.assigned("leader") == ["b"]


def test_an_operators_label_wins_over_the_devices_own(make_spec: Make) -> None:
    office = Office(labels={"a": ("room=4",)})
    office.hello("a", "room=3", "gpu=no")
    office.hello("b", "room=3")
    office.submit(make_spec(workers_min=1, workers_max=8, where="room = 3"))
    assert office.assigned() == ["b"]
    assert [view.labels for view in office.manager.node_views()] == [("gpu=no", "room=4"), ("room=3",)]


@pytest.mark.parametrize(("labels", "goes"), [(("room=4",), True), (("floor=1",), False)])
def test_a_device_that_is_labelled_otherwise_leaves_its_job_after_its_lease(
    make_spec: Make, labels: tuple[str, ...], goes: bool
) -> None:
    office = Office()
    office.hello("a", "room=3")
    office.hello("b", "room=3")
    office.submit(make_spec(workers_min=1, workers_max=8, where="room = 3"))
    assert sorted(office.assigned()) == ["a", "b"]
    office.happens(MemberHeld(node="a", hold="", labels=labels))
    assert office.released() == (["a"] if goes else [])
    # Said once more, nothing happens.
    office.happens(MemberHeld(node="a", hold="", labels=labels))
    assert office.released() == []


def test_labels_of_a_device_and_of_an_operator_are_counted_apart(make_spec: Make) -> None:
    office = Office(labels={"a": ("room=3",)})
    office.hello("a", *(f"own{number}=1" for number in range(LABELS_MAX)))
    office.submit(make_spec(workers_min=1, workers_max=8, where="room = 3 and own7 = 1"))
    assert office.assigned() == ["a"]
    assert len(office.manager.node_views()[0].labels) == LABELS_MAX + 1
