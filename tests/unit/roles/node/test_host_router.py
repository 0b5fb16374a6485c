"""A node between its sessions and the leaders it hosts: at home, where the manager is, and on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import Misuse, PeerViolation
from shoal.roles.actions import Record, Save
from shoal.roles.events import Heard, Liveness, PeerChanged, Received, Saved, SaveFailed, StopRequested
from shoal.roles.node.checkpoint_transfer import unpacked
from shoal.roles.node.doorway import Caller
from shoal.roles.node.failure_detector import Patience
from shoal.roles.node.host_router import (
    SELDOM,
    Delivery,
    Drop,
    DropAggregator,
    HangUp,
    HostRouter,
    Lead,
    Resume,
    StartAggregator,
    ToAggregator,
    ToLeader,
    ToManager,
    ToPeer,
)
from shoal.states import JobState
from shoal.wire.limits import TRACEBACK_MAX_CHARS
from shoal.wire.messages import (
    Admit,
    AggregatorReady,
    AskCheckpoint,
    Assign,
    BadShard,
    Checkpoint,
    CheckpointKept,
    CheckpointRefused,
    Finished,
    HandOver,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    JobSpec,
    LeaderUnreachable,
    Leads,
    Leave,
    LogRecord,
    Message,
    ModelShard,
    Progress,
    Ready,
    Reduce,
    ReduceResult,
    RelayModel,
    Release,
    Released,
    Revoke,
    Routed,
    SetUpAggregator,
    ShardAck,
    StepDown,
    SteppedDown,
    StopRequest,
    Submit,
    TearDown,
    UpdateShard,
    Wait,
    Welcome,
    Work,
)

Make = Callable[..., JobSpec]
Give = Callable[..., Assign]

NOTHING = Checkpoint(job="digits", term=1, version=-1)


@pytest.fixture
def give(make_spec: Make) -> Give:
    def make(*, job: str = "digits", term: int = 1, leader: str = "pi") -> Assign:
        return Assign(job=job, role="leader", term=term, leader=leader, spec=make_spec(job=job))

    return make


@pytest.fixture
def home() -> HostRouter:
    return HostRouter(node="home", patience=Patience())


@pytest.fixture
def pi() -> HostRouter:
    """A device; the manager is on ``home``."""
    return HostRouter(node="pi", patience=Patience(), manager="home")


def says(board: HostRouter, sender: str, message: Message, now_s: float = 0.0) -> list[Delivery]:
    return board.on_received(Received(sender=sender, message=message), now_s)


def joins(board: HostRouter, node: str, incarnation: str = "1") -> list[Delivery]:
    return says(board, node, Hello(node=node, incarnation=incarnation))


def to_manager(message: Message) -> ToPeer:
    return ToPeer("home", message)


@pytest.fixture
def leading(pi: HostRouter, give: Give) -> HostRouter:
    """A device that leads ``digits`` under term 1. ``a`` works for it."""
    pi.on_manager_message(give())
    pi.on_manager_message(NOTHING)
    pi.on_leading("digits", endpoint="pi:7071")
    pi.on_manager_message(Admit(job="digits", term=1, nodes=("a",)))
    joins(pi, "a")
    return pi


# At home -------------------------------------------------------------------------------------------------


def test_a_leader_at_home_goes_on_from_the_disk(home: HostRouter, give: Give) -> None:
    assign = give(leader="home")
    assert home.is_home
    assert home.is_idle
    assert home.on_send("home", assign) == [Lead(assign)], "it asks nobody where the job stands"
    assert home.jobs == ("digits",)
    assert not home.is_idle
    assert home.on_send("home", assign) == [], "told twice is told once"


def test_messages_find_the_manager_and_the_leaders_at_home(home: HostRouter, give: Give) -> None:
    home.on_send("home", give(leader="home"))
    hello = Hello(node="a", incarnation="1")
    alive = PeerChanged(node="a", state=Liveness.ALIVE, reason="connected")
    assert says(home, "a", hello) == [
        ToManager(alive),
        ToLeader("digits", alive),
        ToManager(Received(sender="a", message=hello)),
    ]
    ready = Ready(job="digits")
    assert says(home, "a", ready) == [ToLeader("digits", Received(sender="a", message=ready))]
    beat = Heartbeat(seq=3)
    assert says(home, "a", beat, 7.0) == [ToPeer("a", HeartbeatSeen(seq=3, next_s=1.0))]
    assert home.check(7.5) == [ToManager(Heard(beats=(("a", 7.0, beat),)))], "many at once, a moment later"
    assert home.check(8.0) == []
    assert home.admits("anyone"), "whom the manager knows"


def test_what_the_manager_and_its_leaders_say_to_each_other_stays_at_home(home: HostRouter, give: Give) -> None:
    home.on_send("home", give(leader="home"))
    training = Progress(job="digits", term=1, state="training")
    assert home.on_send("home", training) == [ToManager(Received(sender="home", message=training))]
    assert home.on_send("home", StopRequest(job="digits", reason="enough")) == [
        ToLeader("digits", StopRequested(reason="enough"))
    ]
    over = HandOver(job="digits", term=1)
    assert home.on_send("home", over) == [ToLeader("digits", Received(sender="home", message=over))]
    work = Wait(job="digits", reason="")
    assert home.on_send("a", work) == [ToPeer("a", work)]
    with pytest.raises(Misuse, match="Wait from this node to itself"):
        home.on_send("home", work)


@pytest.mark.parametrize(
    "word",
    [
        Progress(job="digits", term=1, state=JobState.FINISHED),
        SteppedDown(job="digits", term=1, reason="handed over"),
    ],
)
def test_a_last_word_at_home_is_heard_at_once(home: HostRouter, give: Give, word: Message) -> None:
    home.on_send("home", give(leader="home"))
    assert home.on_send("home", word) == [ToManager(Received(sender="home", message=word))]
    home.on_ended("digits")
    assert home.is_idle, "nothing is left to repeat"
    assert home.on_manager_reached() == []


def test_a_leader_that_cannot_be_set_up_at_home_says_so(home: HostRouter, give: Give) -> None:
    home.on_send("home", give(leader="home"))
    stepped = SteppedDown(job="digits", term=1, reason="its first model is torn", failed=True)
    assert home.on_failed("digits", reason="its first model is torn") == [
        ToManager(Received(sender="home", message=stepped))
    ]
    assert home.jobs == ()
    assert home.on_failed("digits", reason="again") == []


def test_workers_of_a_job_that_moved_are_the_managers_affair(home: HostRouter, give: Give) -> None:
    home.on_send("home", give(leader="home"))
    joins(home, "a")
    assert says(home, "a", Ready(job="none")) == [
        ToPeer("a", Finished(job="none", reason="this job is not led here")),
    ]
    home.on_send("home", SteppedDown(job="digits", term=1, reason="handed over"))
    home.on_ended("digits")
    lost = LeaderUnreachable(job="digits", term=0, reason="its leader is not here any more")
    assert says(home, "a", Ready(job="digits")) == [ToManager(Received(sender="a", message=lost))], (
        "its worker hears from the manager where it is led, or that it is not needed"
    )
    home.on_send("home", give(term=3, leader="home"))
    assert says(home, "a", Ready(job="digits")) != [], "and it came back"
    home.on_send("home", Progress(job="digits", term=3, state=JobState.FINISHED))
    home.on_ended("digits")
    assert [type(delivery) for delivery in says(home, "a", Ready(job="digits"))] == [ToPeer], "this one is over"


def test_one_who_is_lost_is_not_lent_to(home: HostRouter, give: Give) -> None:
    home.on_send("home", give(leader="home"))
    joins(home, "a")
    lost = PeerChanged(node="a", state=Liveness.LOST, reason="left: shutting down", is_certain=True)
    assert says(home, "a", Leave(reason="shutting down")) == [
        ToManager(lost),
        ToLeader("digits", lost),
        HangUp("a", "it said goodbye"),
    ]
    assert says(home, "a", Ready(job="digits")) == []
    assert home.on_expelled("a", reason="revoked") == [], "it is gone already"


def test_silence_and_broken_sessions_are_noticed(home: HostRouter) -> None:
    joins(home, "a")
    suspect = PeerChanged(node="a", state=Liveness.SUSPECT, reason="reset; waiting 1.5 s for it to return")
    assert home.on_closed("a", 1.0, reason="reset") == [ToManager(suspect)]
    (delivery,) = home.check(9.0)
    assert isinstance(delivery, ToManager)
    assert delivery.event == PeerChanged(node="a", state=Liveness.LOST, reason="reset, no reconnect within 1.5 s")


def test_nobody_is_someone_else_and_nobody_gives_orders(home: HostRouter, leading: HostRouter) -> None:
    for board in (home, leading):
        with pytest.raises(PeerViolation, match=r"Hello\.node is b"):
            says(board, "a", Hello(node="b", incarnation="1"))
        for message in (
            StepDown(job="digits", term=1),
            HandOver(job="digits", term=1),
            StopRequest(job="digits", reason=""),
            Admit(job="digits", term=1, nodes=("z",)),
            Work(job="digits", term=1, lease=1, kind="train", version=0, deadline_s=1.0),
            Welcome(heartbeat_s=1.0, lost_after_s=8.0),
        ):
            with pytest.raises(PeerViolation, match="is not for this node"):
                says(board, "a", message)


def test_nothing_follows_from_a_message_that_breaks_a_rule(home: HostRouter) -> None:
    with pytest.raises(PeerViolation, match="is not for this node"):
        says(home, "a", Welcome(heartbeat_s=1.0, lost_after_s=8.0))
    assert home.check(0.5) == [], "nor does it come with the next"


# How often a node is to send heartbeats --------------------------------------------------------------------


def beats(home: HostRouter, node: str, seq: int, now_s: float, *, is_idle: bool = True) -> float:
    """The interval that the node is told."""
    beat = Heartbeat(seq=seq, is_idle=is_idle, is_same=True)
    (delivery,) = says(home, node, beat, now_s)
    assert isinstance(delivery, ToPeer)
    assert isinstance(delivery.message, HeartbeatSeen)
    assert delivery.message.seq == seq
    return delivery.message.next_s


def test_a_node_that_waits_is_asked_for_fewer_heartbeats_after_a_while(home: HostRouter) -> None:
    joins(home, "a")
    assert [beats(home, "a", seq, float(seq)) for seq in range(1, 9)] == [1.0] * 8, "word of work may be under way"
    assert beats(home, "a", 9, 9.0) == 5.0
    assert beats(home, "a", 10, 14.0, is_idle=False) == 1.0, "it leads, or works for a leader that led on"
    assert beats(home, "a", 11, 15.0) == 1.0
    assert beats(home, "a", 12, 30.0) == 5.0


def test_a_node_that_is_given_work_is_asked_for_heartbeats_before(home: HostRouter, give: Give) -> None:
    joins(home, "a")
    assert home.on_send("a", give(leader="a")) == [ToPeer("a", give(leader="a"))], "it sends them anyway"
    assert beats(home, "a", 1, 20.0) == 5.0
    assert home.on_send("a", give(leader="a")) == [
        ToPeer("a", HeartbeatSeen(seq=0, next_s=1.0)),
        ToPeer("a", give(leader="a")),
    ]
    assert beats(home, "a", 2, 20.1) == 1.0, "sent before the work arrived"


def test_a_node_that_says_hello_again_begins_as_it_is_welcomed(home: HostRouter) -> None:
    joins(home, "a")
    assert beats(home, "a", 1, 20.0) == 5.0
    says(home, "a", Hello(node="a", incarnation="1"), 30.0)
    assert home.membership.every_s("a") == 1.0
    assert beats(home, "a", 1, 31.0) == 1.0


def test_a_node_that_does_not_say_that_it_waits_is_asked_as_before(home: HostRouter) -> None:
    """One of the release before."""
    joins(home, "a")
    assert [beats(home, "a", seq, 100.0 * seq, is_idle=False) for seq in (1, 2, 3)] == [1.0] * 3


def test_a_second_process_of_a_node_has_the_first_one_show_that_it_lives(home: HostRouter) -> None:
    first, second = (Caller(node="a", incarnation=name, address="") for name in ("1", "2"))
    home.doorway.on_entered(first)
    joins(home, "a")
    assert beats(home, "a", 1, 20.0) == 5.0
    assert home.on_knock(first) == []
    assert home.on_knock(second) == [ToPeer("a", HeartbeatSeen(seq=0, next_s=1.0))]
    assert home.on_knock(second) == [], "it was asked"


def test_the_manager_hears_heartbeats_before_what_came_after_them(home: HostRouter) -> None:
    """A node that was heard before its leader let it go may not know yet that it was."""
    joins(home, "a")
    joins(home, "b")
    beat = Heartbeat(seq=1, is_idle=True, is_same=True)
    says(home, "a", beat, 1.0)
    released = Released(job="digits", term=1, node="a")
    assert says(home, "b", released, 1.1) == [
        ToManager(Heard(beats=(("a", 1.0, beat),))),
        ToManager(Received(sender="b", message=released)),
    ]


# A device is made a leader --------------------------------------------------------------------------------


def test_a_device_asks_where_the_job_stands_and_then_begins(pi: HostRouter, give: Give) -> None:
    assign = give()
    assert not pi.is_home
    assert pi.on_manager_message(assign) == [Lead(assign), to_manager(AskCheckpoint(job="digits", term=1))]
    assert pi.leads() == (), "it does not lead yet"
    assert pi.on_manager_message(NOTHING) == [Resume(assign, NOTHING)]
    assert pi.on_manager_message(NOTHING) == [], "one answer is enough"
    announced = Leads(job="digits", term=1, endpoint="pi:7071")
    assert pi.on_leading("digits", endpoint="pi:7071") == [to_manager(announced)]
    assert pi.leads() == (announced,)


def test_told_twice_is_told_once_and_what_was_asked_is_asked_again_when_back_in_touch(
    pi: HostRouter, give: Give
) -> None:
    pi.on_manager_message(give())
    assert pi.on_manager_message(give()) == []
    pi.on_manager_lost(reason="reset")
    asks, _ = pi.on_manager_reached()
    assert asks == to_manager(AskCheckpoint(job="digits", term=1))
    pi.on_manager_message(NOTHING)
    assert pi.on_manager_reached() == []


def test_a_newer_term_replaces_the_older_and_an_older_is_nothing(leading: HostRouter, give: Give) -> None:
    newer = give(term=3)
    assert leading.on_manager_message(newer) == [
        Drop("digits", "it leads under a new term"),
        Lead(newer),
        to_manager(AskCheckpoint(job="digits", term=3)),
    ]
    assert leading.leads() == ()
    assert leading.on_manager_message(give(term=2)) == []
    assert leading.on_manager_message(NOTHING) == [], "an answer to the term before"
    assert says(leading, "a", Ready(job="digits")) == [], "who may speak to it is told anew"
    assert leading.on_manager_message(Checkpoint(job="digits", term=3, version=-1))[0] == Resume(
        newer, Checkpoint(job="digits", term=3, version=-1)
    )


def test_a_term_is_never_led_twice(leading: HostRouter, give: Give) -> None:
    assert leading.on_manager_message(StepDown(job="digits", term=1, reason="b leads it")) == [
        Drop("digits", "b leads it")
    ]
    stepped = SteppedDown(job="digits", term=1, reason="it led under this term before")
    assert leading.on_manager_message(give()) == [to_manager(stepped)]
    assert leading.jobs == ()
    assert leading.on_manager_message(give()) == [to_manager(stepped)], "until it is heard"
    leading.on_manager_message(StepDown(job="digits", term=1))
    assert leading.is_idle
    assert leading.on_manager_message(give(term=2))[0] == Lead(give(term=2))


def test_one_who_cannot_lead_says_so_until_it_is_heard(pi: HostRouter, give: Give) -> None:
    pi.on_manager_message(give())
    stepped = SteppedDown(job="digits", term=1, reason="no room", failed=True)
    assert pi.on_failed("digits", reason="no room") == [to_manager(stepped)]
    assert pi.jobs == ()
    assert not pi.is_idle
    assert pi.on_manager_reached() == [to_manager(stepped)]
    assert pi.on_leading("digits", endpoint="pi:7071") == []


def test_a_step_down_of_an_older_term_is_nothing(leading: HostRouter) -> None:
    assert leading.on_manager_message(StepDown(job="digits", term=0)) == []
    assert leading.on_manager_message(StepDown(job="none", term=9)) == []
    assert leading.jobs == ("digits",)


# Last words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    [
        Progress(job="digits", term=1, state=JobState.FINISHED),
        Progress(job="digits", term=1, state=JobState.FAILED),
        Progress(job="digits", term=1, state=JobState.STOPPED),
        SteppedDown(job="digits", term=1, reason="handed over at version 5"),
    ],
)
def test_a_last_word_is_repeated_until_it_is_heard(leading: HostRouter, word: Message) -> None:
    assert leading.on_send("home", word) == [to_manager(word)]
    leading.on_ended("digits")
    assert leading.leads() == ()
    assert not leading.is_idle
    leading.on_manager_lost(reason="reset")
    assert leading.on_manager_reached() == [to_manager(word)]
    assert leading.on_manager_reached() == [to_manager(word)]
    leading.on_manager_message(StepDown(job="digits", term=0))
    assert leading.on_manager_reached() == [to_manager(word)], "that was an answer to something older"
    leading.on_manager_message(StepDown(job="digits", term=1))
    assert leading.on_manager_reached() == []
    assert leading.is_idle


def test_what_is_not_a_last_word_is_said_once(leading: HostRouter) -> None:
    training = Progress(job="digits", term=1, state="training")
    assert leading.on_send("home", training) == [to_manager(training)]
    released = Released(job="digits", term=1, node="a")
    assert leading.on_send("home", released) == [to_manager(released)]
    assert leading.on_manager_reached() == []


def test_who_is_told_again_under_the_term_it_ended_repeats_its_last_word(leading: HostRouter, give: Give) -> None:
    word = SteppedDown(job="digits", term=1, reason="handed over at version 5")
    leading.on_send("home", word)
    leading.on_ended("digits")
    assert leading.on_manager_message(give()) == [to_manager(word)]


def test_a_newer_term_needs_no_answer_to_the_last_word_of_an_older(leading: HostRouter, give: Give) -> None:
    leading.on_send("home", SteppedDown(job="digits", term=1, reason="handed over at version 5"))
    leading.on_ended("digits")
    # The manager gave it up before it heard that; others led since. Now it is this node's turn again.
    newer = give(term=3)
    assert leading.on_manager_message(newer)[0] == Lead(newer), "else the manager waits for it in vain"
    assert leading.on_manager_reached() == [to_manager(AskCheckpoint(job="digits", term=3))], "that term is long over"


# Versions to be kept --------------------------------------------------------------------------------------------


def save(version: int = 5) -> Save:
    state = {"job": "digits", "version": version, "evaluations": [], "ending": None, "elapsed_s": 1.0}
    state["ledger"] = {"epoch": 0, "batches": 9, "applied": []}
    return Save(version=version, tensors={"w": np.ones(2, dtype=np.float32)}, state=state)


def saving(board: HostRouter, version: int = 5) -> Checkpoint:
    (delivery,) = board.on_save("digits", save(version))
    assert isinstance(delivery, ToPeer)
    assert isinstance(delivery.message, Checkpoint)
    return delivery.message


def gone(reason: str) -> PeerChanged:
    """What a leader on a device hears when its session to the manager is over."""
    return PeerChanged(node="home", state=Liveness.LOST, reason=reason)


def test_a_version_is_kept_where_the_manager_is(leading: HostRouter) -> None:
    checkpoint = saving(leading)
    assert (checkpoint.job, checkpoint.term, checkpoint.version) == ("digits", 1, 5)
    version = unpacked(checkpoint)
    assert version is not None
    assert version.tensors["w"].tolist() == [1.0, 1.0]
    kept = CheckpointKept(job="digits", term=1, version=5, number=checkpoint.number)
    assert leading.on_manager_message(kept) == [ToLeader("digits", Saved(version=5))]
    assert leading.on_manager_lost(reason="reset") == [ToLeader("digits", gone("reset"))], "no save is under way"


def test_a_version_that_is_refused_is_not_saved(leading: HostRouter) -> None:
    saving(leading)
    refused = CheckpointRefused(job="digits", term=1, version=5, reason="the disk is full", number=1)
    assert leading.on_manager_message(refused) == [ToLeader("digits", SaveFailed(version=5, reason="the disk is full"))]
    assert leading.on_manager_lost(reason="reset") == [ToLeader("digits", gone("reset"))]


def test_saving_out_of_touch_fails_at_once(leading: HostRouter) -> None:
    leading.on_manager_lost(reason="reset")
    (delivery,) = leading.on_save("digits", save())
    assert isinstance(delivery, ToLeader)
    assert isinstance(delivery.event, SaveFailed)
    assert (delivery.event.version, "out of reach" in delivery.event.reason) == (5, True)
    leading.on_manager_reached()
    assert saving(leading).version == 5


def test_a_save_under_way_fails_when_the_manager_is_out_of_touch(leading: HostRouter) -> None:
    saving(leading)
    assert leading.on_manager_lost(reason="reset") == [
        ToLeader("digits", gone("reset")),
        ToLeader("digits", SaveFailed(version=5, reason="reset")),
    ]
    assert leading.on_manager_lost(reason="reset") == [], "once"


def test_answers_of_another_term_version_or_save_are_not_for_this_one(leading: HostRouter) -> None:
    first = saving(leading, 5)
    leading.on_manager_lost(reason="reset")
    leading.on_manager_reached()
    again = saving(leading, 5)
    assert (first.version, again.version) == (5, 5), "with more in it, such as an evaluation"
    # Both are answers to what was sent before the session broke.
    refused = CheckpointRefused(job="digits", term=1, version=5, reason="torn", number=first.number)
    kept = CheckpointKept(job="digits", term=1, version=5, number=again.number)
    assert leading.on_manager_message(refused) == []
    assert leading.on_manager_message(replace(kept, number=first.number)) == []
    assert leading.on_manager_message(replace(kept, term=0)) == []
    assert leading.on_manager_message(replace(kept, version=4)) == []
    assert leading.on_manager_message(kept) == [ToLeader("digits", Saved(version=5))]


def test_one_who_leads_no_more_saves_and_notes_nothing(leading: HostRouter) -> None:
    leading.on_manager_message(StepDown(job="digits", term=1))
    assert leading.on_save("digits", save()) == []
    assert leading.on_record("digits", Record(kind="epoch.done", reason="epoch 3")) == []
    assert leading.on_manager_message(StopRequest(job="digits", reason="")) == []


def test_what_a_leader_decides_the_manager_hears_while_in_touch(leading: HostRouter) -> None:
    assert leading.on_record("digits", Record(kind="epoch.done", reason="x" * 9999)) != []
    (delivery,) = leading.on_record("digits", Record(kind="epoch.done", reason="epoch 3"))
    assert delivery == to_manager(LogRecord(job="digits", term=1, kind="epoch.done", reason="epoch 3"))
    (delivery,) = leading.on_record(
        "digits", Record(kind="lease.failed", reason="pi: bug", traceback="File task.py\n" + "x" * 9999)
    )
    assert isinstance(delivery.message, LogRecord)
    assert delivery.message.traceback.startswith("File task.py\n")
    assert len(delivery.message.traceback) == TRACEBACK_MAX_CHARS
    leading.on_manager_lost(reason="reset")
    assert leading.on_record("digits", Record(kind="epoch.done", reason="epoch 4")) == []


# What the manager wants of a leader --------------------------------------------------------------------------


def test_orders_reach_the_leader_as_from_the_manager(leading: HostRouter) -> None:
    for order in (HandOver(job="digits", term=1, reason="drained"), Release(job="digits", node="a", reason="drained")):
        assert leading.on_manager_message(order) == [ToLeader("digits", Received(sender="home", message=order))]
    assert leading.on_manager_message(StopRequest(job="digits", reason="enough")) == [
        ToLeader("digits", StopRequested(reason="enough"))
    ]
    assert leading.on_manager_message(HandOver(job="none", term=1)) == []


# Who may speak to a leader on a device -------------------------------------------------------------------------


def test_only_those_who_work_there_are_let_in(leading: HostRouter) -> None:
    assert leading.admits("a")
    assert not leading.admits("b")
    ready = Ready(job="digits")
    assert says(leading, "a", ready) == [ToLeader("digits", Received(sender="a", message=ready))]
    joins(leading, "b")
    assert says(leading, "b", ready) == []
    leading.on_manager_message(Admit(job="digits", term=2, nodes=("b",)))
    assert not leading.admits("b"), "of a term that is not led here"
    leading.on_manager_message(Admit(job="none", term=1, nodes=("b",)))
    assert not leading.admits("b")


def test_one_who_asks_before_it_was_announced_is_served_when_it_is(leading: HostRouter, give: Give) -> None:
    leading.on_manager_message(give(job="other"))
    ready = Ready(job="other")
    assert says(leading, "a", ready) == [], "it works for digits, as far as this node knows"
    assert leading.on_manager_message(Admit(job="other", term=1, nodes=("a", "b"))) == [
        ToLeader("other", Received(sender="a", message=ready))
    ]
    assert leading.on_manager_message(Admit(job="other", term=1, nodes=("a", "b"))) == [], "once"


def test_one_who_asked_early_and_is_gone_is_not_served(leading: HostRouter, give: Give) -> None:
    leading.on_manager_message(give(job="other"))
    says(leading, "a", Ready(job="other"))
    says(leading, "a", Leave(reason="off"))
    assert leading.on_manager_message(Admit(job="other", term=1, nodes=("a",))) == []


def test_one_who_is_barred_is_shut_out_and_what_it_holds_returns(leading: HostRouter) -> None:
    bar = Revoke(job="digits", term=1, node="a", reason="silent")
    assert leading.on_manager_message(bar) == [
        ToLeader("digits", PeerChanged(node="a", state=Liveness.LOST, reason="silent", is_certain=True)),
        HangUp("a", "silent"),
    ]
    assert not leading.admits("a")
    assert says(leading, "a", Ready(job="digits")) == []


def test_one_who_is_barred_from_one_job_may_work_for_another(leading: HostRouter, give: Give) -> None:
    leading.on_manager_message(give(job="other"))
    leading.on_manager_message(Admit(job="other", term=1, nodes=("a",)))
    lost = PeerChanged(node="a", state=Liveness.LOST, reason="silent")
    assert leading.on_manager_message(Revoke(job="digits", term=1, node="a", reason="silent")) == [
        ToLeader("digits", lost)
    ]
    assert leading.admits("a")
    assert says(leading, "a", Ready(job="digits")) == []


def test_a_bar_of_another_term_is_nothing(leading: HostRouter) -> None:
    assert leading.on_manager_message(Revoke(job="digits", term=0, node="a")) == []
    assert leading.admits("a")
    assert leading.on_manager_message(Revoke(job="none", term=1, node="a")) == []


def test_a_device_welcomes_its_workers_itself(leading: HostRouter) -> None:
    leading.on_manager_message(Admit(job="digits", term=1, nodes=("b",)))
    alive = PeerChanged(node="b", state=Liveness.ALIVE, reason="connected")
    assert joins(leading, "b") == [
        ToLeader("digits", alive),
        ToPeer("b", Welcome(heartbeat_s=1.0, lost_after_s=8.0)),
    ]
    assert says(leading, "b", Heartbeat(seq=2)) == [ToPeer("b", HeartbeatSeen(seq=2))]
    restarted = PeerChanged(node="b", state=Liveness.LOST, reason="restarted", is_certain=True)
    assert joins(leading, "b", "2")[0] == ToLeader("digits", restarted)


@pytest.mark.parametrize(
    "message",
    [
        Progress(job="digits", term=1, state=JobState.FINISHED),
        Leads(job="digits", term=1),
        SteppedDown(job="digits", term=1, reason=""),
        Checkpoint(job="digits", term=1, version=5),
        AskCheckpoint(job="digits", term=1),
        Released(job="digits", term=1, node="a"),
    ],
)
def test_what_is_for_the_manager_is_refused_elsewhere(leading: HostRouter, message: Message) -> None:
    with pytest.raises(PeerViolation, match="must go to the manager"):
        says(leading, "a", message)


def test_nobody_submits_jobs_to_a_device(leading: HostRouter, make_spec: Make) -> None:
    with pytest.raises(PeerViolation, match="Submit must go to the manager"):
        says(leading, "a", Submit(spec=make_spec()))


def test_a_job_that_moved_on_is_silent_and_an_unknown_one_is_over(leading: HostRouter, give: Give) -> None:
    leading.on_manager_message(give(job="other"))
    leading.on_manager_message(Admit(job="other", term=1, nodes=("a",)))
    leading.on_manager_message(StepDown(job="digits", term=1))
    assert says(leading, "a", Ready(job="digits")) == []
    assert says(leading, "a", Ready(job="none")) == [
        ToPeer("a", Finished(job="none", reason="this job is not led here")),
    ]


# Aggregators ----------------------------------------------------------------------------------------------------


def form_of(*members: str, term: int = 1, formation: int = 1, job: str = "digits") -> SetUpAggregator:
    given = {"job": job, "term": term, "formation": formation, "kind": "tree", "version": 0}
    return SetUpAggregator(start=0, stop=2, members=members or ("a", "b"), **given)


def piece_of(*, term: int = 1, formation: int = 1) -> UpdateShard:
    return UpdateShard(job="digits", term=term, formation=formation, lease=1, version=0)


def heard(sender: str, message: Message, formation: int = 1) -> list[Delivery]:
    """As the aggregator of ``digits`` hears it."""
    return [ToAggregator("digits", formation, Received(sender=sender, message=message))]


@pytest.fixture
def second(pi: HostRouter) -> HostRouter:
    """A device that sums up for a and b; ``hub`` leads."""
    form = form_of()
    assert pi.on_leader_message("hub", form) == [StartAggregator(form, "hub")]
    formed = AggregatorReady(job="digits", term=1, formation=1, endpoint="pi:7071")
    assert pi.on_aggregator_set_up(form, endpoint="pi:7071") == [ToPeer("hub", formed)]
    for node in ("a", "b"):
        joins(pi, node)
    return pi


def test_members_of_an_aggregator_are_admitted(second: HostRouter) -> None:
    assert second.admits("a")
    assert not second.admits("c")
    assert not second.is_idle
    assert ToPeer("a", HeartbeatSeen(seq=1)) in says(second, "a", Heartbeat(seq=1))
    business = "no job that it works for is led here"
    assert HangUp("c", business) in says(second, "c", Heartbeat(seq=1))


def test_members_of_an_aggregator_are_seldom_heard_of_and_watched_by_their_leader(second: HostRouter) -> None:
    assert SELDOM.heartbeat_s > Patience().heartbeat_s
    welcome = Welcome(heartbeat_s=SELDOM.heartbeat_s, lost_after_s=SELDOM.lost_after_s)
    assert joins(second, "a", "2") == [ToPeer("a", welcome)], "that it began anew is not told to anyone here"
    assert second.check(SELDOM.lost_after_s + 1.0) == []
    assert second.on_closed("a", 0.0, reason="cut") == []


def test_a_member_that_works_for_a_leader_here_too_is_heard_of_more_often(leading: HostRouter) -> None:
    leading.on_leader_message("hub", form_of("b", job="other"))
    seldom = Welcome(heartbeat_s=SELDOM.heartbeat_s, lost_after_s=SELDOM.lost_after_s)
    assert joins(leading, "b") == [ToPeer("b", seldom)]
    admit = Admit(job="digits", term=1, nodes=("b",))
    assert HangUp("b", "it works for a leader here now") in leading.on_manager_message(admit)
    often = Welcome(heartbeat_s=Patience().heartbeat_s, lost_after_s=Patience().lost_after_s)
    assert ToPeer("b", often) in joins(leading, "b")
    assert not any(isinstance(delivery, HangUp) for delivery in leading.on_manager_message(admit)), "once"


def test_pieces_are_heard_from_members_alone(second: HostRouter) -> None:
    joins(second, "c")
    assert says(second, "a", piece_of()) == heard("a", piece_of())
    assert says(second, "c", piece_of()) == []
    assert says(second, "a", piece_of(formation=2)) == []
    assert says(second, "a", piece_of(term=2)) == []


def test_members_change_with_what_the_leader_says(second: HostRouter) -> None:
    again = form_of("b", "c")
    assert second.on_leader_message("hub", again) == heard("hub", again), "it is the same aggregator"
    assert (second.admits("a"), second.admits("c")) == (False, True)
    assert says(second, "a", piece_of()) == []


def test_an_aggregator_hears_its_leader_alone(second: HostRouter) -> None:
    count = Reduce(job="digits", term=1, formation=1, version=1)
    passed = RelayModel(job="digits", term=1, formation=1, version=1)
    for message in (count, passed):
        assert second.on_leader_message("hub", message) == heard("hub", message)
        assert second.on_leader_message("nas", message) == []
        assert second.on_leader_message("hub", replace(message, term=2)) == []
        assert second.on_leader_message("hub", replace(message, formation=2)) == []
    assert second.on_leader_message("hub", Wait(job="digits", reason="")) == []


def test_a_formation_that_is_over_leaves_nothing(second: HostRouter) -> None:
    second.on_leader_message("hub", form_of("c", formation=3))
    over = TearDown(job="digits", term=1, formation=2)
    assert second.on_leader_message("hub", replace(over, job="other")) == []
    assert second.on_leader_message("hub", replace(over, term=0)) == [], "the end of older ones"
    assert second.on_leader_message("hub", over) == [DropAggregator("digits", 1)]
    assert says(second, "a", piece_of()) == []
    assert (second.admits("a"), second.admits("c")) == (False, True)
    # What the station says of itself, when a job is over here.
    assert second.on_leader_message("", replace(over, formation=1 << 40)) == [DropAggregator("digits", 3)]
    assert second.is_idle


def test_two_formations_stand_side_by_side(second: HostRouter) -> None:
    nxt = form_of("a", "b", formation=2)
    assert second.on_leader_message("hub", nxt) == [StartAggregator(nxt, "hub")]
    assert says(second, "a", piece_of()) == heard("a", piece_of())
    assert says(second, "a", piece_of(formation=2)) == heard("a", piece_of(formation=2), 2)


def test_with_a_newer_term_the_aggregators_of_the_older_go(second: HostRouter) -> None:
    newer = form_of("a", term=2)
    assert second.on_leader_message("nas", newer) == [DropAggregator("digits", 1), StartAggregator(newer, "nas")]
    assert second.on_leader_message("hub", form_of()) == [], "of an older term"
    assert says(second, "a", piece_of()) == []
    assert says(second, "a", piece_of(term=2)) == heard("a", piece_of(term=2))


def test_with_a_newer_term_those_of_other_jobs_stay(second: HostRouter) -> None:
    other = form_of(job="other", term=5)
    assert second.on_leader_message("hub", other) == [StartAggregator(other, "hub")]
    assert says(second, "a", piece_of()) == heard("a", piece_of())


def test_an_aggregator_that_could_not_be_set_up_says_why(pi: HostRouter) -> None:
    form = form_of()
    pi.on_leader_message("hub", form)
    assert pi.on_aggregator_set_up(form, reason="no port is free") == [
        ToPeer("hub", AggregatorReady(job="digits", term=1, formation=1, reason="no port is free"))
    ]
    assert pi.is_idle
    assert not pi.admits("a")


def test_one_that_was_disbanded_while_it_was_set_up_says_nothing(pi: HostRouter) -> None:
    form = form_of()
    pi.on_leader_message("hub", form)
    pi.on_leader_message("hub", TearDown(job="digits", term=1, formation=1))
    assert pi.on_aggregator_set_up(form, endpoint="pi:7071") == []
    pi.on_leader_message("nas", form_of(term=2))
    assert pi.on_aggregator_set_up(form, endpoint="pi:7071") == [], "nor does one of an older term"


def test_what_an_aggregator_says_goes_to_its_peers(second: HostRouter) -> None:
    taken = ShardAck(job="digits", term=1, formation=1, lease=1)
    assert second.on_send("a", taken) == [ToPeer("a", taken)]
    gathered = ReduceResult(job="digits", term=1, formation=1, version=1)
    assert second.on_send("hub", gathered) == [ToPeer("hub", gathered)]


def test_a_node_leads_one_job_and_a_part_of_another(leading: HostRouter) -> None:
    form = form_of("b", job="other")
    assert leading.on_leader_message("hub", form) == [StartAggregator(form, "hub")]
    assert leading.admits("a")
    assert leading.admits("b")
    joins(leading, "b")
    assert says(leading, "b", Ready(job="digits")) == [], "it works for the other alone"
    routed = Routed(job="digits", term=1, formation=1)
    assert says(leading, "a", routed) == [ToLeader("digits", Received(sender="a", message=routed))]
    leading.on_leader_message("hub", TearDown(job="other", term=1, formation=1))
    assert not leading.admits("b")
    assert leading.admits("a")


def test_a_leader_that_steps_down_keeps_no_door_open_as_its_own_aggregator(leading: HostRouter) -> None:
    leading.on_leader_message("pi", form_of("a", "pi"))
    leading.on_leader_message("hub", form_of("b", job="other"))
    joins(leading, "b")
    leading.on_manager_message(StepDown(job="digits", term=1, reason="the job is over"))
    business = "no job that it works for is led here"
    assert HangUp("a", business) in says(leading, "a", Heartbeat(seq=1)), "it asks the manager where to go"
    assert not leading.admits("pi"), "nor its own worker"
    assert leading.admits("b"), "whom another leads is summed up for as before"


def test_what_a_leader_hears_of_formations_finds_it_at_home(home: HostRouter, give: Give) -> None:
    home.on_send("home", give(leader="home"))
    joins(home, "a")
    given = {"job": "digits", "term": 1, "formation": 1}
    for message in (
        AggregatorReady(endpoint="a:7071", **given),
        Routed(**given),
        BadShard(lease=1, node="b", reason="no number", **given),
        ReduceResult(version=1, **given),
    ):
        assert says(home, "a", message) == [ToLeader("digits", Received(sender="a", message=message))]
    for message in (ShardAck(lease=1, **given), ModelShard(version=1, start=0, stop=1, **given)):
        with pytest.raises(PeerViolation, match="is not for this node"):
            says(home, "a", message)
