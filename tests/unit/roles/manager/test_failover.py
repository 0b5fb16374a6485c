"""Who leads each job, as its manager decides: appointed, watched, replaced, asked to hand over.

Everything goes through ``Manager.handle``. The manager's node is ``home``; devices are ``a``, ``b``, ``c``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from shoal.roles.actions import Action, Answer, CancelTimer, Keep, Load, Record, Send, SetTimer, Store
from shoal.roles.events import (
    Asked,
    Event,
    Liveness,
    LoadFailed,
    MemberHeld,
    PeerChanged,
    Received,
    Started,
    Stored,
    StoreFailed,
    TimerFired,
)
from shoal.roles.manager.appointment import APPOINTED_S, OUTDONE_TIMES, PARTING_S, SETTLED_S, UNFIT_S
from shoal.roles.manager.cluster_state import JobRecord, Term, sides_kept
from shoal.roles.manager.failover import CUT_OFF_WITHIN_S, LOOK_EVERY_S, MISSED_S
from shoal.roles.manager.manager import Manager
from shoal.roles.manager.reunion import Side
from shoal.roles.node.failure_detector import Patience
from shoal.states import JobState
from shoal.wire.encoding import encode_envelope
from shoal.wire.limits import ENVELOPE_MAX_BYTES
from shoal.wire.messages import (
    Admit,
    AskCheckpoint,
    Assign,
    Checkpoint,
    CheckpointKept,
    CheckpointRefused,
    Denied,
    Dismiss,
    Done,
    Facts,
    HandOver,
    Heartbeat,
    Hello,
    JobSpec,
    LeaderUnreachable,
    Leads,
    LogRecord,
    Message,
    Progress,
    Release,
    Released,
    Revoke,
    StepDown,
    SteppedDown,
    StopJob,
    StopRequest,
    Submit,
    TransferJob,
    Welcome,
    WorkerView,
)

M = TypeVar("M", bound=Message)
A = TypeVar("A", bound=Action)
Make = Callable[..., JobSpec]


class Office:
    """A manager, a clock that stands still unless moved, and what was just done."""

    def __init__(self, *, jobs: list[JobRecord] | None = None, prefers_devices: bool = False) -> None:
        self.manager = Manager(node="home", patience=Patience(), jobs=jobs, prefers_devices=prefers_devices)
        self.now_s = 1000.0
        self.happens(Started())

    def happens(self, event: Event) -> list[Action]:
        self.actions = self.manager.handle(event, self.now_s)
        for action in self.actions:
            assert not isinstance(action, Send) or action.to, f"{action} is for nobody"
        return self.actions

    def says(self, sender: str, message: Message) -> list[Action]:
        return self.happens(Received(sender=sender, message=message))

    def asked(self, message: Message) -> Message:
        self.happens(Asked(question=7, message=message))
        (answer,) = self.done(Answer)
        return answer.message

    def hello(self, *nodes: str, incarnation: str = "1", torch: str = "2.11", leads: tuple[Leads, ...] = ()) -> None:
        for node in nodes:
            self.says(node, Hello(node=node, incarnation=incarnation, facts=Facts(torch=torch, cpus=4), leads=leads))

    def beat(self, node: str, **how: Any) -> None:
        self.says(node, Heartbeat(seq=1, **how))

    def peer(self, node: str, state: Liveness, reason: str = "silent") -> None:
        self.happens(PeerChanged(node=node, state=state, reason=reason))

    def lost(self, node: str) -> None:
        """It falls silent, and others do not."""
        self.peer(node, Liveness.SUSPECT)
        self.now_s += 0.5
        for view in self.manager.node_views():
            if view.state == "alive":
                self.beat(view.node)
        self.peer(node, Liveness.LOST)

    def cut(self, *nodes: str) -> None:
        """They fall silent together, and those who led are given up, if they are."""
        for node in nodes:
            self.peer(node, Liveness.SUSPECT)
        self.now_s += 1.0
        for node in nodes:
            self.timer(f"suspect {node}")
        self.now_s += 7.0
        for node in nodes:
            self.lost_quietly(node)

    def lost_quietly(self, node: str) -> None:
        self.peer(node, Liveness.LOST)

    def claim(self, sender: str, progress: Progress) -> list[Action]:
        """A leader of an older term tells what it made, and is heard out."""
        self.says(sender, progress)
        return self.timer(f"claim {progress.job}")

    def timer(self, name: str) -> list[Action]:
        return self.happens(TimerFired(name=name))

    def leads(self, node: str, *, term: int = 1, job: str = "digits", endpoint: str = "") -> None:
        self.says(node, Leads(job=job, term=term, endpoint=endpoint or f"{node}:7071"))

    def submit(self, spec: JobSpec) -> None:
        assert isinstance(self.asked(Submit(spec=spec)), Done)

    # What was done --------------------------------------------------------------------------------------

    def done(self, kind: type[A]) -> list[A]:
        return [action for action in self.actions if isinstance(action, kind)]

    def told(self, node: str, kind: type[M]) -> list[M]:
        sent = [send.message for send in self.done(Send) if send.to == node]
        return [message for message in sent if isinstance(message, kind)]

    def sent(self, kind: type[Message]) -> list[str]:
        """To whom something of this kind was just said."""
        return [send.to for send in self.done(Send) if isinstance(send.message, kind)]

    def appointed(self) -> dict[str, int]:
        """Who was just made a leader, under which term."""
        sends = [(send.to, send.message) for send in self.done(Send)]
        return {to: message.term for to, message in sends if isinstance(message, Assign) and message.role == "leader"}

    def reassigned(self) -> dict[str, tuple[str, str, int]]:
        """Who was just made a worker: of which leader, dialled where, under which term."""
        sends = [(send.to, send.message) for send in self.done(Send)]
        assigns = [(to, message) for to, message in sends if isinstance(message, Assign) and message.role == "worker"]
        return {to: (assign.leader, assign.leader_endpoint, assign.term) for to, assign in assigns}

    def at(self, matches: Callable[[Action], bool]) -> int:
        """The place of the first action like this."""
        return next(place for place, action in enumerate(self.actions) if matches(action))

    def records(self, kind: str = "") -> list[str]:
        """The reasons of events of a kind, or of those about who leads."""
        wanted = (kind,) if kind else ("leader.", "term.", "history.")
        return [record.reason for record in self.done(Record) if record.kind.startswith(wanted)]

    @property
    def leader(self) -> tuple[str, int]:
        (view,) = self.manager.job_views("digits")
        return view.leader, view.term

    @property
    def state(self) -> str:
        (view,) = self.manager.job_views("digits")
        return view.state

    @property
    def working(self) -> dict[str, str]:
        return {view.node: view.job for view in self.manager.node_views()}


@pytest.fixture
def led(make_spec: Make) -> Office:
    """Job ``digits``, led by ``a`` under term 1. Its workers are ``a``, ``b`` and ``c``."""
    office = Office(prefers_devices=True)
    office.hello("a", "b", "c")
    office.submit(make_spec())
    office.leads("a")
    assert office.leader == ("a", 1)
    return office


def returned(make_spec: Make, **changes: Any) -> Office:
    """A manager that has just started, and remembers that ``a`` led ``digits`` under term 4."""
    record = JobRecord(**{"spec": make_spec(), "state": JobState.RUNNING, "term": 4, "leader": "a"} | changes)
    return Office(jobs=[record])


# Appointing ----------------------------------------------------------------------------------------------


def test_the_managers_node_leads_unless_told_otherwise(make_spec: Make) -> None:
    office = Office()
    office.hello("a", "b")
    office.submit(make_spec())
    assert office.appointed() == {"home": 1}
    assert office.records() == ["home, term 1: it keeps the checkpoints and is always on"]
    # It is set up before anything can reach it: nothing more is waited for.
    assert office.reassigned() == {"a": ("home", "", 1), "b": ("home", "", 1)}
    assert office.sent(Admit) == [], "everyone the manager knows may speak to it"
    assert office.done(SetTimer) == []


def test_a_device_leads_where_devices_are_preferred(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.submit(make_spec())
    assert office.appointed() == {"home": 1}, "there is no device"
    office = Office(prefers_devices=True)
    office.hello("a", "b")
    office.submit(make_spec())
    assert office.appointed() == {"a": 1}
    assert office.records() == ["a, term 1: placed best of 2 devices"]


def test_the_managers_node_leads_only_until_there_is_a_device_where_those_are_preferred(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.submit(make_spec())
    office.hello("a")
    assert [over.reason for over in office.told("home", HandOver)] == ["a device can lead it now"]
    office.hello("b")
    assert office.sent(HandOver) == [], "it was asked already"
    office.says("home", SteppedDown(job="digits", term=1, reason="handed over at version 5"))
    assert office.appointed() == {"a": 2}
    office = Office()
    office.submit(make_spec())
    office.hello("a")
    assert office.sent(HandOver) == []


def test_a_device_that_is_placed_much_better_leads_by_default_too(make_spec: Make) -> None:
    office = Office()
    office.hello("a", "b")
    office.beat("b", link_bytes_per_s=100e6)
    office.beat("home", load=1.0)
    office.submit(make_spec())
    assert office.appointed() == {"b": 1}
    office = Office()
    office.hello("a", "b")
    office.beat("b", link_bytes_per_s=100e6)
    office.submit(make_spec())
    assert office.appointed() == {"home": 1}, "of equals, the manager's node"


def test_a_device_that_trains_nothing_may_lead(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("gateway", torch="")
    office.submit(make_spec())
    assert office.appointed() == {"gateway": 1}


@pytest.mark.parametrize("why", ["drained", "suspect", "lost"])
def test_one_who_is_held_back_or_silent_is_not_chosen(make_spec: Make, why: str) -> None:
    office = Office(prefers_devices=True)
    office.hello("a", "b")
    if why == "drained":
        office.happens(MemberHeld(node="a", hold="drained"))
    else:
        office.peer("a", Liveness(why))
    office.submit(make_spec())
    assert office.appointed() == {"b": 1}


def test_a_term_is_durable_before_its_leader_hears_of_it_and_workers_hear_when_it_leads(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a", "b")
    office.submit(make_spec())
    kept = office.at(lambda action: isinstance(action, Keep) and (action.term, action.leader) == (1, "a"))
    assert kept < office.at(lambda action: isinstance(action, Send) and isinstance(action.message, Assign))
    assert office.sent(Assign) == ["a"], "nobody works for a leader that is not there"
    assert office.done(SetTimer) == [SetTimer(name="appointed digits", after_s=APPOINTED_S)]
    office.hello("c")
    assert office.sent(Assign) == []
    office.leads("a", endpoint="10.0.0.7:7071")
    assert office.reassigned() == dict.fromkeys(("a", "b", "c"), ("a", "10.0.0.7:7071", 1))
    assert CancelTimer(name="appointed digits") in office.actions
    assert office.records() == ["a leads at 10.0.0.7:7071, term 1"]


def test_a_worker_is_admitted_before_it_is_sent_to_a_leader(led: Office) -> None:
    led.hello("d")
    assert led.told("a", Admit) == [Admit(job="digits", term=1, nodes=("d",))]
    admitted = led.at(lambda action: isinstance(action, Send) and isinstance(action.message, Admit))
    assert admitted < led.at(lambda action: isinstance(action, Send) and isinstance(action.message, Assign))
    led.lost("a")
    assert led.appointed() == {"b": 2}
    led.leads("b", term=2)
    assert led.told("b", Admit) == [Admit(job="digits", term=2, nodes=("b", "c", "d"))], "all those who stay, at once"
    admitted = led.at(lambda action: isinstance(action, Send) and isinstance(action.message, Admit))
    assert admitted < led.at(lambda action: isinstance(action, Send) and isinstance(action.message, Assign))


def test_many_workers_are_admitted_in_messages_that_fit(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    many = [f"{number:05d}-{'x' * 57}" for number in range(4500)]
    office.hello("0-first", *many)
    office.submit(make_spec(workers_max=1 << 20))
    office.leads("0-first")
    office.lost("0-first")
    (leader,) = office.appointed()
    office.leads(leader, term=2)
    admits = office.told(leader, Admit)
    assert [node for admit in admits for node in admit.nodes] == many
    assert all(len(encode_envelope(admit)) < ENVELOPE_MAX_BYTES for admit in admits)


def test_the_same_word_twice_changes_nothing(led: Office) -> None:
    led.leads("a")
    assert led.actions == []
    led.leads("a", endpoint="elsewhere:7071")
    assert set(led.reassigned().values()) == {("a", "elsewhere:7071", 1)}, "it moved"


def test_a_node_without_an_address_cannot_lead(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a", "b")
    office.submit(make_spec())
    office.says("a", Leads(job="digits", term=1))
    assert [(step.job, step.term) for step in office.told("a", StepDown)] == [("digits", 1)]
    assert office.records()[0] == "term 1: it has no address that others could dial"
    assert office.appointed() == {"b": 2}


def test_an_appointment_that_takes_too_long_is_over_and_the_node_is_not_chosen_again(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a", "b")
    office.submit(make_spec())
    office.timer("appointed digits")
    assert office.told("a", StepDown) == [StepDown(job="digits", term=1, reason="it was not set up in time")]
    assert office.appointed() == {"b": 2}
    office.timer("appointed digits")
    assert office.appointed() == {"home": 3}, "neither of them is asked again"
    office.leads("a")
    office.claim("a", Progress(job="digits", term=1, state="waiting"))
    assert [step.term for step in office.told("a", StepDown)] == [1], "too late"
    assert office.leader == ("home", 3)
    assert office.timer("appointed digits") == [], "a timer that fires late finds nothing to do"


def test_a_node_that_could_not_lead_says_so_and_another_is_asked(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a", "b")
    office.submit(make_spec())
    office.says("a", SteppedDown(job="digits", term=1, reason="no room on the disk", failed=True))
    assert [step.term for step in office.told("a", StepDown)] == [1], "its last word was heard"
    assert office.records()[0] == "term 1: a stepped down: no room on the disk"
    assert office.appointed() == {"b": 2}
    office.lost("b")
    assert office.appointed() == {"home": 3}


def test_a_job_that_cannot_start_at_home_cannot_start(make_spec: Make) -> None:
    office = Office()
    office.hello("a")
    office.submit(make_spec())
    office.says("home", SteppedDown(job="digits", term=1, reason="its first model is torn", failed=True))
    (keep,) = office.done(Keep)
    assert (keep.state, keep.reason) == ("failed", "could not start: its first model is torn")
    assert office.told("a", Dismiss)
    assert office.appointed() == {}


# Leaders are lost, and come back --------------------------------------------------------------------------


def test_a_lost_leader_is_replaced_under_the_next_term_and_its_workers_hear_of_it(led: Office) -> None:
    led.lost("a")
    assert led.records()[0] == "term 1: a was lost: silent"
    assert led.appointed() == {"b": 2}
    assert led.reassigned() == {}
    led.leads("b", term=2)
    assert led.reassigned() == {"b": ("b", "b:7071", 2), "c": ("b", "b:7071", 2)}


def test_a_suspect_leader_leads_on(led: Office) -> None:
    led.peer("a", Liveness.SUSPECT)
    assert led.leader == ("a", 1)
    led.hello("a", leads=(Leads(job="digits", term=1, endpoint="a:7071"),))
    assert led.leader == ("a", 1)
    assert led.appointed() == {}


def test_a_leader_that_started_anew_leads_no_more(led: Office) -> None:
    led.hello("a", incarnation="2")
    assert led.records()[0] == "term 1: a restarted"
    assert led.leader[1] == 2
    kept = led.at(lambda action: isinstance(action, Keep))
    assert kept < led.at(lambda action: isinstance(action, Send) and isinstance(action.message, Assign))


def test_one_who_was_appointed_and_reconnects_is_told_again_under_the_same_term(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a")
    office.submit(make_spec())
    office.peer("a", Liveness.SUSPECT)
    office.hello("a")
    assert office.appointed() == {"a": 1}
    assert office.done(Keep) == []
    welcome = office.at(lambda action: isinstance(action, Send) and isinstance(action.message, Welcome))
    assert welcome == len(office.actions) - 1, "it knows all its roles before it is welcomed"
    office.hello("a", incarnation="2")
    assert office.appointed() == {"a": 2}, "another process is another leader"


def test_one_who_was_set_up_while_out_of_touch_says_so_when_it_is_back(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a", "b")
    office.submit(make_spec())
    office.hello("a", leads=(Leads(job="digits", term=1, endpoint="a:7071"),))
    assert office.appointed() == {}
    assert set(office.reassigned()) == {"a", "b"}


def test_what_a_leader_was_told_while_it_was_away_is_said_again(led: Office) -> None:
    led.peer("a", Liveness.SUSPECT)
    led.happens(MemberHeld(node="c", hold="drained"))
    led.asked(StopJob(job="digits", reason="enough"))
    led.hello("a", leads=(Leads(job="digits", term=1, endpoint="a:7071"),))
    assert led.told("a", StopRequest) == [StopRequest(job="digits", reason="enough")], "else the job never stops"
    assert [release.node for release in led.told("a", Release)] == ["c"]
    assert {node for admit in led.told("a", Admit) for node in admit.nodes} == {"a", "b", "c"}
    assert led.told("a", HandOver) == []


def test_a_leader_that_was_away_when_asked_to_hand_over_is_asked_again(led: Office) -> None:
    led.peer("a", Liveness.SUSPECT)
    led.asked(TransferJob(job="digits", node="b"))
    led.hello("a", leads=(Leads(job="digits", term=1, endpoint="a:7071"),))
    assert [(over.job, over.term) for over in led.told("a", HandOver)] == [("digits", 1)]
    assert led.leader == ("a", 1)


def test_one_who_leads_under_an_old_term_is_told_to_step_down(led: Office) -> None:
    led.lost("a")
    led.hello("a", leads=(Leads(job="digits", term=1, endpoint="a:7071"),))
    assert led.told("a", StepDown) == [], "what it made is heard first"
    led.claim("a", Progress(job="digits", term=1, state="training"))
    assert led.told("a", StepDown) == [StepDown(job="digits", term=1, reason="b leads it under term 2")]
    assert led.leader == ("b", 2)
    led.leads("a", term=9)
    assert led.told("a", StepDown) == [StepDown(job="digits", term=9, reason="term 9 was never given out")]
    led.leads("a", job="none")
    assert led.told("a", StepDown) == [StepDown(job="none", term=1, reason="the job is over")]


@pytest.fixture
def replaced(led: Office) -> Office:
    """``a`` led under term 1 and was given up; ``b`` leads under term 2."""
    led.lost("a")
    led.leads("b", term=2)
    led.hello("a")
    return led


@pytest.mark.parametrize("state", ["training", "finished"])
def test_what_an_old_leader_says_of_the_job_is_not_believed(replaced: Office, state: str) -> None:
    replaced.claim("a", Progress(job="digits", term=1, state=state))
    assert replaced.actions == [
        Send(to="a", message=StepDown(job="digits", term=1, reason="b leads it under term 2")),
    ]
    assert replaced.state == "running"


def test_a_checkpoint_of_an_old_leader_is_refused(replaced: Office) -> None:
    replaced.says("a", Checkpoint(job="digits", term=1, version=9))
    assert replaced.done(Store) == []
    assert replaced.told("a", CheckpointRefused) == [
        CheckpointRefused(job="digits", term=1, version=9, reason="its term is over")
    ]
    assert replaced.told("a", StepDown) == [], "whose history is kept is settled by what it made"
    replaced.says("c", Checkpoint(job="digits", term=1, version=9))
    assert replaced.told("c", StepDown), "it never led"
    assert replaced.records("version.fenced") == ["version 9 of c: term 1 is over"]


def test_an_old_leader_is_not_told_where_the_job_stands(replaced: Office) -> None:
    replaced.says("a", AskCheckpoint(job="digits", term=1))
    assert replaced.done(Load) == []
    assert replaced.told("a", StepDown)
    replaced.says("b", AskCheckpoint(job="digits", term=2))
    assert replaced.actions == [Load(job="digits", term=2, to="b")]


def test_an_old_leader_lets_nobody_go_and_notes_nothing(replaced: Office) -> None:
    assert replaced.says("a", Released(job="digits", term=1, node="c")) == []
    assert replaced.says("a", Released(job="digits", term=2, node="c")) == [], "nor in the name of another"
    assert replaced.working["c"] == "digits"
    assert replaced.says("a", LogRecord(job="digits", term=1, kind="epoch.done", reason="epoch 3")) == []
    assert replaced.says("b", LogRecord(job="digits", term=2, kind="epoch.done", reason="epoch 3")) == [
        Record(kind="epoch.done", reason="epoch 3", job="digits")
    ]
    failed = LogRecord(job="digits", term=2, kind="lease.failed", reason="c: bug", traceback="File task.py")
    assert replaced.says("b", failed) == [
        Record(kind="lease.failed", reason="c: bug", job="digits", traceback="File task.py")
    ]


@pytest.mark.parametrize("sender", ["a", "c"])
def test_the_term_alone_makes_no_leader(replaced: Office, sender: str) -> None:
    replaced.says(sender, Checkpoint(job="digits", term=2, version=9))
    assert replaced.done(Store) == []
    replaced.says(sender, Progress(job="digits", term=2, state=JobState.FINISHED))
    assert replaced.state == "running"


def test_a_lost_worker_is_barred_where_its_job_is_led(led: Office) -> None:
    led.lost("c")
    assert led.told("a", Revoke) == [Revoke(job="digits", term=1, node="c", reason="silent")]
    led.lost("a")
    led.leads("b", term=2)
    assert led.reassigned() == {"b": ("b", "b:7071", 2)}, "one who was given up is not assigned"


def test_one_who_was_shut_out_is_barred_though_the_manager_has_not_heard_of_it_since_it_started(
    make_spec: Make,
) -> None:
    office = returned(make_spec)
    office.happens(MemberHeld(node="c", hold="revoked", reason="stolen"))
    assert office.told("a", Revoke) == [Revoke(job="digits", term=4, node="c", reason="stolen")]


def test_of_a_job_that_is_not_there_nothing_is_written_down(led: Office) -> None:
    led.says("b", Checkpoint(job="made-up", term=1, version=5))
    assert not [action for action in led.actions if isinstance(action, Record)]
    assert led.told("b", CheckpointRefused)


def test_a_lost_worker_is_barred_nowhere_when_the_manager_knows_it_itself(make_spec: Make) -> None:
    office = Office()
    office.hello("a", "b")
    office.submit(make_spec())
    office.lost("b")
    assert office.sent(Revoke) == []


# What must not be lost -------------------------------------------------------------------------------------


def test_a_version_is_kept_once_it_is_durable_and_one_at_a_time(led: Office) -> None:
    checkpoint = Checkpoint(job="digits", term=1, version=5)
    assert led.says("a", checkpoint) == [Store(checkpoint=checkpoint)]
    led.happens(Stored(job="digits", term=1, version=5))
    assert led.told("a", CheckpointKept) == [CheckpointKept(job="digits", term=1, version=5)]
    later = Checkpoint(job="digits", term=1, version=6)
    assert led.says("a", later) == [Store(checkpoint=later)]


def test_versions_are_written_one_at_a_time_and_answered_by_their_number(led: Office) -> None:
    led.says("a", Checkpoint(job="digits", term=1, version=5, number=7))
    led.says("a", Checkpoint(job="digits", term=1, version=5, number=8))
    refused = CheckpointRefused(job="digits", term=1, version=5, reason="version 5 is being written", number=8)
    assert led.actions == [Send(to="a", message=refused)]
    led.happens(Stored(job="digits", term=1, version=5))
    assert led.told("a", CheckpointKept) == [CheckpointKept(job="digits", term=1, version=5, number=7)]


def test_a_version_that_could_not_be_written_is_refused(led: Office) -> None:
    led.says("a", Checkpoint(job="digits", term=1, version=5))
    led.happens(StoreFailed(job="digits", term=1, version=5, reason="the disk is full"))
    assert led.told("a", CheckpointKept) == []
    assert led.told("a", CheckpointRefused) == [
        CheckpointRefused(job="digits", term=1, version=5, reason="the disk is full")
    ]
    led.says("a", Checkpoint(job="digits", term=1, version=5))
    assert led.done(Store), "it may try again"


@pytest.mark.parametrize("answer", [Stored, StoreFailed])
def test_nobody_is_appointed_while_a_version_of_the_last_leader_is_written(led: Office, answer: Any) -> None:
    led.says("a", Checkpoint(job="digits", term=1, version=5))
    led.lost("a")
    assert led.appointed() == {}, "what the next one begins from is not decided yet"
    led.hello("d")
    assert led.appointed() == {}
    reason = {"reason": "torn"} if answer is StoreFailed else {}
    led.happens(answer(job="digits", term=1, version=5, **reason))
    assert led.appointed() == {"b": 2}
    assert led.sent(CheckpointKept) == led.sent(CheckpointRefused) == [], "who asked for it leads no more"


def test_a_version_that_is_durable_after_the_job_ended_is_no_news(led: Office) -> None:
    led.says("a", Checkpoint(job="digits", term=1, version=5))
    led.says("a", Progress(job="digits", term=1, state=JobState.FAILED, reason="because"))
    led.happens(Stored(job="digits", term=1, version=5))
    assert led.appointed() == {}
    assert led.happens(Stored(job="none", term=1, version=5)) == []


def test_a_job_whose_checkpoints_cannot_be_read_fails(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a")
    office.submit(make_spec())
    office.says("a", AskCheckpoint(job="digits", term=1))
    assert office.happens(LoadFailed(job="digits", term=0, reason="torn")) == [], "of another term"
    office.happens(LoadFailed(job="digits", term=1, reason="version 5 is torn"))
    assert office.told("a", StepDown) == [StepDown(job="digits", term=1, reason="version 5 is torn")]
    (keep,) = office.done(Keep)
    assert (keep.state, keep.reason) == ("failed", "version 5 is torn")
    assert office.timer("appointed digits") == []
    assert office.happens(LoadFailed(job="digits", term=1, reason="again")) == []


# Moving the role ----------------------------------------------------------------------------------------------


def test_an_operator_moves_the_role_to_a_node(led: Office) -> None:
    assert led.asked(TransferJob(job="digits", node="c")) == Done(
        job="digits", reason="a finishes its round and hands over to c"
    )
    assert led.told("a", HandOver) == [HandOver(job="digits", term=1, reason="an operator asked for it")]
    assert led.done(SetTimer) == [SetTimer(name="parting digits", after_s=PARTING_S)]
    assert led.leader == ("a", 1), "until it has finished its round"
    assert led.appointed() == {}
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over at version 5"))
    assert [step.term for step in led.told("a", StepDown)] == [1], "its last word was heard"
    assert CancelTimer(name="parting digits") in led.actions
    assert led.appointed() == {"c": 2}
    led.leads("c", term=2)
    assert {leader for leader, _, _ in led.reassigned().values()} == {"c"}
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over at version 5"))
    assert led.actions == [Send(to="a", message=StepDown(job="digits", term=1, reason="c leads it under term 2"))]


def test_an_operator_moves_the_role_home_and_to_whoever_is_best(led: Office) -> None:
    assert led.asked(TransferJob(job="digits", node="home")) == Done(
        job="digits", reason="a finishes its round and hands over to home"
    )
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over"))
    assert led.appointed() == {"home": 2}
    assert led.reassigned() == dict.fromkeys(("a", "b", "c"), ("home", "", 2))
    led.beat("c", link_bytes_per_s=100e6)
    assert led.asked(TransferJob(job="digits")) == Done(
        job="digits", reason="home finishes its round and hands over to c"
    )
    led.says("home", SteppedDown(job="digits", term=2, reason="handed over"))
    assert led.sent(StepDown) == [], "at home there is nothing to acknowledge"
    assert led.appointed() == {"c": 3}


def test_a_role_is_not_moved_where_it_cannot_go(led: Office, make_spec: Make) -> None:
    def denied(node: str, job: str = "digits") -> str:
        answer = led.asked(TransferJob(job=job, node=node))
        assert isinstance(answer, Denied)
        assert len(led.actions) == 1, "nothing else happens"
        return answer.reason

    assert denied("b", "none") == "there is no job none"
    assert denied("a") == "a leads job digits already"
    assert denied("z") == "there is no node z: look at `shoal nodes`"
    led.peer("b", Liveness.SUSPECT)
    assert denied("b") == "b cannot lead now: it is suspect"
    led.happens(MemberHeld(node="c", hold="drained"))
    assert denied("c") == "c cannot lead now: it is drained"
    led.says("a", Released(job="digits", term=1, node="c"))
    led.happens(MemberHeld(node="c", hold=""))
    assert denied("c") == "c cannot lead now: it was let go a moment ago"
    led.beat("c")
    led.asked(TransferJob(job="digits", node="c"))
    assert denied("home") == "job digits is changing its leader already: look at `shoal status digits`"
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over"))
    assert denied("home") == "job digits is changing its leader already: look at `shoal status digits`"
    led.leads("c", term=2)
    led.says("c", Progress(job="digits", term=2, state=JobState.FINISHED))
    assert denied("b") == "job digits is finished already"


def test_there_must_be_someone_to_move_a_role_to(make_spec: Make) -> None:
    office = Office()
    office.submit(make_spec())
    assert office.asked(TransferJob(job="digits")) == Denied(
        reason="no other node can lead it now: look at `shoal nodes`"
    )
    assert office.asked(TransferJob(job="digits", node="home")) == Denied(reason="home leads job digits already")


def test_an_operator_may_try_a_node_again_that_failed(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a")
    office.submit(make_spec())
    office.timer("appointed digits")
    assert office.leader == ("home", 2)
    assert isinstance(office.asked(TransferJob(job="digits")), Denied), "a failed before"
    assert isinstance(office.asked(TransferJob(job="digits", node="a")), Done)
    office.says("home", SteppedDown(job="digits", term=2, reason="handed over"))
    assert office.appointed() == {"a": 3}


def test_a_successor_that_is_gone_by_then_is_not_appointed(led: Office) -> None:
    led.asked(TransferJob(job="digits", node="c"))
    led.lost("c")
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over"))
    assert set(led.appointed()) <= {"a", "b", "home"}
    assert led.leader[1] == 2


def test_a_leader_that_is_lost_while_it_hands_over_is_followed_by_its_successor(led: Office) -> None:
    led.asked(TransferJob(job="digits", node="c"))
    led.lost("a")
    assert led.appointed() == {"c": 2}


def test_a_leader_that_does_not_hand_over_in_time_is_replaced(led: Office) -> None:
    led.asked(TransferJob(job="digits", node="c"))
    led.timer("parting digits")
    assert led.told("a", StepDown) == [StepDown(job="digits", term=1, reason="it did not hand over in time")]
    assert led.appointed() == {"c": 2}
    led.lost("c")
    assert led.appointed() == {"b": 3}, "not to the one who did not listen"


def test_a_leader_that_is_parting_is_given_no_second_hand_over(led: Office) -> None:
    led.asked(TransferJob(job="digits", node="c"))
    led.happens(MemberHeld(node="a", hold="drained"))
    assert led.told("a", HandOver) == []
    led.says("b", LeaderUnreachable(job="digits", term=1, reason="b cannot reach a"))
    assert led.told("a", HandOver) == []


def test_a_job_that_ends_while_its_leader_hands_over_is_over(led: Office) -> None:
    led.asked(TransferJob(job="digits", node="c"))
    led.says("a", Progress(job="digits", term=1, state=JobState.FINISHED, reason="all epochs are done"))
    assert led.state == "finished"
    assert led.appointed() == {}
    assert led.timer("parting digits") == []


# Out of reach -----------------------------------------------------------------------------------------------


def test_a_leader_that_a_third_of_its_workers_cannot_reach_hands_over_to_home(led: Office) -> None:
    led.says("b", LeaderUnreachable(job="digits", term=1, reason="b cannot reach a: refused"))
    assert led.records("link.broken") == ["b cannot reach a: refused"]
    assert [over.reason for over in led.told("a", HandOver)] == ["1 of 3 workers cannot reach a"]
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over"))
    assert led.appointed() == {"home": 2}


def test_fewer_do_not_move_it_and_each_counts_once(led: Office) -> None:
    led.hello("d", "e", "f", "g")
    for _ in range(3):
        led.says("b", LeaderUnreachable(job="digits", term=1, reason="b cannot reach a"))
        assert led.sent(HandOver) == [], "1 of 7"
    led.says("c", LeaderUnreachable(job="digits", term=1, reason="c cannot reach a"))
    assert led.sent(HandOver) == [], "2 of 7"
    led.says("d", LeaderUnreachable(job="digits", term=1, reason="d cannot reach a"))
    assert led.sent(HandOver) == ["a"], "3 of 7"


def test_a_leader_that_the_helper_of_its_job_cannot_reach_hands_over(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello(*"abcdefgh")
    sealed = {"trust": "sealed(3, helper=h)", "data": "local", "workers_min": 3, "workers_max": 9}
    office.asked(Submit(spec=make_spec(**sealed)))
    leader = next(iter(office.appointed()))
    assert leader != "h"
    office.leads(leader)
    office.says("g", LeaderUnreachable(job="digits", term=1, reason="g cannot reach it"))
    assert office.sent(HandOver) == [], "1 of 7"
    office.says("h", LeaderUnreachable(job="digits", term=1, reason="h cannot reach it"))
    assert [over.reason for over in office.told(leader, HandOver)] == [f"the helper h cannot reach {leader}"]


def test_one_who_works_there_no_more_does_not_count(led: Office) -> None:
    led.hello("d", "e")
    led.says("b", LeaderUnreachable(job="digits", term=1, reason="b cannot reach a"))
    assert led.sent(HandOver) == [], "1 of 5"
    led.lost("b")
    led.says("c", LeaderUnreachable(job="digits", term=1, reason="c cannot reach a"))
    assert led.sent(HandOver) == [], "1 of 4: b is gone"


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("b", LeaderUnreachable(job="digits", term=2, reason="")),
        ("stranger", LeaderUnreachable(job="digits", term=1, reason="")),
    ],
)
def test_only_its_workers_say_that_the_leader_of_now_is_out_of_reach(
    led: Office, sender: str, message: LeaderUnreachable
) -> None:
    assert led.says(sender, message) == []


def test_a_worker_that_looks_for_a_leader_of_before_hears_who_leads_now(led: Office) -> None:
    led.says("b", LeaderUnreachable(job="digits", term=0, reason="b cannot reach z"))
    (assign,) = led.told("b", Assign)
    assert (assign.role, assign.term, assign.leader) == ("worker", 1, "a")
    assert led.told("a", Admit) == [Admit(job="digits", term=1, nodes=("b",))]
    assert led.sent(HandOver) == []


def test_one_who_looks_for_the_leader_of_a_job_that_needs_it_no_more_is_told_so(led: Office) -> None:
    led.says("b", LeaderUnreachable(job="none", term=1, reason=""))
    assert [dismiss.job for dismiss in led.told("b", Dismiss)] == ["none"]
    led.happens(MemberHeld(node="c", hold="drained"))
    led.says("a", Released(job="digits", term=1, node="c"))
    led.says("c", LeaderUnreachable(job="digits", term=1, reason=""))
    assert [dismiss.job for dismiss in led.told("c", Dismiss)] == ["digits"]
    assert led.sent(HandOver) == []


def test_nobody_is_sent_away_while_a_leader_is_missed(make_spec: Make) -> None:
    office = returned(make_spec)
    office.hello("b")
    assert office.says("b", LeaderUnreachable(job="digits", term=4, reason="")) == []


def test_the_managers_node_is_never_out_of_reach(make_spec: Make) -> None:
    office = Office()
    office.hello("a")
    office.submit(make_spec())
    assert office.says("a", LeaderUnreachable(job="digits", term=1, reason="")) == []


# Held back -----------------------------------------------------------------------------------------------------


def test_a_drained_leader_hands_over(led: Office) -> None:
    led.happens(MemberHeld(node="a", hold="drained"))
    assert [over.reason for over in led.told("a", HandOver)] == ["a is drained"]
    assert [release.node for release in led.told("a", Release)] == ["a"], "it is a worker of its own, too"
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over"))
    assert led.appointed() == {"b": 2}


def test_one_who_is_drained_while_it_sets_itself_up_hands_over_once_it_leads(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a", "b")
    office.submit(make_spec())
    office.happens(MemberHeld(node="a", hold="drained"))
    assert office.sent(HandOver) == []
    office.leads("a")
    assert office.sent(HandOver) == ["a"], "else it would lead to the end"


# Stopping --------------------------------------------------------------------------------------------------------


def test_a_job_that_is_stopped_while_its_leader_sets_up_is_concluded_when_it_leads(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a")
    office.submit(make_spec())
    office.asked(StopJob(job="digits", reason="enough"))
    assert office.sent(StopRequest) == []
    office.leads("a")
    assert office.told("a", StopRequest) == [StopRequest(job="digits", reason="enough")]
    office.says("a", Progress(job="digits", term=1, state=JobState.STOPPED, reason="enough"))
    assert office.state == "stopped"


def test_a_stop_outlives_the_leader_that_was_told(led: Office) -> None:
    led.asked(StopJob(job="digits", reason="enough"))
    assert led.told("a", StopRequest) == [StopRequest(job="digits", reason="enough")]
    led.lost("a")
    assert led.appointed() == {"b": 2}
    assert led.state == "stopping"
    led.leads("b", term=2)
    assert led.told("b", StopRequest) == [StopRequest(job="digits", reason="enough")]


def test_a_last_word_is_written_down_before_it_is_acknowledged_and_may_be_said_again(led: Office) -> None:
    over = Progress(job="digits", term=1, state=JobState.FINISHED, reason="all epochs are done")
    led.says("a", over)
    kept = led.at(lambda action: isinstance(action, Keep) and action.state == "finished")
    assert kept < led.at(lambda action: isinstance(action, Send) and isinstance(action.message, StepDown))
    assert led.told("a", StepDown) == [StepDown(job="digits", term=1, reason="the job is over")]
    assert {node for node in "abc" if led.told(node, Dismiss)} == {"a", "b", "c"}
    led.says("a", over)
    assert led.actions == [Send(to="a", message=StepDown(job="digits", term=1, reason="the job is over"))]


# The manager starts anew --------------------------------------------------------------------------------------------


def test_a_leader_that_is_heard_of_again_leads_on_under_its_term(make_spec: Make) -> None:
    office = returned(make_spec)
    assert office.records() == [f"a led term 4 and has {MISSED_S:g} s to report"]
    assert SetTimer(name="missed", after_s=MISSED_S) in office.actions
    assert office.appointed() == {}
    office.hello("a", leads=(Leads(job="digits", term=4, endpoint="a:7071"),))
    assert "a still leads at a:7071, term 4" in office.records()
    assert office.appointed() == {}
    assert office.done(Keep) == []
    assert office.leader == ("a", 4)
    assert office.reassigned() == {"a": ("a", "a:7071", 4)}
    assert office.timer("missed") == []


def test_a_leader_that_is_not_heard_of_is_replaced_after_a_while(make_spec: Make) -> None:
    office = returned(make_spec)
    office.hello("b")
    assert office.appointed() == {}
    office.timer("missed")
    assert office.records()[0] == "term 4: it was not heard of again"
    assert office.appointed() == {"home": 5}
    assert office.reassigned() == {"b": ("home", "", 5)}
    office.hello("a", leads=(Leads(job="digits", term=4, endpoint="a:7071"),))
    assert office.told("a", StepDown) == [StepDown(job="digits", term=4, reason="home leads it under term 5")]


def test_a_leader_that_started_anew_meanwhile_is_replaced_at_once(make_spec: Make) -> None:
    office = returned(make_spec)
    office.hello("a")
    assert "term 4: a restarted" in office.records()
    assert office.appointed() == {"home": 5}


def test_a_leader_of_an_older_term_is_not_the_one_that_is_missed(make_spec: Make) -> None:
    office = returned(make_spec)
    office.hello("a", leads=(Leads(job="digits", term=3, endpoint="a:7071"),))
    assert [step.term for step in office.told("a", StepDown)] == [3]
    assert office.leader == ("home", 5)


def test_a_last_word_that_the_manager_before_did_not_hear_is_heard(make_spec: Make) -> None:
    office = returned(make_spec)
    office.says("a", Progress(job="digits", term=4, state=JobState.FINISHED, reason="all epochs are done"))
    assert office.state == "finished"
    assert office.told("a", StepDown)


def test_nobody_is_placed_or_dismissed_while_a_leader_is_missed(make_spec: Make) -> None:
    other = JobRecord(spec=make_spec(job="other"), state=JobState.RUNNING, term=2, leader="home")
    missed = JobRecord(spec=make_spec(), state=JobState.RUNNING, term=4, leader="a")
    office = Office(jobs=[other, missed])
    assert office.appointed() == {"home": 3}, "a job that was led at home is led there again at once"
    office.hello("b")
    assert office.sent(Assign) == office.sent(Dismiss) == [], "b may be at work for a"
    assert office.told("b", Welcome)
    office.timer("missed")
    assert office.reassigned() == {"b": ("home", "", 3)}
    assert [dismiss.job for dismiss in office.told("b", Dismiss)] == ["digits"]


def test_nodes_that_came_before_the_missed_leader_leave_where_they_have_no_place(make_spec: Make) -> None:
    missed = JobRecord(spec=make_spec(), state=JobState.RUNNING, term=4, leader="a")
    other = JobRecord(spec=make_spec(job="other"), state=JobState.RUNNING, term=2, leader="home")
    office = Office(jobs=[missed, other])
    office.hello("b")
    assert office.sent(Dismiss) == []
    office.hello("a", torch="", leads=(Leads(job="digits", term=4, endpoint="a:7071"),))
    assert office.working == {"a": "", "b": "digits"}
    # It may have worked for the other job before the manager started anew, and would go on for both.
    assert [dismiss.job for dismiss in office.told("b", Dismiss)] == ["other"]


def test_a_leader_that_led_on_hears_who_was_sent_away_from_it(make_spec: Make) -> None:
    jobs = [
        JobRecord(spec=make_spec(job=job), state=JobState.RUNNING, term=4, leader="a") for job in ("digits", "other")
    ]
    office = Office(jobs=jobs)
    office.hello("b")
    assert office.sent(Revoke) == []
    office.hello("a", torch="", leads=tuple(Leads(job=job.spec.job, term=4, endpoint="a:7071") for job in jobs))
    assert office.working == {"a": "", "b": "digits"}
    # It may have worked for the other, is heard of there still, for this one, and would be missed for ever.
    reason = "its place was taken while it was away"
    assert Revoke(job="other", term=4, node="b", reason=reason) in office.told("a", Revoke)
    assert ("digits", "b") not in [(bar.job, bar.node) for bar in office.told("a", Revoke)]


def test_a_job_that_was_stopping_is_concluded_by_the_leader_that_is_back(make_spec: Make) -> None:
    office = returned(make_spec, state=JobState.STOPPING, reason="enough")
    office.hello("a", leads=(Leads(job="digits", term=4, endpoint="a:7071"),))
    assert office.told("a", StopRequest) == [StopRequest(job="digits", reason="enough")]
    office = returned(make_spec, state=JobState.STOPPING, reason="enough")
    office.timer("missed")
    assert office.told("home", StopRequest) == [], "nobody is in reach: its leader may lead on, and is waited for"
    office.timer("away digits")
    assert office.told("home", StopRequest) == [StopRequest(job="digits", reason="enough")]
    assert office.state == "stopping"


# Is another placed better? -------------------------------------------------------------------------------------------


def look(office: Office) -> bool:
    """One more look around; whether the leader is asked to hand over."""
    office.now_s += LOOK_EVERY_S
    office.timer("look")
    assert SetTimer(name="look", after_s=LOOK_EVERY_S) in office.actions
    return bool(office.sent(HandOver))


def test_the_role_moves_once_another_is_placed_much_better_for_three_looks(led: Office) -> None:
    led.beat("b", link_bytes_per_s=100e6)
    led.now_s += SETTLED_S
    assert [look(led) for _ in range(OUTDONE_TIMES)] == [False, False, True]
    assert [over.reason for over in led.told("a", HandOver)] == ["b has more spare processor and bandwidth than a"]
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over"))
    assert led.appointed() == {"b": 2}
    assert "operator" not in led.records()[-1], "nobody asked for it"


def test_one_look_without_the_difference_begins_anew(led: Office) -> None:
    led.now_s += SETTLED_S
    led.beat("b", link_bytes_per_s=100e6)
    assert [look(led), look(led)] == [False, False]
    led.beat("b", load=1.0, link_bytes_per_s=12e6)
    assert not look(led)
    led.beat("b", link_bytes_per_s=100e6)
    assert [look(led) for _ in range(OUTDONE_TIMES)] == [False, False, True]


def test_a_leader_stays_for_a_while_after_it_was_moved(led: Office) -> None:
    led.beat("b", link_bytes_per_s=100e6)
    looks = int(SETTLED_S / LOOK_EVERY_S) - 1
    assert not any(look(led) for _ in range(looks)), "it has just begun"
    assert [look(led) for _ in range(OUTDONE_TIMES)] == [False, False, True]
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over"))
    led.leads("b", term=2)
    led.beat("c", link_bytes_per_s=1000e6)
    assert not any(look(led) for _ in range(looks)), "it has just moved"


def test_the_role_does_not_move_to_one_whose_link_nobody_measured(led: Office) -> None:
    led.beat("a", load=1.0, link_bytes_per_s=1e6)
    led.now_s += SETTLED_S
    assert not any(look(led) for _ in range(5))
    led.beat("c", link_bytes_per_s=3e6)
    assert [look(led) for _ in range(OUTDONE_TIMES)] == [False, False, True]


def test_a_slow_leader_moves_home_unless_devices_are_preferred(make_spec: Make) -> None:
    office = Office()
    office.hello("a")
    office.beat("a", link_bytes_per_s=100e6)
    office.beat("home", load=1.0)
    office.submit(make_spec())
    office.leads("a")
    office.beat("home", load=0.0)
    office.beat("a", load=1.0, link_bytes_per_s=1e6)
    office.now_s += SETTLED_S
    assert [look(office) for _ in range(OUTDONE_TIMES)] == [False, False, True]
    office.says("a", SteppedDown(job="digits", term=1, reason="handed over"))
    assert office.appointed() == {"home": 2}


def test_no_device_is_believed_to_have_a_better_link_than_it_was_served_over(make_spec: Make) -> None:
    """It measured the way from the manager's node, which can be no slower than that."""
    office = Office()
    office.hello("a", "b")
    office.submit(make_spec())
    assert office.leader == ("home", 1)
    for at_s in range(0, 1000, 20):
        office.now_s = float(at_s)
        office.says("a", Heartbeat(seq=at_s, load=0.0, link_bytes_per_s=1e9))
        office.happens(TimerFired(name="look"))
        assert office.sent(HandOver) == []


