"""What the registry asks its database on behalf of one device or one job must never read a whole table: a cluster may
have a hundred thousand members. Each database is asked for its plan of every such statement."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from shoal.roles.manager.publishing import Published, Serving
from shoal.scheduling.ledger import Applied
from shoal.states import JobState
from shoal.store.base import Database, Parameters, Row, Statements
from shoal.store.registry import Registry
from shoal.store.rows import Certificate, EvaluationRow, Redeemed
from shoal.store.sqlite import SqliteDatabase

HASH = "a" * 64
ISSUED = Certificate(sha256=HASH, node="pi", role="node", key_sha256=HASH, issued_s=1.0, expires_s=9e9)
EVALUATION = EvaluationRow(version=1, epoch=0, accuracy=0.9, loss=0.5, examples=100, at_s=5.0)
PUBLISHED = Published(
    version=1, number=1, epoch=0, accuracy=0.9, loss=0.5, examples=9, sha256=HASH, size_bytes=1, at_s=1.0, reason=""
)

#: A plan that reads a table or an index from its first row to its last. What a subquery has found already is no table.
SCAN = re.compile(r"^SCAN (?!\(subquery|CONSTANT ROW|\d+ CONSTANT)|^[ >-]*(?:Parallel )?Seq Scan on")
#: PostgreSQL reads an index from end to end where it names no condition on it.
INDEX_SCAN = re.compile(r"^[ >-]*(?:Bitmap )?Index (?:Only )?Scan ")


class Asked:
    """A database that notes every statement and its values, as they are run on another."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.statements: list[tuple[str, Parameters]] = []

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        self.statements.append((query, parameters))
        return self._database.rows(query, parameters)

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        self.statements.append((statement, parameters))
        return self._database.change(statement, parameters)

    def change_each(self, statement: str, parameters: Iterable[Parameters]) -> int:
        rows = list(parameters)
        self.statements += [(statement, row) for row in rows]
        return self._database.change_each(statement, rows)

    @contextlib.contextmanager
    def transaction(self, *, writes: bool = True, of_job: bool = False) -> Iterator[Statements]:
        with self._database.transaction(writes=writes, of_job=of_job):
            yield self

    def close(self) -> None:
        self._database.close()

    def plans(self) -> Iterator[list[str]]:
        """How each statement is run. PostgreSQL scans a small table also where it has an index: it is told not to."""
        is_sqlite = isinstance(self._database, SqliteDatabase)
        explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
        # Nothing is changed: an explained statement is not run.
        with self._database.transaction():
            if not is_sqlite:
                self._database.rows("SELECT set_config('enable_seqscan', 'off', true)")
            for statement, parameters in self.statements:
                rows = self._database.rows(f"{explain} {statement}", parameters)
                yield [str(row["detail" if is_sqlite else "QUERY PLAN"]) for row in rows]

    def scans(self) -> list[str]:
        """Those with a scan in them."""
        found = []
        for (statement, _), plan in zip(self.statements, self.plans(), strict=True):
            for line, following in itertools.zip_longest(plan, plan[1:], fillvalue=""):
                if SCAN.match(line) or (INDEX_SCAN.match(line) and "Index Cond" not in following):
                    found.append(f"{line.strip()}: {statement}")
        return found


@pytest.fixture
def asked(open_database: Callable[[], Database]) -> Iterator[Asked]:
    asked = Asked(open_database())
    yield asked
    asked.close()


