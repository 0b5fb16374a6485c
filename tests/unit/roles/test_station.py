"""A device between its sessions and its workers: one line to the manager, one to each leader elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from shoal.errors import PeerViolation
from shoal.roles.events import Connected, Disconnected, Reassigned, Received, StopRequested
from shoal.roles.station import (
    ATTEMPTS_TOLD,
    ATTEMPTS_TOLD_AGAIN,
    Dial,
    Duty,
    Employ,
    HangUp,
    Part,
    Say,
    Station,
    ToHosted,
    ToWorker,
)
from shoal.wire.messages import (
    Admit,
    Assign,
    Checkpoint,
    CheckpointKept,
    Conclude,
    Dismiss,
    Facts,
    Finished,
    HandOver,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    JobSpec,
    Leads,
    Leave,
    Message,
    OutOfReach,
    Release,
    StepDown,
    Wait,
    Welcome,
    Work,
)

Give = Callable[..., Assign]

ELSEWHERE = "the job is led elsewhere now"
UNNEEDED = "no job here is led by it any more"


@pytest.fixture
def give(make_spec: Callable[..., JobSpec]) -> Give:
    """A worker's role; without a leader, at home."""

    def make(*, job: str = "digits", term: int = 1, leader: str = "home", at: str | None = None) -> Assign:
        endpoint = at if at is not None else "" if leader == "home" else f"{leader}:7071"
        spec = make_spec(job=job)
        return Assign(job=job, role="worker", term=term, leader=leader, leader_endpoint=endpoint, spec=spec)

    return make


@pytest.fixture
def station() -> Station:
    """A device whom the manager has welcomed."""
    station = Station(node="pi", incarnation="7", manager="home")
    welcomed(station, "home")
    return station


def hears(station: Station, message: Message, sender: str = "home") -> list[Duty]:
    return station.received(Received(sender=sender, message=message))


def welcomed(station: Station, peer: str) -> list[Duty]:
    station.opened(peer, Facts(), 0.0)
    return hears(station, Welcome(heartbeat_s=1.0, lost_after_s=8.0), peer)


# The line to the manager ---------------------------------------------------------------------------------


