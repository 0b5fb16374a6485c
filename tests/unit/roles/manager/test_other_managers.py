"""A manager beside others: it takes over jobs, sends devices to the manager of their job, and lends out free ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from shoal.roles.actions import Action, Answer, GiveJob, Keep, Record, Send, Store
from shoal.roles.events import (
    Asked,
    Heard,
    JobGiven,
    JobTaken,
    Liveness,
    OtherManager,
    OtherManagersSeen,
    PeerChanged,
    Received,
    Started,
    Stored,
    TimerFired,
)
from shoal.roles.manager.cluster_state import JobRecord
from shoal.roles.manager.failover import MISSED_S
from shoal.roles.manager.manager import Manager
from shoal.roles.manager.moving import AGAIN_S, WAITS_S
from shoal.roles.manager.other_managers import (
    COMES_WITHIN_S,
    IN_VAIN_WITHIN_S,
    KEPT_S,
    ON_ITS_WAY_S,
    STAYS_S,
    kept_for_s,
)
from shoal.roles.node.failure_detector import RESTARTED, Patience
from shoal.states import JobState
from shoal.wire.messages import (
    AskCheckpoint,
    Assign,
    Checkpoint,
    Denied,
    Dismiss,
    Facts,
    HandOver,
    Heartbeat,
    Hello,
    JobSpec,
    Leads,
    Progress,
    Release,
    Released,
    StepDown,
    SteppedDown,
    StopJob,
    Submit,
    Welcome,
)

Make = Callable[..., JobSpec]

OTHER = "b:7070"


class Place:
    """A manager, and what it said last."""

    def __init__(self, **options: Any) -> None:
        self.manager = Manager(node="home", patience=Patience(), **options)
        self.now_s = 0.0
        self.said: list[Action] = []
        self.happens(Started())

    def happens(self, event: Any) -> None:
        self.said = self.manager.handle(event, self.now_s)

    def hello(self, node: str, *, incarnation: str = "1", **told: Any) -> None:
        message = Hello(node=node, incarnation=incarnation, facts=Facts(host=node, torch="2.13"), **told)
        self.happens(Received(sender=node, message=message))

    def sees(self, *, wants: int = 0, starving: int = 0, **jobs: str) -> None:
        there = (OtherManager(endpoint=OTHER, wants=wants, starving=starving),)
        self.happens(OtherManagersSeen(managers=there, jobs=jobs))

    def is_drained(self, *others: str, is_drained: bool = True) -> None:
        """``others``: managers that take jobs."""
        there = tuple(OtherManager(endpoint=endpoint) for endpoint in others)
        self.happens(OtherManagersSeen(managers=there, is_drained=is_drained))

    def gives(self) -> dict[str, str]:
        """Job that was given away just now -> the manager it goes to."""
        return {a.job: a.endpoint for a in self.said if isinstance(a, GiveJob)}

    def submit(self, spec: JobSpec) -> None:
        self.happens(Asked(question=1, message=Submit(spec=spec)))

    def told(self, node: str, kind: type) -> list[Any]:
        return [a.message for a in self.said if isinstance(a, Send) and a.to == node and isinstance(a.message, kind)]

    def sent_away(self) -> dict[str, str]:
        """Node -> the manager that it was just sent to."""
        dismissals = [(a.to, a.message) for a in self.said if isinstance(a, Send) and isinstance(a.message, Dismiss)]
        return {to: message.endpoint for to, message in dismissals if not message.job and message.endpoint}

    def working(self) -> dict[str, str]:
        return {view.node: view.job for view in self.manager.node_views()}


# Devices that were sent to another manager ------------------------------------------------------------------------


def test_a_device_that_was_sent_away_is_elsewhere_until_it_should_have_come() -> None:
    place = Place()
    place.hello("pi")
    place.sees(starving=1)
    assert place.sent_away() == {"pi": OTHER}
    place.happens(PeerChanged(node="pi", state=Liveness.LOST, reason="left: another manager has work"))
    (view,) = place.manager.node_views(now_s=1.0)
    assert (view.state, view.manager, view.reason) == ("elsewhere", OTHER, f"sent to the manager at {OTHER}")
    mark = place.manager.node_marks(now_s=1.0)["pi"]
    assert not mark.is_here
    (view,) = place.manager.node_views(now_s=COMES_WITHIN_S)
    assert (view.state, view.manager) == ("lost", "")
    assert place.manager.node_marks(now_s=COMES_WITHIN_S)["pi"] != mark, "others are told"
    place.hello("pi")
    (view,) = place.manager.node_views(now_s=1.0)
    assert (view.state, view.manager) == ("alive", "")
    place.happens(PeerChanged(node="pi", state=Liveness.LOST, reason="silent for 6.0 s"))
    (view,) = place.manager.node_views(now_s=1.0)
    assert view.state == "lost", "it came back, and was lost here"


# Devices that work for a job of another manager -------------------------------------------------------------------


def test_a_worker_is_sent_to_the_manager_of_its_job() -> None:
    place = Place()
    place.sees(faces=OTHER)
    place.hello("pi", jobs=("faces",))
    assert place.sent_away() == {"pi": OTHER}
    assert not place.told("pi", Welcome), "its worker would speak to a leader that is not here"
    assert not place.manager.knows("pi")


def test_a_leader_is_sent_to_the_manager_of_its_job_and_not_told_to_step_down() -> None:
    place = Place()
    place.sees(faces=OTHER)
    leads = Leads(job="faces", term=3, endpoint="pi:9")
    place.hello("pi", leads=(leads,))
    assert place.sent_away() == {"pi": OTHER}
    # What it says before it has gone is for that manager.
    place.happens(Received(sender="pi", message=leads))
    assert place.said == []


def test_a_device_whose_job_has_no_manager_yet_tries_again() -> None:
    place = Place()
    place.sees(faces="")
    place.hello("pi", jobs=("faces",))
    (told,) = place.told("pi", Dismiss)
    assert (told.job, told.endpoint) == ("", "")
    assert "no manager has job faces" in told.reason


def test_a_device_whose_job_is_over_is_like_any_other() -> None:
    place = Place()
    place.sees()
    place.hello("pi", jobs=("faces",))
    assert place.told("pi", Welcome)


def test_a_device_of_a_job_here_lets_go_of_what_others_have(make_spec: Make) -> None:
    place = Place()
    place.submit(make_spec(workers_min=1))
    place.sees(faces=OTHER, voices=OTHER)
    lead = Leads(job="voices", term=2, endpoint="pi:9")
    place.hello("pi", jobs=("digits", "faces"))
    assert place.told("pi", Assign)
    assert [message.job for message in place.told("pi", Dismiss)] == ["faces"]
    place.hello("pi", jobs=("digits",), leads=(lead,))
    assert place.sent_away() == {"pi": OTHER}, "who leads goes where it leads"


def test_a_device_that_leads_here_steps_down_elsewhere(make_spec: Make) -> None:
    place = Place(jobs=[led(make_spec())])
    place.sees(voices=OTHER)
    mine, theirs = (Leads(job=job, term=4, endpoint="pi:9") for job in ("digits", "voices"))
    place.hello("pi", leads=(mine, theirs))
    (told,) = place.told("pi", StepDown)
    assert (told.job, told.term) == ("voices", 4)


# Jobs that are taken over -----------------------------------------------------------------------------------------


def led(spec: JobSpec, by: str = "pi") -> JobRecord:
    return JobRecord(spec=spec, state=JobState.RUNNING, term=4, leader=by)


def test_a_job_that_was_led_by_a_manager_is_led_here_under_a_new_term(make_spec: Make) -> None:
    place = Place()
    place.sees(digits="")
    place.happens(JobTaken(record=led(make_spec(workers_min=1), by="home")))
    (keep,) = [action for action in place.said if isinstance(action, Keep)]
    assert (keep.term, keep.leader) == (5, "home")
    # A worker of it comes back to it, though another job here would take it too.
    place.submit(make_spec(job="another", workers_min=1))
    place.hello("pi", jobs=("digits",))
    assert place.working() == {"pi": "digits"}


def test_a_leader_on_a_device_is_waited_for(make_spec: Make) -> None:
    place = Place()
    place.happens(JobTaken(record=led(make_spec(workers_min=1))))
    assert not [action for action in place.said if isinstance(action, Keep)]
    place.hello("pi", leads=(Leads(job="digits", term=4, endpoint="pi:9"),))
    assert not place.told("pi", StepDown)
    assert place.manager.job_views("digits")[0].leader == "pi"
    # One that is not heard of is replaced, and others that are waited for have their own time.
    other = Place()
    other.happens(JobTaken(record=led(make_spec())))
    other.now_s = MISSED_S
    other.happens(JobTaken(record=led(make_spec(job="faces"), by="w2")))
    other.happens(TimerFired(name="missed digits", late_s=0.0))
    given_up = {action.job for action in other.said if isinstance(action, Record) and "not heard of" in action.reason}
    assert given_up == {"digits"}


def test_the_end_of_a_session_from_before_the_takeover_says_nothing_of_a_leader(make_spec: Make) -> None:
    """It had been sent on to the manager that died, and comes back."""
    place = Place()
    place.hello("pi")
    place.happens(PeerChanged(node="pi", state=Liveness.SUSPECT, reason="dismissed"))
    place.happens(JobTaken(record=led(make_spec(workers_min=1))))
    place.happens(PeerChanged(node="pi", state=Liveness.LOST, reason="no reconnect within 1.5 s"))
    assert not [action for action in place.said if isinstance(action, Keep)]
    place.hello("pi", leads=(Leads(job="digits", term=4, endpoint="pi:9"),))
    assert place.manager.job_views("digits")[0].leader == "pi"
    # Now the manager has heard it lead, and its end is its end.
    place.hello("b")
    place.happens(PeerChanged(node="pi", state=Liveness.LOST, reason="silent"))
    assert [action for action in place.said if isinstance(action, Keep)]


def test_a_leader_that_this_manager_knew_as_another_process_is_waited_for(make_spec: Make) -> None:
    """It was started again while it was another manager's, and leads since then."""
    place = Place()
    place.hello("pi")
    place.happens(JobTaken(record=led(make_spec(workers_min=1))))
    place.happens(PeerChanged(node="pi", state=Liveness.LOST, reason=RESTARTED, is_certain=True))
    assert not [action for action in place.said if isinstance(action, Keep)]
    leads = (Leads(job="digits", term=4, endpoint="pi:9"),)
    message = Hello(node="pi", incarnation="2", facts=Facts(host="pi", torch="2.13"), leads=leads)
    place.happens(Received(sender="pi", message=message))
    assert place.manager.job_views("digits")[0].leader == "pi"
    assert not place.told("pi", StepDown)
    # One that does not say that it leads has given it up with its old process.
    other = Place()
    other.hello("pi")
    other.happens(JobTaken(record=led(make_spec(workers_min=1))))
    other.happens(PeerChanged(node="pi", state=Liveness.LOST, reason=RESTARTED, is_certain=True))
    other.happens(Received(sender="pi", message=dataclasses.replace(message, leads=())))
    assert [action for action in other.said if isinstance(action, Keep)]


