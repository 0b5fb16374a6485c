"""Jobs of several managers, as one of them sees them in the store. On SQLite, with seats of two managers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shoal.plan import Plan
from shoal.roles.events import Event, JobGiven, JobTaken, OtherManager, OtherManagersSeen
from shoal.roles.manager import other_managers
from shoal.roles.manager.cluster_state import JobRecord
from shoal.runtime.shared_jobs import SharedJobs
from shoal.states import JobState
from shoal.store.base import Away
from shoal.store.registry import Registry
from shoal.store.rows import JobRow
from shoal.store.seat import FencedDatabase, Seats, Tenure
from shoal.store.sqlite import SqliteDatabase
from shoal.wire.encoding import to_json
from shoal.wire.messages import Dataset, Hello, JobSpec, Leads, StopJob

pytestmark = pytest.mark.timeout(60)

SHA = "0" * 64


def spec_named(job: str, **plan: Any) -> JobSpec:
    none = Dataset(manifest=SHA, examples=1)
    return JobSpec(job=job, name=job, entry="task:T", bundle=SHA, initial=SHA, train=none, test=none, plan=Plan(**plan))


def record_of(row: JobRow) -> JobRecord:
    return JobRecord(spec=spec_named(row.job), state=row.state, term=row.term)


@dataclass
class Manager:
    """One of two managers: its registry, and what its role was told."""

    seats: Seats
    tenure: Tenure
    registry: Registry
    told: list[Event] = field(default_factory=list)
    has: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ended: list[str] = []
        self.jobs = SharedJobs(
            self.registry,
            knows=self.has.__contains__,
            post=self.told.append,
            record_of=record_of,
            on_ended=lambda row: self.ended.append(row.job),
        )

    def submit(self, job: str, **plan: Any) -> None:
        spec_json = json.dumps(to_json(spec_named(job, **plan)))
        self.registry.add_job(job=job, name=job, spec_json=spec_json, now_s=1.0)
        self.has.add(job)

    def looks(self) -> bool:
        others = [seat for seat in self.seats.look() if seat.holder != self.tenure.holder]
        return asyncio.run(self.jobs.look(others))

    @property
    def taken(self) -> list[str]:
        return [event.record.spec.job for event in self.told if isinstance(event, JobTaken)]


@pytest.fixture
def managers(tmp_path: Path) -> Iterator[tuple[Manager, Manager]]:
    databases = [SqliteDatabase(tmp_path / "registry.sqlite") for _ in range(2)]
    Registry(databases[0])
    made = []
    for name, database in zip("ab", databases, strict=True):
        tenure = Seats(database).open(f"{name}/1", f"{name}:7070")
        registry = Registry(FencedDatabase(database, tenure), holder=tenure.holder)
        made.append(Manager(Seats(database), tenure, registry))
    yield made[0], made[1]
    for database in databases:
        database.close()


def test_the_role_hears_who_has_which_job_and_what_is_lacking(managers: tuple[Manager, Manager]) -> None:
    a, b = managers
    a.submit("own")
    b.submit("faces")
    a.looks()
    assert a.told == [OtherManagersSeen(managers=(OtherManager(endpoint="b:7070"),), jobs={"faces": "b:7070"})]
    assert a.jobs.addresses == ("b:7070",)
    a.looks()
    assert len(a.told) == 1, "nothing is new"
    b.seats.renew(b.tenure, wants=3, starving=1)
    a.looks()
    a.looks()
    lacking = OtherManager(endpoint="b:7070", wants=3, starving=1)
    assert [event.managers for event in a.told[1:] if isinstance(event, OtherManagersSeen)] == [(lacking,)] * 2, (
        "devices that were sent may not have arrived"
    )
    assert not a.looks()
    b.seats.give_up(b.tenure)
    assert a.looks(), "a job is without a manager"
    assert a.told[-1] == OtherManagersSeen(jobs={"faces": ""}), "nobody has it at this moment"


def test_the_role_hears_which_nodes_open_the_sums_of_others(managers: tuple[Manager, Manager]) -> None:
    ours, theirs = managers
    theirs.submit("sealed-1", trust="sealed(8, helper=nas)", data="local", workers_min=8, workers_max=9)
    theirs.submit("plain-1")
    ours.looks()
    (seen,) = ours.told
    assert isinstance(seen, OtherManagersSeen)
    assert seen.helpers == {"sealed-1": "nas"}
    theirs.looks()
    assert not any(isinstance(event, OtherManagersSeen) and event.helpers for event in theirs.told)


def test_before_a_device_is_answered_the_store_is_asked_for_its_jobs(managers: tuple[Manager, Manager]) -> None:
    a, b = managers
    a.looks()
    b.submit("faces")
    hello = Hello(node="pi", incarnation="1", leads=(Leads(job="faces", term=1, endpoint="pi:9"),))
    asyncio.run(a.jobs.before_hello(hello))
    assert isinstance(seen := a.told[-1], OtherManagersSeen)
    assert seen.jobs == {"faces": "b:7070"}
    told = len(a.told)
    a.has.add("faces")
    asyncio.run(a.jobs.before_hello(hello))
    assert len(a.told) == told, "a job that is here needs no look"


def test_a_job_that_the_store_does_not_know_is_not_called_over_at_once(
    managers: tuple[Manager, Manager], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may have gone back to before the job was submitted."""
    a, _ = managers
    a.looks()
    hello = Hello(node="pi", incarnation="1", leads=(Leads(job="faces", term=1, endpoint="pi:9"),))
    asyncio.run(a.jobs.before_hello(hello))
    assert isinstance(seen := a.told[-1], OtherManagersSeen)
    assert seen.jobs == {"faces": ""}, "no manager has it at this moment"
    monkeypatch.setattr(other_managers, "ABSENT_S", 0.0)
    asyncio.run(a.jobs.before_hello(hello))
    assert isinstance(seen := a.told[-1], OtherManagersSeen)
    assert seen.jobs == {}, "it was removed"


