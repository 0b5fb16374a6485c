"""The manager: nodes, jobs, terms, and who works where."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from shoal.roles.actions import Action, Answer, Keep, Record, Send
from shoal.roles.events import LEFT, Asked, Heard, Liveness, PeerChanged, Received, Started
from shoal.roles.manager.cluster_state import JobRecord
from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import Patience
from shoal.states import JobState
from shoal.wire.messages import (
    PROTOCOL,
    AskStatus,
    Assign,
    Denied,
    Dismiss,
    Done,
    Facts,
    Heartbeat,
    Hello,
    JobSpec,
    Leads,
    Leave,
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
)

M = TypeVar("M", bound=Message)
Make = Callable[..., JobSpec]


class Office:
    """A manager, and what it just did."""

    def __init__(self, jobs: list[JobRecord] | None = None, *, prefers_devices: bool | None = None) -> None:
        self.manager = Manager(node="home", patience=Patience(), jobs=jobs, prefers_devices=prefers_devices)
        self.actions: list[Action] = []
        self.happens(Started())

    def happens(self, event: Any) -> list[Action]:
        self.actions = self.manager.handle(event, 0.0)
        return self.actions

    def hello(
        self, node: str, *, incarnation: str = "1", torch: str = "2.11", onnx: str = "", protocol: int = PROTOCOL
    ) -> None:
        facts = Facts(host=f"{node}.local", torch=torch, onnx=onnx)
        hello = Hello(node=node, incarnation=incarnation, facts=facts, protocol=protocol)
        self.happens(Received(sender=node, message=hello))

    def peer(self, node: str, state: Liveness, reason: str = "") -> None:
        self.happens(PeerChanged(node=node, state=state, reason=reason))

    def submit(self, spec: JobSpec) -> Message:
        self.happens(Asked(question=7, message=Submit(spec=spec)))
        return self.answer()

    def answer(self) -> Message:
        (answer,) = [action for action in self.actions if isinstance(action, Answer)]
        assert answer.question == 7
        return answer.message

    def progress(self, state: str, *, job: str = "digits", term: int = 1, sender: str = "home") -> None:
        self.happens(Received(sender=sender, message=Progress(job=job, term=term, state=state, reason="because")))

    def told(self, node: str, kind: type[M]) -> list[M]:
        sent = [action for action in self.actions if isinstance(action, Send) and action.to == node]
        return [action.message for action in sent if isinstance(action.message, kind)]

    def assigned(self) -> dict[str, str]:
        """Who was just made a worker of what."""
        sends = [action for action in self.actions if isinstance(action, Send)]
        assigns = [(send.to, send.message) for send in sends if isinstance(send.message, Assign)]
        return {to: assign.job for to, assign in assigns if assign.role == "worker"}

    def keeps(self) -> list[Keep]:
        return [action for action in self.actions if isinstance(action, Keep)]

    def records(self, kind: str) -> list[str]:
        return [action.reason for action in self.actions if isinstance(action, Record) and action.kind == kind]

    def working(self) -> dict[str, str]:
        return {view.node: view.job for view in self.manager.node_views()}


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def office_that_leads() -> Office:
    """The manager leads every job, sealed ones too."""
    return Office(prefers_devices=False)


# Nodes ---------------------------------------------------------------------------------------------


def test_a_node_is_welcomed(office: Office) -> None:
    office.hello("a")
    assert office.told("a", Welcome) == [Welcome(heartbeat_s=1.0, lost_after_s=8.0)]
    assert office.records("device.connected") == ["a connected from a.local"]
    (view,) = office.manager.node_views()
    assert (view.node, view.state, view.facts.torch) == ("a", "alive", "2.11")


def test_a_node_knows_its_roles_before_it_is_welcomed(office: Office, make_spec: Make) -> None:
    office.submit(make_spec())
    office.hello("a")
    kinds = [type(action.message).__name__ for action in office.actions if isinstance(action, Send)]
    assert kinds == ["Assign", "Welcome"]


def test_a_device_of_the_protocol_before_works_and_is_named(office: Office) -> None:
    office.hello("a", protocol=PROTOCOL - 1)
    office.hello("b")
    assert [view.protocol for view in office.manager.node_views()] == [PROTOCOL - 1, PROTOCOL]
    assert [view.state for view in office.manager.node_views()] == ["alive", "alive"]
    before = f"connected; speaks protocol {PROTOCOL - 1}, before this release's: upgrade it"
    assert [view.reason for view in office.manager.node_views()] == [before, "connected"]


@pytest.mark.parametrize(("spoken", "which"), [(PROTOCOL + 1, "the manager"), (PROTOCOL - 2, "this device")])
def test_another_protocol_is_refused_with_what_to_do(office: Office, spoken: int, which: str) -> None:
    office.hello("a", protocol=spoken)
    (dismiss,) = office.told("a", Dismiss)
    known = f"this cluster speaks {PROTOCOL - 1} and {PROTOCOL}"
    assert dismiss.reason == f"speaks protocol {spoken}, {known}: upgrade {which}"
    assert not office.told("a", Welcome)
    assert office.manager.node_views() == ()


def test_heartbeats_tell_how_a_node_is(office: Office) -> None:
    office.hello("a")
    office.happens(Received(sender="a", message=Heartbeat(seq=1, load=0.5, memory_free_mb=300)))
    (view,) = office.manager.node_views()
    assert (view.load, view.memory_free_mb) == (0.5, 300)
    assert office.happens(Received(sender="stranger", message=Heartbeat(seq=1))) == []
    news = ("a", 1.0, Heartbeat(seq=2, load=0.9, memory_free_mb=100))
    none = ("a", 2.0, Heartbeat(seq=3, is_same=True))
    assert office.happens(Heard(beats=(news, ("stranger", 1.5, none[2]), none))) == []
    (view,) = office.manager.node_views()
    assert (view.load, view.memory_free_mb) == (0.9, 100), "what is left out is as it was"


def test_a_node_without_torch_is_not_given_training(office: Office, make_spec: Make) -> None:
    office.submit(make_spec())
    office.hello("gateway", torch="")
    assert office.assigned() == {}
    assert "gateway connected from gateway.local; without PyTorch: it cannot train" in office.records(
        "device.connected"
    )


def test_a_node_with_onnxruntime_alone_is_given_jobs_that_have_graphs(office: Office, make_spec: Make) -> None:
    office.submit(make_spec(job="plain"))
    office.hello("board", torch="", onnx="1.31")
    assert office.assigned() == {}
    office.hello("desk", onnx="1.31")
    assert office.assigned() == {"desk": "plain"}
    office.submit(dataclasses.replace(make_spec(job="portable"), graphs="1" * 64))
    assert office.assigned() == {"board": "portable"}


def tab(office: Office, name: str) -> None:
    facts = Facts(host="Chromium", onnx="1.30", browser="Chromium 156")
    office.happens(Received(sender=name, message=Hello(node=name, incarnation="1", facts=facts)))


def test_a_tab_is_given_jobs_that_a_tab_can_do_and_never_leads(office: Office, make_spec: Make) -> None:
    office.submit(make_spec(job="plain"))
    tab(office, "tab")
    assert office.assigned() == {}
    for number, choice in enumerate(({"codec": "bf16"}, {"topology": "tree"})):
        spec = dataclasses.replace(make_spec(job=f"odd-{number}", **choice), graphs="1" * 64)
        assert not spec.suits_tabs
        office.submit(spec)
        assert office.assigned() == {}
    suited = dataclasses.replace(make_spec(job="portable", shuffle="window"), graphs="1" * 64)
    assert suited.suits_tabs
    assert not dataclasses.replace(suited, base=("2" * 64,)).suits_tabs
    local = {"data": "local", "work": "sized"}
    assert dataclasses.replace(make_spec(**local, budget_s=1.0), graphs="1" * 64).suits_tabs
    for odd in ({"budget_joules": 1.0}, {"budget_s": 1.0, "share_labels": True, "labels_epsilon": 1.0}):
        assert not dataclasses.replace(make_spec(**local, **odd), graphs="1" * 64).suits_tabs
    office.submit(suited)
    assert office.assigned() == {"tab": "portable"}


def test_a_tab_whose_user_went_is_not_listed_and_not_lost(office: Office) -> None:
    tab(office, "tab")
    office.hello("pi")
    for node, kind in (("tab", "device.left"), ("pi", "device.lost")):
        office.happens(PeerChanged(node=node, state=Liveness.LOST, reason=f"{LEFT}stopped by its user"))
        assert kind in {action.kind for action in office.actions if isinstance(action, Record)}
    assert [view.node for view in office.manager.node_views()] == ["pi"]
    tab(office, "tab")
    office.happens(PeerChanged(node="tab", state=Liveness.ALIVE, reason="is here"))
    assert [view.node for view in office.manager.node_views()] == ["pi", "tab"]
    # One that fell silent is lost like any other.
    office.happens(PeerChanged(node="tab", state=Liveness.LOST, reason="connection closed"))
    assert [(view.node, view.state) for view in office.manager.node_views()] == [("pi", "lost"), ("tab", "lost")]


def test_where_devices_are_to_lead_a_tab_does_not(make_spec: Make) -> None:
    manager = Manager(node="home", patience=Patience(), prefers_devices=True)
    office = Office()
    office.manager = manager
    office.happens(Started())
    tab(office, "tab")
    office.submit(dataclasses.replace(make_spec(job="portable"), graphs="1" * 64))
    leads = [
        action.to
        for action in office.actions
        if isinstance(action, Send) and isinstance(action.message, Assign) and action.message.role == "leader"
    ]
    assert "tab" not in leads
    assert [view.leader for view in manager.job_views()] == ["home"]


def test_a_tab_leaves_a_job_whose_leader_moves_to_a_device(office: Office, make_spec: Make) -> None:
    """It could not dial that leader: once, it was sent there and waited for ever."""
    tab(office, "tab")
    office.hello("a")
    office.submit(dataclasses.replace(make_spec(job="digits", workers_min=1, workers_max=4), graphs="1" * 64))
    assert office.working()["tab"] == "digits"
    office.happens(Asked(question=7, message=TransferJob(job="digits", node="a")))
    office.happens(Received(sender="home", message=SteppedDown(job="digits", term=1, reason="handed over")))
    office.happens(Received(sender="a", message=Leads(job="digits", term=2, endpoint="a:9")))
    assert [each.job for each in office.told("tab", Dismiss)] == ["digits"]
    assert office.told("tab", Assign) == []
    assert not office.working()["tab"]
    # It is not given its place again when it comes back.
    facts = Facts(host="Chromium", onnx="1.30", browser="Chromium 156")
    office.happens(Received(sender="tab", message=Hello(node="tab", incarnation="1", facts=facts, jobs=("digits",))))
    assert office.told("tab", Assign) == []


def test_a_job_that_lives_on_tabs_keeps_its_leader_at_the_manager(make_spec: Make) -> None:
    """A device that leads would cost it the tabs, and it would wait for others for ever."""
    office = Office()
    office.manager = Manager(node="home", patience=Patience(), prefers_devices=True)
    office.happens(Started())
    tab(office, "t1")
    tab(office, "t2")
    office.submit(dataclasses.replace(make_spec(job="digits", workers_min=2, workers_max=4), graphs="1" * 64))
    assert office.working() == {"t1": "digits", "t2": "digits"}
    office.hello("d")
    assert [view.leader for view in office.manager.job_views()] == ["home"]
    assert office.working() == {"t1": "digits", "t2": "digits", "d": "digits"}


def test_a_tab_opens_no_sums(office: Office, make_spec: Make) -> None:
    office.submit(helped(make_spec, helper="tab"))
    tab(office, "tab")
    assert office.told("tab", Assign) == []


def test_a_plan_that_a_release_before_took_is_denied_for_a_new_job_only(office: Office, make_spec: Make) -> None:
    spec = make_spec(job="digits", share_labels=True)
    denied = office.submit(spec)
    assert isinstance(denied, Denied)
    assert "share_labels = True with data = 'shared': share_labels has no effect" in denied.reason
    again = Office([JobRecord(spec=spec, state=JobState.RUNNING, reason=None, term=1, leader=None)])
    assert [view.job for view in again.manager.job_views()] == ["digits"]


def test_a_node_is_not_called_back_for_a_job_that_it_has_no_engine_for(office: Office, make_spec: Make) -> None:
    for node in ("a", "b", "c"):
        office.hello(node, torch="", onnx="1.31")
    office.submit(dataclasses.replace(make_spec(job="portable", workers_max=4), graphs="1" * 64))
    office.submit(make_spec(job="plain", workers_min=1, workers_max=4))
    assert office.records("device.recalled") == []
    assert office.working() == dict.fromkeys(("a", "b", "c"), "portable")
    office.hello("d")
    assert office.assigned() == {"d": "plain"}


def test_a_suspect_keeps_its_job_and_a_lost_one_does_not(office: Office, make_spec: Make) -> None:
    office.submit(make_spec())
    office.hello("a")
    office.peer("a", Liveness.SUSPECT, "silent for 3.0 s")
    assert office.working() == {"a": "digits"}
    office.peer("a", Liveness.LOST, "silent for 8.0 s")
    assert office.working() == {"a": ""}
    assert office.records("device.lost") == ["a: silent for 8.0 s"]


def test_a_node_that_returns_is_given_its_place_again(office: Office, make_spec: Make) -> None:
    office.submit(make_spec())
    office.hello("a")
    office.peer("a", Liveness.SUSPECT, "reset")
    office.hello("a")
    assert office.assigned() == {"a": "digits"}, "it may have forgotten"
    office.peer("a", Liveness.LOST, "silent")
    office.peer("a", Liveness.ALIVE, "connected")
    assert office.assigned() == {"a": "digits"}
    office.hello("a", incarnation="2")
    assert office.records("device.connected") == ["a restarted from a.local"]


def test_the_place_of_a_lost_node_goes_to_another_and_it_is_dismissed_when_it_returns(
    office: Office, make_spec: Make
) -> None:
    office.submit(make_spec(workers_max=1))
    office.hello("a")
    office.hello("b")
    assert office.working() == {"a": "digits", "b": ""}
    office.peer("a", Liveness.LOST, "silent")
    assert office.assigned() == {"b": "digits"}
    # Its worker still believes in its lease: it must hear that it is over, also on the connection it always had.
    office.peer("a", Liveness.ALIVE, "connected")
    assert [dismiss.job for dismiss in office.told("a", Dismiss)] == ["digits"]
    # Its leader may have heard of it first, and would list it as ready for ever.
    assert [(bar.job, bar.node) for bar in office.told("home", Revoke)] == [("digits", "a")]
    office.hello("a")
    assert [dismiss.job for dismiss in office.told("a", Dismiss)] == ["digits"]
    assert office.told("a", Welcome)


def test_a_node_that_was_lost_while_its_job_ended_is_told_so_when_it_returns(office: Office, make_spec: Make) -> None:
    office.submit(make_spec())
    office.hello("a")
    office.peer("a", Liveness.LOST, "silent")
    office.progress("finished")
    assert office.told("a", Dismiss) == []
    # What it said to its leader meanwhile was not heard: without this it waits for an answer for ever.
    office.peer("a", Liveness.ALIVE, "connected")
    assert [dismiss.job for dismiss in office.told("a", Dismiss)] == ["digits"]
    office.peer("a", Liveness.SUSPECT, "silent")
    office.peer("a", Liveness.ALIVE, "back")
    assert office.told("a", Dismiss) == [], "once is enough"


def test_a_node_works_for_one_job_at_a_time(office: Office, make_spec: Make) -> None:
    office.submit(make_spec(job="one"))
    office.submit(make_spec(job="two"))
    office.hello("a")
    assert office.assigned() == {"a": "one"}
    # After a restart of the manager it may come with a worker of the other job.
    assert [dismiss.job for dismiss in office.told("a", Dismiss)] == ["two"]


# Jobs ----------------------------------------------------------------------------------------------


def test_a_job_is_kept_before_it_is_acknowledged_and_its_term_before_it_is_led(office: Office, make_spec: Make) -> None:
    spec = make_spec()
    assert office.submit(spec) == Done(job="digits", reason="queued")
    kinds = [type(action).__name__ for action in office.actions]
    assert kinds == ["Keep", "Answer", "Keep", "Record", "Send"]
    first, second = office.keeps()
    assert (first.state, first.term, first.spec) == ("queued", 0, spec)
    assert (second.state, second.term, second.spec) == ("running", 1, None)
    (assign,) = office.told("home", Assign)
    assert (assign.role, assign.term, assign.leader) == ("leader", 1, "home")
    assert office.manager.spec("digits") == spec
    assert office.manager.spec("other") is None


def test_the_same_submission_twice_is_one_job(office: Office, make_spec: Make) -> None:
    office.submit(make_spec())
    assert office.submit(make_spec()) == Done(job="digits", reason="running")
    assert len(office.actions) == 1
    assert office.submit(make_spec(examples=9)) == Denied(reason="there is a job digits already")


def test_jobs_get_their_least_first_and_the_earlier_is_filled_then(office: Office, make_spec: Make) -> None:
    for node in ("a", "b", "c", "d", "e"):
        office.hello(node)
    office.submit(make_spec(job="one", workers_min=2, workers_max=2))
    assert office.assigned() == {"a": "one", "b": "one"}
    office.submit(make_spec(job="two", workers_min=1, workers_max=9))
    assert office.assigned() == {"c": "two", "d": "two", "e": "two"}
    office.hello("f")
    assert office.assigned() == {"f": "two"}
    office.peer("a", Liveness.LOST, "silent")
    assert office.assigned() == {}, "nobody is free"
    office.hello("g")
    assert office.assigned() == {"g": "one"}, "the earlier job lacks its least"


def test_the_end_of_a_job_frees_its_workers_for_the_next(office: Office, make_spec: Make) -> None:
    office.hello("a")
    office.submit(make_spec(job="digits"))
    office.submit(make_spec(job="next"))
    office.progress("finished")
    (keep,) = office.keeps()
    assert (keep.job, keep.state, keep.reason) == ("digits", "finished", "because")
    assert office.told("a", Dismiss) == [Dismiss(job="digits", reason="because")]
    assert office.assigned() == {"a": "next"}
    office.progress("finished")
    assert office.actions == [], "an end is an end"
    assert [view.state for view in office.manager.job_views()] == ["finished", "running"]


@pytest.mark.parametrize("wrong", [{"sender": "a"}, {"term": 2}, {"term": 0}, {"job": "other"}])
def test_only_the_leader_of_this_term_tells_how_a_job_stands(
    office: Office, make_spec: Make, wrong: dict[str, Any]
) -> None:
    office.submit(make_spec())
    office.progress("finished", **wrong)
    # One elsewhere that thinks it leads is told that it does not; at home there is nobody left to tell.
    fenced = [StepDown(job="digits", term=1, reason="home leads it under term 1")] if "sender" in wrong else []
    assert [action.message for action in office.actions if isinstance(action, Send)] == fenced
    assert not office.keeps()
    (view,) = office.manager.job_views("digits")
    assert (view.state, view.progress) == ("running", None)


def test_progress_is_shown(office: Office, make_spec: Make) -> None:
    office.submit(make_spec())
    office.progress("training")
    assert office.actions == []
    (view,) = office.manager.job_views()
    assert view.progress is not None
    assert view.progress.state == "training"
    assert (view.state, view.leader, view.train_examples) == ("running", "home", 4)


def test_stopping_goes_through_the_leader_who_saves_first(office: Office, make_spec: Make) -> None:
    office.submit(make_spec())
    office.happens(Asked(question=7, message=StopJob(job="digits", reason="enough")))
    assert office.answer() == Done(job="digits", reason="stopping: the last version is being saved")
    assert office.told("home", StopRequest) == [StopRequest(job="digits", reason="enough")]
    office.progress("stopped")
    office.happens(Asked(question=7, message=StopJob(job="digits")))
    assert office.answer() == Denied(reason="job digits is stopped already")
    office.happens(Asked(question=7, message=StopJob(job="none")))
    assert office.answer() == Denied(reason="there is no job none")


def test_a_manager_that_returns_leads_open_jobs_under_a_new_term(make_spec: Make) -> None:
    stored = [
        JobRecord(spec=make_spec(job="done"), state=JobState.FINISHED, term=1),
        JobRecord(spec=make_spec(job="open"), state=JobState.RUNNING, term=4),
    ]
    office = Office(stored)
    (assign,) = office.told("home", Assign)
    assert (assign.job, assign.term) == ("open", 5)
    keep_at = next(i for i, action in enumerate(office.actions) if isinstance(action, Keep))
    send_at = next(i for i, action in enumerate(office.actions) if isinstance(action, Send))
    assert keep_at < send_at, "the term is durable before anyone leads under it"
    office.hello("a")
    assert office.assigned() == {"a": "open"}


def test_commands_it_does_not_know_are_denied(office: Office) -> None:
    office.happens(Asked(question=7, message=AskStatus()))
    assert office.answer() == Denied(reason="not a command the manager knows")
    assert office.happens(Received(sender="a", message=Leave(reason=""))) == []


def test_a_job_below_its_least_number_gets_workers_that_another_has_beyond_its_own(
    office: Office, make_spec: Make
) -> None:
    for node in ("a", "b", "c", "d"):
        office.hello(node)
    office.submit(make_spec(job="first", workers_min=1, workers_max=4))
    office.submit(make_spec(job="second", workers_min=2, workers_max=4))
    assert [told.partition(":")[0] for told in office.records("device.recalled")] == ["d", "c"], "as many as it lacks"
    assert [release.node for release in office.told("home", Release)] == ["d", "c"]
    for node in ("d", "c"):
        office.happens(Received(sender="home", message=Released(job="first", term=1, node=node)))
        assert office.records("device.recalled") == [], "one that was let go is on its way"
        office.happens(Received(sender=node, message=Heartbeat(seq=1)))
    assert office.working() == {"a": "first", "b": "first", "c": "second", "d": "second"}


def test_a_job_keeps_its_least_however_much_another_lacks(office: Office, make_spec: Make) -> None:
    """Those that were called back before counted as left, and the last one was called back too."""
    for node in ("a", "b", "c", "d"):
        office.hello(node)
    office.submit(make_spec(job="first", workers_min=1, workers_max=4))
    office.submit(make_spec(job="second", workers_min=3, workers_max=4))
    assert [release.node for release in office.told("home", Release)] == ["d", "c", "b"]
    office.hello("a")
    assert office.told("home", Release) == []


def test_since_when_a_job_stands_so_is_by_the_managers_own_clock(office: Office, make_spec: Make) -> None:
    """Spans on the manager's clock: from when it first heard of a state, not of each report of it."""

    def at(now_s: float, state: str, term: int = 1) -> None:
        message = Progress(job="digits", term=term, state=state)
        office.manager.handle(Received(sender="home", message=message), now_s)

    def shown(now_s: float) -> tuple[float, float]:
        (view,) = office.manager.job_views("digits", now_s=now_s)
        return view.since_s, view.heard_s

    office.submit(make_spec())
    assert shown(4.0) == (4.0, -1.0)
    at(10.0, "waiting")
    at(11.0, "waiting")
    assert shown(12.5) == (2.5, 1.5)
    at(13.0, "training")
    assert shown(13.0) == (0.0, 0.0)
    office.manager.handle(Asked(question=7, message=StopJob(job="digits", reason="enough")), 20.0)
    at(21.0, "closing")
    assert shown(25.0) == (5.0, 4.0), "it is stopping since it was stopped"
    at(30.0, "stopped")
    assert shown(31.0) == (1.0, 1.0)