def test_a_look_at_the_store_from_before_the_takeover_is_not_believed(make_spec: Make) -> None:
    place = Place()
    place.happens(JobTaken(record=led(make_spec(workers_min=1))))
    place.sees(digits="", faces=OTHER)
    place.hello("pi", leads=(Leads(job="digits", term=4, endpoint="pi:9"),))
    assert place.told("pi", Welcome)
    assert not place.told("pi", Dismiss)
    assert place.manager.job_views("digits")[0].leader == "pi"


def test_a_node_that_was_appointed_elsewhere_is_sent_there(make_spec: Make) -> None:
    """It does not lead yet, so its hello said nothing of it."""
    place = Place()
    place.hello("pi")
    place.sees(faces=OTHER)
    asks = Received(sender="pi", message=AskCheckpoint(job="faces", term=1))
    place.happens(asks)
    assert place.sent_away() == {"pi": OTHER}
    # One that works here meanwhile gives that up.
    busy = Place()
    busy.submit(make_spec(workers_min=1))
    busy.hello("pi")
    busy.sees(faces=OTHER)
    busy.happens(asks)
    assert [(message.job, message.term) for message in busy.told("pi", StepDown)] == [("faces", 1)]
    assert busy.sent_away() == {}


def test_a_job_that_was_taken_over_wants_no_devices_before_its_own_could_come(make_spec: Make) -> None:
    """Another job would give some up, and its own come a moment later."""
    place = Place()
    for name in ("a", "b"):
        place.hello(name)
    place.submit(make_spec(workers_min=1, workers_max=2))
    place.happens(JobTaken(record=led(make_spec(job="faces", workers_min=1, workers_max=2), by="home")))
    assert place.manager.needs == (0, 0)
    assert not [a for a in place.said if isinstance(a, Send) and isinstance(a.message, Release)]
    place.now_s = MISSED_S
    place.happens(TimerFired(name="missed faces"))
    assert place.manager.needs == (2, 1)
    assert len([a for a in place.said if isinstance(a, Send) and isinstance(a.message, Release)]) == 1