@pytest.mark.parametrize("holder", ["", "m"])
def test_a_member_comes_and_goes_without_a_look_at_the_others(asked: Asked, holder: str) -> None:
    """Also where other managers are to hear of it."""
    registry = Registry(asked, holder=holder)
    registry.add_token(secret="abcd", role="node", uses=50, now_s=1.0)
    # To make a token looks through the few that there are.
    asked.statements.clear()
    assert isinstance(registry.redeem_token("abcd", "pi", 2.0), Redeemed)
    for number in range(2, 40):
        assert registry.redeem_token("abcd", "pi", 2.0) == Redeemed(node=f"pi-{number}", role="node")
    registry.add_certificate(ISSUED)
    registry.add_certificate(replace(ISSUED, sha256="b" * 64), replaces=HASH)
    registry.certificates("pi")
    registry.certificate(HASH)
    assert registry.use_certificate("b" * 64, now_s=3.0)
    registry.upsert_node(node="pi", role="node", facts_json="{}", state="enrolled", now_s=3.0)
    registry.set_node_state("pi", "drained", reason="")
    registry.node("pi")
    registry.add_certificate(replace(ISSUED, sha256="c" * 64, issuer=HASH))
    registry.issued_by("pi")
    registry.revoke_node("pi", now_s=4.0, reason="")
    registry.forget_node("pi", now_s=5.0)
    registry.reserve_node("pi", "node", now_s=6.0)
    registry.members_epoch()
    registry.members_since(7)
    assert len(asked.statements) > 50
    assert asked.scans() == []


def test_a_job_runs_without_a_look_at_others(asked: Asked) -> None:
    registry = Registry(asked)
    registry.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
    registry.next_term("j")
    registry.set_job_state("j", JobState.RUNNING, now_s=2.0, leader="pi")
    registry.save_progress("j", "{}")
    registry.save_terms("j", "{}")
    registry.record_applied("j", [Applied(epoch=0, batch=1, version=1, node="pi", lease=1)], [EVALUATION])
    registry.restore_applied("j", [Applied(epoch=0, batch=2, version=2, node="pi", lease=2)], after=1)
    registry.applied_between("j", 0, 9)
    registry.forget_after("j", 1)
    registry.add_events("j", [(1.0, "kind", "text")])
    registry.last_event("j")
    registry.events_after("j", 0, limit=50)
    registry.add_tracebacks("j", [(1.0, "reason", "trace")])
    registry.tracebacks("j")
    registry.add_evaluation("j", replace(EVALUATION, version=2))
    registry.evaluations("j", latest=10)
    registry.publish("j", PUBLISHED, Serving(version=1, reason="", verdict=None), drop=(7,))
    registry.shelf("j")
    registry.serve("j", Serving(version=1, reason="", verdict=None))
    registry.job("j")
    registry.own_jobs()
    registry.manager_of("j")
    assert len(asked.statements) > 25
    assert asked.scans() == []


def test_jobs_without_a_manager_are_found_among_the_open_ones(asked: Asked) -> None:
    """Managers look for them all the time, and most jobs have ended long ago."""
    Registry(asked).orphans()
    (plan,) = asked.plans()
    assert any("jobs_open" in line for line in plan)


def test_a_scan_would_be_found(asked: Asked) -> None:
    asked.rows("SELECT * FROM certificates WHERE expires_s < ?", (1.0,))
    asked.rows("SELECT node FROM nodes WHERE state != 'revoked'")
    asked.rows("SELECT job, seq FROM events ORDER BY job, seq")
    found = [re.findall("certificates|nodes|events", line.split(":")[0])[-1] for line in asked.scans()]
    assert found == ["certificates", "nodes", "events"]


def test_many_devices_that_want_one_name_are_numbered(registry: Registry) -> None:
    registry.add_token(secret="abcd", role="node", uses=5000, now_s=1.0)
    rows = ((f"pi-{number}" if number > 1 else "pi",) for number in range(1, 3001) if number not in (7, 2000))
    with registry._database.transaction() as database:
        database.change_each(
            "INSERT INTO nodes VALUES (?, 'node', '{}', 1, 1, 'enrolled', '', NULL, '', NULL, 0, 0, '', '[]')", rows
        )
    given = [registry.redeem_token("abcd", "pi", 2.0) for _ in range(3)]
    names = [redeemed.node for redeemed in given if isinstance(redeemed, Redeemed)]
    assert names[0] == "pi-7", "one of the first that became free"
    # Which of the others is found is left open: but that it is free, and near.
    assert set(names[1:]) <= {"pi-2000", "pi-3001", "pi-3002"}
    assert len(set(names)) == 3