def test_complaints_of_long_ago_do_not_add_up(led: Office) -> None:
    led.hello("d", "e")
    led.says("b", LeaderUnreachable(job="digits", term=1, reason="b cannot reach a"))
    led.now_s += CUT_OFF_WITHIN_S + 1
    led.says("c", LeaderUnreachable(job="digits", term=1, reason="c cannot reach a"))
    assert led.sent(HandOver) == [], "its link broke and was mended since"
    led.says("d", LeaderUnreachable(job="digits", term=1, reason="d cannot reach a"))
    assert led.sent(HandOver) != [], "2 of 5 at a time"
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over"))
    assert led.leader == ("home", 2)


def test_one_that_could_not_lead_is_asked_again_much_later(make_spec: Make) -> None:
    office = Office(prefers_devices=True)
    office.hello("a")
    office.submit(make_spec())
    office.says("a", SteppedDown(job="digits", term=1, reason="no disk", failed=True))
    assert office.appointed() == {"home": 2}
    office.hello("a")
    assert office.sent(HandOver) == [], "it has just failed"
    office.now_s += UNFIT_S
    office.hello("a")
    assert [over.term for over in office.told("home", HandOver)] == [2]


def test_a_leader_that_died_is_replaced_and_not_moved_home_for_its_workers_complaints(led: Office) -> None:
    """They dial it again and again within the second that the manager gives it to be heard of."""
    led.peer("a", Liveness.SUSPECT)
    for node in ("b", "c"):
        led.says(node, LeaderUnreachable(job="digits", term=1, reason=f"{node} cannot reach a"))
        assert led.sent(HandOver) == []
    led.timer("suspect a")
    assert led.appointed() == {"b": 2}


