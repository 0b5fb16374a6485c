"""Who gets devices: jobs whose least number can be met, and none that a device could not prepare a moment ago."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from shoal.roles.actions import Action, Send
from shoal.roles.events import (
    Asked,
    Liveness,
    OtherManager,
    OtherManagersSeen,
    PeerChanged,
    Received,
    Started,
    TimerFired,
)
from shoal.roles.manager.manager import Manager
from shoal.roles.manager.preparation import AGAIN_S, MAY_RETURN_S, Unprepared, kind_of, noted, why_hopeless
from shoal.roles.manager.staffing import KEEPS_S, PATIENT_S, RESERVES_S
from shoal.roles.node.failure_detector import Patience
from shoal.wire.limits import REASON_MAX_CHARS
from shoal.wire.messages import (
    Facts,
    ForgetNode,
    Heartbeat,
    Hello,
    JobSpec,
    Message,
    Progress,
    Release,
    Released,
    StopRequest,
    Submit,
    Welcome,
    WorkerView,
)

M = TypeVar("M", bound=Message)
Make = Callable[..., JobSpec]
RAISED = "FileNotFoundError: '/base/model.safetensors', at Pre.model (pre.py:9)"


class Floor:
    """A manager that leads every job, a clock, and what was said."""

    def __init__(self, *nodes: str, **options: Any) -> None:
        self.manager = Manager(node="home", patience=Patience(), prefers_devices=False, **options)
        self.now_s = 0.0
        self.said: list[Send] = []
        self.happens(Started())
        for node in nodes:
            self.hello(node)

    def happens(self, event: Any) -> list[Action]:
        actions = self.manager.handle(event, self.now_s)
        self.said = [action for action in actions if isinstance(action, Send)]
        for send in self.said:
            if isinstance(send.message, Release):
                self._let_go(send.message)
        return actions

    def _let_go(self, release: Release, **why: Any) -> None:
        """Its leader lets a device go at once, and the device is heard a moment later."""
        said = list(self.said)
        self.released(release.job, release.node, **why)
        self.said = said + self.said

    def released(self, job: str, node: str, **why: Any) -> None:
        self.happens(Received(sender="home", message=Released(job=job, term=1, node=node, **why)))
        said = list(self.said)
        self.happens(Received(sender=node, message=Heartbeat(seq=1)))
        self.said = said + self.said

    def fails(self, job: str, node: str, *, reason: str = RAISED, by_task: bool = True) -> None:
        self.released(job, node, failure=reason, by_task=by_task)

    def hello(self, node: str) -> None:
        self.happens(Received(sender=node, message=Hello(node=node, incarnation="1", facts=Facts(torch="2"))))

    def lost(self, node: str) -> None:
        self.happens(PeerChanged(node=node, state=Liveness.LOST, reason="silent"))

    def submit(self, spec: JobSpec) -> None:
        self.happens(Asked(question=1, message=Submit(spec=spec)))

    def wait(self, seconds: float, timer: str = "look") -> None:
        self.now_s += seconds
        self.happens(TimerFired(name=timer))

    def told(self, kind: type[M]) -> list[M]:
        return [send.message for send in self.said if isinstance(send.message, kind)]

    def working(self) -> dict[str, str]:
        return {view.node: view.job for view in self.manager.node_views()}


# Devices for jobs that can begin ---------------------------------------------------------------------------------


def test_a_device_waits_in_a_job_that_cannot_begin_only_until_another_can(make_spec: Make) -> None:
    floor = Floor("a")
    floor.submit(make_spec(job="two", workers_min=2))
    assert floor.working() == {"a": "two"}, "it fetches code meanwhile"
    floor.submit(make_spec(job="one", workers_min=1))
    assert floor.working() == {"a": "one"}
    floor.hello("b")
    assert floor.working() == {"a": "one", "b": "one"}, "a job that trains can use it at once"
    floor.hello("c")
    assert sorted(floor.working().values()) == ["one", "two", "two"], "now the first can begin"


def test_two_jobs_never_hold_a_part_of_what_each_needs(make_spec: Make) -> None:
    floor = Floor("a", "b")
    floor.submit(make_spec(job="three", workers_min=3))
    floor.submit(make_spec(job="two", workers_min=2, workers_max=2))
    assert floor.working() == {"a": "two", "b": "two"}
    floor.hello("c")
    floor.hello("d")
    floor.hello("e")
    assert sorted(floor.working().values()) == ["three"] * 3 + ["two"] * 2


def test_a_job_that_lost_a_device_keeps_the_others_for_a_while(make_spec: Make) -> None:
    floor = Floor("a", "b")
    floor.submit(make_spec(job="two", workers_min=2, workers_max=2))
    floor.submit(make_spec(job="one", workers_min=1))
    floor.lost("b")
    assert floor.working()["a"] == "two"
    floor.wait(KEEPS_S + 1)
    assert floor.working()["a"] == "one"


def test_a_large_job_is_not_starved_by_small_ones(make_spec: Make) -> None:
    floor = Floor("a", "b")
    floor.submit(make_spec(job="small-1", workers_min=1, workers_max=1))
    floor.submit(make_spec(job="small-2", workers_min=1, workers_max=1))
    floor.submit(make_spec(job="large", workers_min=2))
    for number in range(3, 9):
        floor.submit(make_spec(job=f"small-{number}", workers_min=1, workers_max=1))

    def ends(job: str) -> None:
        floor.happens(Received(sender="home", message=Progress(job=job, term=1, state="finished", reason="done")))

    ends("small-1")
    assert "large" not in floor.working().values(), "another can begin with that one"
    floor.wait(PATIENT_S + 1)
    ends("small-3")
    assert list(floor.working().values()).count("large") == 1, "it has waited long: it holds what is free"
    ends("small-2")
    assert list(floor.working().values()).count("large") == 2


def test_what_a_job_holds_without_beginning_is_given_back(make_spec: Make) -> None:
    floor = Floor("a", "b")
    floor.submit(make_spec(job="endless", workers_min=1, workers_max=1))
    floor.submit(make_spec(job="large", workers_min=2))
    floor.wait(PATIENT_S + 1)
    assert sorted(floor.working().values()) == ["endless", "large"]
    floor.submit(make_spec(job="small", workers_min=1, workers_max=1))
    assert sorted(floor.working().values()) == ["endless", "large"]
    floor.wait(RESERVES_S)
    assert sorted(floor.working().values()) == ["endless", "small"]


# Devices that cannot prepare a job -------------------------------------------------------------------------------


def test_a_device_that_cannot_prepare_a_job_serves_another_and_tries_again_later(make_spec: Make) -> None:
    floor = Floor("a", "b")
    floor.submit(make_spec(job="first", workers_min=1))
    floor.fails("first", "a")
    assert floor.working() == {"a": "", "b": "first"}
    assert floor.told(StopRequest) == [], "b may be able"
    (view,) = floor.manager.job_views()
    assert (view.trouble, view.failing, view.stalled) == (f"a cannot prepare it: {RAISED}", 1, True)
    floor.submit(make_spec(job="second", workers_min=1))
    assert floor.working() == {"a": "second", "b": "first"}
    floor.lost("b")
    assert floor.working()["a"] == "second"


def test_it_is_given_the_job_again_after_a_while(make_spec: Make) -> None:
    floor = Floor("a", "b")
    floor.submit(make_spec(job="first", workers_min=1))
    floor.fails("first", "a")
    floor.wait(AGAIN_S - 1, "prepare-again first")
    assert floor.working()["a"] == ""
    floor.wait(2, "prepare-again first")
    assert floor.working()["a"] == "first"
    views = tuple(WorkerView(node=node, state="working") for node in ("a", "b"))
    floor.happens(Received(sender="home", message=Progress(job="first", term=1, state="training", workers=views)))
    assert floor.manager.job_views()[0].trouble == ""


def test_a_job_fails_once_every_device_failed_alike(make_spec: Make) -> None:
    floor = Floor("a", "b")
    floor.submit(make_spec(job="first", workers_min=1))
    floor.fails("first", "a")
    assert floor.told(StopRequest) == []
    floor.fails("first", "b")
    (stop,) = floor.told(StopRequest)
    assert stop.failed
    assert "no device can prepare it" in stop.reason
    assert "at Pre.model (pre.py:9)" in stop.reason


@pytest.mark.parametrize("second", [{"by_task": False}, {"reason": "ImportError: no foo, at Pre.model (pre.py:3)"}])
def test_a_job_goes_on_if_a_device_fails_for_a_reason_of_its_own(make_spec: Make, second: dict[str, Any]) -> None:
    floor = Floor("a", "b")
    floor.submit(make_spec(job="first", workers_min=1))
    floor.fails("first", "a")
    floor.fails("first", "b", **second)
    assert floor.told(StopRequest) == []


def test_a_device_at_work_elsewhere_or_lost_a_moment_ago_may_be_able(make_spec: Make) -> None:
    floor = Floor("a", "b", "c")
    floor.submit(make_spec(job="first", workers_min=1, workers_max=2))
    floor.submit(make_spec(job="second", workers_min=1, workers_max=1))
    assert floor.working()["c"] == "second"
    floor.fails("first", "a")
    floor.fails("first", "b")
    assert floor.told(StopRequest) == []
    floor.lost("c")
    floor.wait(MAY_RETURN_S - 1, "prepare-again first")
    assert floor.told(StopRequest) == []
    floor.wait(2, "prepare-again first")
    assert len(floor.told(StopRequest)) == 1


def test_devices_of_other_managers_may_be_able(make_spec: Make) -> None:
    floor = Floor("a")
    floor.submit(make_spec(job="first", workers_min=1))
    other = OtherManager(endpoint="there:7070", wants=0, starving=0)
    floor.happens(OtherManagersSeen(managers=(other,), jobs={}))
    floor.fails("first", "a")
    assert floor.told(StopRequest) == []


def test_the_same_failure_reads_alike_on_two_devices() -> None:
    one = "OSError: [Errno 2] No such file: '/home/a/base', at T.model (t.py:9)"
    assert kind_of(one) == kind_of(one.replace("/home/a", "/home/b"))
    assert kind_of(one) != kind_of(one.replace("T.model", "T.loss"))


def test_each_time_a_device_is_spared_longer() -> None:
    note: Unprepared | None = None
    spared = []
    for _ in range(7):
        note = noted(note, reason="x", by_task=True, now_s=100.0)
        spared.append(note.until_s - 100.0)
    assert spared == [30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 900.0]


def test_without_devices_nothing_is_hopeless() -> None:
    assert why_hopeless({}, ()) is None


def test_people_see_how_far_a_device_is_with_preparing(make_spec: Make) -> None:
    floor = Floor("a")
    floor.submit(make_spec(job="first", workers_min=1))
    beat = Heartbeat(seq=2, is_same=True, preparing="fetching examples, 3.0 of 12.0 MB")
    floor.happens(Received(sender="a", message=beat))
    assert floor.manager.node_views()[0].preparing == beat.preparing
    floor.happens(Received(sender="a", message=Heartbeat(seq=3)))
    assert floor.manager.node_views()[0].preparing == ""


def test_the_longest_reason_fits_what_is_said_of_it(make_spec: Make) -> None:
    floor = Floor("a", "b")
    floor.submit(make_spec(job="first", workers_min=1))
    for node in ("a", "b"):
        floor.fails("first", node, reason="x" * REASON_MAX_CHARS)
    assert floor.manager.job_views()[0].trouble.endswith("…")
    assert floor.manager.node_views()[0].trouble.endswith("…")
    assert len(floor.told(StopRequest)) == 1


def test_a_device_that_was_forgotten_does_not_trouble_a_job(make_spec: Make) -> None:
    floor = Floor("a")
    floor.submit(make_spec(workers_min=1))
    floor.fails("digits", "a", by_task=False)
    assert floor.manager.job_views()[0].stalled
    floor.lost("a")
    floor.happens(Asked(question=2, message=ForgetNode(node="a")))
    (view,) = floor.manager.job_views()
    assert (view.trouble, view.stalled) == ("", False)


# Devices that have yet to come -----------------------------------------------------------------------------------


def test_a_job_does_not_fail_before_the_devices_of_a_manager_that_started_again_are_back(make_spec: Make) -> None:
    floor = Floor("a", members=("a", "b"))
    floor.submit(make_spec(workers_min=1))
    floor.fails("digits", "a")
    assert not floor.told(StopRequest), "b may be able"
    floor.wait(MAY_RETURN_S, "prepare-again digits")
    (stop,) = floor.told(StopRequest)
    assert stop.failed


def test_a_job_fails_at_once_if_every_device_of_the_cluster_failed(make_spec: Make) -> None:
    floor = Floor("a", "b", members=("a", "b"))
    floor.submit(make_spec(workers_min=1))
    floor.fails("digits", "a")
    floor.fails("digits", "b")
    assert [stop.failed for stop in floor.told(StopRequest)] == [True]


def test_a_device_that_is_given_a_job_again_soon_is_not_sent_away(make_spec: Make) -> None:
    floor = Floor(check_in_s=3600.0)
    floor.submit(make_spec(workers_min=1))
    floor.hello("a")
    floor.fails("digits", "a", reason="no connection", by_task=False)
    floor.now_s = AGAIN_S - 1
    floor.happens(Received(sender="a", message=Heartbeat(seq=2, is_idle=True)))
    assert not floor.told(Welcome)
    floor.wait(1, "prepare-again digits")
    assert floor.working() == {"a": "digits"}
