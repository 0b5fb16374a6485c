"""The hub of a job: it says that it is there, and nothing else."""

from __future__ import annotations

from shoal.roles.actions import Action, End, Send
from shoal.roles.events import (
    Connected,
    Disconnected,
    Event,
    LinkMeasured,
    Reassigned,
    Received,
    Started,
    StopRequested,
)
from shoal.roles.hub import Hub
from shoal.wire.messages import Finished, Ready, Wait, Work


def hub() -> Hub:
    return Hub(job="digits", leader="home", term=3)


def told(role: Hub, *events: Event) -> list[Action]:
    return [action for event in events for action in role.handle(event, 0.0)]


def test_it_announces_itself_with_its_link_and_asks_for_no_trainer() -> None:
    link = LinkMeasured(up_bytes_per_s=1e8, down_bytes_per_s=2e8, medium="")
    (sent,) = told(hub(), Started(), link, Connected(node="home"))
    ready = Ready(job="digits", up_bytes_per_s=1e8, down_bytes_per_s=2e8, is_hub=True)
    assert sent == Send(to="home", message=ready)


def test_it_says_so_again_to_another_leader_and_to_one_that_may_have_missed_it() -> None:
    role = hub()
    told(role, Started(), Connected(node="home"))
    (again,) = told(role, Reassigned(term=3, leader="home"))
    assert isinstance(again, Send)
    assert again.to == "home"
    assert not told(role, Disconnected(node="home", reason="cut"), Reassigned(term=4, leader="pi"))
    (sent,) = told(role, Connected(node="home"), Connected(node="pi"))
    assert isinstance(sent, Send)
    assert sent.to == "pi"
    assert not told(role, Reassigned(term=2, leader="home"))
    assert role.leader == "pi"


def test_it_takes_no_work_and_ends_with_its_job() -> None:
    role = hub()
    told(role, Started(), Connected(node="home"))
    work = Work(job="digits", term=3, lease=1, kind="train", version=0, batches=(1,), deadline_s=9.0)
    assert not told(role, Received(sender="home", message=work))
    assert not told(role, Received(sender="home", message=Wait(job="digits", reason="later")))
    over = Finished(job="digits", reason="all epochs are done")
    assert told(role, Received(sender="home", message=over)) == [End(reason="all epochs are done")]
    assert told(hub(), StopRequested(reason="dismissed")) == [End(reason="dismissed")]