# Beyond a cut --------------------------------------------------------------------------------------------------------


def told(term: int, version: int, *, batches: int = 0, workers: int = 0, durable: int = 0) -> Progress:
    """What a leader tells that led on: how much of it would be lost with it."""
    side = {"unsaved_batches": batches, "unsaved_workers": workers}
    return Progress(job="digits", term=term, state="training", version=version, durable_version=durable, **side)


def made(
    term: int, version: int, *, batches: int, workers: int, durable: int = 0, names: Iterable[str] = ()
) -> Progress:
    """What the leader of the newest term tells."""
    views = tuple(WorkerView(node=name, state="busy", batches=1) for name in names)
    return Progress(
        job="digits",
        term=term,
        state="training",
        version=version,
        durable_version=durable,
        term_batches=batches,
        term_workers=workers,
        workers=views,
    )


def test_a_leader_that_falls_silent_with_all_workers_keeps_its_term(led: Office) -> None:
    led.cut("a", "b", "c")
    assert led.leader == ("a", 1)
    assert led.appointed() == {}
    (view,) = led.manager.job_views("digits")
    assert view.reason == "a is not heard of, nor is any worker: it may lead on, so term 1 stays"


def test_a_leader_that_led_on_beyond_a_cut_goes_on_under_its_term(led: Office) -> None:
    led.cut("a", "b", "c")
    led.now_s += 80.0
    led.hello("b")
    assert led.told("b", Dismiss) == [], "it is at work for its leader still"
    assert led.working["b"] == "digits"
    led.hello("a", leads=(Leads(job="digits", term=1, endpoint="a:7071"),))
    assert led.leader == ("a", 1)
    assert led.records()[0] == "a, term 1: it led on for 87 s out of reach"
    assert led.told("b", Assign)[0].term == 1
    led.timer("away digits")
    assert led.appointed() == {}, "it was heard of in time"