def test_a_job_is_taken_once(make_spec: Make) -> None:
    place = Place()
    place.happens(JobTaken(record=led(make_spec(), by="home")))
    place.happens(JobTaken(record=led(make_spec(), by="home")))
    assert place.said == []


def test_a_job_that_another_manager_has_is_not_submitted_again(make_spec: Make) -> None:
    place = Place()
    place.sees(digits=OTHER)
    place.submit(make_spec())
    assert place.manager.job_views() == ()


# Devices for the jobs of others -----------------------------------------------------------------------------------


def test_free_devices_go_where_jobs_lack_some_and_are_counted_on_their_way(make_spec: Make) -> None:
    place = Place()
    for name in ("a", "b", "c"):
        place.hello(name)
    place.sees(wants=2)
    assert place.sent_away() == {"a": OTHER, "b": OTHER}
    place.sees(wants=2)
    assert place.sent_away() == {}, "two are on their way"
    # None arrived: another one is sent. Those that stayed are free again.
    place.now_s = ON_ITS_WAY_S + 1
    place.happens(Heard(beats=(("a", place.now_s, Heartbeat(seq=1, is_idle=True)),)))
    assert place.sent_away() == {"c": OTHER}
    place.submit(make_spec(workers_min=1))
    assert place.working()["a"] == "digits"


