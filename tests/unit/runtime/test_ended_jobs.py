"""Ended jobs as a status lists them, from a real registry: the latest, the rest by page and by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.plan import Plan
from shoal.roles.events import JobTaken
from shoal.runtime import ended_jobs
from shoal.runtime.ended_jobs import ENDED_SHOWN, EndedJobs
from shoal.runtime.kept_versions import KeptVersions
from shoal.runtime.stored_jobs import StoredJobs, view_of
from shoal.states import JobState
from shoal.store.depot import FolderDepot
from shoal.store.registry import Registry
from shoal.wire.encoding import to_json
from shoal.wire.messages import Dataset, Denied, Done, Hello, JobSpec, JobView, Leads, Status

pytestmark = pytest.mark.timeout(60)

SHA = "0" * 64
NOW_S = 1_000_000.0


def spec_named(job: str) -> JobSpec:
    data = Dataset(manifest=SHA, examples=1)
    return JobSpec(job=job, name="night", entry="task:T", bundle=SHA, initial=SHA, train=data, test=data, plan=Plan())


class Books:
    """A registry, and the jobs of it that the manager role has in memory."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry(folder / "registry.db")
        kept = KeptVersions(FolderDepot(folder), self.registry, is_shared=False)
        self.noted: list[tuple[str, str, str]] = []
        self.stored = stored = StoredJobs(self.registry, kept, note=lambda *told: self.noted.append(told))
        self.in_memory: dict[str, JobSpec] = {}
        self.told: list[JobTaken] = []
        self.jobs = EndedJobs(self.registry, stored, in_memory=self.in_memory.get, post=self.told.append)
        assert stored.records() == []

    def add(self, job: str, *, ago_s: float | None = None, state: JobState = JobState.FINISHED) -> JobView:
        text = json.dumps(to_json(spec_named(job)))
        self.registry.add_job(job=job, name="night", spec_json=text, now_s=1.0)
        if ago_s is not None:
            self.registry.set_job_state(job, state, now_s=NOW_S - ago_s, reason="all epochs are done")
        row = self.registry.job(job)
        assert row is not None
        return view_of(row, now_s=NOW_S)

    def listed(self, *own: JobView) -> list[str]:
        return [view.job for view in self.jobs.listed(own, now_s=NOW_S)]


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(tmp_path)
    yield made
    made.registry.close()


def test_a_status_lists_open_jobs_and_the_latest_that_ended(books: Books) -> None:
    for number in range(ENDED_SHOWN + 5):
        books.add(f"j{number:02}", ago_s=5000.0 + number)
    running = books.add("open")
    assert books.listed(running) == [*(f"j{number:02}" for number in reversed(range(ENDED_SHOWN))), "open"]
    assert {view.since_s for view in books.jobs.listed([], now_s=NOW_S)} == {
        5000.0 + number for number in range(ENDED_SHOWN)
    }
    told = books.jobs.counted(Status(cluster="c", manager="m", jobs=books.jobs.listed([running], now_s=NOW_S)))
    assert (told.finished_jobs, told.ended_unlisted, told.count(JobState.FINISHED)) == (25, 5, 25)


def test_a_job_that_failed_within_the_hour_is_listed_however_many_ended_since(books: Books) -> None:
    books.add("bad", ago_s=3000.0, state=JobState.FAILED)
    books.add("bad-long-ago", ago_s=4000.0, state=JobState.FAILED)
    for number in range(ENDED_SHOWN):
        books.add(f"j{number:02}", ago_s=10.0 + number)
    assert books.listed()[0] == "bad"
    assert len(books.listed()) == ENDED_SHOWN + 1


