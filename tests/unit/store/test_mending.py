"""A database that went back in time: managers find out before they write, and write again what they remember."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.roles.manager.going_back import TERMS_PASSED_OVER
from shoal.scheduling.ledger import Applied
from shoal.states import JobState
from shoal.store.base import Database
from shoal.store.mending import Mended, count_start, mend, signs_in, to_note
from shoal.store.registry import Registry
from shoal.store.remembered import EndedJob, JobSubmission, Remembered
from shoal.store.rows import JobRow
from shoal.store.seat import Deposed, FencedDatabase, Seats, Tenure, WentBack
from shoal.store.sqlite import SqliteDatabase

pytestmark = pytest.mark.timeout(120)

Open = Callable[[], Database]

#: In the order in which rows may be added: what refers to a job comes after it.
TABLES = ("tokens", "nodes", "certificates", "facts", "counters", "seats", "jobs", "applied", "events", "evaluations")


def checkpoint(version: int) -> str:
    return f"{version:012d}-{version:064x}.safetensors"


class Past:
    """All rows of a database at one moment, to be put back as a restore does."""

    def __init__(self, database: Database) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {
            table: database.rows(f"SELECT * FROM {table}")  # noqa: S608
            for table in TABLES
        }

    def put_back(self, database: Database) -> None:
        with database.transaction() as statements:
            for table in reversed(TABLES):
                statements.change(f"DELETE FROM {table}")  # noqa: S608
            for table, rows in self._rows.items():
                for row in rows:
                    names, marks = ", ".join(row), ", ".join("?" * len(row))
                    statements.change(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))  # noqa: S608


@dataclass
class Managed:
    tenure: Tenure
    fenced: FencedDatabase
    registry: Registry
    remembered: Remembered
    has_started: bool = False

    def note(self) -> None:
        """As a manager does once a second, and at its start."""
        if not self.has_started:
            count_start(self.fenced, self.registry, self.remembered, self.tenure)
        self.has_started = True
        self.remembered.on_counted(self.tenure.holder, self.tenure.counted.beats)
        self.remembered.on_members(self.registry.members_epoch())
        self.remembered.flush()

    def mended(self, newest: dict[str, str] | None = None) -> Mended | None:
        signs = signs_in(self.registry, self.remembered, tenure=self.tenure)
        if not signs:
            return None
        return mend(self.fenced, self.registry, self.remembered, signs=signs, newest=newest or {})

    def job(self, job: str) -> JobRow:
        row = self.registry.job(job)
        assert row is not None
        return row


@pytest.fixture
def start(open_database: Open, tmp_path: Path) -> Iterator[Callable[[str], Managed]]:
    """Starts a process of a manager: the home is what comes before the stroke."""
    opened: list[Database] = []

    def begin(holder: str) -> Managed:
        opened.append(open_database())
        tenure = Seats(opened[-1]).open(holder, f"{holder}:7070")
        fenced = FencedDatabase(opened[-1], tenure)
        home = tmp_path / holder.split("/")[0]
        return Managed(tenure, fenced, Registry(fenced, holder=holder), Remembered(home / "remembered"))

    yield begin
    for database in opened:
        database.close()


Start = Callable[[str], Managed]


def test_a_job_that_the_database_lost_in_its_last_second_is_a_sign(start: Start, open_database: Open) -> None:
    a1 = start("a/1")
    a1.note()
    a1.tenure.counted.on_counted = partial(a1.remembered.on_counted, "a/1")
    plain = open_database()
    past = Past(plain)
    add_job(a1, "j")
    a1.remembered.on_submitted("j", JobSubmission(name="j", spec_json="{}", created_s=1.0))
    # Everything loses its power before the count is written down again.
    past.put_back(plain)
    a2 = start("a/2")
    mended = a2.mended()
    assert mended is not None
    assert mended.submitted == ("j",)
    assert a2.job("j").state is JobState.QUEUED
    plain.close()


def test_a_start_that_is_not_known_is_a_sign_and_a_seat_that_was_replaced_ended_or_given_up_is_none(
    start: Start, open_database: Open
) -> None:
    start("a/1").note()
    plain = open_database()
    past = Past(plain)
    # A process that was killed between its seat and its first note, and one that had only told the database.
    start("a/2")
    a2 = start("a/2b")
    a2.registry.set_counter("starts a", 2)
    a3 = start("a/3")
    assert a3.mended() is None, "a seat that was tried has replaced the one that is remembered"
    a3.note()
    # One that another manager ended.
    b = start("b/1")
    seat = next(each for each in Seats(plain).look() if each.holder == "a/3")
    assert Seats(plain).end(seat, b.tenure)
    a4 = start("a/4")
    assert a4.mended() is None
    a4.note()
    # One that went with the past.
    past.put_back(plain)
    mended = start("a/5").mended()
    assert mended is not None
    assert mended.signs == ("this manager had started 4 times, not 1",)
    assert start("a/5b").mended() is None, "terms jump once"
    # One that was given up.
    a6 = start("a/6")
    a6.note()
    Seats(plain).give_up(a6.tenure)
    a6.remembered.on_counted("", 0)
    a6.remembered.flush()
    assert start("a/7").mended() is None
    plain.close()


def test_a_home_that_is_older_than_the_database_is_no_sign(start: Start, tmp_path: Path) -> None:
    home, older = tmp_path / "a" / "remembered", tmp_path / "older"
    for holder in ("a/1", "a/2"):
        process = start(holder)
        assert process.mended() is None
        process.note()
        if not older.exists():
            shutil.copytree(home, older)
        Seats(process.fenced).give_up(process.tenure)
        process.remembered.on_counted("", 0)
        process.remembered.flush()
    shutil.rmtree(home)
    shutil.copytree(older, home)
    again = start("a/3")
    assert again.remembered.seat[0] == "a/1", "which the database does not know any more"
    assert again.mended() is None
    again.note()
    # From here on it is as good as it was.
    assert again.remembered.starts == 3


def test_a_manager_that_was_away_writes_what_it_remembers_when_others_have_mended(
    start: Start, open_database: Open
) -> None:
    a, b = start("a/1"), start("b/1")
    a.remembered.on_incident(0)
    b.note()
    plain = open_database()
    past = Past(plain)
    add_job(a, "new")
    add_job(a, "short")
    a.registry.set_job_state("short", JobState.STOPPED, now_s=2.0, reason="enough")
    a.remembered.on_ended("short", EndedJob(state="stopped", reason="enough", ended_s=2.0))
    b.registry.settle("x", "y")
    b.note()
    past.put_back(plain)
    b2 = start("b/2")
    assert b2.mended() is not None
    # It ends the seat of the one that is away.
    seat = next(each for each in Seats(plain).look() if each.holder == "a/1")
    assert Seats(plain).end(seat, b2.tenure)
    b2.note()
    a2 = start("a/2")
    mended = a2.mended()
    assert mended is not None
    assert (mended.signs, mended.is_first, mended.submitted) == (("another manager found out",), False, ("new",))
    assert mended.ended == ("short",)
    short = a2.job("short")
    assert (short.state, short.reason, short.ended_s) == (JobState.STOPPED, "enough", 2.0)
    # One that was never there has nothing to say.
    assert start("c/1").mended() is None
    plain.close()


def test_a_seat_that_was_ended_in_a_past_that_it_had_left_is_a_sign(start: Start, open_database: Open) -> None:
    """The only manager that knows of a job was away when the store went back, and nobody else lost anything."""
    a = start("a/1")
    plain = open_database()
    past = Past(plain)
    add_job(a, "new")
    a.note()
    past.put_back(plain)
    b = start("b/1")
    assert b.mended() is None
    seat = next(each for each in Seats(plain).look() if each.holder == "a/1")
    assert Seats(plain).end(seat, b.tenure)
    mended = start("a/2").mended()
    assert mended is not None
    assert (mended.is_first, mended.submitted) == (True, ("new",))
    plain.close()


def add_job(manager: Managed, job: str) -> None:
    manager.registry.add_job(job=job, name=job, spec_json='{"a": 1}', now_s=1.0)
    manager.remembered.on_submitted(job, JobSubmission(name=job, spec_json='{"a": 1}', created_s=1.0))


def save(manager: Managed, job: str, version: int) -> None:
    rows = [Applied(epoch=version, batch=0, version=version, node="pi", lease=version)]
    manager.registry.restore_applied(job, rows, after=version - 1, checkpoint=checkpoint(version))
    manager.remembered.on_version(job, checkpoint(version))


def appoint(manager: Managed, job: str, node: str) -> None:
    term = manager.registry.next_term(job)
    terms = json.dumps({**json.loads(manager.job(job).terms_json), str(term): [node, 0]})
    manager.registry.save_terms(job, terms)
    manager.registry.set_job_state(job, JobState.RUNNING, now_s=1.0, leader=node)
    manager.remembered.on_term(job, term, terms)


def test_a_manager_whose_count_went_back_writes_nothing(start: Start, open_database: Open) -> None:
    a = start("a/1")
    add_job(a, "j")
    plain = open_database()
    past = Past(plain)
    # Not a second has passed: what it counted is known in its process.
    assert a.registry.next_term("j") == 1
    past.put_back(plain)
    with pytest.raises(WentBack, match="went back in time"):
        a.registry.next_term("j")
    assert a.job("j").term == 0, "nothing of that transaction is there"
    with pytest.raises(WentBack):
        a.registry.next_term("j")
    plain.close()


def test_a_seat_that_vanished_with_the_past_was_not_ended_by_anybody(start: Start, open_database: Open) -> None:
    b = start("b/1")
    plain = open_database()
    past = Past(plain)
    a = start("a/1")
    past.put_back(plain)
    with pytest.raises(WentBack, match="which nobody ended"):
        a.registry.settle("x", "y")
    # One that another manager ended stays so, and knows why.
    a = start("a/2")
    seat = next(each for each in Seats(plain).look() if each.holder == "a/2")
    b = start("b/2")
    assert Seats(plain).end(seat, b.tenure)
    with pytest.raises(Deposed, match="taken over") as ended:
        a.registry.settle("x", "y")
    assert not isinstance(ended.value, WentBack)
    # The note goes with the next process of that home.
    start("a/3")
    assert [row["name"] for row in plain.rows("SELECT name FROM facts WHERE name LIKE 'ended%'")] == []
    plain.close()


def test_nothing_is_mended_that_did_not_go_back(start: Start) -> None:
    a = start("a/1")
    add_job(a, "j")
    appoint(a, "j", "pi")
    save(a, "j", 3)
    a.note()
    # Its writes after the last note are ahead of what it remembers.
    save(a, "j", 4)
    again = start("a/2")
    assert list(again.tenure.before) == ["a/1"]
    assert again.mended() is None
    assert start("b/1").mended() is None


def test_what_a_manager_remembers_is_written_again_once(start: Start, open_database: Open) -> None:
    a, b = start("a/1"), start("b/1")
    for job in ("open", "over"):
        add_job(a, job)
        appoint(a, job, "pi-1")
        save(a, job, 2)
    add_job(b, "other")
    appoint(b, "other", "pi-2")
    for node in ("good", "stolen", "gone"):
        a.registry.reserve_node(node, "node", now_s=1.0)
    a.registry.add_token(secret="s", role="node", uses=1, now_s=1.0, expires_s=None, label="")
    plain = open_database()
    past = Past(plain)

    appoint(a, "open", "pi-3")
    save(a, "open", 7)
    save(a, "over", 9)
    a.registry.set_job_state("over", JobState.FINISHED, now_s=5.0, reason="all epochs are done")
    a.remembered.on_ended("over", EndedJob(state="finished", reason="all epochs are done", ended_s=5.0))
    add_job(a, "new")
    appoint(a, "new", "pi-1")
    a.registry.revoke_node("stolen", now_s=6.0, reason="stolen")
    a.registry.forget_node("gone", now_s=6.5)
    a.remembered.on_revoked(a.registry.nodes())
    b.registry.settle("something", "else")
    a.note()
    b.note()
    past.put_back(plain)

    # Both run, and b is the first to start over. Its bucket has a version that nobody here knows of.
    newest = {"open": checkpoint(8), "over": checkpoint(9), "other": checkpoint(5)}
    b2 = start("b/2")
    first = b2.mended(newest)
    assert first is not None
    assert first.is_first
    assert first.adopted == {"open": (2, 8), "over": (2, 9), "other": (-1, 5)}
    assert b2.registry.tokens() == []
    assert [b2.job(job).term for job in ("open", "over", "other")] == [1 + TERMS_PASSED_OVER] * 3
    # a was alive, and finds out with its next write.
    with pytest.raises(WentBack):
        a.registry.settle("x", "y")
    a2 = start("a/2")
    second = a2.mended(newest)
    assert second is not None
    assert not second.is_first, "terms jump once"
    assert second.revoked == ("gone", "stolen")
    assert second.ended == ("over",)
    assert second.submitted == ("new",)
    assert a2.job("new").manager == "a/2"
    assert a2.job("open").term == 1 + TERMS_PASSED_OVER
    assert a2.job("open").checkpoint == checkpoint(8)
    assert json.loads(a2.job("open").terms_json) == {"1": ["pi-1", 0], "2": ["pi-3", 0]}
    over = a2.job("over")
    assert (over.state, over.reason, over.checkpoint) == (JobState.FINISHED, "all epochs are done", checkpoint(9))
    states = {node.node: (node.state, node.reason, node.revoked_s) for node in a2.registry.nodes()}
    assert states["stolen"] == ("revoked", "stolen", 6.0)
    assert states["gone"][0] == "revoked"
    assert states["good"][0] == "enrolled"
    told = dict(second.lines())
    assert "stolen" in told[""]
    assert "to version 2: the job goes on from version 8" in dict(first.lines())["open"]
    # It is over: nobody finds anything any more, and nobody starts over again.
    a2.note()
    b2.registry.settle("x", "z")
    b2.note()
    assert start("a/3").mended() is None
    assert start("b/3").mended() is None
    plain.close()


def test_the_first_to_find_out_writes_all_it_remembers(start: Start, open_database: Open) -> None:
    a, b = start("a/1"), start("b/1")
    add_job(a, "open")
    appoint(a, "open", "pi-1")
    plain = open_database()
    past = Past(plain)
    appoint(a, "open", "pi-2")
    save(a, "open", 4)
    add_job(a, "new")
    appoint(a, "new", "pi-1")
    a.note()
    past.put_back(plain)
    a2 = start("a/2")
    mended = a2.mended()
    assert mended is not None
    assert mended.is_first
    assert mended.submitted == ("new",)
    assert (a2.job("open").term, a2.job("open").leader) == (2 + TERMS_PASSED_OVER, "")
    assert json.loads(a2.job("open").terms_json) == {"1": ["pi-1", 0], "2": ["pi-2", 0]}
    assert a2.job("open").checkpoint == checkpoint(4), "it was acknowledged, whatever a listing shows"
    new = a2.job("new")
    assert (new.term, new.state, new.manager) == (1 + TERMS_PASSED_OVER, JobState.QUEUED, "a/2")
    # The other manager did not lose anything, and starts over: its jobs may have jumped too.
    with pytest.raises(WentBack):
        b.registry.settle("x", "y")
    assert start("b/2").mended() is None
    # It goes back again, to before all that.
    a2.note()
    past.put_back(plain)
    a3 = start("a/3")
    mended = a3.mended()
    assert mended is not None
    assert mended.is_first
    assert a3.job("open").term == 2 + TERMS_PASSED_OVER
    plain.close()


def test_a_lone_manager_whose_registry_was_copied_back(tmp_path: Path) -> None:
    path, remembered = tmp_path / "registry.sqlite", Remembered(tmp_path / "remembered")
    with Registry(path) as registry:
        registry.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
        registry.reserve_node("stolen", "node", now_s=1.0)
    copy = path.read_bytes()
    with Registry(path) as registry:
        remembered.on_term("j", registry.next_term("j"), "{}")
        registry.revoke_node("stolen", now_s=2.0, reason="stolen")
        remembered.on_revoked(registry.nodes())
        remembered.flush()
    path.write_bytes(copy)
    database = SqliteDatabase(path)
    registry, remembered = Registry(database), Remembered(tmp_path / "remembered")
    signs = signs_in(registry, remembered, tenure=None)
    assert len(signs) == 2
    mended = mend(database, registry, remembered, signs=signs, newest={"j": checkpoint(3)})
    assert mended.is_first
    assert mended.adopted == {}, "its newest file counts, and no name"
    row, node = registry.job("j"), registry.node("stolen")
    assert row is not None
    assert node is not None
    assert (row.term, row.checkpoint, node.state) == (1 + TERMS_PASSED_OVER, "", "revoked")
    assert signs_in(registry, remembered, tenure=None) == []
    database.close()


def test_facts_are_durable_at_once_and_the_pulse_with_a_flush(tmp_path: Path) -> None:
    remembered = Remembered(tmp_path)
    remembered.on_submitted("j", JobSubmission(name="j", spec_json="{}", created_s=1.0))
    remembered.on_ended("k", EndedJob(state="failed", reason="broken", ended_s=2.0))
    remembered.on_incident(3)
    remembered.on_term("j", 4, '{"4": ["pi", 2]}')
    remembered.on_version("j", checkpoint(8))
    remembered.on_counted("a/1", 77)
    again = Remembered(tmp_path)
    assert list(again.submitted) == ["j"]
    assert again.ended["k"].reason == "broken"
    assert again.incidents == 3
    assert again.jobs == {}
    remembered.flush()
    again = Remembered(tmp_path)
    assert again.seat == ("a/1", 77)
    assert (again.jobs["j"].term, again.jobs["j"].checkpoint) == (4, checkpoint(8))
    stamp = (tmp_path / "pulse.json").stat().st_mtime_ns
    remembered.flush()
    assert (tmp_path / "pulse.json").stat().st_mtime_ns == stamp, "nothing is new"
    remembered.on_ended("j", EndedJob(state="finished", reason="", ended_s=3.0))
    assert (remembered.submitted, remembered.jobs) == ({}, {})
    assert remembered.ended["j"].checkpoint == checkpoint(8)
    (tmp_path / "facts.json").write_text("{")
    (tmp_path / "pulse.json").write_text("[]")
    again = Remembered(tmp_path)
    assert (again.ended, again.seat) == ({}, ("", 0))


def test_what_is_told_of_another_managers_job_goes_to_the_cluster(start: Start, tmp_path: Path) -> None:
    a, b = start("a/1"), start("b/1")
    add_job(a, "own")
    add_job(b, "other")
    lines = [("", "it went back"), ("own", "from version 3"), ("other", "from version 4"), ("gone", "from version 5")]
    assert to_note(lines, a.registry) == [
        ("", "it went back"),
        ("own", "from version 3"),
        ("", "other: from version 4"),
        ("", "gone: from version 5"),
    ]
    # The only manager has all jobs.
    with Registry(tmp_path / "registry.sqlite") as alone:
        assert to_note(lines, alone) == lines