def test_a_job_here_comes_first_and_one_about_to_begin_too(make_spec: Make) -> None:
    place = Place(prefers_devices=True)
    for name in ("a", "b", "c"):
        place.hello(name)
    place.submit(make_spec(workers_min=1, workers_max=2))
    place.sees(wants=9)
    assert place.sent_away() == {}, "the job has no leader yet: it may need any of them"
    leader = place.manager.job_views()[0].leader
    place.happens(Received(sender=leader, message=Leads(job="digits", term=1, endpoint=f"{leader}:9")))
    gone = set(place.sent_away())
    place.sees(wants=9)
    gone |= set(place.sent_away())
    assert len(gone) == 1
    assert leader not in gone


def test_a_tab_is_not_sent_where_it_cannot_dial() -> None:
    place = Place()
    facts = Facts(host="a", onnx="1.20", browser="Chromium 150")
    place.happens(Received(sender="a", message=Hello(node="a", incarnation="1", facts=facts)))
    place.sees(wants=1)
    assert place.sent_away() == {}


def test_a_helper_is_sent_to_the_manager_whose_sums_it_opens() -> None:
    """It started again and forgot its job, and the proxy brought it here: that job waited for ever."""
    place = Place()
    there = (OtherManager(endpoint=OTHER),)
    seen = OtherManagersSeen(managers=there, jobs={"digits": OTHER}, helpers={"digits": "b"})
    place.happens(seen)
    place.hello("a")
    place.hello("b")
    assert place.sent_away() == {"b": OTHER}
    place.hello("b")
    place.happens(dataclasses.replace(seen, jobs={"digits": ""}))
    place.hello("b")
    assert place.sent_away() == {}, "nobody has the job at this moment"


def test_a_helper_that_works_here_is_called_back_for_another_managers_job(make_spec: Make) -> None:
    place = Place()
    place.submit(make_spec(job="here", workers_min=1, workers_max=4))
    place.hello("a")
    place.hello("b")
    assert place.working()["b"] == "here"
    there = (OtherManager(endpoint=OTHER),)
    place.happens(OtherManagersSeen(managers=there, jobs={"digits": OTHER}, helpers={"digits": "b"}))
    assert [each.node for each in place.told("home", Release)] == ["b"]