def test_a_manager_that_begins_anew_does_not_know_since_when(make_spec: Make) -> None:
    before = Progress(job="digits", term=1, state="training")
    office = Office([JobRecord(spec=make_spec(), state=JobState.RUNNING, term=1, leader="pi", progress=before)])
    (view,) = office.manager.job_views("digits", now_s=9.0)
    assert (view.since_s, view.heard_s) == (-1.0, -1.0)


# The helper of a job with sealed sums -----------------------------------------------------------------


def helped(make_spec: Make, job: str = "digits", helper: str = "c", **plan: Any) -> JobSpec:
    sealed = {"trust": f"sealed(3, helper={helper})", "data": "local", "workers_min": 3, "workers_max": 3}
    return make_spec(job=job, **{**sealed, **plan})


def test_a_helper_is_given_to_its_job_beside_the_workers(office_that_leads: Office, make_spec: Make) -> None:
    office = office_that_leads
    for node in "abcde":
        office.hello(node)
    office.submit(helped(make_spec))
    assert office.assigned() == dict.fromkeys("abcd", "digits")
    assert office.records("device.assigned")[0] == "c: it opens the sums of this job, and trains nothing for it"
    assert office.records("device.assigned")[-1] == "d: worker 3 of up to 3"
    assert office.working()["e"] == ""