def test_each_manager_hears_of_jobs_that_ended_at_another(managers: tuple[Manager, Manager]) -> None:
    a, b = managers
    b.submit("faces")
    b.submit("gone")
    a.looks()
    assert a.ended == []
    b.registry.set_job_state("faces", JobState.FINISHED, now_s=2.0)
    b.registry.set_job_state("gone", JobState.STOPPED, now_s=2.0)
    b.registry.remove_job("gone")
    a.looks()
    a.looks()
    assert a.ended == ["faces"]


def test_while_the_store_is_away_no_job_is_called_over(
    managers: tuple[Manager, Manager], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = managers
    b.submit("faces")
    a.looks()

    def away() -> dict[str, str]:
        raise Away("cut")

    monkeypatch.setattr(a.registry, "managers_of_open_jobs", away)
    asyncio.run(a.jobs.before_hello(Hello(node="pi", incarnation="1", jobs=("faces", "voices"))))
    assert isinstance(seen := a.told[-1], OtherManagersSeen)
    assert seen.jobs == {"faces": "b:7070", "voices": ""}, "what was known stays, the rest nobody knows"


def test_a_job_without_a_manager_is_taken_once(managers: tuple[Manager, Manager]) -> None:
    a, b = managers
    b.submit("faces")
    assert a.registry.orphans() == []
    b.seats.give_up(b.tenure)
    (orphan,) = a.registry.orphans()
    asyncio.run(a.jobs.take([orphan]))
    asyncio.run(a.jobs.take([orphan]))
    assert a.taken == ["faces"]
    assert a.registry.manager_of("faces") == ("a/1", "a:7070")


def test_a_command_is_answered_by_the_manager_of_its_job(managers: tuple[Manager, Manager]) -> None:
    a, b = managers
    a.submit("own")
    b.submit("faces")
    b.submit("done")
    b.registry.set_job_state("done", JobState.FINISHED, now_s=2.0)

    def asks(job: str) -> str | None:
        denied = asyncio.run(a.jobs.elsewhere(StopJob(job=job)))
        return None if denied is None else denied.endpoint or denied.reason

    assert asks("own") is None
    assert asks("unknown") is None, "the role says that there is none"
    assert asks("faces") == asks("done") == "b:7070"
    b.seats.give_up(b.tenure)
    assert "try again in a few seconds" in str(asks("faces"))
    assert asks("done") is None
    assert a.taken == ["done"], "it is over, and any manager answers for it"
    assert [row.job for row in a.jobs.rows(here={"own"})] == ["faces"], "ended jobs are not listed one by one"


def test_a_job_that_another_manager_gave_is_told_once_and_devices_of_it_are_answered(
    managers: tuple[Manager, Manager],
) -> None:
    a, b = managers
    a.submit("faces")
    a.looks(), b.looks()
    assert a.jobs.give("faces", "b:7070") == JobGiven(job="faces")
    a.has.discard("faces")
    # A device comes before the next look does.
    asyncio.run(b.jobs.before_hello(Hello(node="pi", incarnation="1", jobs=("faces",))))
    assert b.taken == ["faces"]
    b.has.add("faces")
    b.looks()
    assert b.taken == ["faces"]
    a.looks()
    assert isinstance(seen := a.told[-1], OtherManagersSeen)
    assert seen.jobs == {"faces": "b:7070"}
    assert a.taken == []
    assert a.jobs.give("faces", "b:7070") == JobGiven(job="faces"), "an attempt whose answer was lost"


def test_a_job_stays_if_the_other_manager_is_gone(managers: tuple[Manager, Manager]) -> None:
    a, b = managers
    a.submit("faces")
    b.seats.give_up(b.tenure)
    given = a.jobs.give("faces", "b:7070")
    assert given.record is not None
    assert given.record.spec.job == "faces"


def test_what_was_read_of_a_job_before_it_was_given_away_is_told_to_nobody(managers: tuple[Manager, Manager]) -> None:
    """Two looks read the same job. The role heard of it by the first, and gave it on while the second one read."""
    a, b = managers
    b.submit("faces")
    assert b.jobs.give("faces", "a:7070") == JobGiven(job="faces")

    def reads_slowly(row: JobRow) -> JobRecord:
        assert a.jobs.give("faces", "b:7070") == JobGiven(job="faces")
        return record_of(row)

    a.jobs = SharedJobs(a.registry, knows=a.has.__contains__, post=a.told.append, record_of=reads_slowly)
    a.looks()
    assert a.taken == []
    assert b.jobs.give("faces", "a:7070") == JobGiven(job="faces")
    a.jobs = SharedJobs(a.registry, knows=a.has.__contains__, post=a.told.append, record_of=record_of)
    a.looks()
    assert a.taken == ["faces"], "it was given back"