def test_a_tab_is_not_called_back_for_the_jobs_of_others(make_spec: Make) -> None:
    place = Place()
    facts = Facts(host="t", onnx="1.20", browser="Chromium 150")
    place.submit(dataclasses.replace(make_spec(job="here", workers_min=1, workers_max=4), graphs="1" * 64))
    place.hello("a")
    place.happens(Received(sender="t", message=Hello(node="t", incarnation="1", facts=facts)))
    assert place.working() == {"a": "here", "t": "here"}
    place.sees(starving=1)
    assert [each.node for each in place.told("home", Release)] == ["a"]


def test_a_helper_that_leads_here_is_not_sent_away() -> None:
    """Its manager has to judge what it led first; the other one would send it back."""
    place = Place()
    there = (OtherManager(endpoint=OTHER),)
    place.happens(OtherManagersSeen(managers=there, jobs={"digits": OTHER}, helpers={"digits": "b"}))
    leads = (Leads(job="old", term=1, endpoint="b:9"),)
    facts = Facts(host="b", torch="2.13")
    place.happens(Received(sender="b", message=Hello(node="b", incarnation="1", facts=facts, leads=leads)))
    assert place.sent_away() == {}
    place.happens(Received(sender="b", message=SteppedDown(job="old", term=1, reason="told to")))
    assert place.sent_away() == {"b": OTHER}


def test_a_helper_that_led_here_is_sent_away_when_that_job_is_over(make_spec: Make) -> None:
    place = Place()
    place.submit(make_spec(job="here", workers_min=1, workers_max=1))
    place.hello("a")
    leads = (Leads(job="here", term=1, endpoint="b:9"),)
    facts = Facts(host="b", torch="2.13")
    place.happens(Received(sender="b", message=Hello(node="b", incarnation="1", facts=facts, leads=leads)))
    there = (OtherManager(endpoint=OTHER),)
    place.happens(OtherManagersSeen(managers=there, jobs={"digits": OTHER}, helpers={"digits": "b"}))
    assert place.sent_away() == {}
    place.happens(Received(sender="home", message=Progress(job="here", term=1, state="finished", reason="done")))
    assert place.sent_away() == {"b": OTHER}


def test_a_tab_whose_job_another_manager_has_stays_and_leaves_the_job() -> None:
    place = Place()
    place.sees(digits=OTHER)
    facts = Facts(host="a", onnx="1.20", browser="Chromium 150")
    place.happens(Received(sender="a", message=Hello(node="a", incarnation="1", facts=facts, jobs=("digits",))))
    assert [(each.job, each.endpoint) for each in place.told("a", Dismiss)] == [("digits", "")]
    assert place.told("a", Welcome)


def test_a_device_that_was_sent_here_stays_for_a_while() -> None:
    place = Place()
    place.hello("a", is_referred=True)
    place.sees(wants=1)
    assert place.sent_away() == {}
    place.now_s = STAYS_S + 1
    place.sees(wants=1)
    assert place.sent_away() == {"a": OTHER}


def test_a_device_that_was_sent_here_and_worked_may_go_on(make_spec: Make) -> None:
    place = Place()
    place.submit(make_spec(workers_min=1, workers_max=1))
    place.hello("a", is_referred=True)
    assert place.working() == {"a": "digits"}
    place.happens(Received(sender="home", message=Progress(job="digits", term=1, state="finished", reason="done")))
    place.sees(wants=1)
    assert place.sent_away() == {"a": OTHER}


def test_a_starving_job_elsewhere_gets_what_a_job_here_can_spare(make_spec: Make) -> None:
    place = Place()
    for name in ("a", "b", "c"):
        place.hello(name)
    place.submit(make_spec(workers_min=1, workers_max=3))
    assert place.manager.needs == (0, 0)
    place.sees(starving=1, wants=5)
    released = [a.message for a in place.said if isinstance(a, Send) and isinstance(a.message, Release)]
    assert len(released) == 1
    node = released[0].node
    place.happens(Received(sender="home", message=Released(job="digits", term=1, node=node)))
    place.happens(Heard(beats=((node, 1.0, Heartbeat(seq=1, is_idle=True)),)))
    assert place.sent_away() == {node: OTHER}


