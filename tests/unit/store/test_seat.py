"""Seats and jobs on every store: a manager that was ended writes nothing, and a job has one manager."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from shoal.errors import Misuse, Refused, ShoalError
from shoal.roles.manager.publishing import Published, Serving
from shoal.roles.manager.seat_watch import Seat
from shoal.scheduling.ledger import Applied
from shoal.states import JobState
from shoal.store.base import Away, Database
from shoal.store.registry import Registry
from shoal.store.rows import Certificate, EvaluationRow, JobRow, Redeemed
from shoal.store.seat import Deposed, FencedDatabase, GivenAway, Seats, Tenure
from testbed.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(120)

Open = Callable[[], Database]


@dataclass
class Managed:
    """What one manager process has open."""

    database: Database
    seats: Seats
    tenure: Tenure
    registry: Registry

    def seen_by(self, other: Managed) -> Seat:
        return next(seat for seat in other.seats.look() if seat.holder == self.tenure.holder)

    def job(self, job: str) -> JobRow:
        row = self.registry.job(job)
        assert row is not None
        return row


@pytest.fixture
def start(open_database: Open) -> Iterator[Callable[[str], Managed]]:
    """Starts a manager with connections of its own."""
    opened: list[Database] = []

    def begin(name: str) -> Managed:
        opened.extend((open_database(), open_database()))
        seats = Seats(opened[-1])
        tenure = seats.open(name, f"{name}:7070")
        registry = Registry(FencedDatabase(opened[-2], tenure), holder=name)
        return Managed(opened[-2], seats, tenure, registry)

    yield begin
    for database in opened:
        database.close()


Start = Callable[[str], Managed]


def batch(version: int) -> Applied:
    return Applied(epoch=version, batch=1, version=version, node="pi", lease=version)


def add_job(manager: Managed, job: str) -> JobRow:
    manager.registry.add_job(job=job, name=job, spec_json="{}", now_s=1.0)
    return manager.job(job)


def test_managers_have_a_seat_each_and_tell_each_other(start: Start) -> None:
    a, b = start("a"), start("b")
    b.seats.renew(b.tenure, wants=3, starving=1, devices=7)
    assert a.seats.look() == [
        Seat(holder="a", beats=0, address="a:7070"),
        Seat(holder="b", beats=1, address="b:7070", wants=3, starving=1, devices=7),
    ]
    b.seats.move(b.tenure, "elsewhere:1")
    assert b.seen_by(a).address == "elsewhere:1"
    with pytest.raises(Misuse):
        a.seats.open("b")
    b.seats.give_up(b.tenure)
    assert [seat.holder for seat in a.seats.look()] == ["a"]
    with pytest.raises(Deposed):
        b.seats.give_up(b.tenure)
    with pytest.raises(Deposed):
        b.seats.move(b.tenure, "b:1")


def test_a_seat_is_ended_if_it_did_not_count_on(start: Start) -> None:
    a, b = start("a"), start("b")
    seen = b.seen_by(a)
    b.seats.renew(b.tenure)
    assert not a.seats.end(seen, a.tenure), "it has counted on since"
    b.seats.renew(b.tenure)
    assert a.seats.end(b.seen_by(a), a.tenure)
    assert not a.seats.end(seen, a.tenure), "it is gone"
    with pytest.raises(Deposed, match="taken over"):
        b.seats.renew(b.tenure)
    with pytest.raises(Deposed):
        b.seats.end(a.seen_by(a), b.tenure)
    assert [seat.holder for seat in a.seats.look()] == ["a"]


def test_of_two_that_end_each_other_one_is_left(start: Start) -> None:
    for number in range(10):
        a, b = start(f"a{number}"), start(f"b{number}")
        pair = [(a, b.seen_by(a)), (b, a.seen_by(b))]
        gate = threading.Barrier(2)

        def end(one: tuple[Managed, Seat], gate: threading.Barrier = gate) -> bool:
            gate.wait()
            with contextlib.suppress(ShoalError):
                return one[0].seats.end(one[1], one[0].tenure)
            return False

        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(end, pair))
        left = {seat.holder for seat in a.seats.look()} & {f"a{number}", f"b{number}"}
        # Where each waited for the other's row, both may have given up.
        assert sum(ended) + len(left) == 2
        assert left


def test_what_is_written_renews_the_seat(start: Start) -> None:
    a = start("a")
    add_job(a, "j")
    a.registry.restore_applied("j", [batch(1)], after=0, checkpoint="one")
    a.registry.add_token(secret="s", role="node", uses=1, now_s=1.0)
    assert a.seen_by(a).beats == 4
    assert [(row.checkpoint, row.manager) for row in a.registry.jobs()] == [("one", "a")]


#: Every write about a job.
EVALUATION = EvaluationRow(version=2, epoch=0, accuracy=0.9, loss=0.5, examples=100, at_s=5.0)
PUBLISHED = Published(
    version=2, number=1, epoch=0, accuracy=0.9, loss=0.5, examples=9, sha256="h", size_bytes=1, at_s=1.0, reason=""
)
JOB_WRITES: dict[str, Callable[[Registry], object]] = {
    "restore": lambda registry: registry.restore_applied("j", [batch(2)], after=0, checkpoint="ours"),
    "record": lambda registry: registry.record_applied("j", [batch(2)]),
    "forget": lambda registry: registry.forget_after("j", 0),
    "term": lambda registry: registry.next_term("j"),
    "terms": lambda registry: registry.save_terms("j", '{"1": 2}'),
    "progress": lambda registry: registry.save_progress("j", '{"a": 1}'),
    "state": lambda registry: registry.set_job_state("j", JobState.RUNNING, now_s=2.0),
    "remove": lambda registry: registry.remove_job("j"),
    "events": lambda registry: registry.add_events("j", [(1.0, "kind", "text")]),
    "tracebacks": lambda registry: registry.add_tracebacks("j", [(1.0, "reason", "trace")]),
    "evaluation": lambda registry: registry.add_evaluation("j", EVALUATION),
    "publish": lambda registry: registry.publish("j", PUBLISHED, Serving(version=2)),
    "serve": lambda registry: registry.serve("j", Serving(version=1)),
}
CLUSTER_WRITES: dict[str, Callable[[Registry], object]] = {
    "redeem": lambda registry: registry.redeem_token("s", "pi", 2.0),
    "add job": lambda registry: registry.add_job(job="k", name="k", spec_json="{}", now_s=1.0),
    "settle": lambda registry: registry.settle("cluster", "x"),
    "cluster events": lambda registry: registry.add_events("cluster", [(1.0, "kind", "text")]),
    "revoke": lambda registry: registry.revoke_node("pi", now_s=1.0, reason=""),
}

_TABLES = ("jobs", "applied", "events", "evaluations", "published", "serving", "epochs", "tokens", "nodes", "facts")


def everything(database: Database) -> dict[str, list[dict[str, object]]]:
    return {table: database.rows(f"SELECT * FROM {table}") for table in _TABLES}  # noqa: S608 - names from above


def test_a_manager_that_was_ended_writes_nothing_and_reads_on(start: Start) -> None:
    a, b = start("a"), start("b")
    add_job(b, "j")
    b.registry.add_token(secret="s", role="node", uses=1, now_s=1.0)
    assert a.seats.end(b.seen_by(a), a.tenure)
    (orphan,) = a.registry.orphans()
    assert a.registry.take_job(orphan)
    a.registry.restore_applied("j", [batch(1)], after=0, checkpoint="theirs")
    before = everything(a.database)
    for name, write in (JOB_WRITES | CLUSTER_WRITES).items():
        with pytest.raises(Deposed, match="taken over"):
            write(b.registry)
        assert everything(a.database) == before, name
    assert b.registry.applied("j") == [batch(1)]


@pytest.mark.parametrize("name", list(JOB_WRITES))
def test_a_manager_writes_nothing_to_the_job_of_another(start: Start, name: str) -> None:
    a, b = start("a"), start("b")
    add_job(a, "j")
    a.registry.restore_applied("j", [batch(1)], after=0, checkpoint="theirs")
    before = everything(a.database)
    with pytest.raises(Deposed, match="by another manager"):
        JOB_WRITES[name](b.registry)
    with pytest.raises(Deposed, match="by another manager"):
        JOB_WRITES[name](Registry(a.database)), "nor does one without a seat"
    assert everything(a.database) == before
    JOB_WRITES[name](a.registry)
    assert everything(a.database) != before


def test_what_another_job_is_written_stands_in_nobodys_way(start: Start) -> None:
    """A transaction of one manager is open, and another writes to its own job meanwhile."""
    a, b = start("a"), start("b")
    add_job(a, "j"), add_job(b, "k")
    if not hasattr(a.database, "_conninfo"):
        pytest.skip("a SQLite file has one writer at a time")
    with a.registry._writing("j") as open_one:
        open_one.change("UPDATE jobs SET name = 'new' WHERE job = 'j'")
        b.registry.restore_applied("k", [batch(1)], after=0, checkpoint="one")
        b.seats.renew(b.tenure)
        assert [row.job for row in b.registry.own_jobs()] == ["k"]
    assert a.job("j").name == "new"


# Whose job it is -----------------------------------------------------------------------------------------------


def test_a_job_without_a_living_manager_is_taken_once(start: Start) -> None:
    a, b, c = start("a"), start("b"), start("c")
    for job in ("j", "k", "done"):
        add_job(b, job)
    b.registry.set_job_state("done", JobState.FINISHED, now_s=2.0)
    add_job(a, "own")
    assert a.registry.orphans() == []
    assert not a.registry.take_job(b.job("j")), "its manager lives"
    assert a.registry.manager_of("j") == ("b", "b:7070")
    b.seats.give_up(b.tenure)
    assert a.registry.manager_of("j") is None
    assert [row.job for row in a.registry.orphans()] == ["j", "k"]
    seen = a.job("j")
    with ThreadPoolExecutor(2) as pool:
        taken = list(pool.map(lambda manager: manager.registry.take_job(seen), (a, c)))
    assert sorted(taken) == [False, True]
    winner, loser = (a, c) if taken[0] else (c, a)
    assert winner.registry.next_term("j") == 1
    with pytest.raises(Deposed):
        loser.registry.next_term("j")
    assert a.registry.manager_of("j") == (winner.tenure.holder, f"{winner.tenure.holder}:7070")
    assert [row.job for row in a.registry.orphans()] == ["k"]
    assert "j" in [row.job for row in winner.registry.own_jobs()]


def test_a_living_manager_gives_a_job_and_writes_nothing_to_it_from_then_on(start: Start) -> None:
    a, b = start("a"), start("b")
    add_job(a, "j")
    a.registry.restore_applied("j", [batch(1)], after=0, checkpoint="one")
    assert not a.registry.give_job("j", "c:7070"), "no such manager"
    assert not a.registry.give_job("j", "a:7070"), "it has the job already"
    a.registry.next_term("j")
    with pytest.raises(Deposed):
        b.registry.give_job("j", "b:7070")
    assert a.registry.give_job("j", "b:7070")
    assert b.registry.manager_of("j") == ("b", "b:7070")
    before = everything(a.database)
    for name, write in JOB_WRITES.items():
        with pytest.raises(GivenAway, match="was given to another manager"):
            write(a.registry)
        assert everything(a.database) == before, name
    # It is still a manager like any other, and b goes on where a was.
    add_job(a, "k")
    assert b.registry.next_term("j") == 2
    assert b.registry.applied("j") == [batch(1)]
    assert b.registry.give_job("j", "a:7070")
    assert a.registry.next_term("j") == 3, "it was given back"


def test_managers_that_are_dialled_at_one_address_are_told_apart_or_refused(start: Start, open_database: Open) -> None:
    """Behind a proxy, started without ``--direct``."""
    a, b = start("a"), start("b")
    add_job(a, "j")
    a.seats.move(a.tenure, "proxy:7070"), b.seats.move(b.tenure, "proxy:7070")
    with pytest.raises(Refused, match="--direct"):
        a.registry.drain_manager("proxy:7070", "ann")
    assert a.registry.give_job("j", "proxy:7070")
    assert b.registry.next_term("j") == 1
    a.seats.move(a.tenure, "")
    with pytest.raises(Refused, match="no manager is dialled at ''"):
        a.registry.drain_manager("", "ann")


def test_a_drained_manager_takes_no_job_also_after_a_restart(start: Start) -> None:
    a, b, c = start("a/1"), start("b/1"), start("c/1")
    add_job(c, "j")
    a.registry.drain_manager("b/1:7070", "ann: update")
    assert {seat.holder: seat.is_drained for seat in a.seats.look()} == {"a/1": False, "b/1": True, "c/1": False}
    assert not c.registry.give_job("j", "b/1:7070")
    c.seats.give_up(c.tenure)
    (orphan,) = b.registry.orphans()
    assert not b.registry.take_job(orphan)
    b = start("b/2")
    assert not b.registry.take_job(orphan), "its home is drained, whichever process runs from it"
    with pytest.raises(Refused, match="drained already"):
        a.registry.drain_manager("b/2:7070", "ann")
    with pytest.raises(Refused, match="no manager is dialled at 'x:1'"):
        a.registry.undrain_manager("x:1")
    b.registry.undrain_manager("b/2:7070")
    assert b.registry.take_job(orphan)
    with pytest.raises(Refused, match="is not drained"):
        a.registry.undrain_manager("b/2:7070")


def test_the_last_manager_that_takes_jobs_is_not_drained(start: Start) -> None:
    a = start("a")
    with pytest.raises(Refused, match="start another manager"):
        a.registry.drain_manager("a:7070", "ann")
    start("b")
    a.registry.drain_manager("a:7070", "ann")
    with pytest.raises(Refused, match="undrain"):
        a.registry.drain_manager("b:7070", "ann")


def test_a_job_of_an_older_release_is_nobodys(start: Start, open_database: Open) -> None:
    with Registry(open_database()) as alone:
        alone.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
        assert [row.job for row in alone.own_jobs()] == ["j"]
    a = start("a")
    with pytest.raises(Deposed):
        a.registry.next_term("j")
    (orphan,) = a.registry.orphans()
    assert orphan.manager == ""
    assert a.registry.take_job(orphan)
    assert a.registry.next_term("j") == 1


def test_an_ended_job_is_written_by_the_manager_that_is_asked(start: Start) -> None:
    a, b = start("a"), start("b")
    add_job(b, "j")
    b.registry.set_job_state("j", JobState.FINISHED, now_s=2.0)
    with pytest.raises(Deposed):
        a.registry.serve("j", Serving(version=1))
    b.seats.give_up(b.tenure)
    a.registry.serve("j", Serving(version=1))
    assert a.job("j").manager == "a"
    a.registry.remove_job("j")
    assert a.registry.job("j") is None


def test_a_seat_is_not_ended_in_the_middle_of_a_transaction(start: Start) -> None:
    """The other waits for it, and finds that the seat was counted on."""
    a, b = start("a"), start("b")
    add_job(b, "j")
    seen = b.seen_by(a)
    with ThreadPoolExecutor(1) as pool:
        with b.registry._writing("j") as database:
            ending = pool.submit(a.seats.end, seen, a.tenure)
            database.change("UPDATE jobs SET checkpoint = 'mine' WHERE job = 'j'")
        assert not ending.result(timeout=30)
    b.registry.next_term("j")
    assert b.job("j").checkpoint == "mine"


def test_a_seat_is_ended_soon_after_its_holder_stopped_in_a_transaction(postgres_server: PostgresServer) -> None:
    """Its row is locked until the server ends the transaction. Others renew their own seats meanwhile."""
    from shoal.store.postgres import IDLE_IN_TRANSACTION_S, PostgresDatabase

    url = postgres_server.new()
    stopped, watching = PostgresDatabase(url), PostgresDatabase(url, busy_timeout_s=0.2)
    theirs, own = Seats(stopped), Seats(watching)
    tenure, mine = theirs.open("stopped"), own.open("well")

    def story() -> None:
        with FencedDatabase(stopped, tenure).transaction(of_job=True) as database:
            (seen,) = (seat for seat in own.look() if seat.holder == "stopped")
            began_s = time.monotonic()
            is_ended = False
            while not is_ended:
                own.renew(mine)
                with contextlib.suppress(ShoalError):
                    is_ended = own.end(seen, mine)
                assert time.monotonic() - began_s < IDLE_IN_TRANSACTION_S + 5
            database.change("UPDATE seats SET wants = 1 WHERE holder = 'stopped'")

    with pytest.raises(Away):
        story()
    with pytest.raises(Deposed):
        theirs.renew(tenure)
    stopped.close()
    watching.close()


# Members are everybody's ---------------------------------------------------------------------------------------


def in_threads(start: Start, managers: int, calls: int, act: Callable[[Registry, int], object]) -> list[object]:
    """What each call came to, made by several managers at the same time."""
    started = [start(f"m{number}") for number in range(managers)]
    gate = threading.Barrier(managers)

    def run(number: int) -> list[object]:
        gate.wait()
        return [act(started[number].registry, number * calls + call) for call in range(calls)]

    with ThreadPoolExecutor(managers) as pool:
        return [each for results in pool.map(run, range(managers)) for each in results]


def test_what_is_done_about_members_waits_its_turn(start: Start) -> None:
    a, b = start("a"), start("b")
    a.registry.add_token(secret="s", role="node", uses=1, now_s=1.0)
    acts: list[Callable[[], object]] = [
        lambda: b.registry.redeem_token("s", "pi", 2.0),
        lambda: b.registry.add_events("cluster", [(1.0, "kind", "text")]),
        lambda: b.registry.revoke_node("pi", now_s=3.0, reason=""),
    ]
    for act in acts:
        with ThreadPoolExecutor(1) as pool:
            with FencedDatabase(a.database, a.tenure).transaction():
                waiting = pool.submit(act)
                with pytest.raises(TimeoutError):
                    waiting.result(timeout=0.3)
            waiting.result(timeout=30)


def test_a_token_of_half_as_many_uses_lets_half_of_them_in(start: Start) -> None:
    first = start("first")
    first.registry.add_token(secret="s", role="node", uses=12, now_s=1.0)
    got = in_threads(start, 4, 6, lambda registry, number: registry.redeem_token("s", f"pi{number}", 2.0))
    assert sum(isinstance(each, Redeemed) for each in got) == 12
    assert {each for each in got if isinstance(each, str)} == {
        "this token is used up: ask the cluster's operator for a new join line"
    }
    assert [token.uses_left for token in first.registry.tokens()] == [0]


def test_one_name_is_given_once(start: Start) -> None:
    first = start("first")
    first.registry.add_token(secret="s", role="node", uses=99, now_s=1.0)
    got = in_threads(start, 4, 4, lambda registry, number: registry.redeem_token("s", "pi", 2.0))
    names = [each.node for each in got if isinstance(each, Redeemed)]
    assert len(names) == len(set(names)) == 16
    assert "pi" in names


def test_certificates_of_one_member_are_numbered_one_after_the_other(start: Start) -> None:
    first = start("first")
    first.registry.upsert_node(node="pi", role="node", facts_json="{}", state="enrolled", now_s=1.0)
    issued = Certificate(sha256="", node="pi", role="node", key_sha256="k", issued_s=1.0, expires_s=9e9)
    in_threads(start, 4, 2, lambda registry, number: registry.add_certificate(replace(issued, sha256=f"{number:064d}")))
    numbers = [row.number for row in first.registry.certificates("pi")]
    assert len(numbers) == len(set(numbers))
    assert max(numbers) == 8


def test_events_of_the_cluster_have_numbers_of_their_own(start: Start) -> None:
    first = start("first")

    def tell(registry: Registry, number: int) -> int:
        # As a journal does: with numbers that another may have given out too.
        return registry.add_events("cluster", [(1.0, "kind", f"{number}")], numbers=[1 + number % 3])

    in_threads(start, 4, 5, tell)
    events = first.registry.events_after("cluster", 0, limit=100)
    assert len(events) == 20
    assert {int(event.text) for event in events} == set(range(20))
