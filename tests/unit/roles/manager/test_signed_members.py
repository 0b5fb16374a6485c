"""Sealed jobs at the manager: which nodes may be members, with which card, and who leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from shoal.roles.actions import Action, Send
from shoal.roles.events import Asked, Event, Heard, MemberHeld, Received, Started
from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import Patience
from shoal.wire.messages import (
    Assign,
    Facts,
    HandOver,
    Heartbeat,
    Hello,
    JobSpec,
    JobView,
    Message,
    Release,
    Released,
    SteppedDown,
    Submit,
)

M = TypeVar("M", bound=Message)
Make = Callable[..., JobSpec]

CARDS = {node: f"{node}'s".encode() for node in "abc"}
UNSIGNED = "sealed(3, 0%, 30%)"
SIGNED = "sealed(3, 0%, 30%, members=3)"


class Office:
    """A manager, and what it just did."""

    def __init__(self, *, cards: dict[str, bytes] | None, prefers_devices: bool | None = None) -> None:
        self.manager = Manager(node="home", patience=Patience(), cards=cards, prefers_devices=prefers_devices)
        self.actions: list[Action] = []
        self.happens(Started())

    def happens(self, event: Event) -> list[Action]:
        self.actions = self.manager.handle(event, 0.0)
        return self.actions

    def hello(self, *nodes: str) -> None:
        for node in nodes:
            hello = Hello(node=node, incarnation="1", facts=Facts(host=node, torch="2.11"))
            self.happens(Received(sender=node, message=hello))

    def submit(self, spec: JobSpec) -> None:
        self.happens(Asked(question=7, message=Submit(spec=spec)))

    def sent(self, kind: type[M]) -> list[tuple[str, M]]:
        sends = [action for action in self.actions if isinstance(action, Send)]
        return [(send.to, send.message) for send in sends if isinstance(send.message, kind)]

    def assigned(self) -> dict[str, tuple[str, bytes]]:
        """Who was just made a worker of what, with which card."""
        return {to: (assign.job, assign.card) for to, assign in self.sent(Assign) if assign.role == "worker"}

    def view(self, job: str = "digits") -> JobView:
        return next(view for view in self.manager.job_views() if view.job == job)


def sealed(make_spec: Make, trust: str, job: str = "digits") -> JobSpec:
    return make_spec(job=job, trust=trust, data="local", workers_min=3, workers_max=8)


def test_only_nodes_with_a_card_work_for_a_job_with_signed_members(make_spec: Make) -> None:
    office = Office(cards=CARDS)
    office.hello("a", "b", "c", "d")
    office.submit(sealed(make_spec, SIGNED))
    assert office.assigned() == {node: ("digits", card) for node, card in CARDS.items()}
    # The operator signs it while the job runs: it comes in, with its card.
    office.happens(MemberHeld(node="d", hold="", card=b"d's"))
    assert office.assigned() == {"d": ("digits", b"d's")}
    # Other jobs take every node, and no card is sent with them.
    office.hello("e")
    office.submit(make_spec(job="plain"))
    assert office.assigned() == {"e": ("plain", b"")}


def test_a_helper_without_a_card_opens_nothing(make_spec: Make) -> None:
    office = Office(cards=CARDS)
    office.hello("a", "b", "c", "h")
    office.submit(sealed(make_spec, "sealed(3, 0%, 30%, helper=h, members=3)"))
    assert sorted(office.assigned()) == ["a", "b", "c"]
    office.happens(MemberHeld(node="h", hold="", card=b"h's"))
    assert office.assigned() == {"h": ("digits", b"h's")}


def test_a_node_begins_its_job_again_with_a_new_card(make_spec: Make) -> None:
    office = Office(cards=CARDS)
    office.hello("a", "b", "c")
    office.submit(sealed(make_spec, SIGNED))
    assert office.happens(MemberHeld(node="a", hold="", card=CARDS["a"])) == [], "the same card changes nothing"
    office.happens(MemberHeld(node="a", hold="", card=b"newer"))
    assert [(to, release.node) for to, release in office.sent(Release)] == [("home", "a")]
    office.happens(Received(sender="home", message=Released(job="digits", term=1, node="a")))
    office.happens(Heard(beats=(("a", 0.0, Heartbeat(seq=1)),)))
    assert office.assigned() == {"a": ("digits", b"newer")}


def test_without_a_list_of_cards_every_node_is_a_member(make_spec: Make) -> None:
    office = Office(cards=None)
    office.hello("a", "b", "c")
    office.submit(sealed(make_spec, SIGNED))
    assert sorted(office.assigned()) == ["a", "b", "c"]


# Who leads -----------------------------------------------------------------------------------------------------------


def test_a_device_leads_a_sealed_job_whose_members_the_manager_decides(make_spec: Make) -> None:
    office = Office(cards=CARDS)
    office.hello("a", "b", "c")
    office.submit(sealed(make_spec, UNSIGNED))
    assert office.view().leader == "a"
    office.submit(sealed(make_spec, SIGNED, job="signed"))
    office.submit(make_spec(job="plain"))
    assert (office.view("signed").leader, office.view("plain").leader) == ("home", "home")


def test_where_no_device_can_the_manager_leads_says_so_and_hands_over(make_spec: Make) -> None:
    office = Office(cards={})
    office.submit(sealed(make_spec, UNSIGNED))
    assert office.view().leader == "home"
    assert "led by home" in office.view().reason
    assert "It also signs certificates, so it could read single updates" in office.view().reason
    office.hello("a")
    assert office.sent(HandOver)
    office.happens(Received(sender="home", message=SteppedDown(job="digits", term=1, reason="handed over")))
    assert office.view().leader == "a"


def test_one_device_that_cannot_lead_is_enough_for_the_manager_to_lead(make_spec: Make) -> None:
    """Devices that cannot dial each other would otherwise be appointed one after the other."""
    office = Office(cards={})
    office.hello("a", "b", "c")
    office.submit(sealed(make_spec, UNSIGNED))
    assert office.view().leader == "a"
    office.happens(Received(sender="a", message=SteppedDown(job="digits", term=1, reason="no port", failed=True)))
    assert office.view().leader == "home"


@pytest.mark.parametrize(("prefers", "who"), [(False, "home"), (True, "a"), (None, "a")])
def test_an_operators_word_about_leaders_counts_more_than_a_plan(
    make_spec: Make, prefers: bool | None, who: str
) -> None:
    office = Office(cards={}, prefers_devices=prefers)
    office.hello("a", "b", "c")
    office.submit(sealed(make_spec, UNSIGNED))
    assert office.view().leader == who