def test_what_is_lacking_here_is_told(make_spec: Make) -> None:
    place = Place()
    place.submit(make_spec(workers_min=2, workers_max=5))
    assert place.manager.needs == (5, 2)
    place.hello("a")
    assert place.manager.needs == (4, 1)
    progress = Progress(job="digits", term=1, state="finished", reason="done")
    place.happens(Received(sender="home", message=progress))
    assert place.manager.needs == (0, 0)


def test_a_device_that_was_of_no_use_elsewhere_is_not_sent_or_called_back_for_it_again(make_spec: Make) -> None:
    place = Place(prefers_devices=False)
    place.hello("a")
    place.sees(starving=1)
    assert place.sent_away() == {"a": OTHER}
    place.happens(PeerChanged(node="a", state=Liveness.LOST, reason="left", is_certain=True))
    place.now_s = STAYS_S + 5
    place.hello("a", is_referred=True)
    place.now_s += STAYS_S + 5
    place.sees(starving=1)
    assert place.sent_away() == {}, "that manager's job does not take it"
    place.submit(make_spec(workers_min=1, workers_max=2))
    place.hello("b", lends=True)
    assert place.working() == {"a": "digits", "b": "digits"}
    place.sees(starving=1)
    assert not place.told("home", Release)
    place.now_s += KEPT_S
    place.sees(starving=1)
    assert [release.node for release in place.told("home", Release)] == ["a"], "labels may have changed by now"


def test_a_device_that_came_back_soon_is_kept_for_longer_each_time_and_not_if_it_was_started_again() -> None:
    """It may have worked there for a minute: jobs of the other manager must not wait half an hour for it."""
    place = Place(prefers_devices=False)
    place.hello("a")
    for times, kept_s in ((1, 120.0), (2, 240.0), (3, 480.0)):
        place.sees(starving=1)
        assert place.sent_away() == {"a": OTHER}, times
        place.happens(PeerChanged(node="a", state=Liveness.LOST, reason="left", is_certain=True))
        place.now_s += STAYS_S + 5
        place.hello("a", is_referred=True)
        place.now_s += kept_s - 1
        place.sees(starving=1)
        assert place.sent_away() == {}, times
        place.now_s += 2
    place.sees(starving=1)
    assert place.sent_away() == {"a": OTHER}
    place.happens(PeerChanged(node="a", state=Liveness.LOST, reason="left", is_certain=True))
    place.now_s += STAYS_S + 5
    place.hello("a", is_referred=True, incarnation="another")
    place.now_s += STAYS_S + 1
    place.sees(starving=1)
    assert place.sent_away() == {"a": OTHER}
    assert kept_for_s(1) == IN_VAIN_WITHIN_S
    assert kept_for_s(1000) == KEPT_S


# Jobs that move between living managers ------------------------------------------------------------------------


def test_a_job_that_is_led_here_is_given_once_its_leader_handed_over(make_spec: Make) -> None:
    place = Place()
    place.hello("pi")
    place.submit(make_spec(workers_min=1))
    place.is_drained(OTHER)
    assert place.told("home", HandOver)
    assert not place.gives(), "its leader may have a version under way"
    place.happens(Received(sender="home", message=SteppedDown(job="digits", term=1, reason="handed over")))
    assert place.gives() == {"digits": OTHER}
    assert not [action for action in place.said if isinstance(action, Keep)], "nobody leads it here again"
    assert not place.sent_away(), "the other manager does not have it yet"
    assert place.manager.is_giving("digits")
    place.happens(Asked(question=2, message=StopJob(job="digits")))
    (answer,) = [action.message for action in place.said if isinstance(action, Answer)]
    assert isinstance(answer, Denied)
    assert "try again" in answer.reason, "a store that is read-only may keep it waiting"
    # A look at the store from before it was given does not bring it back, nor does what is said of it here.
    place.happens(JobTaken(record=led(make_spec(workers_min=1), by="home")))
    place.is_drained(OTHER)
    assert place.manager.spec("digits") is None
    place.happens(JobGiven(job="digits"))
    assert place.sent_away() == {"pi": OTHER}
    place.hello("pi", jobs=("digits",))
    assert place.sent_away() == {"pi": OTHER}, "the store may show this manager an older state yet"


