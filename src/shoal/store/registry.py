"""The registry: what a manager must still know after a power cut. Knows rows, not which database holds them.

Methods may be called from any thread, and block it. What a method wrote is durable when it returns. Times are
arguments. Nothing is decided here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoal.errors import Misuse
from shoal.roles.evaluation_rows import metrics_in, metrics_row
from shoal.roles.manager.publishing import Published, Serving
from shoal.scheduling.ledger import Applied
from shoal.states import JobState
from shoal.store.act_rows import ActRows
from shoal.store.base import Database, Parameters, Row, Statements
from shoal.store.contribution_rows import ContributionRows
from shoal.store.drain_rows import DrainRows
from shoal.store.ended_rows import EndedRows
from shoal.store.member_rows import MemberRows
from shoal.store.rows import (
    EpochAudit,
    EvaluationRow,
    Event,
    JobRow,
    job_row,
)
from shoal.store.seat import Deposed, GivenAway, seats_in
from shoal.store.sqlite import SqliteDatabase
from shoal.store.view_rows import ViewRows
from shoal.wire.limits import (
    APPLIED_KEPT_PER_JOB,
    EPOCHS_KEPT_PER_JOB,
    EVALUATIONS_KEPT_PER_JOB,
    EVENTS_KEPT_PER_JOB,
    REASON_MAX_CHARS,
    TRACEBACK_MAX_CHARS,
    TRACEBACKS_KEPT_PER_JOB,
)

#: In a table: no version.
_NO_VERSION = -1

_ADD_EVALUATION = (
    "INSERT INTO evaluations VALUES"
    " (:job, :version, :epoch, :accuracy, :loss, :examples, :at_s, :metrics_json)"
    " ON CONFLICT (job, version) DO UPDATE SET epoch = excluded.epoch, accuracy = excluded.accuracy,"
    " loss = excluded.loss, examples = excluded.examples, at_s = excluded.at_s, metrics_json = excluded.metrics_json"
)
_ADD_PUBLISHED = (
    "INSERT INTO published VALUES (:job, :version, :number, :epoch, :accuracy, :loss, :examples, :sha256, :size_bytes,"
    " :at_s, :reason, :metrics_json) ON CONFLICT (job, version) DO UPDATE SET number = excluded.number,"
    " epoch = excluded.epoch, accuracy = excluded.accuracy, loss = excluded.loss, examples = excluded.examples,"
    " sha256 = excluded.sha256, size_bytes = excluded.size_bytes, at_s = excluded.at_s, reason = excluded.reason,"
    " metrics_json = excluded.metrics_json"
)
_SET_SERVING = (
    "INSERT INTO serving VALUES (:job, :version, :reason, :judged, :hold, :until_accuracy, :verdict)"
    " ON CONFLICT (job) DO UPDATE SET version = excluded.version, reason = excluded.reason, judged = excluded.judged,"
    " hold = excluded.hold, until_accuracy = excluded.until_accuracy, verdict = excluded.verdict"
)
_ADD_EPOCH = (
    "INSERT INTO epochs VALUES (:job, :epoch, :batches, :distinct, :first_version, :last_version)"
    ' ON CONFLICT (job, epoch) DO UPDATE SET batches = excluded.batches, "distinct" = excluded."distinct",'
    " first_version = excluded.first_version, last_version = excluded.last_version"
)
_ADD_APPLIED = (
    "INSERT INTO applied VALUES (:job, :epoch, :batch, :version, :node, :lease)"
    " ON CONFLICT (job, epoch, batch) DO NOTHING"
)

#: ``KINDS`` stands for one question mark per kind: SQL has no other list that SQLite and PostgreSQL both read.
_EVENTS_OF_KINDS = (
    "SELECT seq, at_s, kind, text FROM events WHERE job = ? AND seq > ? AND seq < ? AND kind IN (KINDS)"
    " ORDER BY seq DESC LIMIT ?"
)

#: More than any epoch, and than any count of rows.
_EVER = (1 << 62) - 1

_AUDIT = (
    'SELECT epoch, COUNT(*) AS batches, COUNT(DISTINCT batch) AS "distinct", MIN(version) AS first_version,'
    " MAX(version) AS last_version FROM applied WHERE job = :job AND epoch <= :last GROUP BY epoch"
)

#: A job is taken from a manager whose seat has ended, and from no other. One that lives gives it (``give_job``).
_TAKE_JOB = "UPDATE jobs SET manager = ? WHERE job = ? AND manager = ? AND manager NOT IN (SELECT holder FROM seats)"

#: Open is said as in the index of open jobs: a database recognises the text.
_OWN_JOBS = (
    "SELECT * FROM jobs WHERE manager = ? AND state IN ('queued', 'running', 'stopping') ORDER BY created_s, job"
)
_OPEN_ROWS = "SELECT * FROM jobs WHERE state IN ('queued', 'running', 'stopping') ORDER BY created_s, job"
_OPEN_JOBS = "SELECT job, manager FROM jobs WHERE state IN ('queued', 'running', 'stopping')"
_ORPHANS = (
    "SELECT * FROM jobs WHERE state IN ('queued', 'running', 'stopping')"
    " AND manager NOT IN (SELECT holder FROM seats) ORDER BY created_s, job"
)

#: What refers to a job goes before it.
_REMOVE_JOB = (
    "DELETE FROM applied WHERE job = ?",
    "DELETE FROM evaluations WHERE job = ?",
    "DELETE FROM published WHERE job = ?",
    "DELETE FROM serving WHERE job = ?",
    "DELETE FROM epochs WHERE job = ?",
    "DELETE FROM jobs WHERE job = ?",
)


class Registry(MemberRows, ActRows, ContributionRows, ViewRows, EndedRows, DrainRows):
    """Tokens, nodes, jobs and their history, what operators did, and what each manager has."""

    def __init__(self, database: Database | Path, *, holder: str = "") -> None:
        """Open a database, or a SQLite file by its path. ``holder`` is the manager's seat if managers share the
        database. It is then fenced (``store.seat``), and only its manager writes to a job's rows."""
        self._database: Database = SqliteDatabase(database) if isinstance(database, Path) else database
        self._holder = holder
        #: Jobs that this manager gave away and did not get back.
        self._given: set[str] = set()
        #: Job -> how often this manager gave it away, or was about to.
        self._gives: Counter[str] = Counter()
        #: Job -> rows of its history, or more than there are.
        self._listed: dict[str, int] = {}

    @property
    def is_shared(self) -> bool:
        """Whether other managers may write to it too."""
        return bool(self._holder)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def settle(self, name: str, value: str) -> str:
        """Record a fact about the registry unless it is recorded already. Return the recorded value."""
        with self._database.transaction() as database:
            database.change("INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, value))
            (row,) = database.rows("SELECT value FROM facts WHERE name = ?", (name,))
            return str(row["value"])

    def fact(self, name: str) -> str:
        """Return the fact about the registry with this name, or ""."""
        rows = self._database.rows("SELECT value FROM facts WHERE name = ?", (name,))
        return str(rows[0]["value"]) if rows else ""

    def counter(self, name: str) -> int:
        """Return how far something was counted that concerns the whole registry, or 0."""
        rows = self._database.rows("SELECT value FROM counters WHERE name = ?", (name,))
        return int(rows[0]["value"]) if rows else 0

    def set_counter(self, name: str, value: int) -> None:
        self._database.change(
            "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value)
        )

    # Jobs -----------------------------------------------------------------------------------------

    def add_job(self, *, job: str, name: str, spec_json: str, now_s: float) -> None:
        """Queue a job. It is this manager's."""
        with self._database.transaction(of_job=True) as database:
            added = database.change(
                "INSERT INTO jobs (job, name, spec_json, state, reason, term, created_s, progress_json, manager)"
                " VALUES (?, ?, ?, 'queued', '', 0, ?, '{}', ?) ON CONFLICT DO NOTHING",
                (job, name, spec_json, now_s, self._holder),
            )
        if not added:
            raise Misuse(f"job {job!r} exists already: choose another id")

    def set_job_state(self, job: str, state: JobState, *, now_s: float, reason: str = "", leader: str = "") -> None:
        ended_s = now_s if state.is_ended else None
        self._change_job(
            job,
            "UPDATE jobs SET state = ?, reason = ?, ended_s = ?, leader = ? WHERE job = ?",
            (state, reason[:REASON_MAX_CHARS], ended_s, leader, job),
        )

    def next_term(self, job: str) -> int:
        """Begin a new term. No two calls ever return the same one, whatever crashes in between."""
        with self._writing(job) as database:
            database.change("UPDATE jobs SET term = term + 1 WHERE job = ?", (job,))
            (found,) = database.rows("SELECT term FROM jobs WHERE job = ?", (job,))
            return int(found["term"])

    def save_progress(self, job: str, progress_json: str) -> None:
        self._change_job(job, "UPDATE jobs SET progress_json = ? WHERE job = ?", (progress_json, job))

    def save_terms(self, job: str, terms_json: str) -> None:
        self._change_job(job, "UPDATE jobs SET terms_json = ? WHERE job = ?", (terms_json, job))

    def jobs(self) -> list[JobRow]:
        return [job_row(row) for row in self._database.rows("SELECT * FROM jobs ORDER BY created_s, job")]

    def job(self, job: str) -> JobRow | None:
        rows = self._database.rows("SELECT * FROM jobs WHERE job = ?", (job,))
        return job_row(rows[0]) if rows else None

    @property
    def holder(self) -> str:
        """This manager's seat. Empty if the cluster has one manager."""
        return self._holder

    def managers_of_open_jobs(self) -> dict[str, str]:
        """Return each open job and the seat of its manager, alive or not."""
        return {str(row["job"]): str(row["manager"]) for row in self._database.rows(_OPEN_JOBS)}

    def open_jobs(self) -> list[JobRow]:
        """Return the open jobs of all managers, in the order of submission."""
        return [job_row(row) for row in self._database.rows(_OPEN_ROWS)]

    def own_jobs(self) -> list[JobRow]:
        """Return the open jobs of this manager."""
        return [job_row(row) for row in self._database.rows(_OWN_JOBS, (self._holder,))]

    def orphans(self) -> list[JobRow]:
        """Return open jobs without a living manager. Nobody writes to such a job until a manager has taken it."""
        return [job_row(row) for row in self._database.rows(_ORPHANS)]

    def take_job(self, job: JobRow) -> bool:
        """Take over a job without a living manager. Return False if another one was quicker, or this one is drained."""
        with self._database.transaction(of_job=True) as database:
            if self._is_drained(database):
                return False
            return database.change(_TAKE_JOB, (self._holder, job.job, job.manager)) > 0

    def give_job(self, job: str, address: str) -> bool:
        """Make a job of this manager that of another one, which is alive and not drained. Return whether it is. From
        then on this manager writes nothing about the job."""
        with self._writing(job) as database:
            others = (seat for seat in seats_in(database) if seat.holder != self._holder and not seat.is_drained)
            to = next((seat for seat in others if seat.address == address), None)
            if to is None:
                return False
            database.change("UPDATE jobs SET manager = ? WHERE job = ?", (to.holder, job))
            # Before the transaction ends: a write that waits for it must not take this manager for deposed.
            self._given.add(job)
            self._gives[job] += 1
        self._listed.pop(job, None)
        return True

    def times_given(self, job: str) -> int:
        """Return how often this manager gave the job away. A row that was read before the last time is outdated."""
        return self._gives[job]

    def manager_of(self, job: str) -> tuple[str, str] | None:
        """Return the seat of a job's living manager and the address that devices dial, or None if it has none."""
        rows = self._database.rows(
            "SELECT holder, address FROM seats WHERE holder = (SELECT manager FROM jobs WHERE job = ?)", (job,)
        )
        return (str(rows[0]["holder"]), str(rows[0]["address"])) if rows else None

    def adopt(self, job: str, checkpoint: str, *, terms: int) -> None:
        """Go on from another checkpoint than the one that is named, this many terms later, with no leader known."""
        self._change_job(
            job,
            "UPDATE jobs SET checkpoint = ?, term = term + ?, leader = '' WHERE job = ?",
            (checkpoint, terms, job),
        )

    def remove_job(self, job: str) -> None:
        """Forget a job and everything that was recorded of it."""
        with self._writing(job) as database:
            for name in (job, _tracebacks_of(job)):
                database.change("DELETE FROM events WHERE job = ?", (name,))
            for statement in _REMOVE_JOB:
                database.change(statement, (job,))
            self._listed.pop(job, None)

    # The history: which batch went into which version -----------------------------------------------

    def record_applied(self, job: str, rows: Sequence[Applied], evaluations: Sequence[EvaluationRow] = ()) -> None:
        """Add to the history, all or nothing. A batch of an epoch that is in it already is an error.

        The evaluations of the same save are part of that: were they written apart, a disk that fills up in between
        would have the save tried again, and refused for the rows that are there.
        """
        with self._writing(job) as database:
            self._add_history(database, job, rows, evaluations)

    def forget_after(self, job: str, version: int) -> None:
        """Delete the records of versions that did not survive."""
        with self._writing(job):
            self._forget_after(job, version)

    def restore_applied(
        self,
        job: str,
        rows: Sequence[Applied],
        *,
        after: int,
        evaluations: Sequence[EvaluationRow] = (),
        checkpoint: str = "",
        is_file_right: bool = False,
    ) -> None:
        """Replace the history after a version by the rows that a checkpoint carries, all or nothing.

        ``checkpoint``: its name, if it is to be known as the last that was acknowledged. ``is_file_right``: a batch
        that is listed under an older version is listed anew, as after the database went back to a history that was
        given up since; else that is an error.
        """
        if before := [row for row in rows if row.version <= after]:
            raise Misuse(f"a checkpoint with history after version {after} carries a batch of {before[0].version}")
        with self._writing(job) as database:
            self._forget_after(job, after)
            if is_file_right:
                batches = ((job, row.epoch, row.batch) for row in rows)
                database.change_each("DELETE FROM applied WHERE job = ? AND epoch = ? AND batch = ?", batches)
            self._add_history(database, job, rows, evaluations)
            if checkpoint:
                database.change("UPDATE jobs SET checkpoint = ? WHERE job = ?", (checkpoint, job))

    def _add_history(
        self, database: Statements, job: str, rows: Sequence[Applied], evaluations: Sequence[EvaluationRow]
    ) -> None:
        added = database.change_each(_ADD_APPLIED, ({"job": job} | dataclasses.asdict(row) for row in rows))
        if added != len(rows):
            raise _applied_twice(database, job, rows)
        database.change_each(_ADD_EVALUATION, ({"job": job} | _plain(row) for row in evaluations))
        self._thin_applied(job, added=added)
        self._thin_evaluations(job)

    def applied_between(self, job: str, after: int, last: int) -> tuple[int, frozenset[str]]:
        """Return how many batches were applied in versions above ``after`` up to ``last``, and the devices that trained
        them."""
        rows = self._database.rows(
            "SELECT node, COUNT(*) AS batches FROM applied"
            " WHERE job = ? AND version > ? AND version <= ? GROUP BY node",
            (job, after, last),
        )
        return sum(int(row["batches"]) for row in rows), frozenset(str(row["node"]) for row in rows)

    def applied(self, job: str) -> list[Applied]:
        """Return the applied batches that are still kept one by one."""
        return [
            Applied(**row)
            for row in self._database.rows(
                "SELECT epoch, batch, version, node, lease FROM applied WHERE job = ? ORDER BY epoch, batch",
                (job,),
            )
        ]

    def audit(self, job: str) -> list[EpochAudit]:
        """Return the history of each epoch, including those whose batches are no longer kept one by one."""
        thinned = self._database.rows(
            'SELECT epoch, batches, "distinct", first_version, last_version FROM epochs WHERE job = ?', (job,)
        )
        listed = self._database.rows(_AUDIT, {"job": job, "last": _EVER})
        # A checkpoint that is restored may list an epoch again.
        audits = {int(row["epoch"]): EpochAudit(**row) for row in (*thinned, *listed)}
        return [audits[epoch] for epoch in sorted(audits)]

    # Events ---------------------------------------------------------------------------------------

    def add_events(
        self, job: str, events: Sequence[tuple[float, str, str]], *, numbers: Sequence[int] | None = None
    ) -> int:
        """Append ``(at_s, kind, text)``; the number of the last. The oldest beyond the limit are dropped.

        ``numbers``: rising ones that the caller has given out; those that are taken are passed over. Else they are
        counted on.
        """
        with self._telling(job) as database:
            last = self.last_event(job)
            given = list(numbers if numbers is not None else range(last + 1, last + 1 + len(events)))
            if given and given[0] <= last:
                # Another manager has given them out too.
                given = [number + last + 1 - given[0] for number in given]
            database.change_each(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
                (
                    (job, seq, at_s, kind, text[:REASON_MAX_CHARS])
                    for seq, (at_s, kind, text) in zip(given, events, strict=True)
                ),
            )
            last = given[-1] if given else last
            database.change("DELETE FROM events WHERE job = ? AND seq <= ?", (job, last - EVENTS_KEPT_PER_JOB))
        return last

    def last_event(self, job: str) -> int:
        """Return the number of a job's latest event, or 0 if there is none."""
        (row,) = self._database.rows("SELECT COALESCE(MAX(seq), 0) AS last FROM events WHERE job = ?", (job,))
        return int(row["last"])

    def add_tracebacks(self, job: str, tracebacks: Sequence[tuple[float, str, str]]) -> None:
        """Append ``(at_s, reason, traceback)``; the oldest beyond a few are dropped."""
        with self._telling(job) as database:
            # Under a name that no job has: they are not counted, listed or thinned out with the events.
            name = _tracebacks_of(job)
            database.change_each(
                "INSERT INTO events SELECT ?, COALESCE(MAX(seq), 0) + 1, ?, 'traceback', ? FROM events WHERE job = ?",
                (
                    (name, at_s, json.dumps([reason, traceback[:TRACEBACK_MAX_CHARS]]), name)
                    for at_s, reason, traceback in tracebacks
                ),
            )
            database.change(
                "DELETE FROM events WHERE job = ? AND seq <= (SELECT MAX(seq) FROM events WHERE job = ?) - ?",
                (name, name, TRACEBACKS_KEPT_PER_JOB),
            )

    def tracebacks(self, job: str) -> list[Event]:
        """The latest failures of a job's code that are known in full, oldest first."""
        rows = self._database.rows(
            "SELECT seq, at_s, kind, text FROM events WHERE job = ? ORDER BY seq", (_tracebacks_of(job),)
        )
        found = [(row, *json.loads(row["text"])) for row in rows]
        return [Event(**{**row, "text": reason, "traceback": traceback}) for row, reason, traceback in found]

    def events_after(self, job: str, seq: int, *, limit: int) -> list[Event]:
        """The latest events a caller has not seen, oldest first; what is older than ``limit`` is passed over."""
        rows = self._database.rows(
            "SELECT seq, at_s, kind, text FROM events WHERE job = ? AND seq > ? ORDER BY seq DESC LIMIT ?",
            (job, seq, max(limit, 0)),
        )
        return [Event(**row) for row in reversed(rows)]

    def events_of(self, job: str, kinds: Collection[str], *, after: int, before: int, limit: int) -> list[Event]:
        """Return the latest events of some kinds between two others, oldest first."""
        rows = self._database.rows(
            _EVENTS_OF_KINDS.replace("KINDS", ", ".join("?" * len(kinds))),
            (job, after, before, *sorted(kinds), max(limit, 0)),
        )
        return [Event(**row) for row in reversed(rows)]

    # Evaluations ----------------------------------------------------------------------------------

    def add_evaluation(self, job: str, evaluation: EvaluationRow) -> None:
        """Record how good a version is; evaluating it again replaces what was known."""
        with self._writing(job) as database:
            database.change(_ADD_EVALUATION, {"job": job} | _plain(evaluation))
            self._thin_evaluations(job)

    def evaluations(self, job: str, *, latest: int = -1) -> list[EvaluationRow]:
        """Return all evaluations of a job, or the ``latest`` ones, oldest first."""
        return [
            EvaluationRow(
                version=row["version"],
                epoch=row["epoch"],
                accuracy=row["accuracy"],
                loss=row["loss"],
                examples=row["examples"],
                at_s=row["at_s"],
                metrics=metrics_in(json.loads(row["metrics_json"])),
            )
            for row in reversed(
                self._database.rows(
                    "SELECT version, epoch, accuracy, loss, examples, at_s, metrics_json FROM evaluations WHERE job = ?"
                    " ORDER BY version DESC LIMIT ?",
                    (job, latest if latest >= 0 else _EVER),
                )
            )
        ]

    # Published versions ---------------------------------------------------------------------------

    def published(self, job: str) -> list[Published]:
        """Those that are kept, in the order they were published."""
        rows = self._database.rows("SELECT * FROM published WHERE job = ? ORDER BY number", (job,))
        return [_published(row) for row in rows]

    def serving(self, job: str) -> Serving:
        rows = self._database.rows("SELECT * FROM serving WHERE job = ?", (job,))
        if not rows:
            return Serving()
        row = rows[0]
        return Serving(
            version=row["version"] if row["version"] != _NO_VERSION else None,
            reason=row["reason"] or None,
            judged=row["judged"] if row["judged"] != _NO_VERSION else None,
            hold=row["hold"] or None,
            until_accuracy=row["until_accuracy"],
            verdict=row["verdict"] or None,
        )

    def shelf(self, job: str) -> tuple[list[Published], Serving]:
        """Both as they were at one moment."""
        with self._database.transaction(writes=False):
            return self.published(job), self.serving(job)

    def published_hashes(self) -> set[str]:
        """Return the hash of every published model that a job keeps."""
        return {str(row["sha256"]) for row in self._database.rows("SELECT DISTINCT sha256 FROM published")}

    def publish(self, job: str, version: Published, serving: Serving, *, drop: Sequence[int] = ()) -> None:
        """Keep a published version, serve what is said, and forget others: all of it or nothing."""
        with self._writing(job) as database:
            row = {"job": job} | _plain(version) | {"reason": version.reason[:REASON_MAX_CHARS]}
            database.change(_ADD_PUBLISHED, row)
            self._set_serving(job, serving)
            database.change_each("DELETE FROM published WHERE job = ? AND version = ?", ((job, each) for each in drop))

    def serve(self, job: str, serving: Serving) -> None:
        """Serve another of those that are kept, or say why not."""
        with self._writing(job):
            self._set_serving(job, serving)

    # Below here: shared by the above ---------------------------------------------------------------

    def _change_job(self, job: str, statement: str, parameters: Parameters) -> None:
        with self._writing(job) as database:
            database.change(statement, parameters)

    @contextlib.contextmanager
    def _writing(self, job: str) -> Iterator[Statements]:
        """A transaction about one job, which is this manager's."""
        with self._database.transaction(of_job=True) as database:
            self._own(database, job)
            yield database

    def _telling(self, job: str) -> contextlib.AbstractContextManager[Statements]:
        """A transaction about events. Those of no job are told by every manager, one after the other."""
        is_job = bool(self._database.rows("SELECT 1 FROM jobs WHERE job = ?", (job,)))
        return self._writing(job) if is_job else self._database.transaction()

    def _own(self, database: Statements, job: str) -> None:
        """Raise Deposed unless this is the job's manager, or GivenAway if it was and gave the job away. It stays so
        until the transaction ends: another can take the job only once this one's seat has ended, and the transaction
        has proved that seat."""
        found = database.rows("SELECT manager, state FROM jobs WHERE job = ?", (job,))
        if not found:
            raise _unknown_job(job)
        manager, state = str(found[0]["manager"]), JobState(found[0]["state"])
        if manager == self._holder:
            self._given.discard(job)
            return
        # Nobody runs a job that is over: it becomes the manager's that has something to write.
        if state.is_ended and database.change(_TAKE_JOB, (self._holder, job, manager)):
            return
        if job in self._given:
            raise GivenAway(f"job {job[:80]!r} was given to another manager: this one writes nothing to it")
        raise Deposed(f"job {job[:80]!r} was taken over by another manager: this one writes nothing to it")

    def _forget_after(self, job: str, version: int) -> None:
        self._database.change("DELETE FROM applied WHERE job = ? AND version > ?", (job, version))
        self._database.change("DELETE FROM evaluations WHERE job = ? AND version > ?", (job, version))
        self._database.change("DELETE FROM epochs WHERE job = ? AND last_version > ?", (job, version))

    def _thin_applied(self, job: str, *, added: int) -> None:
        """Reduce the oldest epochs to their sums until a quarter of the limit is free. The last two epochs stay."""
        # Counting reads all rows, so it is done only when there may be too many.
        self._listed[job] = self._listed.get(job, APPLIED_KEPT_PER_JOB) + added
        if self._listed[job] <= APPLIED_KEPT_PER_JOB:
            return
        counted = self._database.rows(
            "SELECT epoch, COUNT(*) AS batches FROM applied WHERE job = ? GROUP BY epoch ORDER BY epoch", (job,)
        )
        counts = [(int(row["epoch"]), int(row["batches"])) for row in counted]
        left = sum(count for _, count in counts)
        last = -1
        if left > APPLIED_KEPT_PER_JOB:
            for epoch, count in counts[:-2]:
                if left <= 3 * APPLIED_KEPT_PER_JOB // 4:
                    break
                last, left = epoch, left - count
        self._listed[job] = left
        if last < 0:
            return
        sums = self._database.rows(_AUDIT, {"job": job, "last": last})
        self._database.change_each(_ADD_EPOCH, ({"job": job} | row for row in sums))
        self._database.change("DELETE FROM applied WHERE job = ? AND epoch <= ?", (job, last))
        self._database.change("DELETE FROM epochs WHERE job = ? AND epoch <= ?", (job, last - EPOCHS_KEPT_PER_JOB))

    def _thin_evaluations(self, job: str) -> None:
        """The newest half stays whole; before it, what is older is sparser, for it is halved again and again."""
        (row,) = self._database.rows("SELECT COUNT(*) AS rows FROM evaluations WHERE job = ?", (job,))
        count = int(row["rows"])
        if count > EVALUATIONS_KEPT_PER_JOB:
            self._database.change(
                "DELETE FROM evaluations WHERE job = :job AND version IN (SELECT version FROM (SELECT version,"
                " ROW_NUMBER() OVER (ORDER BY version) AS place FROM evaluations WHERE job = :job) AS placed"
                " WHERE place <= :older AND place % 2 = 0)",
                {"job": job, "older": count - EVALUATIONS_KEPT_PER_JOB // 2},
            )

    def _set_serving(self, job: str, serving: Serving) -> None:
        texts = {name: (getattr(serving, name) or "")[:REASON_MAX_CHARS] for name in ("reason", "hold", "verdict")}
        versions = {
            "version": _NO_VERSION if serving.version is None else serving.version,
            "judged": _NO_VERSION if serving.judged is None else serving.judged,
        }
        self._database.change(_SET_SERVING, {"job": job} | dataclasses.asdict(serving) | texts | versions)


def _tracebacks_of(job: str) -> str:
    return f"{job} tracebacks"


def _plain(row: EvaluationRow | Published) -> dict[str, Any]:
    """A row with metrics, as its columns."""
    columns = {field.name: getattr(row, field.name) for field in dataclasses.fields(row) if field.name != "metrics"}
    return columns | {"metrics_json": json.dumps(metrics_row(row.metrics))}


def _published(row: Row) -> Published:
    columns = dict(row)
    del columns["job"]
    return Published(metrics=metrics_in(json.loads(columns.pop("metrics_json"))), **columns)


def _unknown_job(job: str) -> Misuse:
    return Misuse(f"there is no job {job[:80]!r}: `shoal jobs` lists those there are")


def _applied_twice(database: Statements, job: str, rows: Sequence[Applied]) -> Misuse:
    """Some of these rows were there already: name one, another than the row it stands in the way of if there is one."""
    query = "SELECT epoch, batch, version, node, lease FROM applied WHERE job = ? AND epoch = ? AND batch = ?"
    there = [(row, Applied(**database.rows(query, (job, row.epoch, row.batch))[0])) for row in rows]
    row, before = next((pair for pair in there if pair[0] != pair[1]), there[0])
    return Misuse(
        f"job {job!r}: batch {row.batch} of epoch {row.epoch} went into version {before.version} (by {before.node}); "
        f"version {row.version} must not apply it again"
    )