def test_a_helper_that_comes_later_or_has_no_engine_is_given_to_its_job(
    office_that_leads: Office, make_spec: Make
) -> None:
    office = office_that_leads
    for node in "abd":
        office.hello(node)
    office.submit(helped(make_spec))
    assert office.assigned() == dict.fromkeys("abd", "digits")
    office.hello("c", torch="")
    assert office.assigned() == {"c": "digits"}
    office.peer("c", Liveness.LOST, "silent")
    office.hello("c", incarnation="2", torch="")
    assert office.assigned() == {"c": "digits"}


def test_a_job_that_trains_with_the_helper_of_another_lets_it_go(office_that_leads: Office, make_spec: Make) -> None:
    office = office_that_leads
    office.submit(make_spec(job="first", workers_max=5))
    for node in "abcde":
        office.hello(node)
    office.submit(helped(make_spec))
    assert "c: another job has it as its helper" in office.records("device.recalled")
    assert "c" in [release.node for release in office.told("home", Release)]
    office.happens(Received(sender="home", message=Released(job="first", term=1, node="c")))
    office.happens(Heard(beats=(("c", 1.0, Heartbeat(seq=1)),)))
    assert office.working()["c"] == "digits"
    office.submit(helped(make_spec, job="third"))
    assert not any("helper" in told for told in office.records("device.recalled")), "it helps one job at a time"


def test_a_helper_leads_nothing_that_it_helps(make_spec: Make) -> None:
    office = Office()
    office.manager = Manager(node="home", patience=Patience(), prefers_devices=True)
    office.happens(Started())
    office.hello("c")
    office.submit(helped(make_spec))
    (view,) = office.manager.job_views("digits", now_s=0.0)
    assert view.leader == "home", "no other device could"
    office.happens(Asked(question=7, message=TransferJob(job="digits", node="c")))
    answer = office.answer()
    assert isinstance(answer, Denied)
    assert "would see every update" in answer.reason


def test_the_managers_own_node_is_no_helper(office: Office, make_spec: Make) -> None:
    answer = office.submit(helped(make_spec, helper="home"))
    assert isinstance(answer, Denied)
    assert "name a helper of somebody else" in answer.reason