def test_a_leader_that_is_heard_again_on_its_old_session_leads_on(led: Office) -> None:
    led.cut("a", "b", "c")
    led.peer("a", Liveness.ALIVE, "back after 9.0 s of silence")
    assert led.leader == ("a", 1)
    assert led.records()[0].startswith("a, term 1: it led on for 7 s")


def test_another_leads_if_workers_are_back_and_their_leader_is_not(led: Office) -> None:
    led.cut("a", "b", "c")
    led.now_s += 10.0
    led.hello("b")
    assert led.done(SetTimer)[0].name == "away digits"
    led.timer("away digits")
    assert led.appointed() == {"b": 2}


def test_workers_that_are_gone_again_leave_the_term_as_it_is(led: Office) -> None:
    led.cut("a", "b", "c")
    led.now_s += 10.0
    led.hello("b")
    led.cut("b")
    led.timer("away digits")
    assert led.leader == ("a", 1)
    led.hello("c")
    assert [timer.name for timer in led.done(SetTimer)] == ["away digits"], "and they are waited for once more"


def test_workers_that_were_heard_just_before_are_asked_for_once_more(led: Office) -> None:
    """A leader's session breaks; whether others are in reach is known after their next heartbeat."""
    led.beat("b")
    led.now_s += 0.1
    led.peer("a", Liveness.SUSPECT, "reset")
    led.timer("suspect a")
    assert led.leader == ("a", 1)
    assert [timer.name for timer in led.done(SetTimer)] == ["suspect a"]
    led.beat("b")
    led.timer("suspect a")
    assert led.appointed() == {"b": 2}