def test_a_leader_on_a_device_keeps_its_job_and_its_term(make_spec: Make) -> None:
    place = Place()
    record = led(make_spec(workers_min=1))
    place.happens(JobTaken(record=record))
    place.hello("pi", leads=(Leads(job="digits", term=4, endpoint="pi:9"),))
    place.hello("w", jobs=("digits",))
    version = Checkpoint(job="digits", term=4, version=3, number=1)
    place.happens(Received(sender="pi", message=version))
    assert [action for action in place.said if isinstance(action, Store)]
    place.is_drained(OTHER)
    assert not place.gives(), "a version is being written"
    place.happens(Stored(job="digits", term=4, version=3, is_last=False))
    assert place.gives() == {"digits": OTHER}
    assert not place.told("pi", StepDown)
    place.happens(JobGiven(job="digits"))
    assert place.sent_away() == {"pi": OTHER, "w": OTHER}
    place.happens(Received(sender="pi", message=Progress(job="digits", term=4, state="training")))
    assert not place.said, "the other manager hears its leader"


def test_a_job_that_could_not_be_given_stays(make_spec: Make) -> None:
    """The other manager ended meanwhile."""
    place = Place()
    record = led(make_spec(workers_min=1))
    place.happens(JobTaken(record=record))
    place.hello("pi", leads=(Leads(job="digits", term=4, endpoint="pi:9"),))
    place.is_drained(OTHER)
    assert place.gives() == {"digits": OTHER}
    place.is_drained()
    place.happens(JobGiven(job="digits", record=led(make_spec(workers_min=1))))
    (dismissed,) = place.told("pi", Dismiss)
    assert not dismissed.endpoint, "it says hello again, to this manager"
    place.hello("pi", leads=(Leads(job="digits", term=4, endpoint="pi:9"),))
    assert place.manager.job_views("digits")[0].leader == "pi"
    assert not place.told("pi", StepDown)
    assert not place.gives(), "no other manager takes jobs"


def test_a_job_that_could_not_be_given_is_not_offered_again_at_once(make_spec: Make) -> None:
    """A look at the store shows first why the other manager did not take it."""
    place = Place()
    place.happens(JobTaken(record=led(make_spec(workers_min=1))))
    place.is_drained(OTHER)
    assert place.gives() == {"digits": OTHER}
    place.happens(JobGiven(job="digits", record=led(make_spec(workers_min=1))))
    assert not place.gives()
    place.now_s += AGAIN_S
    place.happens(TimerFired(name="give digits"))
    assert place.gives() == {"digits": OTHER}


def leads_one_and_works_for_another(place: Place, make_spec: Make) -> None:
    """Device ``pi`` leads ``led`` and works for ``here``, which the manager's node leads."""
    place.hello("pi")
    place.submit(make_spec(job="here", workers_min=1, workers_max=1))
    place.happens(JobTaken(record=led(make_spec(job="led", workers_min=1))))
    place.hello("pi", jobs=("here",), leads=(Leads(job="led", term=4, endpoint="pi:9"),))
    assert place.working() == {"pi": "here"}


def test_a_leader_goes_with_its_job_and_leaves_the_other_one_that_it_works_for(make_spec: Make) -> None:
    place = Place()
    leads_one_and_works_for_another(place, make_spec)
    place.is_drained(OTHER)
    assert place.gives() == {"led": OTHER}, "the leader of the other job has to hand over first"
    place.happens(JobGiven(job="led"))
    assert place.sent_away() == {"pi": OTHER}, "else nobody would lead the job there"
    place.happens(PeerChanged(node="pi", state=Liveness.LOST, reason="left", is_certain=True))
    place.happens(Received(sender="home", message=SteppedDown(job="here", term=1, reason="handed over")))
    assert place.gives() == {"here": OTHER}
    place.happens(JobGiven(job="here"))
    assert not place.sent_away() or place.sent_away() == {"pi": OTHER}


