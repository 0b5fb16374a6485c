"""Which devices a job is given, by their labels and facts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.roles.actions import Action, Answer, Send
from shoal.roles.events import Asked, Event, Liveness, MemberHeld, PeerChanged, Received, Started
from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import Patience
from shoal.where import LABELS_MAX
from shoal.wire.messages import (
    Assign,
    Denied,
    Facts,
    HandOver,
    Hello,
    JobSpec,
    Leads,
    Message,
    Release,
    SteppedDown,
    Submit,
    TransferJob,
)
from shoal.wire.messages.base import PROTOCOL

Make = Callable[..., JobSpec]


class Office:
    """A manager, and what it just did."""

    def __init__(self, *, labels: dict[str, tuple[str, ...]] | None = None, prefers_devices: bool = False) -> None:
        self.manager = Manager(node="home", patience=Patience(), labels=labels, prefers_devices=prefers_devices)
        self.actions: list[Action] = []
        self.happens(Started())

    def happens(self, event: Event) -> None:
        self.actions = self.manager.handle(event, 0.0)

    def hello(
        self,
        node: str,
        *labels: str,
        memory_mb: int = 1000,
        incarnation: str = "1",
        is_hub: bool = False,
        protocol: int = PROTOCOL,
    ) -> None:
        torch = "" if is_hub else "2.11"
        facts = Facts(host=node, torch=torch, memory_mb=memory_mb, labels=labels, is_hub=is_hub)
        self.says(node, Hello(node=node, incarnation=incarnation, facts=facts, protocol=protocol))

    def says(self, node: str, message: Message) -> None:
        self.happens(Received(sender=node, message=message))

    def label(self, node: str, *labels: str) -> None:
        self.happens(MemberHeld(node=node, hold="", labels=labels))

    def led_by(self, spec: JobSpec, leader: str) -> None:
        """The job, and this device leads it."""
        self.submit(spec)
        assert self.assigned("leader") == [leader]
        self.says(leader, Leads(job=spec.job, term=1, endpoint="10.0.0.9:7070"))

    def asked_to_hand_over(self) -> list[str]:
        sends = [action for action in self.actions if isinstance(action, Send)]
        return [send.to for send in sends if isinstance(send.message, HandOver)]

    def working(self) -> dict[str, str]:
        return {view.node: view.job for view in self.manager.node_views()}

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


@pytest.mark.parametrize("changes", [{"local_epochs": 2}, {"weights": "device"}, {"sampling": "uniform"}])
def test_a_plan_with_keys_of_this_release_goes_to_no_device_of_the_release_before(
    make_spec: Make, changes: dict[str, object]
) -> None:
    for prefers_devices, role in ((False, "worker"), (True, "leader")):
        office = Office(prefers_devices=prefers_devices)
        office.hello("a", protocol=PROTOCOL - 1)
        office.hello("b")
        office.submit(make_spec(workers_min=1, workers_max=8, data="local", cohort=1, **changes))
        assert office.assigned(role) == ["b"]


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


def test_a_hub_that_the_plan_does_not_take_sums_nothing_up(make_spec: Make) -> None:
    office = Office()
    office.hello("h3", "room=3", is_hub=True)
    office.hello("h4", "room=4", is_hub=True)
    office.submit(make_spec(topology="tree", workers_min=1, workers_max=8, where="room = 4"))
    assert office.assigned("hub") == ["h4"]
    office.label("h4", "room=3")
    assert office.released() == ["h4"]


def test_a_device_that_restarts_with_another_label_is_not_back_in_its_job(make_spec: Make) -> None:
    office = Office()
    office.hello("a", "room=3")
    office.submit(make_spec(workers_min=1, workers_max=8, where="room = 3"))
    office.hello("a", "room=4", incarnation="2")
    assert office.assigned() == []
    assert office.working() == {"a": ""}


def test_a_device_that_is_labelled_otherwise_beyond_a_cut_is_not_in_its_job_after_it(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a", "room=3")
    office.led_by(make_spec(workers_min=1, workers_max=8, where="room = 3"), "a")
    office.hello("b", "room=3")
    assert office.working()["b"] == "digits"
    for node in ("b", "a"):
        office.happens(PeerChanged(node=node, state=Liveness.LOST, reason="silent"))
    office.label("b", "room=4")
    office.happens(PeerChanged(node="b", state=Liveness.ALIVE, reason="heard again"))
    assert office.working()["b"] == ""


def test_a_leader_that_is_labelled_otherwise_hands_over(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a", "room=3")
    office.led_by(make_spec(workers_min=1, workers_max=8, where="room = 3"), "a")
    office.hello("b", "room=3")
    office.hello("c", "room=4")
    office.label("a", "floor=1")
    assert office.asked_to_hand_over() == []
    office.label("a", "room=4")
    assert office.asked_to_hand_over() == ["a"]
    # The one that was to lead is labelled otherwise before it could.
    office.label("b", "room=4")
    office.says("a", SteppedDown(job="digits", term=1, reason="handed over"))
    assert office.assigned("leader") == ["home"]


def test_an_operator_cannot_move_a_job_to_a_device_that_its_plan_does_not_take(make_spec: Make) -> None:
    office = Office()
    office.hello("a", "room=3")
    office.hello("b", "room=4")
    office.submit(make_spec(workers_min=1, workers_max=8, where="room = 3"))
    office.happens(Asked(question=8, message=TransferJob(job="digits", node="b")))
    answers = [action.message for action in office.actions if isinstance(action, Answer)]
    assert answers == [Denied(reason="b is none of the devices that job digits takes: room = 3")]
    office.happens(Asked(question=9, message=TransferJob(job="digits", node="a")))
    assert office.asked_to_hand_over() == ["home"]


def test_a_helper_stays_in_its_job_whatever_it_is_labelled(make_spec: Make) -> None:
    office = Office()
    office.hello("h", "room=3")
    sealed = {"trust": "sealed(3, helper=h)", "data": "local", "workers_min": 3, "workers_max": 3}
    office.submit(make_spec(where="room = 3", **sealed))
    assert office.working() == {"h": "digits"}
    office.label("h", "room=4")
    assert office.released() == []
