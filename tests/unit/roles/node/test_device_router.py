"""A device between its sessions and its workers: one line to the manager, one to each leader elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import PeerViolation
from shoal.roles.events import Connected, Disconnected, Reassigned, Received, StopRequested
from shoal.roles.node.device_router import (
    ATTEMPTS_TOLD,
    ATTEMPTS_TOLD_AGAIN,
    FORMATIONS_END,
    Beat,
    DeviceRouter,
    Dial,
    DropSession,
    Duty,
    Employ,
    Redial,
    Say,
    ToHosted,
    ToWorker,
)
from shoal.wire.messages import (
    Admit,
    Assign,
    Checkpoint,
    CheckpointKept,
    Dismiss,
    Facts,
    Finished,
    HandOver,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    Hop,
    JobSpec,
    LeaderUnreachable,
    Leads,
    Leave,
    Message,
    ModelShard,
    Reduce,
    RelayModel,
    Release,
    Route,
    SetUpAggregator,
    ShardAck,
    StepDown,
    StopRequest,
    TearDown,
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
def station() -> DeviceRouter:
    """A device whom the manager has welcomed."""
    station = DeviceRouter(node="pi", incarnation="7", manager="home")
    welcomed(station, "home")
    return station


def hears(station: DeviceRouter, message: Message, sender: str = "home") -> list[Duty]:
    return station.on_received(Received(sender=sender, message=message))


def welcomed(station: DeviceRouter, peer: str) -> list[Duty]:
    station.greet(peer, Facts(), 0.0)
    return hears(station, Welcome(heartbeat_s=1.0, lost_after_s=8.0), peer)


# The line to the manager ---------------------------------------------------------------------------------


def test_the_manager_hears_what_is_led_here_and_a_leader_does_not(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    leads = (Leads(job="other", term=3, endpoint="pi:7071"),)
    facts = Facts(host="pi.local")
    hello = Hello(node="pi", incarnation="7", facts=facts, leads=leads)
    assert station.greet("home", facts, 0.0, leads=leads) == [Say("home", hello)]
    assert station.greet("hub", facts, 0.0, leads=leads) == [Say("hub", Hello(node="pi", incarnation="7", facts=facts))]


def test_a_role_at_home_needs_no_line_of_its_own(station: DeviceRouter, give: Give) -> None:
    assign = give()
    assert hears(station, assign) == [Employ(assign), ToWorker("digits", Connected(node="home"))]
    assert station.jobs == ("digits",)
    assert station.on_closed("home", reason="reset") == [ToWorker("digits", Disconnected(node="home", reason="reset"))]
    assert not station.welcomed
    assert welcomed(station, "home") == [ToWorker("digits", Connected(node="home"))]


def test_the_same_role_again_is_no_new_worker(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    assert hears(station, give()) == [ToWorker("digits", Reassigned(term=1, leader="home"))]
    assert hears(station, give(term=2)) == [ToWorker("digits", Reassigned(term=2, leader="home"))]
    assert hears(station, give(term=1)) == [], "of an older term"


def test_the_manager_dismisses_a_worker_or_the_whole_node(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    dismiss = Dismiss(job="digits", reason="its place was taken")
    assert hears(station, dismiss) == [ToWorker("digits", StopRequested(reason="its place was taken"))]
    assert hears(station, Dismiss(job="none", reason="")) == []
    assert hears(station, Dismiss(job="", reason="install the same release")) == [
        Redial("home", "dismissed: install the same release")
    ]


@pytest.mark.parametrize(
    "message",
    [
        Admit(job="digits", term=1, nodes=("a",)),
        StopRequest(job="digits", reason="enough"),
        HandOver(job="digits", term=1),
        StepDown(job="digits", term=1),
        Release(job="digits", node="a"),
        Checkpoint(job="digits", term=1, version=-1),
        CheckpointKept(job="digits", term=1, version=5),
    ],
)
def test_what_is_for_leaders_here_is_passed_on_and_only_the_manager_says_it(
    station: DeviceRouter, give: Give, message: Message
) -> None:
    assert hears(station, message) == [ToHosted(message)]
    hears(station, give(leader="hub"))
    with pytest.raises(PeerViolation, match="must not come from a leader"):
        hears(station, message, "hub")


def test_a_node_is_made_a_leader_by_the_manager_alone(station: DeviceRouter, give: Give) -> None:
    worker = give(leader="hub")
    leader = Assign(job="other", role="leader", term=1, leader="pi", spec=worker.spec)
    assert hears(station, leader) == [ToHosted(leader)]
    hears(station, worker)
    for message in (leader, give(term=2, leader="hub"), Dismiss(job="digits", reason=""), Dismiss(job="", reason="")):
        with pytest.raises(PeerViolation, match="must not come from a leader"):
            hears(station, message, "hub")


# Lines to leaders ------------------------------------------------------------------------------------------


def test_a_leader_elsewhere_is_dialled_and_its_worker_hears_of_the_line(station: DeviceRouter, give: Give) -> None:
    assign = give(leader="hub")
    assert hears(station, assign) == [Employ(assign), Dial("hub", "hub:7071")]
    assert welcomed(station, "hub") == [ToWorker("digits", Connected(node="hub"))]
    wait = Wait(job="digits", reason="")
    assert hears(station, wait, "hub") == [ToWorker("digits", Received(sender="hub", message=wait))]
    assert station.on_closed("home") == [], "its leader is still there"
    assert station.on_closed("hub", reason="reset") == [ToWorker("digits", Disconnected(node="hub", reason="reset"))]


def test_two_jobs_of_one_leader_share_a_line(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    welcomed(station, "hub")
    other = give(job="other", leader="hub")
    assert hears(station, other) == [Employ(other), ToWorker("other", Connected(node="hub"))]
    assert station.on_closed("hub", reason="reset") == [
        ToWorker("digits", Disconnected(node="hub", reason="reset")),
        ToWorker("other", Disconnected(node="hub", reason="reset")),
    ]
    assert station.on_worker_ended("digits") == [], "the other still needs it"
    assert station.on_worker_ended("other") == [DropSession("hub", UNNEEDED)]
    assert station.on_worker_ended("other") == []
    assert station.jobs == ()


def test_a_job_that_gets_another_leader_parts_from_the_one_before(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    welcomed(station, "hub")
    assert hears(station, give(term=2, leader="nas")) == [
        ToWorker("digits", Disconnected(node="hub", reason=ELSEWHERE)),
        DropSession("hub", UNNEEDED),
        ToWorker("digits", Reassigned(term=2, leader="nas")),
        Dial("nas", "nas:7071"),
    ]
    assert welcomed(station, "nas") == [ToWorker("digits", Connected(node="nas"))]


def test_a_job_that_comes_home_needs_no_other_line(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    assert hears(station, give(term=2)) == [
        ToWorker("digits", Disconnected(node="hub", reason=ELSEWHERE)),
        DropSession("hub", UNNEEDED),
        ToWorker("digits", Reassigned(term=2, leader="home")),
        ToWorker("digits", Connected(node="home")),
    ]
    assert hears(station, give(term=3, leader="hub"))[-1] == Dial("hub", "hub:7071"), "and it may go again"


def test_the_line_to_the_manager_is_never_parted_with(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    duties = hears(station, give(term=2, leader="hub"))
    assert not [duty for duty in duties if isinstance(duty, DropSession)]
    assert station.on_worker_ended("digits") == [DropSession("hub", UNNEEDED)]


def test_a_job_that_moves_to_a_leader_with_a_line_uses_it(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    hears(station, give(job="other", leader="nas"))
    welcomed(station, "nas")
    assert hears(station, give(term=2, leader="nas")) == [
        ToWorker("digits", Disconnected(node="hub", reason=ELSEWHERE)),
        DropSession("hub", UNNEEDED),
        ToWorker("digits", Reassigned(term=2, leader="nas")),
        ToWorker("digits", Connected(node="nas")),
    ]


def test_a_leader_that_is_found_elsewhere_is_dialled_there(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    hears(station, give(job="other", leader="hub"))
    welcomed(station, "hub")
    duties = hears(station, give(term=2, leader="hub", at="10.0.0.9:7071"))
    assert duties == [
        ToWorker("digits", Disconnected(node="hub", reason=ELSEWHERE)),
        ToWorker("other", Disconnected(node="hub", reason=ELSEWHERE)),
        DropSession("hub", UNNEEDED),
        ToWorker("digits", Reassigned(term=2, leader="hub")),
        Dial("hub", "10.0.0.9:7071"),
    ]
    assert welcomed(station, "hub") == [
        ToWorker("digits", Connected(node="hub")),
        ToWorker("other", Connected(node="hub")),
    ]


def test_a_leader_under_a_new_term_where_it_was_keeps_its_line(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    welcomed(station, "hub")
    assert hears(station, give(term=2, leader="hub")) == [ToWorker("digits", Reassigned(term=2, leader="hub"))]


def test_who_led_a_job_before_has_nothing_to_say_in_it(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    hears(station, give(job="other", leader="hub"))
    welcomed(station, "hub")
    hears(station, give(term=2, leader="nas"))
    assert hears(station, Finished(job="digits", reason="late"), "hub") == []
    assert hears(station, Finished(job="digits", reason="it lies"), "home") == [], "nor has the manager"
    assert len(hears(station, Finished(job="other", reason="done"), "hub")) == 1
    station.on_worker_ended("other")
    assert hears(station, Finished(job="digits", reason="late"), "hub") == [], "the line is gone"
    assert hears(station, StepDown(job="digits", term=1), "hub") == []


def test_a_leader_cannot_capture_its_workers_with_a_term_that_nobody_gave_it(station: DeviceRouter, give: Give) -> None:
    hears(station, give(term=2, leader="hub"))
    welcomed(station, "hub")
    lent = Work(job="digits", term=2, lease=1, kind="train", version=0, deadline_s=5.0)
    assert hears(station, lent, "hub") == [ToWorker("digits", Received(sender="hub", message=lent))]
    assert hears(station, dataclasses.replace(lent, term=1 << 61), "hub") == []


def test_a_worker_that_is_done_hears_nothing_more(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    station.on_worker_ended("digits")
    assert hears(station, Finished(job="digits", reason="")) == []
    assign = give(term=2)
    assert hears(station, assign)[0] == Employ(assign), "it may be given the role again"


# Out of reach ------------------------------------------------------------------------------------------------


def complaints(duties: list[Duty]) -> list[Message]:
    return [duty.message for duty in duties if isinstance(duty, Say) and isinstance(duty.message, LeaderUnreachable)]


def test_a_leader_out_of_reach_is_told_of_once_a_term(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    told = [complaints(station.on_closed("hub", reason="refused")) for _ in range(ATTEMPTS_TOLD_AGAIN + 3)]
    complaint = LeaderUnreachable(job="digits", term=1, reason="pi cannot reach hub: refused")
    expected: list[list[Message]] = [[] for _ in told]
    expected[ATTEMPTS_TOLD - 1] = expected[ATTEMPTS_TOLD_AGAIN - 1] = [complaint]
    assert told == expected, "and once more much later"
    hears(station, give(term=2, leader="hub"))
    (again,) = complaints(station.on_closed("hub", reason="refused"))
    assert isinstance(again, LeaderUnreachable)
    assert again.term == 2


def test_a_line_that_worked_in_between_begins_to_count_anew(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    for _ in range(ATTEMPTS_TOLD - 1):
        station.on_closed("hub")
    welcomed(station, "hub")
    told = [complaints(station.on_closed("hub")) for _ in range(ATTEMPTS_TOLD + 1)]
    assert [len(each) for each in told] == [0, 0, 0, 1], "the first of these was a line that broke"


def test_who_cannot_reach_the_manager_either_complains_later(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    station.on_closed("home")
    for _ in range(ATTEMPTS_TOLD + 2):
        assert not complaints(station.on_closed("hub"))
    welcomed(station, "home")
    assert len(complaints(station.on_closed("hub"))) == 1


def test_nobody_complains_of_the_manager(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    for _ in range(ATTEMPTS_TOLD + 2):
        assert not complaints(station.on_closed("home"))


def test_every_job_of_a_leader_out_of_reach_is_told_of(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    hears(station, give(job="other", term=4, leader="hub"))
    told = [complaints(station.on_closed("hub")) for _ in range(ATTEMPTS_TOLD)][-1]
    assert [(each.job, each.term) for each in told if isinstance(each, LeaderUnreachable)] == [
        ("digits", 1),
        ("other", 4),
    ]


# Heartbeats and goodbyes ------------------------------------------------------------------------------------


def test_a_device_says_that_it_waits_to_its_manager_alone(station: DeviceRouter, give: Give) -> None:
    def says_idle(peer: str, *, hosts: bool = False) -> bool:
        (duty,) = station.beat(peer, 1.0, hosts=hosts)
        assert isinstance(duty, Say)
        assert isinstance(duty.message, Heartbeat)
        return duty.message.is_idle

    assert says_idle("home")
    assert not says_idle("home", hosts=True), "it leads"
    hears(station, give(leader="hub"))
    hears(station, Welcome(heartbeat_s=1.0, lost_after_s=8.0), "hub")
    assert not says_idle("home")
    assert not says_idle("hub")


def test_a_device_that_is_asked_for_more_heartbeats_sends_one_at_once(station: DeviceRouter) -> None:
    assert hears(station, HeartbeatSeen(seq=0, next_s=30.0)) == []
    assert station.heartbeat_s("home") == 30.0
    assert hears(station, HeartbeatSeen(seq=0, next_s=1.0)) == [Beat("home")]
    assert hears(station, HeartbeatSeen(seq=0, next_s=1.0)) == []


def test_each_line_has_heartbeats_of_its_own(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    station.greet("hub", Facts(), 0.0)
    hears(station, Welcome(heartbeat_s=0.5, lost_after_s=1.0), "hub")
    assert (station.heartbeat_s("home"), station.heartbeat_s("hub")) == (1.0, 0.5)
    assert station.beat("home", 1.0, load=0.5) == [Say("home", Heartbeat(seq=1, load=0.5))]
    assert station.beat("hub", 1.0) == [Say("hub", Heartbeat(seq=1))]
    assert hears(station, HeartbeatSeen(seq=1), "hub") == []
    station.beat("hub", 1.5)
    station.beat("hub", 2.0)
    assert station.beat("hub", 2.5) == [
        Say("hub", Heartbeat(seq=4)),
        Redial("hub", "hub has not answered for 1 s"),
    ]
    assert station.backoff_s("hub") > 0


def test_a_line_that_nobody_needs_any_more_is_let_go_of_quietly(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    station.on_worker_ended("digits")
    assert station.greet("hub", Facts(), 0.0) == [Redial("hub", "nobody needs it any more")]
    assert station.on_closed("hub") == []
    assert station.beat("hub", 0.0) == []
    assert hears(station, Welcome(heartbeat_s=1.0, lost_after_s=8.0), "hub") == []
    # Whoever keeps the line may ask once more before it hears that it is gone.
    assert station.heartbeat_s("hub") > 0
    assert station.backoff_s("hub") > 0


def test_a_device_that_leaves_says_goodbye_to_leaders_first(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    goodbye = Leave(reason="shutting down")
    assert station.leave("shutting down") == [Say("hub", goodbye), Say("home", goodbye)]


# Aggregators ---------------------------------------------------------------------------------------------------


def route_of(*hops: str, job: str = "digits", term: int = 1, formation: int = 1, at: str = "") -> Route:
    parts = tuple(
        Hop(node=node, endpoint=at or f"{node}:7071", start=place, stop=place + 1) for place, node in enumerate(hops)
    )
    return Route(job=job, term=term, formation=formation, hops=parts)


def disband_of(formation: int = 1, *, term: int = 1) -> TearDown:
    return TearDown(job="digits", term=term, formation=formation, reason="over")


def form_of(**changes: Any) -> SetUpAggregator:
    given: dict[str, Any] = {"job": "digits", "term": 1, "formation": 1, "kind": "tree", "version": 0}
    return SetUpAggregator(start=0, stop=2, members=("pi",), **given | changes)


def to_worker(message: Message, sender: str = "home") -> ToWorker:
    return ToWorker("digits", Received(sender=sender, message=message))


def test_every_hop_of_a_route_is_dialled_as_a_leader_would_be(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    route = route_of("a", "pi", "b")
    assert hears(station, route) == [
        to_worker(route),
        Dial("a", "a:7071"),
        Dial("pi", "pi:7071"),
        Dial("b", "b:7071"),
    ], "also this node's own door"
    assert station.greet("a", Facts(), 0.0) == [Say("a", Hello(node="pi", incarnation="7"))]
    assert welcomed(station, "a") == [ToWorker("digits", Connected(node="a"))]
    assert station.on_closed("a", reason="cut") == [ToWorker("digits", Disconnected(node="a", reason="cut"))]


def test_a_hop_that_is_reached_already_is_not_dialled_again(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, route_of("a", "b"))
    welcomed(station, "a")
    again = route_of("a", "b", formation=2)
    assert hears(station, again) == [to_worker(again), ToWorker("digits", Connected(node="a"))], "b is being dialled"


def test_a_hop_that_is_the_leader_shares_its_line(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    welcomed(station, "hub")
    route = route_of("hub", "b")
    assert hears(station, route, "hub") == [
        to_worker(route, "hub"),
        ToWorker("digits", Connected(node="hub")),
        Dial("b", "b:7071"),
    ]
    over = disband_of()
    assert hears(station, over, "hub") == [to_worker(over, "hub"), DropSession("b", UNNEEDED)], "it leads still"
    assert station.on_worker_ended("digits") == [DropSession("hub", UNNEEDED)]


def test_a_hop_that_is_another_process_now_is_dialled_there(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, route_of("a"))
    welcomed(station, "a")
    moved = route_of("a", formation=2, at="a:9999")
    elsewhere = "it is dialled elsewhere now"
    assert hears(station, moved) == [
        to_worker(moved),
        ToWorker("digits", Disconnected(node="a", reason=elsewhere)),
        DropSession("a", elsewhere),
        Dial("a", "a:9999"),
    ]
    assert welcomed(station, "a") == [ToWorker("digits", Connected(node="a"))]


def test_a_leader_that_was_a_hop_elsewhere_is_dialled_where_the_manager_says(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, give(job="other"))
    hears(station, route_of("hub", at="hub:9999"))
    hears(station, route_of("hub", at="hub:9999", job="other"))
    welcomed(station, "hub")
    elsewhere = "it is dialled elsewhere now"
    assert hears(station, give(term=2, leader="hub"))[-4:] == [
        ToWorker("digits", Disconnected(node="hub", reason=elsewhere)),
        ToWorker("other", Disconnected(node="hub", reason=elsewhere)),
        DropSession("hub", elsewhere),
        Dial("hub", "hub:7071"),
    ]
    assert welcomed(station, "hub") == [
        ToWorker("digits", Connected(node="hub")),
        ToWorker("other", Connected(node="hub")),
    ]


def test_the_managers_line_is_no_hops_to_change(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    welcomed(station, "hub")
    route = route_of("home", at="home:1")
    assert hears(station, route, "hub") == [to_worker(route, "hub")]
    assert station.welcomed


def test_hops_are_parted_with_when_no_formation_needs_them(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, route_of("a", "b"))
    hears(station, route_of("b", "c", formation=2))
    over = disband_of()
    assert hears(station, over) == [to_worker(over), DropSession("a", UNNEEDED)]
    later = disband_of(2)
    assert hears(station, later) == [to_worker(later), DropSession("b", UNNEEDED), DropSession("c", UNNEEDED)]
    assert station.greet("c", Facts(), 0.0) == [Redial("c", "nobody needs it any more")]


def test_two_jobs_share_a_hop(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, give(job="other"))
    hears(station, route_of("a"))
    welcomed(station, "a")
    other = route_of("a", job="other")
    assert hears(station, other)[1:] == [ToWorker("other", Connected(node="a"))]
    assert len(station.on_closed("a")) == 2
    assert station.on_worker_ended("digits") == [], "the other needs it"
    assert station.on_worker_ended("other") == [DropSession("a", UNNEEDED)]


def test_a_newer_term_begins_without_routes(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, route_of("a"))
    hears(station, form_of())
    duties = hears(station, give(term=2))
    led_anew = TearDown(job="digits", term=1, formation=FORMATIONS_END, reason="it has a new leader")
    assert duties == [
        ToHosted(led_anew),
        DropSession("a", UNNEEDED),
        ToWorker("digits", Reassigned(term=2, leader="home")),
    ]


def test_a_job_that_is_over_takes_its_aggregators_along(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, form_of())
    over = TearDown(job="digits", term=1, formation=FORMATIONS_END, reason="the job is over here")
    assert station.on_worker_ended("digits") == [ToHosted(over)]
    assert station.on_worker_ended("digits") == []


def test_a_hop_out_of_reach_is_not_the_managers_affair(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, route_of("a"))
    for _ in range(ATTEMPTS_TOLD + 2):
        assert not complaints(station.on_closed("a"))


# Who may say what -----------------------------------------------------------------------------------------------


def said_by_a_hop(**changes: Any) -> list[Message]:
    given: dict[str, Any] = {"job": "digits", "term": 1, "formation": 1} | changes
    return [ShardAck(lease=1, **given), ModelShard(version=1, start=0, stop=1, **given)]


def test_hops_say_taken_and_values_and_nobody_else_does(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, route_of("a"))
    hears(station, route_of("b", formation=2))
    for message in said_by_a_hop():
        assert hears(station, message, "a") == [to_worker(message, "a")]
        assert hears(station, message, "b") == [], "it is of another formation"
        assert hears(station, message, "home") == [], "the leader has no piece"
        assert hears(station, message, "stranger") == []
    for message in (*said_by_a_hop(term=2), *said_by_a_hop(formation=3), *said_by_a_hop(job="other")):
        assert hears(station, message, "a") == []


def test_an_aggregator_that_speaks_is_sent_no_heartbeat(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, route_of("a"))
    station.greet("a", Facts(), 0.0)
    hears(station, Welcome(heartbeat_s=5.0, lost_after_s=25.0), "a")
    for message in said_by_a_hop():
        hears(station, message, "a")
        assert station.beat("a", 5.0) == [], "its own word proves the session"
    assert station.beat("a", 10.0) == [Say("a", Heartbeat(seq=1))], "it has been silent since"
    for message in said_by_a_hop(term=2):
        hears(station, message, "a")
    assert station.beat("a", 15.0) == [Say("a", Heartbeat(seq=2))], "what is not for this worker proves nothing"
    hears(station, said_by_a_hop()[0], "a")
    station.on_closed("a")
    station.greet("a", Facts(), 20.0)
    hears(station, Welcome(heartbeat_s=5.0, lost_after_s=25.0), "a")
    assert station.beat("a", 25.0) == [Say("a", Heartbeat(seq=1))], "that was another session"


def test_a_leader_that_is_an_aggregator_too_is_sent_every_heartbeat(station: DeviceRouter, give: Give) -> None:
    hears(station, give(leader="hub"))
    station.greet("hub", Facts(), 0.0)
    hears(station, Welcome(heartbeat_s=1.0, lost_after_s=8.0), "hub")
    hears(station, route_of("hub"), "hub")
    hears(station, said_by_a_hop()[0], "hub")
    assert station.beat("hub", 1.0) == [Say("hub", Heartbeat(seq=1))], "it must know when this node is lost"


def test_a_hop_says_nothing_that_a_leader_says(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    hears(station, route_of("a"))
    work = Work(job="digits", term=1, lease=1, kind="train", version=0, deadline_s=5.0)
    for message in (work, form_of(), route_of("b"), disband_of(), Finished(job="digits", reason="it lies")):
        assert hears(station, message, "a") == []
    with pytest.raises(PeerViolation, match="must not come from a leader"):
        hears(station, Dismiss(job="", reason="it lies"), "a")


@pytest.mark.parametrize(
    "message",
    [
        form_of(),
        Reduce(job="digits", term=1, formation=1, version=1),
        RelayModel(job="digits", term=1, formation=1, version=1),
    ],
)
def test_the_leader_of_a_job_speaks_to_the_aggregator_here(station: DeviceRouter, give: Give, message: Any) -> None:
    assert hears(station, message) == [], "this node does not work for it"
    hears(station, give(leader="hub"))
    assert hears(station, message, "hub") == [ToHosted(message, "hub")]
    assert hears(station, message, "home") == [], "the manager does not lead it"
    assert hears(station, dataclasses.replace(message, term=2), "hub") == [], "nobody gave it that term"


def test_the_end_of_a_formation_is_for_both_who_have_a_part_in_it(station: DeviceRouter, give: Give) -> None:
    hears(station, give())
    over = disband_of()
    assert hears(station, over) == [to_worker(over)], "nothing is summed up here"
    hears(station, form_of())
    assert hears(station, over) == [to_worker(over), ToHosted(over, "home")]


def test_tensors_are_expected_from_a_leader_and_values_from_a_hop(station: DeviceRouter, give: Give) -> None:
    work = Work(job="digits", term=1, lease=1, kind="train", version=0, deadline_s=5.0)
    passed = RelayModel(job="digits", term=1, formation=1, version=1)
    _, values = said_by_a_hop()
    assert not station.expects(work, "home")
    hears(station, give())
    hears(station, route_of("a"))
    for message in (work, form_of(), passed):
        assert station.expects(message, "home")
        assert not station.expects(message, "a")
        assert not station.expects(dataclasses.replace(message, term=2), "home")
    assert station.expects(values, "a")
    assert not station.expects(values, "home")
    for others in (*said_by_a_hop(formation=2)[1:], *said_by_a_hop(term=2)[1:], *said_by_a_hop(job="other")[1:]):
        assert not station.expects(others, "a")
    assert not station.expects(Wait(job="digits", reason=""), "home")
    assert not station.expects(said_by_a_hop()[0], "a")
