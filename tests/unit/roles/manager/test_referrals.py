"""Which nodes belong to another manager, by what they say in their hello and by what they send."""

from __future__ import annotations

from typing import cast

from shoal.roles.actions import Action, Send
from shoal.roles.events import OtherManager, OtherManagersSeen, Received, Started
from shoal.roles.machine import Machine
from shoal.roles.manager.appointment import Appointments
from shoal.roles.manager.cluster_state import ClusterState, NodeRecord
from shoal.roles.manager.other_managers import IN_VAIN_WITHIN_S, STAYS_S, OtherManagers
from shoal.roles.manager.referrals import Referrals
from shoal.wire.messages import AskCheckpoint, Dismiss, Facts, Hello, LeaderUnreachable, Leads, Ready, StepDown

OTHER = "b:7070"


class Desk(Machine):
    """Referrals without a manager around them."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster, self.others = ClusterState(()), OtherManagers()
        self.referrals = Referrals(self, self.cluster, cast(Appointments, None), self.others)
        self.handle(Started(), 0.0)

    def on_event(self, event: object) -> None:
        pass

    def sees(self, **jobs: str) -> None:
        managers = (OtherManager(endpoint=OTHER),)
        self.others.on_seen(OtherManagersSeen(managers=managers, jobs=jobs), own=())

    def sent(self) -> list[tuple[str, object]]:
        actions: list[Action] = self.take_actions()
        return [(action.to, action.message) for action in actions if isinstance(action, Send)]


def hello(*jobs: str, leads: str = "", browser: str = "", is_referred: bool = False) -> Hello:
    led = (Leads(job=leads, term=2, endpoint="pi:1"),) if leads else ()
    return Hello(
        node="pi", incarnation="1", facts=Facts(browser=browser), jobs=jobs, leads=led, is_referred=is_referred
    )


def test_the_only_manager_refers_nobody() -> None:
    desk = Desk()
    assert not desk.referrals.refers("pi", hello("j", leads="k"))
    assert not desk.referrals.takes(Received(sender="pi", message=AskCheckpoint(job="j", term=1)))
    desk.referrals.send_helpers()
    desk.referrals.send_free(may_grow=True)
    assert desk.sent() == []


def test_a_node_that_works_for_another_managers_job_is_sent_there() -> None:
    desk = Desk()
    desk.sees(j=OTHER)
    assert desk.referrals.refers("pi", hello("j"))
    assert desk.sent() == [("pi", Dismiss(job="", reason="another manager has job j", endpoint=OTHER))]
    assert not desk.referrals.refers("pi", hello("unknown"))
    assert not desk.referrals.refers("pi", hello("j", browser="Firefox")), "a tab dials the origin of its page"


def test_a_message_about_another_managers_job_is_not_for_this_one() -> None:
    desk = Desk()
    desk.sees(j=OTHER, k="")
    ready = Ready(job="j")
    assert desk.referrals.takes(Received(sender="pi", message=ready))
    assert desk.sent() == [], "its sender goes to that manager and sends it there"
    assert desk.referrals.takes(Received(sender="pi", message=AskCheckpoint(job="k", term=1)))
    assert desk.sent() == [("pi", Dismiss(job="", reason="no manager has job k at this moment"))]
    desk.cluster.nodes["pi"] = NodeRecord(node="pi", job="own")
    assert desk.referrals.takes(Received(sender="pi", message=AskCheckpoint(job="j", term=3)))
    [(to, message)] = desk.sent()
    assert (to, type(message)) == ("pi", StepDown)


def test_a_node_that_was_silent_while_its_job_was_given_away_is_sent_after_it() -> None:
    desk = Desk()
    desk.sees(j=OTHER)
    complaint = LeaderUnreachable(job="j", term=1, reason="silent")
    desk.cluster.nodes["pi"] = pi = NodeRecord(node="pi")
    assert desk.referrals.takes(Received(sender="pi", message=complaint))
    assert desk.sent() == [("pi", Dismiss(job="", reason="another manager has job j", endpoint=OTHER))]
    assert pi.sent_to == OTHER
    pi.job = "own"
    assert desk.referrals.takes(Received(sender="pi", message=complaint))
    assert desk.sent() == [("pi", Dismiss(job="j", reason="it works for a job of another manager"))]
    pi.job, pi.facts = None, Facts(browser="Firefox")
    assert desk.referrals.takes(Received(sender="pi", message=complaint))
    [(_, message)] = desk.sent()
    assert cast(Dismiss, message).job == "j", "a tab dials the origin of its page"


def test_a_node_that_works_here_leaves_the_jobs_of_others() -> None:
    desk = Desk()
    desk.sees(j=OTHER, k=OTHER)
    said = hello("j", "own", leads="k")
    assert desk.referrals.without_others(said).leads == ()
    desk.referrals.free("pi", said)
    assert [type(message) for _, message in desk.sent()] == [StepDown, Dismiss]


def test_a_node_that_comes_back_at_once_was_sent_in_vain() -> None:
    desk = Desk()
    node = NodeRecord(node="pi", sent_s=0.0, sent_to=OTHER)
    desk.referrals.note_arrival(node, hello(is_referred=True), restarted=False)
    assert (node.in_vain, node.kept_s, node.goes_s, node.sent_to) == (1, IN_VAIN_WITHIN_S, STAYS_S, "")
    desk.referrals.note_arrival(node, hello(is_referred=True), restarted=True)
    assert (node.in_vain, node.kept_s) == (0, 0.0), "it was not idle there all the time"
    desk.referrals.note_arrival(node, hello(), restarted=False)
    assert node.goes_s == 0.0
