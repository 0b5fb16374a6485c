"""What the manager takes off its books, and what a disk quota costs: decided here, done by its driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import Misuse
from shoal.roles.actions import Action, Answer, DropFiles, DropJob, DropOldJobs, ForgetMember, Record, Send
from shoal.roles.events import Asked, DiskMeasured, JobsOutdated, JobTaken, Liveness, PeerChanged, Received, Started
from shoal.roles.manager.cluster_state import ENDED_KEPT, JobRecord
from shoal.roles.manager.manager import Manager
from shoal.roles.manager.retention import Eviction, KeepJobs, evictions
from shoal.roles.node.failure_detector import Patience
from shoal.states import JobState
from shoal.wire.messages import Denied, Dismiss, Done, Facts, ForgetNode, Hello, JobSpec, Message, RemoveJob, Submit

pytestmark = pytest.mark.timeout(60)

Make = Callable[..., JobSpec]
LATER_S = 1000.0


class Office:
    """A manager, and what it just did."""

    def __init__(self, jobs: list[JobRecord] | None = None, held: dict[str, str] | None = None) -> None:
        self.manager = Manager(node="home", patience=Patience(), jobs=jobs, held=held)
        self.actions: list[Action] = []
        self.happens(Started(), now_s=0.0)

    def happens(self, event: Any, *, now_s: float = LATER_S) -> list[Action]:
        self.actions = self.manager.handle(event, now_s)
        return self.actions

    def hello(self, node: str) -> None:
        hello = Hello(node=node, incarnation="1", facts=Facts(torch="2.11"))
        self.happens(Received(sender=node, message=hello))

    def lose(self, node: str) -> None:
        self.happens(PeerChanged(node=node, state=Liveness.LOST, reason="silent"))

    def ask(self, message: Message, *, now_s: float = LATER_S) -> Message:
        self.happens(Asked(question=7, message=message), now_s=now_s)
        (answer,) = [action for action in self.actions if isinstance(action, Answer)]
        return answer.message

    def done(self, kind: type) -> list[Any]:
        return [action for action in self.actions if isinstance(action, kind)]


def _ended(spec: JobSpec) -> JobRecord:
    return JobRecord(spec=spec, state=JobState.FINISHED, reason=None, term=1)


# Jobs ---------------------------------------------------------------------------------------------------------


def test_an_ended_job_is_removed_durably_before_it_is_said(make_spec: Make) -> None:
    office = Office([_ended(make_spec(job="old"))])
    assert isinstance(office.ask(RemoveJob(job="old")), Done)
    kinds = [type(action) for action in office.actions]
    assert kinds.index(DropJob) < kinds.index(Answer)
    assert office.manager.job_views() == ()
    answer = office.ask(RemoveJob(job="old"))
    assert isinstance(answer, Denied)
    assert "there is no job old" in answer.reason


def test_an_open_job_stays(make_spec: Make) -> None:
    office = Office([JobRecord(spec=make_spec(job="new"), reason=None)])
    answer = office.ask(RemoveJob(job="new"))
    assert isinstance(answer, Denied)
    assert "shoal jobs stop new" in answer.reason
    assert not office.done(DropJob)


def test_a_job_that_is_kept_no_longer_goes_with_the_reason_and_an_open_one_stays(make_spec: Make) -> None:
    office = Office([_ended(make_spec(job="old")), JobRecord(spec=make_spec(job="new"), reason=None)])
    ages_s = {"old": 91 * 86400.0, "older": 200 * 86400.0, "new": 91 * 86400.0}
    office.happens(JobsOutdated(keep=KeepJobs.parse("90d"), ages_s=ages_s))
    (drop,) = office.done(DropOldJobs)
    assert drop.reasons == {
        "old": "it ended 91 days ago, and --keep-jobs 90d keeps no job for longer",
        "older": "it ended 200 days ago, and --keep-jobs 90d keeps no job for longer",
    }
    assert [view.job for view in office.manager.job_views()] == ["new"]
    office.happens(JobsOutdated(keep=KeepJobs.parse("90d"), ages_s={"new": 1e9}))
    assert not office.done(DropOldJobs)


def test_what_is_kept_is_a_time_or_a_number() -> None:
    assert KeepJobs.parse("90d") == KeepJobs(text="90d", age_s=90 * 86400.0)
    assert KeepJobs.parse(" 12 H ") == KeepJobs(text="12h", age_s=12 * 3600.0)
    assert KeepJobs.parse("2w").age_s == 14 * 86400.0
    assert KeepJobs.parse("500") == KeepJobs(text="500", count=500)
    assert (
        KeepJobs.parse("500").why_not(7200.0) == "it ended 2 hours ago, and --keep-jobs 500 keeps only the latest 500"
    )
    for wrong in ("", "soon", "-1d", "0d", "1.5d", "90days", "9999999999"):
        with pytest.raises(Misuse, match="--keep-jobs"):
            KeepJobs.parse(wrong)


def test_the_manager_keeps_only_the_latest_ended_jobs_in_memory(make_spec: Make) -> None:
    ended = [_ended(make_spec(job=f"j{number:02}")) for number in range(ENDED_KEPT + 2)]
    office = Office([*ended, JobRecord(spec=make_spec(job="open"), reason=None)])
    names = [view.job for view in office.manager.job_views()]
    assert names == [*(f"j{number:02}" for number in range(2, ENDED_KEPT + 2)), "open"]
    office.happens(JobTaken(record=_ended(make_spec(job="looked-up"))))
    assert isinstance(office.ask(RemoveJob(job="looked-up")), Done)
    assert office.manager.spec("j02") is None, "it made room"
    assert office.manager.spec("open") is not None


def test_a_device_that_was_away_when_its_job_went_is_still_told_that_it_is_over(make_spec: Make) -> None:
    office = Office()
    office.hello("pi")
    office.ask(Submit(spec=make_spec(job="digits")))
    assert office.manager.node_views()[0].job == "digits"
    office.lose("pi")
    office.manager._jobs["digits"].become(JobState.FAILED, "why", 0.0)
    assert isinstance(office.ask(RemoveJob(job="digits")), Done)
    office.hello("pi")
    sent = [action.message for action in office.done(Send) if action.to == "pi"]
    assert [message.job for message in sent if isinstance(message, Dismiss)] == ["digits"]


# Members --------------------------------------------------------------------------------------------------------


def test_a_lost_device_is_forgotten_and_one_that_lives_is_not() -> None:
    office = Office()
    office.hello("pi")
    answer = office.ask(ForgetNode(node="pi"))
    assert isinstance(answer, Denied)
    assert "is alive" in answer.reason
    office.happens(PeerChanged(node="pi", state=Liveness.SUSPECT, reason="silent"))
    assert isinstance(office.ask(ForgetNode(node="pi")), Denied)
    assert not office.done(ForgetMember)
    office.lose("pi")
    assert isinstance(office.ask(ForgetNode(node="pi")), Done)
    kinds = [type(action) for action in office.actions]
    assert kinds.index(ForgetMember) < kinds.index(Answer)
    assert office.manager.node_views() == ()


def test_a_manager_that_just_started_does_not_take_a_device_for_lost() -> None:
    office = Office()
    answer = office.ask(ForgetNode(node="pi"), now_s=0.5)
    assert isinstance(answer, Denied)
    assert "may still connect" in answer.reason
    assert isinstance(office.ask(ForgetNode(node="pi"), now_s=LATER_S), Done)


def test_the_leader_of_an_open_job_is_not_forgotten(make_spec: Make) -> None:
    job = JobRecord(spec=make_spec(job="digits"), state=JobState.RUNNING, reason=None, term=1, leader="pi")
    office = Office([job])
    answer = office.ask(ForgetNode(node="pi"))
    assert isinstance(answer, Denied)
    assert "shoal jobs transfer digits" in answer.reason


def test_a_forgotten_device_that_was_free_is_given_no_work(make_spec: Make) -> None:
    office = Office()
    for name in ("a", "b", "c"):
        office.hello(name)
    office.lose("a")
    assert isinstance(office.ask(ForgetNode(node="a")), Done)
    office.ask(Submit(spec=make_spec(job="digits")))
    assert {view.node: view.job for view in office.manager.node_views()} == {"b": "digits", "c": "digits"}


def test_a_hold_goes_with_the_member() -> None:
    office = Office(held={"pi": "drained"})
    assert isinstance(office.ask(ForgetNode(node="pi")), Done)
    office.hello("pi")
    assert office.manager._nodes["pi"].held is None


# The disk ---------------------------------------------------------------------------------------------------------


def test_checkpoints_go_before_contents_and_the_oldest_first() -> None:
    sizes = {"checkpoints": {"a": 10, "b": 20}, "contents": {"a": 5, "b": 0}}
    assert evictions(0, **sizes) == ([], 0)
    assert evictions(-3, **sizes) == ([], 0)
    assert evictions(10, **sizes) == ([Eviction(job="a", checkpoints=True, size_bytes=10)], 0)
    chosen, left = evictions(36, **sizes)
    assert [(each.job, each.checkpoints) for each in chosen] == [("a", True), ("b", True), ("a", False)]
    assert left == 1


def _disk(used: int, *, wanted: int = 0, **checkpoints: int) -> DiskMeasured:
    wants = {"new": wanted} if wanted else {}
    return DiskMeasured(quota_bytes=100, used_bytes=used, checkpoints=checkpoints, wanted=wants)


def test_a_quota_costs_the_oldest_ended_jobs_and_the_journal_says_so(make_spec: Make) -> None:
    office = Office([_ended(make_spec(job=name)) for name in ("a", "b", "c")])
    # A tenth of the quota is kept free: 35 are to go.
    office.happens(_disk(125, a=10, b=30, c=30))
    assert [(drop.job, drop.checkpoints) for drop in office.done(DropFiles)] == [("a", True), ("b", True)]
    assert [(record.job, record.kind) for record in office.done(Record)] == [
        ("a", "files.removed"),
        ("b", "files.removed"),
    ]
    # What was let go is not let go again.
    office.happens(_disk(85, c=30))
    assert not office.done(DropFiles)


def test_a_quota_that_cannot_be_kept_is_said_once(make_spec: Make) -> None:
    office = Office([_ended(make_spec(job="a"))])
    office.happens(_disk(200, a=10))
    assert [record.kind for record in office.done(Record)] == ["files.removed", "quota.exceeded"]
    office.happens(_disk(190))
    assert not office.done(Record)
    office.happens(_disk(50))
    office.happens(_disk(190))
    assert "larger --disk-quota" in office.done(Record)[0].reason


def test_a_job_that_would_not_fit_is_refused_in_words_and_costs_nothing(make_spec: Make) -> None:
    office = Office([_ended(make_spec(job="a"))])
    office.happens(_disk(90, wanted=30, a=10))
    answer = office.ask(Submit(spec=make_spec(job="new")))
    assert isinstance(answer, Denied)
    assert "would not fit" in answer.reason
    assert not office.done(DropFiles)
    assert [view.job for view in office.manager.job_views()] == ["a"]


def test_a_job_that_fits_without_ended_ones_takes_their_room(make_spec: Make) -> None:
    office = Office([_ended(make_spec(job="a"))])
    office.happens(_disk(90, wanted=15, a=10))
    assert isinstance(office.ask(Submit(spec=make_spec(job="new"))), Done)
    assert [drop.job for drop in office.done(DropFiles)] == ["a"]


def test_without_a_quota_nothing_is_refused(make_spec: Make) -> None:
    office = Office()
    office.happens(DiskMeasured(quota_bytes=0, used_bytes=10**12, wanted={"new": 10**12}))
    assert isinstance(office.ask(Submit(spec=make_spec(job="new"))), Done)