def test_a_worker_of_a_job_that_goes_stays_while_it_leads_one_that_is_here(make_spec: Make) -> None:
    place = Place()
    leads_one_and_works_for_another(place, make_spec)
    place.happens(Received(sender="pi", message=Checkpoint(job="led", term=4, version=3, number=1)))
    place.is_drained(OTHER)
    place.happens(Received(sender="home", message=SteppedDown(job="here", term=1, reason="handed over")))
    assert place.gives() == {"here": OTHER}, "a version of the other job is being written"
    place.happens(JobGiven(job="here"))
    assert not place.sent_away(), "its term would be over"
    assert [dismissed.job for dismissed in place.told("pi", Dismiss)] == ["here"]
    place.happens(Stored(job="led", term=4, version=3, is_last=False))
    assert place.gives() == {"led": OTHER}
    place.happens(JobGiven(job="led"))
    assert place.sent_away() == {"pi": OTHER}


def test_a_drained_manager_sends_new_jobs_on(make_spec: Make) -> None:
    place = Place()
    place.is_drained(OTHER)
    place.submit(make_spec())
    (answer,) = [action.message for action in place.said if isinstance(action, Answer)]
    assert isinstance(answer, Denied)
    assert answer.endpoint == OTHER
    place.is_drained()
    place.submit(make_spec())
    (answer,) = [action.message for action in place.said if isinstance(action, Answer)]
    assert isinstance(answer, Denied)
    assert not answer.endpoint
    assert "undrain" in answer.reason
    place.is_drained(OTHER, is_drained=False)
    place.submit(make_spec())
    assert [action for action in place.said if isinstance(action, Keep)]


def test_jobs_of_one_leader_go_together_and_others_spread(make_spec: Make) -> None:
    place = Place()
    there = ("b:7070", "c:7070", "d:7070")
    of_one = [f"of-one-{number}" for number in range(6)]
    for job in of_one:
        place.happens(JobTaken(record=led(make_spec(job=job, workers_min=1))))
    for number in range(20):
        place.happens(JobTaken(record=led(make_spec(job=f"job-{number}", workers_min=1), by=f"w{number}")))
    place.is_drained(*there)
    gives = place.gives()
    assert len(gives) == 26
    assert len({gives[job] for job in of_one}) == 1
    assert set(gives.values()) == set(there)


def test_a_full_manager_gives_a_job_that_waits_for_devices_to_the_one_with_the_fewest(make_spec: Make) -> None:
    place = Place()
    for number in range(4):
        place.hello(f"w{number}")
    place.submit(make_spec(job="works", workers_min=4, workers_max=4))
    place.submit(make_spec(job="waits", workers_min=2))
    others = (OtherManager(endpoint=OTHER, devices=2), OtherManager(endpoint="c:7070", devices=1))

    def looks(*there: OtherManager, is_full: bool = True) -> None:
        place.happens(OtherManagersSeen(managers=there, is_full=is_full))

    looks(*others)
    assert not place.told("home", HandOver), "devices may come yet"
    place.now_s = WAITS_S
    looks(*others, is_full=False)
    looks(OtherManager(endpoint=OTHER, devices=3), OtherManager(endpoint="c:7070", is_drained=True))
    assert not place.told("home", HandOver), "no other manager has room"
    looks(*others)
    assert [message.job for message in place.told("home", HandOver)] == ["waits"]
    # It goes although a device leaves meanwhile.
    looks(*others, is_full=False)
    place.happens(Received(sender="home", message=SteppedDown(job="waits", term=1, reason="handed over")))
    assert place.gives() == {"waits": "c:7070"}
    place.happens(JobGiven(job="waits"))
    looks(*others)
    assert not place.told("home", HandOver), "the other job has what it needs"


def test_a_full_manager_keeps_a_job_that_tabs_of_browsers_work_for(make_spec: Make) -> None:
    """They reach no other manager, so the job would lack more there."""
    for facts in (Facts(host="Chromium", onnx="1.30", browser="Chromium 156"), Facts(host="w", torch="2.13")):
        place = Place()
        place.happens(Received(sender="w", message=Hello(node="w", incarnation="1", facts=facts)))
        place.submit(dataclasses.replace(make_spec(workers_min=2), graphs="1" * 64))
        assert place.working() == {"w": "digits"}
        place.now_s = WAITS_S
        place.happens(OtherManagersSeen(managers=(OtherManager(endpoint=OTHER),), is_full=True))
        assert bool(place.told("home", HandOver)) is not bool(facts.browser)