def test_a_leader_that_says_goodbye_is_replaced_though_nobody_is_in_reach(led: Office) -> None:
    led.cut("b", "c")
    led.happens(PeerChanged(node="a", state=Liveness.LOST, reason="left: stopped", is_certain=True))
    assert led.appointed() == {"home": 2}


def test_a_revoked_leader_is_replaced_though_it_is_away(led: Office) -> None:
    led.cut("a", "b", "c")
    led.happens(MemberHeld(node="a", hold="revoked", reason="lost"))
    assert led.appointed() == {"home": 2}


def test_an_operator_may_have_another_lead_while_the_leader_is_away(led: Office) -> None:
    led.cut("a", "b", "c")
    assert isinstance(led.asked(TransferJob(job="digits", node="home")), Done)
    assert led.appointed() == {"home": 2}


def test_what_a_leader_made_beyond_a_cut_is_adopted_if_nothing_was_made_since(replaced: Office) -> None:
    replaced.claim("a", told(1, 43, batches=120, workers=2, durable=3))
    assert replaced.told("b", StepDown)[0].term == 2
    assert replaced.told("a", HandOver) == [
        HandOver(
            job="digits",
            term=1,
            reason="it led on out of reach, and is led again from what it made",
            version_least=0,
        )
    ]
    assert replaced.records("version.discarded") == []
    replaced.says("a", Checkpoint(job="digits", term=1, version=43, number=1))
    assert replaced.done(Store)
    replaced.happens(Stored(job="digits", term=1, version=43))
    assert replaced.told("a", CheckpointKept)[0].version == 43
    replaced.says("a", SteppedDown(job="digits", term=1, reason="handed over at version 43"))
    assert replaced.appointed() == {"a": 3}, "it goes on, under a term of its own"