def test_what_the_manager_has_in_memory_wins_and_is_listed_before_it_is_written(books: Books) -> None:
    view = books.add("j", ago_s=10.0)
    (own,) = books.jobs.listed([replace(view, since_s=11.0, discarded="versions 3 to 5")], now_s=NOW_S)
    assert own.discarded
    ending = replace(books.add("ending"), state=JobState.FINISHED, since_s=0.0)
    assert books.listed(ending) == ["j", "ending"], "its end is about to be written"
    looked_up = replace(books.add("old", ago_s=1e6), since_s=-1.0)
    assert books.listed(looked_up) == ["old", "j"], "by when it ended, and not by when somebody asked"


def test_a_job_that_is_listed_again_is_not_read_again(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    books.add("j", ago_s=10.0)
    assert books.listed() == ["j"]
    monkeypatch.setattr(books.registry, "job", lambda job: pytest.fail(f"{job} is read again"))
    assert books.listed() == ["j"]


def test_a_page_says_which_is_the_next_one(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_jobs, "ENDED_A_PAGE", 2)
    for number in range(4):
        books.add(f"j{number}", ago_s=10.0 + number)
    pages = [books.jobs.page(number, now_s=NOW_S) for number in (1, 2, 3)]
    assert [([view.job for view in views], following) for views, following in pages] == [
        (["j0", "j1"], 2),
        (["j2", "j3"], 0),
        ([], 0),
    ]


def test_an_id_that_a_job_has_or_had_is_refused_and_the_same_submission_is_not(books: Books) -> None:
    books.add("j", ago_s=10.0)
    assert books.jobs.why_not_new(spec_named("other")) is None
    again = books.jobs.why_not_new(spec_named("j"))
    assert isinstance(again, Done), "its answer was lost on the way"
    refused = books.jobs.why_not_new(replace(spec_named("j"), entry="task:Other"))
    assert isinstance(refused, Denied)
    assert "a job j already" in refused.reason
    books.in_memory["j"] = spec_named("j")
    assert books.jobs.why_not_new(spec_named("j")) is None, "the role answers"


def test_the_role_is_told_of_an_ended_job_that_a_device_or_a_command_names(books: Books) -> None:
    books.add("over", ago_s=10.0)
    books.add("led", ago_s=10.0)
    books.add("open")
    leads = (Leads(job="led", term=1, endpoint="pi:1"),)
    hello = Hello(node="pi", incarnation="1", jobs=("over", "open", "nobody"), leads=leads)
    asyncio.run(books.jobs.before_hello(hello))
    assert [(taken.record.spec.job, taken.record.state) for taken in books.told] == [
        ("led", JobState.FINISHED),
        ("over", JobState.FINISHED),
    ]
    books.in_memory["over"] = spec_named("over")
    asyncio.run(books.jobs.look_up(["over"]))
    assert len(books.told) == 2, "it has that one"


def with_blocks(books: Books, job: str) -> None:
    """Store a job as an earlier release took it."""
    submitted = to_json(spec_named(job))
    submitted["plan"] |= {"topology": "tree", "work": "blocks"}
    books.registry.add_job(job=job, name="night", spec_json=json.dumps(submitted), now_s=1.0)


def test_an_open_job_with_an_answer_that_was_retired_fails_and_says_what_to_set(books: Books) -> None:
    with_blocks(books, "old")
    books.add("open")
    assert [record.spec.job for record in books.stored.records()] == ["open"]
    row = books.registry.job("old")
    assert row is not None
    assert row.state is JobState.FAILED
    assert row.reason == "Shoal no longer has work = 'blocks': set work = 'leased', and submit the job again"
    assert books.noted == [("old", "job.failed", row.reason)]


def test_an_ended_job_with_an_answer_that_was_retired_is_listed(books: Books) -> None:
    with_blocks(books, "old")
    books.registry.set_job_state("old", JobState.FINISHED, now_s=NOW_S, reason="all epochs are done")
    (view,) = books.jobs.listed([], now_s=NOW_S)
    assert (view.job, view.state, view.plan.topology, view.plan.work) == ("old", "finished", "tree", "leased")
    assert books.noted == []