def test_the_manager_hears_what_is_led_here_and_a_leader_does_not(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    leads = (Leads(job="other", term=3, endpoint="pi:7071"),)
    facts = Facts(host="pi.local")
    hello = Hello(node="pi", incarnation="7", facts=facts, leads=leads)
    assert station.opened("home", facts, 0.0, leads=leads) == [Say("home", hello)]
    assert station.opened("hub", facts, 0.0, leads=leads) == [
        Say("hub", Hello(node="pi", incarnation="7", facts=facts))
    ]


def test_a_role_at_home_needs_no_line_of_its_own(station: Station, give: Give) -> None:
    assign = give()
    assert hears(station, assign) == [Employ(assign), ToWorker("digits", Connected(node="home"))]
    assert station.jobs == ("digits",)
    assert station.closed("home", reason="reset") == [ToWorker("digits", Disconnected(node="home", reason="reset"))]
    assert not station.welcomed
    assert welcomed(station, "home") == [ToWorker("digits", Connected(node="home"))]


def test_the_same_role_again_is_no_new_worker(station: Station, give: Give) -> None:
    hears(station, give())
    assert hears(station, give()) == [ToWorker("digits", Reassigned(term=1, leader="home"))]
    assert hears(station, give(term=2)) == [ToWorker("digits", Reassigned(term=2, leader="home"))]
    assert hears(station, give(term=1)) == [], "of an older term"


def test_the_manager_dismisses_a_worker_or_the_whole_node(station: Station, give: Give) -> None:
    hears(station, give())
    dismiss = Dismiss(job="digits", reason="its place was taken")
    assert hears(station, dismiss) == [ToWorker("digits", StopRequested(reason="its place was taken"))]
    assert hears(station, Dismiss(job="none", reason="")) == []
    assert hears(station, Dismiss(job="", reason="install the same release")) == [
        HangUp("home", "dismissed: install the same release")
    ]


@pytest.mark.parametrize(
    "message",
    [
        Admit(job="digits", term=1, nodes=("a",)),
        Conclude(job="digits", reason="enough"),
        HandOver(job="digits", term=1),
        StepDown(job="digits", term=1),
        Release(job="digits", node="a"),
        Checkpoint(job="digits", term=1, version=-1),
        CheckpointKept(job="digits", term=1, version=5),
    ],
)
def test_what_is_for_leaders_here_is_passed_on_and_only_the_manager_says_it(
    station: Station, give: Give, message: Message
) -> None:
    assert hears(station, message) == [ToHosted(message)]
    hears(station, give(leader="hub"))
    with pytest.raises(PeerViolation, match="is not for a leader to say"):
        hears(station, message, "hub")


def test_a_node_is_made_a_leader_by_the_manager_alone(station: Station, give: Give) -> None:
    worker = give(leader="hub")
    leader = Assign(job="other", role="leader", term=1, leader="pi", spec=worker.spec)
    assert hears(station, leader) == [ToHosted(leader)]
    hears(station, worker)
    for message in (leader, give(term=2, leader="hub"), Dismiss(job="digits", reason=""), Dismiss(job="", reason="")):
        with pytest.raises(PeerViolation, match="is not for a leader to say"):
            hears(station, message, "hub")


# Lines to leaders ------------------------------------------------------------------------------------------


def test_a_leader_elsewhere_is_dialled_and_its_worker_hears_of_the_line(station: Station, give: Give) -> None:
    assign = give(leader="hub")
    assert hears(station, assign) == [Employ(assign), Dial("hub", "hub:7071")]
    assert welcomed(station, "hub") == [ToWorker("digits", Connected(node="hub"))]
    wait = Wait(job="digits", reason="")
    assert hears(station, wait, "hub") == [ToWorker("digits", Received(sender="hub", message=wait))]
    assert station.closed("home") == [], "its leader is still there"
    assert station.closed("hub", reason="reset") == [ToWorker("digits", Disconnected(node="hub", reason="reset"))]


def test_two_jobs_of_one_leader_share_a_line(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    welcomed(station, "hub")
    other = give(job="other", leader="hub")
    assert hears(station, other) == [Employ(other), ToWorker("other", Connected(node="hub"))]
    assert station.closed("hub", reason="reset") == [
        ToWorker("digits", Disconnected(node="hub", reason="reset")),
        ToWorker("other", Disconnected(node="hub", reason="reset")),
    ]
    assert station.ended("digits") == [], "the other still needs it"
    assert station.ended("other") == [Part("hub", UNNEEDED)]
    assert station.ended("other") == []
    assert station.jobs == ()


def test_a_job_that_gets_another_leader_parts_from_the_one_before(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    welcomed(station, "hub")
    assert hears(station, give(term=2, leader="nas")) == [
        ToWorker("digits", Disconnected(node="hub", reason=ELSEWHERE)),
        Part("hub", UNNEEDED),
        ToWorker("digits", Reassigned(term=2, leader="nas")),
        Dial("nas", "nas:7071"),
    ]
    assert welcomed(station, "nas") == [ToWorker("digits", Connected(node="nas"))]


def test_a_job_that_comes_home_needs_no_other_line(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    assert hears(station, give(term=2)) == [
        ToWorker("digits", Disconnected(node="hub", reason=ELSEWHERE)),
        Part("hub", UNNEEDED),
        ToWorker("digits", Reassigned(term=2, leader="home")),
        ToWorker("digits", Connected(node="home")),
    ]
    assert hears(station, give(term=3, leader="hub"))[-1] == Dial("hub", "hub:7071"), "and it may go again"


def test_the_line_to_the_manager_is_never_parted_with(station: Station, give: Give) -> None:
    hears(station, give())
    duties = hears(station, give(term=2, leader="hub"))
    assert not [duty for duty in duties if isinstance(duty, Part)]
    assert station.ended("digits") == [Part("hub", UNNEEDED)]


def test_a_job_that_moves_to_a_leader_with_a_line_uses_it(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    hears(station, give(job="other", leader="nas"))
    welcomed(station, "nas")
    assert hears(station, give(term=2, leader="nas")) == [
        ToWorker("digits", Disconnected(node="hub", reason=ELSEWHERE)),
        Part("hub", UNNEEDED),
        ToWorker("digits", Reassigned(term=2, leader="nas")),
        ToWorker("digits", Connected(node="nas")),
    ]


def test_a_leader_that_is_found_elsewhere_is_dialled_there(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    hears(station, give(job="other", leader="hub"))
    welcomed(station, "hub")
    duties = hears(station, give(term=2, leader="hub", at="10.0.0.9:7071"))
    assert duties == [
        ToWorker("digits", Disconnected(node="hub", reason=ELSEWHERE)),
        ToWorker("other", Disconnected(node="hub", reason=ELSEWHERE)),
        Part("hub", UNNEEDED),
        ToWorker("digits", Reassigned(term=2, leader="hub")),
        Dial("hub", "10.0.0.9:7071"),
    ]
    assert welcomed(station, "hub") == [
        ToWorker("digits", Connected(node="hub")),
        ToWorker("other", Connected(node="hub")),
    ]


def test_a_leader_under_a_new_term_where_it_was_keeps_its_line(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    welcomed(station, "hub")
    assert hears(station, give(term=2, leader="hub")) == [ToWorker("digits", Reassigned(term=2, leader="hub"))]


def test_who_led_a_job_before_has_nothing_to_say_in_it(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    hears(station, give(job="other", leader="hub"))
    welcomed(station, "hub")
    hears(station, give(term=2, leader="nas"))
    assert hears(station, Finished(job="digits", reason="late"), "hub") == []
    assert hears(station, Finished(job="digits", reason="it lies"), "home") == [], "nor has the manager"
    assert len(hears(station, Finished(job="other", reason="done"), "hub")) == 1
    station.ended("other")
    assert hears(station, Finished(job="digits", reason="late"), "hub") == [], "the line is gone"
    assert hears(station, StepDown(job="digits", term=1), "hub") == []


def test_a_leader_cannot_capture_its_workers_with_a_term_that_nobody_gave_it(station: Station, give: Give) -> None:
    hears(station, give(term=2, leader="hub"))
    welcomed(station, "hub")
    lent = Work(job="digits", term=2, lease=1, kind="train", version=0, deadline_s=5.0)
    assert hears(station, lent, "hub") == [ToWorker("digits", Received(sender="hub", message=lent))]
    assert hears(station, dataclasses.replace(lent, term=1 << 61), "hub") == []


def test_a_worker_that_is_done_hears_nothing_more(station: Station, give: Give) -> None:
    hears(station, give())
    station.ended("digits")
    assert hears(station, Finished(job="digits", reason="")) == []
    assign = give(term=2)
    assert hears(station, assign)[0] == Employ(assign), "it may be given the role again"


# Out of reach ------------------------------------------------------------------------------------------------


def complaints(duties: list[Duty]) -> list[Message]:
    return [duty.message for duty in duties if isinstance(duty, Say) and isinstance(duty.message, OutOfReach)]


def test_a_leader_out_of_reach_is_told_of_once_a_term(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    told = [complaints(station.closed("hub", reason="refused")) for _ in range(ATTEMPTS_TOLD_AGAIN + 3)]
    complaint = OutOfReach(job="digits", term=1, reason="pi cannot reach hub: refused")
    expected: list[list[Message]] = [[] for _ in told]
    expected[ATTEMPTS_TOLD - 1] = expected[ATTEMPTS_TOLD_AGAIN - 1] = [complaint]
    assert told == expected, "and once more much later"
    hears(station, give(term=2, leader="hub"))
    (again,) = complaints(station.closed("hub", reason="refused"))
    assert isinstance(again, OutOfReach)
    assert again.term == 2


def test_a_line_that_worked_in_between_begins_to_count_anew(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    for _ in range(ATTEMPTS_TOLD - 1):
        station.closed("hub")
    welcomed(station, "hub")
    told = [complaints(station.closed("hub")) for _ in range(ATTEMPTS_TOLD + 1)]
    assert [len(each) for each in told] == [0, 0, 0, 1], "the first of these was a line that broke"


def test_who_cannot_reach_the_manager_either_complains_later(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    station.closed("home")
    for _ in range(ATTEMPTS_TOLD + 2):
        assert not complaints(station.closed("hub"))
    welcomed(station, "home")
    assert len(complaints(station.closed("hub"))) == 1


def test_nobody_complains_of_the_manager(station: Station, give: Give) -> None:
    hears(station, give())
    for _ in range(ATTEMPTS_TOLD + 2):
        assert not complaints(station.closed("home"))


def test_every_job_of_a_leader_out_of_reach_is_told_of(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    hears(station, give(job="other", term=4, leader="hub"))
    told = [complaints(station.closed("hub")) for _ in range(ATTEMPTS_TOLD)][-1]
    assert [(each.job, each.term) for each in told if isinstance(each, OutOfReach)] == [("digits", 1), ("other", 4)]


# Heartbeats and goodbyes ------------------------------------------------------------------------------------


def test_each_line_has_heartbeats_of_its_own(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    station.opened("hub", Facts(), 0.0)
    hears(station, Welcome(heartbeat_s=0.5, lost_after_s=1.0), "hub")
    assert (station.heartbeat_s("home"), station.heartbeat_s("hub")) == (1.0, 0.5)
    assert station.beat("home", 1.0, load=0.5) == [Say("home", Heartbeat(seq=1, load=0.5))]
    assert station.beat("hub", 1.0) == [Say("hub", Heartbeat(seq=1))]
    assert hears(station, HeartbeatSeen(seq=1), "hub") == []
    station.beat("hub", 1.5)
    station.beat("hub", 2.0)
    assert station.beat("hub", 2.5) == [
        Say("hub", Heartbeat(seq=4)),
        HangUp("hub", "hub has not answered for 1 s"),
    ]
    assert station.backoff_s("hub") > 0


def test_a_line_that_nobody_needs_any_more_is_let_go_of_quietly(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    station.ended("digits")
    assert station.opened("hub", Facts(), 0.0) == [HangUp("hub", "nobody needs it any more")]
    assert station.closed("hub") == []
    assert station.beat("hub", 0.0) == []
    assert hears(station, Welcome(heartbeat_s=1.0, lost_after_s=8.0), "hub") == []
    # Whoever keeps the line may ask once more before it hears that it is gone.
    assert station.heartbeat_s("hub") > 0
    assert station.backoff_s("hub") > 0


def test_a_device_that_leaves_says_goodbye_to_leaders_first(station: Station, give: Give) -> None:
    hears(station, give(leader="hub"))
    goodbye = Leave(reason="shutting down")
    assert station.leaving("shutting down") == [Say("hub", goodbye), Say("home", goodbye)]