def test_a_job_that_ended_beyond_a_cut_is_over(replaced: Office) -> None:
    replaced.claim("a", told(1, 43, batches=120, workers=2))
    replaced.says("a", Progress(job="digits", term=1, state=JobState.FINISHED, reason="2 of 2 epochs"))
    assert replaced.state == "finished"


def test_a_device_that_came_while_a_history_was_adopted_is_dismissed_when_the_job_is_over(replaced: Office) -> None:
    replaced.claim("a", told(1, 43, batches=120, workers=2))
    replaced.hello("z")
    replaced.says("z", LeaderUnreachable(job="digits", term=0, reason="its leader is not here any more"))
    assert replaced.told("z", Dismiss) == [], "the leader whose history is adopted may count on it"
    replaced.says("a", Progress(job="digits", term=1, state=JobState.FINISHED, reason="2 of 2 epochs"))
    assert [dismiss.job for dismiss in replaced.told("z", Dismiss)] == ["digits"]


def test_of_two_sides_that_trained_the_one_of_more_workers_is_kept(replaced: Office) -> None:
    replaced.says("b", made(2, 9, batches=40, workers=2, durable=8))
    replaced.claim("a", told(1, 43, batches=120, workers=1, durable=3))
    assert replaced.leader == ("b", 2)
    assert replaced.told("a", StepDown)
    why = "more workers count: 120 batches by 1 worker against 40 batches by 2 workers under newer terms"
    assert replaced.records("version.discarded") == [
        f"40 versions (4 to 43) that a made under term 1 out of reach (120 batches by 1 worker): {why}"
    ]
    (view,) = replaced.manager.job_views("digits")
    assert view.discarded == replaced.records("version.discarded")[0]


