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


# A seat a job: what the store promises; managers take one seat a cluster so far (decision 47) -----------------


def test_a_seat_a_job_fences_that_job_and_no_other(two: tuple[Database, Database]) -> None:
    """Two managers are awake, each with a job. One takes the other's job: that one goes on with what it has left."""
    one, other = Seats(two[0]), Seats(two[1])
    of_j, of_k = one.take("a", None, job="j"), one.take("a", None, job="k")
    of_l = other.take("b", None, job="l")
    assert of_j is not None
    assert of_k is not None
    assert of_l is not None
    assert one.look() is None, "nobody took the cluster's"
    j, k, theirs = (Registry(FencedDatabase(two[at], held)) for at, held in ((0, of_j), (0, of_k), (1, of_l)))
    for registry, job in ((j, "j"), (k, "k"), (theirs, "l")):
        registry.add_job(job=job, name=job, spec_json="{}", now_s=1.0)
        registry.restore_applied(job, [batch(1)], after=0, checkpoint=f"{job} by its manager")
    taken = other.take("b", other.look("j"), job="j")
    assert taken is not None
    assert taken.term == 2
    with pytest.raises(Deposed):
        j.restore_applied("j", [batch(2)], after=1, checkpoint="late")
    with pytest.raises(Deposed):
        j.next_term("j")
    k.restore_applied("k", [batch(2)], after=1, checkpoint="k goes on")
    assert Registry(FencedDatabase(two[1], taken)).next_term("j") == 1
    names = {row.job: row.checkpoint for row in k.jobs()}
    assert names == {"j": "j by its manager", "k": "k goes on", "l": "l by its manager"}
    assert one.look("l") == Seat(holder="b", term=1, beats=2), "writes about other jobs count nothing on"


def test_a_history_beyond_a_cut_is_adopted_once_by_the_holder(two: tuple[Database, Database]) -> None:
    """Two managers decide at the same moment to adopt what a device made: one of them holds the job."""
    seats = [Seats(database) for database in two]
    first = seats[0].take("a", None, job="j")
    assert first is not None
    registries = [Registry(FencedDatabase(two[0], first))]
    registries[0].add_job(job="j", name="j", spec_json="{}", now_s=1.0)
    registries[0].restore_applied("j", [batch(1)], after=0, checkpoint="one")
    second = seats[1].take("b", seats[1].look("j"), job="j")
    assert second is not None
    registries.append(Registry(FencedDatabase(two[1], second)))

    def adopt(number: int) -> bool:
        rows = [batch(2), batch(3)] if number == 0 else [batch(2)]
        try:
            registries[number].restore_applied("j", rows, after=1, checkpoint=f"of {number}")
        except Deposed:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(adopt, (0, 1))) == [False, True]
    assert registries[1].applied("j") == [batch(1), batch(2)]
    assert [row.checkpoint for row in registries[1].jobs()] == ["of 1"]
