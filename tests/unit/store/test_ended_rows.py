"""Ended jobs by page, by age, by number and by name, in every store that a registry may be in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.states import JobState
from shoal.store.base import Database
from shoal.store.registry import Registry
from shoal.store.seat import FencedDatabase, Seats
from shoal.store.sqlite import SqliteDatabase

pytestmark = pytest.mark.timeout(120)


def add(registry: Registry, job: str, *, ended_s: float | None, name: str = "", created_s: float = 1.0) -> None:
    registry.add_job(job=job, name=name or job, spec_json="{}", now_s=created_s)
    if ended_s is not None:
        state = JobState.FAILED if "bad" in job else JobState.FINISHED
        registry.set_job_state(job, state, now_s=ended_s)


def test_pages_hold_each_ended_job_once_the_latest_first(registry: Registry) -> None:
    for number in range(7):
        add(registry, f"j{number}", ended_s=100.0 + number // 2)
    add(registry, "open", ended_s=None)
    pages = [registry.ended_page(limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    assert [[row.job for row in page] for page in pages] == [["j6", "j5", "j4"], ["j3", "j2", "j1"], ["j0"], []]
    assert [row.job for row in registry.latest_ended(limit=2)] == ["j6", "j5"]
    assert [row.job for row in registry.open_jobs()] == ["open"]


def test_ended_jobs_are_counted_by_state(registry: Registry) -> None:
    assert registry.count_ended() == {}
    for job in ("a", "bad-1", "bad-2"):
        add(registry, job, ended_s=5.0)
    add(registry, "open", ended_s=None)
    assert registry.count_ended() == {JobState.FINISHED: 1, JobState.FAILED: 2}


def test_jobs_that_failed_lately_are_found_however_many_ended_since(registry: Registry) -> None:
    add(registry, "bad-old", ended_s=1.0)
    add(registry, "bad-new", ended_s=50.0)
    for number in range(5):
        add(registry, f"j{number}", ended_s=60.0 + number)
    assert [row.job for row in registry.failed_since(40.0, limit=9)] == ["bad-new"]


def test_a_job_is_found_by_its_id_then_by_a_start_of_it_then_by_its_name(registry: Registry) -> None:
    add(registry, "night-1", ended_s=5.0, name="night", created_s=1.0)
    add(registry, "night-10", ended_s=6.0, name="night", created_s=2.0)
    add(registry, "other", ended_s=None, name="lamp", created_s=3.0)
    add(registry, "another", ended_s=7.0, name="lamp", created_s=4.0)

    def found(text: str, limit: int = 9) -> list[str]:
        return [row.job for row in registry.called(text, limit=limit)]

    assert found("night-1") == ["night-1"], "an id is not the start of another one here"
    assert found("night") == ["night-1", "night-10"]
    assert found("night", limit=1) == ["night-10"], "no more than asked for"
    assert found("lamp") == ["another"]
    assert found("oth") == ["other"]
    assert found("nobody") == []


def test_old_jobs_are_found_by_their_age_and_by_their_number(registry: Registry) -> None:
    for number in range(5):
        add(registry, f"j{number}", ended_s=10.0 * number)
    add(registry, "open", ended_s=None)
    assert [row.job for row in registry.ended_before(25.0, limit=9)] == ["j0", "j1", "j2"]
    assert [row.job for row in registry.ended_before(25.0, limit=2)] == ["j0", "j1"], "the oldest"
    assert [row.job for row in registry.ended_beyond(2, limit=9)] == ["j0", "j1", "j2"]
    assert [row.job for row in registry.ended_beyond(2, limit=1)] == ["j0"]
    assert registry.ended_beyond(5, limit=9) == []
    assert [row.job for row in registry.ended_beyond(0, limit=9)] == ["j0", "j1", "j2", "j3", "j4"]


def test_jobs_of_another_manager_that_lives_are_not_this_ones_to_remove(open_database: Callable[[], Database]) -> None:
    databases = [open_database() for _ in range(2)]
    Registry(databases[0])
    tenures = [Seats(each).open(name, f"{name}:7070") for each, name in zip(databases, ("a", "b"), strict=True)]
    a, b = (
        Registry(FencedDatabase(each, tenure), holder=tenure.holder)
        for each, tenure in zip(databases, tenures, strict=True)
    )
    add(a, "of-a", ended_s=1.0)
    add(b, "of-b", ended_s=2.0)
    for manager, own in ((a, "of-a"), (b, "of-b")):
        assert [row.job for row in manager.ended_before(9.0, limit=9)] == [own]
        assert [row.job for row in manager.ended_beyond(0, limit=9)] == [own]
        assert [row.job for row in manager.latest_ended(limit=9)] == ["of-b", "of-a"], "anybody may look"
    Seats(databases[1]).give_up(tenures[1])
    assert [row.job for row in a.ended_before(9.0, limit=9)] == ["of-a", "of-b"], "its manager is gone"
    for each in databases:
        each.close()


def test_ended_jobs_are_counted_in_their_index_and_not_in_the_table(registry: Registry) -> None:
    if not isinstance(registry._database, SqliteDatabase):
        pytest.skip("SQLite says how it answers a query in words of its own")
    query = "EXPLAIN QUERY PLAN SELECT state, COUNT(*) AS jobs FROM jobs WHERE ended_s IS NOT NULL GROUP BY state"
    told = " ".join(str(row["detail"]) for row in registry._database.rows(query))
    assert "COVERING INDEX jobs_ended" in told