def test_what_fewer_workers_made_since_is_discarded_aloud_and_its_numbers_are_not_used_again(led: Office) -> None:
    led.says("a", made(1, 3, batches=6, workers=3, durable=3))
    led.lost("a")
    led.leads("b", term=2)
    led.hello("a")
    led.says("b", made(2, 9, batches=40, workers=1, durable=8))
    led.claim("a", told(1, 5, batches=10, workers=2, durable=3))
    assert led.told("a", HandOver)[0].version_least == 9
    assert led.records("version.discarded") == [
        "5 versions (4 to 8) made since under newer terms: a led on under term 1 with more"
    ]


def test_no_version_is_kept_while_an_older_leader_is_heard_out(replaced: Office) -> None:
    """It could be the job's last, and what more workers made would be discarded for it."""
    replaced.says("b", made(2, 5, batches=1, workers=1, durable=4))
    replaced.says("a", told(1, 12, batches=10, workers=4, durable=4))
    replaced.says("b", Checkpoint(job="digits", term=2, version=5, number=1))
    assert replaced.done(Store) == []
    assert [refused.reason for refused in replaced.told("b", CheckpointRefused)] == [
        "a leader of an older term is heard out first"
    ]
    replaced.timer("claim digits")
    assert replaced.told("a", HandOver)[0].term == 1
    replaced.says("a", Checkpoint(job="digits", term=1, version=12, number=1))
    assert replaced.done(Store), "its history is kept though others may claim theirs"


