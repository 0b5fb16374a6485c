"""The seat on every store: one holder a term, and a manager that was deposed writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.roles.manager.standby import Seat
from shoal.scheduling.ledger import Applied
from shoal.states import JobState
from shoal.store.base import Database
from shoal.store.registry import Registry
from shoal.store.seat import Deposed, FencedDatabase, Seats

Open = Callable[[], Database]


@pytest.fixture
def two(open_database: Open) -> Iterator[tuple[Database, Database]]:
    one, other = open_database(), open_database()
    yield one, other
    one.close()
    other.close()


def batch(version: int) -> Applied:
    return Applied(epoch=version, batch=1, version=version, node="pi", lease=version)


def test_a_seat_is_taken_once_a_term(two: tuple[Database, Database]) -> None:
    one, other = Seats(two[0]), Seats(two[1])
    assert one.look() is None
    first = one.take("a", None)
    assert first is not None
    assert first.term == 1
    assert other.take("b", None) is None, "somebody has it"
    seen = other.look()
    assert seen == Seat(holder="a", term=1, beats=0)
    one.renew(first)
    assert other.take("b", seen) is None, "its holder has counted on since"
    seen = other.look()
    second = other.take("b", seen)
    assert second is not None
    assert second.term == 2
    with pytest.raises(Deposed):
        one.renew(first)
    with pytest.raises(Deposed):
        one.give_up(first)
    other.give_up(second)
    given_up = one.look()
    assert given_up is not None
    assert given_up.holder == ""
    third = one.take("a", given_up)
    assert third is not None
    assert third.term == 3


def test_of_many_that_saw_the_same_one_takes_it(two: tuple[Database, Database]) -> None:
    seats = [Seats(two[0]), Seats(two[1])]
    seats[0].take("a", None)
    seen = seats[0].look()
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda number: seats[number % 2].take(f"m{number}", seen), range(8)))
    assert sum(each is not None for each in taken) == 1


def test_what_is_written_renews_the_seat(two: tuple[Database, Database]) -> None:
    seats = Seats(two[0])
    tenure = seats.take("a", None)
    assert tenure is not None
    registry = Registry(FencedDatabase(two[0], tenure))
    registry.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
    registry.restore_applied("j", [batch(1)], after=0, checkpoint="one")
    assert seats.look() == Seat(holder="a", term=1, beats=2)
    assert [row.checkpoint for row in registry.jobs()] == ["one"]


def test_a_deposed_manager_writes_nothing_and_reads_on(two: tuple[Database, Database]) -> None:
    old, new = Seats(two[0]), Seats(two[1])
    tenure = old.take("a", None)
    assert tenure is not None
    deposed = Registry(FencedDatabase(two[0], tenure))
    deposed.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
    deposed.add_token(secret="s", role="node", uses=1, now_s=1.0)
    taken = new.take("b", new.look())
    assert taken is not None
    holder = Registry(FencedDatabase(two[1], taken))
    holder.restore_applied("j", [batch(1)], after=0, checkpoint="theirs")
    attempts: list[Callable[[], object]] = [
        lambda: deposed.restore_applied("j", [batch(2)], after=0, checkpoint="ours"),
        lambda: deposed.record_applied("j", [batch(2)]),
        lambda: deposed.next_term("j"),
        lambda: deposed.set_job_state("j", JobState.FAILED, now_s=2.0),
        lambda: deposed.redeem_token("s", "pi", 2.0),
        lambda: deposed.remove_job("j"),
        lambda: deposed.add_events("j", [(1.0, "kind", "text")]),
        lambda: deposed.add_job(job="k", name="k", spec_json="{}", now_s=1.0),
        lambda: deposed.settle("cluster", "x"),
    ]
    for attempt in attempts:
        with pytest.raises(Deposed, match="taken over"):
            attempt()
    assert deposed.applied("j") == holder.applied("j") == [batch(1)]
    (job,) = holder.jobs()
    assert (job.term, job.state, job.checkpoint) == (0, "queued", "theirs")
    assert holder.tokens()[0].uses_left == 1