def test_versions_are_kept_again_once_an_older_leader_was_heard_out(replaced: Office) -> None:
    replaced.says("b", made(2, 9, batches=40, workers=2, durable=8))
    replaced.claim("a", told(1, 12, batches=10, workers=1, durable=4))
    assert replaced.told("a", StepDown)
    replaced.says("b", Checkpoint(job="digits", term=2, version=9, number=1))
    assert replaced.done(Store)


@pytest.fixture
def led_at_home(make_spec: Make) -> Office:
    """A led it and was cut off, b led it and left: the manager's node leads it under term 3."""
    office = Office(prefers_devices=True)
    office.hello("a", "b")
    office.submit(make_spec())
    office.leads("a")
    office.lost("a")
    office.leads("b", term=2)
    office.happens(PeerChanged(node="b", state=Liveness.LOST, reason="left", is_certain=True))
    assert office.leader == ("home", 3)
    return office


def test_a_leader_at_home_hands_over_before_another_history_is_adopted(led_at_home: Office) -> None:
    led_at_home.hello("a")
    led_at_home.claim("a", told(1, 43, batches=120, workers=2))
    assert led_at_home.told("home", HandOver)
    assert led_at_home.told("a", HandOver) == []
    led_at_home.says("home", SteppedDown(job="digits", term=3, reason="handed over at version 0"))
    assert led_at_home.told("a", HandOver)[0].term == 1


def test_a_leader_at_home_that_made_more_until_it_handed_over_is_kept(led_at_home: Office) -> None:
    """Its workers brought in what they had been lent while it handed over."""
    led_at_home.hello("a")
    led_at_home.says("home", made(3, 9, batches=5, workers=2, durable=9))
    led_at_home.claim("a", told(1, 43, batches=120, workers=2, durable=3))
    assert led_at_home.told("home", HandOver)
    led_at_home.says("home", made(3, 14, batches=15, workers=5, durable=14))
    led_at_home.says("home", SteppedDown(job="digits", term=3, reason="handed over at version 14"))
    assert led_at_home.told("a", HandOver) == []
    assert led_at_home.told("a", StepDown)[0].term == 1
    why = "more workers count: 120 batches by 2 workers against 15 batches by 5 workers under newer terms"
    assert led_at_home.records("version.discarded") == [
        f"40 versions (4 to 43) that a made under term 1 out of reach (120 batches by 2 workers): {why}"
    ]
    assert led_at_home.leader[1] == 4, "another term begins with what was kept"


def test_a_leader_of_a_term_between_is_weighed_against_the_history_that_was_adopted(led: Office) -> None:
    """Of three leaders that trained apart, the one with the most workers is kept, in whatever order they come back."""
    led.lost("a")
    led.leads("b", term=2)
    led.lost("b")
    led.leads("c", term=3)
    led.says("c", made(3, 5, batches=1, workers=1, durable=3))
    led.hello("a")
    led.claim("a", told(1, 5, batches=3, workers=3, durable=3))
    led.says("a", Checkpoint(job="digits", term=1, version=5, number=1))
    led.happens(Stored(job="digits", term=1, version=5))
    led.says("a", SteppedDown(job="digits", term=1, reason="handed over at version 5"))
    assert led.leader == ("a", 4)
    led.hello("b")
    led.claim("b", told(2, 7, batches=6, workers=2, durable=3))
    assert led.leader == ("a", 4)
    assert led.told("b", StepDown)
    assert (
        "more workers count: 6 batches by 2 workers against 3 batches by 3 workers"
        in led.records("version.discarded")[-1]
    )


def test_workers_of_two_leaders_after_each_other_count_together(led: Office) -> None:
    """Each of the two led one worker: together they had two, and more workers count."""
    led.lost("a")
    led.leads("b", term=2)
    led.says("b", made(2, 5, batches=2, workers=1, durable=5, names=["b"]))
    led.lost("b")
    led.leads("c", term=3)
    led.says("c", made(3, 7, batches=2, workers=1, durable=7, names=["c"]))
    led.hello("a")
    led.claim("a", told(1, 12, batches=9, workers=1, durable=3))
    assert led.leader == ("c", 3)
    assert led.told("a", StepDown)
    assert (
        "more workers count: 9 batches by 1 worker against 4 batches by 2 workers"
        in led.records("version.discarded")[-1]
    )


def test_a_worker_of_two_leaders_after_each_other_counts_once(led: Office) -> None:
    led.lost("a")
    led.leads("b", term=2)
    led.says("b", made(2, 5, batches=2, workers=1, durable=5, names=["d"]))
    led.lost("b")
    led.leads("c", term=3)
    led.says("c", made(3, 7, batches=2, workers=1, durable=7, names=["d"]))
    led.hello("a")
    led.claim("a", told(1, 12, batches=9, workers=1, durable=3))
    assert "as many workers, more batches count" in led.records()[-2]
    assert led.told("a", HandOver)


def test_a_leader_that_was_given_up_is_heard_before_the_next_is_appointed(led: Office) -> None:
    """A version of it is being written, so no other leader is appointed yet: what it made is not lost."""
    led.says("a", Checkpoint(job="digits", term=1, version=5, number=1))
    led.lost("a")
    assert led.appointed() == {}
    led.hello("a")
    led.says("a", told(1, 9, batches=4, workers=2, durable=5))
    assert led.told("a", StepDown) == []
    led.happens(Stored(job="digits", term=1, version=5))
    assert led.leader[1] == 2, "another one is appointed now"
    led.timer("claim digits")
    assert led.told("a", HandOver)[0].term == 1
    assert led.records("version.discarded") == []


def test_a_history_is_adopted_once_though_its_leader_reports_until_it_hands_over(led_at_home: Office) -> None:
    led_at_home.hello("a")
    led_at_home.claim("a", told(1, 43, batches=120, workers=2))
    led_at_home.says("a", told(1, 44, batches=121, workers=2))
    led_at_home.says("home", SteppedDown(job="digits", term=3, reason="handed over at version 0"))
    led_at_home.says("a", SteppedDown(job="digits", term=1, reason="handed over at version 44"))
    assert led_at_home.leader == ("a", 4)
    led_at_home.leads("a", term=4)
    led_at_home.timer("claim digits")
    assert led_at_home.leader == ("a", 4), "it leads on from what it made"
    assert led_at_home.told("a", StepDown) == []


def test_only_who_led_under_a_term_may_claim_what_was_made_under_it(replaced: Office) -> None:
    replaced.says("c", told(1, 43, batches=120, workers=9))
    assert replaced.told("c", StepDown)
    assert replaced.timer("claim digits") == []
    assert replaced.leader == ("b", 2)
    assert replaced.records("version.discarded") == [], "it made nothing, whatever it says"


def test_a_manager_that_starts_anew_knows_who_led_and_what_was_made_since(make_spec: Make) -> None:
    terms = {4: Term(node="a", began=0), 5: Term(node="b", began=10)}
    sides = sides_kept(terms, durable=30, between=lambda after, last: Side(batches=last - after, workers=2))
    assert sides == {4: Side(batches=10, workers=2), 5: Side(batches=20, workers=2)}
    office = returned(make_spec, term=5, leader="b", terms=terms, sides=sides, durable=30)
    office.hello("a")
    office.claim("a", told(4, 99, batches=500, workers=1, durable=10))
    assert office.records("version.discarded")[0].startswith("89 versions (11 to 99) that a made under term 4")
    office.claim("a", told(4, 99, batches=500, workers=3, durable=10))
    assert office.told("a", HandOver)[0].version_least == 31


def test_a_leader_that_does_not_hand_its_history_over_is_not_waited_for(replaced: Office) -> None:
    replaced.claim("a", told(1, 43, batches=120, workers=2))
    replaced.timer("adopting digits")
    assert replaced.told("a", StepDown)
    assert replaced.leader[1] == 3
