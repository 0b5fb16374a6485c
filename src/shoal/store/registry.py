"""The registry: what a manager must still know after a power cut. Knows rows, not which database holds them.

Methods may be called from any thread, and block it. What a method wrote is durable when it returns. Times are
arguments. Nothing is decided here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoal.errors import Misuse
from shoal.roles.evaluation_rows import metrics_in, metrics_row
from shoal.roles.manager.publishing import Published, Serving
from shoal.scheduling.ledger import Applied
from shoal.states import JobState
from shoal.store.base import Database, Parameters, Row, Statements
from shoal.store.rows import (
    Certificate,
    EpochAudit,
    EvaluationRow,
    Event,
    JobRow,
    MemberChanges,
    NodeRow,
    Redeemed,
    Token,
)
from shoal.store.seat import Deposed
from shoal.store.sqlite import SqliteDatabase
from shoal.wire.limits import (
    APPLIED_KEPT_PER_JOB,
    CERTIFICATES_KEPT_PER_NODE,
    EPOCHS_KEPT_PER_JOB,
    EVALUATIONS_KEPT_PER_JOB,
    EVENTS_KEPT_PER_JOB,
    NODE_NAME_MAX_CHARS,
    REASON_MAX_CHARS,
    TRACEBACK_MAX_CHARS,
    TRACEBACKS_KEPT_PER_JOB,
)

#: In a table: no version.
_NO_VERSION = -1

#: How long a token that expired is still listed.
_DEAD_TOKENS_KEPT_S = 30 * 86400.0
#: A node's name is also the common name of its certificate and part of paths and logs.
_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")

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

#: More than any epoch, and than any count of rows.
_EVER = (1 << 62) - 1

_AUDIT = (
    'SELECT epoch, COUNT(*) AS batches, COUNT(DISTINCT batch) AS "distinct", MIN(version) AS first_version,'
    " MAX(version) AS last_version FROM applied WHERE job = :job AND epoch <= :last GROUP BY epoch"
)

#: A job moves from a manager whose seat has ended, and from no other.
_TAKE_JOB = "UPDATE jobs SET manager = ? WHERE job = ? AND manager = ? AND manager NOT IN (SELECT holder FROM seats)"

#: Open is said as in the index of open jobs: a database recognises the text.
_OWN_JOBS = (
    "SELECT * FROM jobs WHERE manager = ? AND state IN ('queued', 'running', 'stopping') ORDER BY created_s, job"
)
_OPEN_JOBS = "SELECT job, manager FROM jobs WHERE state IN ('queued', 'running', 'stopping')"
_ORPHANS = (
    "SELECT * FROM jobs WHERE state IN ('queued', 'running', 'stopping')"
    " AND manager NOT IN (SELECT holder FROM seats) ORDER BY created_s, job"
)

#: An authority has a row among the certificates of the manager that it is of. The empty issuer is the cluster's.
_ISSUED_BY = (
    "SELECT DISTINCT node FROM certificates WHERE issuer != '' AND issuer IN"
    " (SELECT sha256 FROM certificates WHERE node = ?) ORDER BY node"
)
_REVOKE_ISSUED = (
    "UPDATE certificates SET revoked_s = ? WHERE node = ? AND revoked_s IS NULL AND issuer != '' AND issuer IN"
    " (SELECT sha256 FROM certificates WHERE node = ?)"
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


class Registry:
    """Tokens, nodes, jobs and their history."""

    def __init__(self, database: Database | Path, *, holder: str = "") -> None:
        """A path is that of a SQLite file. ``holder``: the manager's seat, where managers share the database; then that
        is fenced (``store.seat``), and each job has a manager that alone writes to its rows."""
        self._database: Database = SqliteDatabase(database) if isinstance(database, Path) else database
        self._holder = holder
        #: Job -> rows of its history, or more than there are.
        self._listed: dict[str, int] = {}

    @property
    def is_shared(self) -> bool:
        """Other managers may write to it too."""
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
        """Write down what is true of the whole registry, unless that is known already; what is known from now on."""
        with self._database.transaction() as database:
            database.change("INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, value))
            (row,) = database.rows("SELECT value FROM facts WHERE name = ?", (name,))
            return str(row["value"])

    # Tokens ---------------------------------------------------------------------------------------

    def add_token(
        self,
        *,
        secret: str,
        role: str,
        uses: int,
        now_s: float,
        expires_s: float | None = None,
        label: str = "",
        node_prefix: str = "",
    ) -> Token:
        """Let ``uses`` devices join with this secret, until a wall-clock time or for good."""
        if uses < 1:
            raise Misuse(f"a token is good for at least one device, not {uses}")
        # The prefix is followed by a name, so it alone has to start like one.
        if node_prefix and (problem := _name_problem(node_prefix + "x")):
            raise Misuse(f"node prefix {node_prefix[:80]!r}: {problem}")
        token = Token(
            secret_sha256=_sha256(secret),
            role=role,
            uses_left=uses,
            expires_s=expires_s,
            created_s=now_s,
            label=label,
            node_prefix=node_prefix,
        )
        added = self._change(
            "INSERT INTO tokens VALUES (:secret_sha256, :role, :uses_left, :expires_s, :created_s, :label,"
            " :node_prefix) ON CONFLICT DO NOTHING",
            dataclasses.asdict(token),
        )
        if not added:
            raise Misuse("this token exists already: draw a new secret")
        # `shoal up` makes one at every start: those nobody can remember are not kept.
        self._change("DELETE FROM tokens WHERE expires_s < ?", (now_s - _DEAD_TOKENS_KEPT_S,))
        return token

    def redeem_token(
        self,
        secret: str,
        wanted: str,
        now_s: float,
        *,
        state: str = "enrolled",
        facts_json: str = "{}",
        is_tab: bool = False,
    ) -> Redeemed | str:
        """Spend one use of a token on an identity, or say why not. The name is the wanted one if it is free.

        ``is_tab``: it is shown where tabs of browsers join. A token made for them is good there and nowhere else.

        The name of a revoked node is free for tokens made since: the revoked device does not know their secrets.
        """
        with self._database.transaction() as database:
            known = database.rows("SELECT * FROM tokens WHERE secret_sha256 = ?", (_sha256(secret),))
            if not known:
                return "this token is unknown or was revoked: ask the cluster's operator for a new join line"
            token = Token(**known[0])
            if (token.role == "browser") is not is_tab:
                return f"this token makes a {token.role}, which does not join here: ask the operator for another"
            if token.expires_s is not None and now_s >= token.expires_s:
                return "this token has expired: ask the cluster's operator for a new join line"
            if token.uses_left < 1:
                return "this token is used up: ask the cluster's operator for a new join line"
            base = wanted if wanted.startswith(token.node_prefix) else token.node_prefix + wanted
            if problem := _name_problem(base):
                return f"the name {base[:80]!r} cannot be used: {problem}"
            node = _free_name(base, is_taken=functools.partial(_is_taken, database, token))
            database.change(
                "UPDATE tokens SET uses_left = uses_left - 1 WHERE secret_sha256 = ?", (token.secret_sha256,)
            )
            database.change(
                "INSERT INTO nodes (node, role, facts_json, first_seen_s, last_seen_s, state, token_sha256)"
                " VALUES (:node, :role, :facts_json, :now_s, :now_s, :state, :token) ON CONFLICT (node) DO UPDATE SET"
                " role = :role, facts_json = :facts_json, last_seen_s = :now_s, state = :state, token_sha256 = :token,"
                " reason = '', restored_number = NULL, is_forgotten = 0",
                {
                    "node": node,
                    "role": token.role,
                    "facts_json": facts_json,
                    "now_s": now_s,
                    "state": state,
                    "token": token.secret_sha256,
                },
            )
            self._count_on(database, node)
            return Redeemed(node=node, role=token.role)

    def tokens(self) -> list[Token]:
        return [Token(**row) for row in self._database.rows("SELECT * FROM tokens ORDER BY created_s, secret_sha256")]

    def revoke_token(self, secret_sha256: str) -> bool:
        """Nobody joins with this token from now on. Whether there was such a token."""
        return self._change("DELETE FROM tokens WHERE secret_sha256 = ?", (secret_sha256,)) > 0

    # Nodes ----------------------------------------------------------------------------------------

    def upsert_node(self, *, node: str, role: str, facts_json: str, state: str, now_s: float) -> None:
        """Record a device as it is now; when it was first seen stays."""
        with self._database.transaction() as database:
            database.change(
                "INSERT INTO nodes (node, role, facts_json, first_seen_s, last_seen_s, state)"
                " VALUES (:node, :role, :facts_json, :now_s, :now_s, :state) ON CONFLICT (node) DO UPDATE SET"
                " role = :role, facts_json = :facts_json, last_seen_s = :now_s, state = :state",
                {"node": node, "role": role, "facts_json": facts_json, "state": state, "now_s": now_s},
            )
            self._count_on(database, node)

    def reserve_node(self, node: str, role: str, *, now_s: float) -> None:
        """Make a member of this name, unless there is one."""
        with self._database.transaction() as database:
            added = database.change(
                "INSERT INTO nodes (node, role, facts_json, first_seen_s, last_seen_s, state)"
                " VALUES (?, ?, '{}', ?, ?, 'enrolled') ON CONFLICT (node) DO NOTHING",
                (node, role, now_s, now_s),
            )
            if added:
                self._count_on(database, node)

    def nodes(self) -> list[NodeRow]:
        return [NodeRow(**row) for row in self._database.rows("SELECT * FROM nodes ORDER BY node")]

    def node(self, node: str) -> NodeRow | None:
        rows = self._database.rows("SELECT * FROM nodes WHERE node = ?", (node,))
        return NodeRow(**rows[0]) if rows else None

    def members_epoch(self) -> int:
        """How often members changed; without meaning where one manager is alone."""
        (row,) = self._database.rows("SELECT value FROM counters WHERE name = 'members'")
        return int(row["value"])

    def members_since(self, epoch: int) -> MemberChanges:
        """The members that changed since, as they are by now."""
        with self._database.transaction(writes=False) as database:
            nodes = database.rows("SELECT * FROM nodes WHERE epoch > ? AND epoch > 0 ORDER BY epoch, node", (epoch,))
            certificates = database.rows(
                "SELECT * FROM certificates WHERE epoch > ? AND epoch > 0 ORDER BY number, sha256", (epoch,)
            )
            return MemberChanges(
                epoch=self.members_epoch(),
                nodes=tuple(NodeRow(**row) for row in nodes),
                certificates=tuple(Certificate(**row) for row in certificates),
            )

    def _count_on(self, database: Statements, *nodes: str) -> None:
        """These members change in this transaction: other managers read them again. Such transactions run one after
        the other, so a manager that read up to a count has missed nothing before it."""
        if not self.is_shared:
            return
        database.change("UPDATE counters SET value = value + 1 WHERE name = 'members'")
        epoch = self.members_epoch()
        database.change_each("UPDATE nodes SET epoch = ? WHERE node = ?", ((epoch, node) for node in nodes))
        database.change_each("UPDATE certificates SET epoch = ? WHERE node = ?", ((epoch, node) for node in nodes))

    def set_node_facts(self, node: str, facts_json: str, *, now_s: float) -> None:
        self._change("UPDATE nodes SET facts_json = ?, last_seen_s = ? WHERE node = ?", (facts_json, now_s, node))

    def set_node_state(self, node: str, state: str, *, reason: str = "") -> None:
        """Hold a member back or let it go on. One that was revoked stays so: only a new token brings its name back."""
        with self._database.transaction() as database:
            changed = database.change(
                "UPDATE nodes SET state = ?, reason = ? WHERE node = ? AND state != 'revoked'",
                (state, reason[:REASON_MAX_CHARS], node),
            )
            self._count_on(database, node)
        if not changed:
            raise Misuse(f"there is no member {node[:80]!r} to hold back or let go on")

    def revoke_node(self, node: str, *, now_s: float, reason: str) -> bool:
        """Shut a member out: every certificate it was issued, and the token it knows. Whether there was such a one.

        A manager's authority takes with it what it issued, and members that have nothing else.
        """
        with self._database.transaction() as database:
            found = database.rows("SELECT token_sha256 FROM nodes WHERE node = ?", (node,))
            if not found:
                return False
            database.change(
                "UPDATE nodes SET state = 'revoked', revoked_s = ?, reason = ?, restored_number = NULL WHERE node = ?",
                (now_s, reason[:REASON_MAX_CHARS], node),
            )
            database.change("UPDATE certificates SET revoked_s = ? WHERE node = ? AND revoked_s IS NULL", (now_s, node))
            database.change("DELETE FROM tokens WHERE secret_sha256 = ?", (found[0]["token_sha256"],))
            issued = self.issued_by(node)
            for name in [name for name in issued if _revoke_issued(database, name, node, now_s)]:
                database.change(
                    "DELETE FROM tokens WHERE secret_sha256 = (SELECT token_sha256 FROM nodes WHERE node = ?)", (name,)
                )
            self._count_on(database, node, *issued)
            return True

    def issued_by(self, manager: str) -> list[str]:
        """The members that have certificates of this manager's own authority."""
        found = self._database.rows(_ISSUED_BY, (manager,))
        return [str(row["node"]) for row in found]

    def forget_node(self, node: str, *, now_s: float) -> bool:
        """Shut a member out that is gone, and list it no longer. Whether there was such a one.

        Unlike one that is revoked, it may know a secret that others join with: that stays good.
        """
        with self._database.transaction() as database:
            changed = database.change(
                "UPDATE nodes SET state = 'revoked', revoked_s = COALESCE(revoked_s, ?), is_forgotten = 1,"
                " restored_number = NULL, facts_json = '{}' WHERE node = ?",
                (now_s, node),
            )
            database.change("UPDATE certificates SET revoked_s = ? WHERE node = ? AND revoked_s IS NULL", (now_s, node))
            self._count_on(database, node)
            return changed > 0

    def add_certificate(self, certificate: Certificate, *, replaces: str = "") -> None:
        """Record what was issued, before it is handed out. The oldest of a member beyond a limit are not kept.

        A certificate that was asked for with another one is not recorded if that one was revoked meanwhile: it would
        be good again as soon as its name is. Nor if that one was superseded meanwhile.
        """
        with self._database.transaction() as database:
            if self._is_revoked(certificate.node, replaces):
                raise Misuse(f"{certificate.node} was revoked: it gets no other certificate")
            issuer = self.certificate(certificate.issuer) if certificate.issuer else None
            if certificate.issuer and (issuer is None or issuer.revoked_s is not None):
                raise Misuse("the authority of this manager was revoked: nothing that it issues is good")
            shown = self.certificate(replaces) if replaces else None
            if shown is not None and shown.superseded_s is not None:
                raise Misuse(f"this certificate of {certificate.node} was replaced: it gets no other")
            database.change(
                "INSERT INTO certificates"
                " (sha256, node, role, key_sha256, issued_s, expires_s, revoked_s, issuer, number)"
                " VALUES (:sha256, :node, :role, :key_sha256, :issued_s, :expires_s, :revoked_s, :issuer,"
                " (SELECT COALESCE(MAX(number), 0) + 1 FROM certificates WHERE node = :node))",
                dataclasses.asdict(certificate),
            )
            # What is void is no loss: a certificate that is not kept is good for nothing. The newest that was used
            # stays, however many were issued since: its owner may never have received those.
            database.change(
                "DELETE FROM certificates WHERE node = :node AND sha256 NOT IN (SELECT sha256 FROM certificates"
                " WHERE node = :node ORDER BY used_s IS NOT NULL AND superseded_s IS NULL DESC, number DESC"
                " LIMIT :kept)",
                {"node": certificate.node, "kept": CERTIFICATES_KEPT_PER_NODE},
            )
            self._count_on(database, certificate.node)

    def use_certificate(self, sha256: str, *, now_s: float) -> bool:
        """A member used this certificate: those it was issued before this one are superseded, durably. Whether it is
        good, which one that is not known, or was superseded or revoked itself, is not.

        Certificates that are newer and were never used stay as they are, and so does this one beside them: their owner
        may have crashed before it had written them down.
        """
        with self._database.transaction() as database:
            row = self.certificate(sha256)
            if row is None or row.superseded_s is not None or row.revoked_s is not None:
                return False
            database.change(
                "UPDATE certificates SET used_s = ? WHERE sha256 = ? AND used_s IS NULL",
                (now_s, sha256),
            )
            database.change(
                "UPDATE certificates SET superseded_s = ? WHERE node = ? AND number < ? AND superseded_s IS NULL",
                (now_s, row.node, row.number),
            )
            # It has a certificate that was issued since the registry was restored: unrecorded ones are void again.
            database.change(
                "UPDATE nodes SET restored_number = NULL WHERE node = ? AND restored_number < ?", (row.node, row.number)
            )
            self._count_on(database, row.node)
            return True

    def _is_revoked(self, name: str, certificate: str) -> bool:
        node, shown = self.node(name), self.certificate(certificate) if certificate else None
        if node is None:
            return False
        if node.state == "revoked" or (shown is not None and shown.revoked_s is not None):
            return True
        return bool(certificate) and shown is None and node.revoked_s is not None

    def certificate(self, sha256: str) -> Certificate | None:
        rows = self._database.rows("SELECT * FROM certificates WHERE sha256 = ?", (sha256,))
        return Certificate(**rows[0]) if rows else None

    def certificates(self, node: str = "") -> list[Certificate]:
        """Those of a member, or all there are; oldest first."""
        # Two statements: SQLite plans one for both as a scan of all.
        if node:
            found = self._database.rows("SELECT * FROM certificates WHERE node = ? ORDER BY number, sha256", (node,))
        else:
            found = self._database.rows("SELECT * FROM certificates ORDER BY number, sha256")
        return [Certificate(**row) for row in found]

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
        return [_job(row) for row in self._database.rows("SELECT * FROM jobs ORDER BY created_s, job")]

    def job(self, job: str) -> JobRow | None:
        rows = self._database.rows("SELECT * FROM jobs WHERE job = ?", (job,))
        return _job(rows[0]) if rows else None

    @property
    def holder(self) -> str:
        """This manager, by its seat; empty: it is alone."""
        return self._holder

    def managers_of_open_jobs(self) -> dict[str, str]:
        """Each open job, and the manager whose it is, living or not."""
        return {str(row["job"]): str(row["manager"]) for row in self._database.rows(_OPEN_JOBS)}

    def own_jobs(self) -> list[JobRow]:
        """The open jobs of this manager."""
        return [_job(row) for row in self._database.rows(_OWN_JOBS, (self._holder,))]

    def orphans(self) -> list[JobRow]:
        """Open jobs without a manager that lives. Nobody writes to such a job until a manager has taken it."""
        return [_job(row) for row in self._database.rows(_ORPHANS)]

    def take_job(self, job: JobRow) -> bool:
        """Make a job without a living manager this one's. Whether it is: another may have been quicker."""
        with self._database.transaction(of_job=True) as database:
            return database.change(_TAKE_JOB, (self._holder, job.job, job.manager)) > 0

    def manager_of(self, job: str) -> tuple[str, str] | None:
        """The living manager whose job this is: its seat, and the address that devices dial. None: there is none."""
        rows = self._database.rows(
            "SELECT holder, address FROM seats WHERE holder = (SELECT manager FROM jobs WHERE job = ?)", (job,)
        )
        return (str(rows[0]["holder"]), str(rows[0]["address"])) if rows else None

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
        """Drop what was recorded of versions that did not survive."""
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
    ) -> None:
        """Replace the history after a version by the rows that a checkpoint carries, all or nothing.

        ``checkpoint``: its name, if it is to be known as the last that was acknowledged.
        """
        if before := [row for row in rows if row.version <= after]:
            raise Misuse(f"a checkpoint with history after version {after} carries a batch of {before[0].version}")
        with self._writing(job) as database:
            self._forget_after(job, after)
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
        """How many batches went into versions after one, up to and with another; and which devices trained them."""
        rows = self._database.rows(
            "SELECT node, COUNT(*) AS batches FROM applied"
            " WHERE job = ? AND version > ? AND version <= ? GROUP BY node",
            (job, after, last),
        )
        return sum(int(row["batches"]) for row in rows), frozenset(str(row["node"]) for row in rows)

    def applied(self, job: str) -> list[Applied]:
        """Batch by batch, as far back as that is kept."""
        return [
            Applied(**row)
            for row in self._database.rows(
                "SELECT epoch, batch, version, node, lease FROM applied WHERE job = ? ORDER BY epoch, batch",
                (job,),
            )
        ]

    def audit(self, job: str) -> list[EpochAudit]:
        """What the history says of each epoch, also of those whose batches are not listed any more."""
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
        """The number of a job's latest event; 0: there is none."""
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

    # Evaluations ----------------------------------------------------------------------------------

    def add_evaluation(self, job: str, evaluation: EvaluationRow) -> None:
        """Record how good a version is; evaluating it again replaces what was known."""
        with self._writing(job) as database:
            database.change(_ADD_EVALUATION, {"job": job} | _plain(evaluation))
            self._thin_evaluations(job)

    def evaluations(self, job: str, *, latest: int = -1) -> list[EvaluationRow]:
        """Oldest first; all of them, or so many of the latest."""
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
        """Of every model that some job keeps."""
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

    def _change(self, statement: str, parameters: Parameters) -> int:
        """Run one statement durably; how many rows it touched."""
        with self._database.transaction() as database:
            return database.change(statement, parameters)

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
        """Raise Deposed unless this is the job's manager. It stays so until the transaction ends: another can take the
        job only once this one's seat has ended, and the transaction has proved that seat."""
        found = database.rows("SELECT manager, state FROM jobs WHERE job = ?", (job,))
        if not found:
            raise _unknown_job(job)
        manager, state = str(found[0]["manager"]), JobState(found[0]["state"])
        if manager == self._holder:
            return
        # Nobody runs a job that is over: it becomes the manager's that has something to write.
        if state.is_ended and database.change(_TAKE_JOB, (self._holder, job, manager)):
            return
        raise Deposed(f"job {job[:80]!r} was taken over by another manager: this one writes nothing to it")

    def _forget_after(self, job: str, version: int) -> None:
        self._database.change("DELETE FROM applied WHERE job = ? AND version > ?", (job, version))
        self._database.change("DELETE FROM evaluations WHERE job = ? AND version > ?", (job, version))
        self._database.change("DELETE FROM epochs WHERE job = ? AND last_version > ?", (job, version))

    def _thin_applied(self, job: str, *, added: int) -> None:
        """Of the oldest epochs keep the sums alone, until a quarter of the room is free; the last two stay listed."""
        # To count is to read them all: it is done when they may be too many.
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


def _sha256(secret: str) -> str:
    # Secrets are drawn at random with many bits: a slow hash would protect nothing more.
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _name_problem(name: str) -> str | None:
    if not _NODE_NAME.fullmatch(name):
        return "use letters, digits, '.', '_' and '-', with a letter or digit at both ends"
    if len(name) > NODE_NAME_MAX_CHARS:
        return f"use at most {NODE_NAME_MAX_CHARS} characters"
    return None


def _revoke_issued(database: Statements, node: str, manager: str, now_s: float) -> bool:
    """Revoke what a manager's authority issued to a member. Whether that one is shut out: it has nothing else."""
    database.change(_REVOKE_ISSUED, (now_s, node, manager))
    good = "SELECT 1 FROM certificates WHERE node = ? AND revoked_s IS NULL AND superseded_s IS NULL"
    if database.rows(good, (node,)):
        return False
    reason = f"the authority of the manager {manager}, which issued its certificate, was revoked"
    return (
        database.change(
            "UPDATE nodes SET state = 'revoked', revoked_s = ?, reason = ?, restored_number = NULL"
            " WHERE node = ? AND state != 'revoked'",
            (now_s, reason, node),
        )
        > 0
    )


def _is_taken(database: Statements, token: Token, name: str) -> bool:
    """Whether a device that joins with this token cannot have the name."""
    query = "SELECT 1 FROM nodes WHERE node = ? AND (state != 'revoked' OR revoked_s >= ?)"
    return bool(database.rows(query, (name, token.created_s)))


#: So many numbers are tried one after the other. Beyond them a free one is found by halves, which may pass over a
#: number that became free: of 100,000 devices that want one name, the last would ask for each of them otherwise.
_NUMBERS_IN_TURN = 8


def _free_name(wanted: str, *, is_taken: Callable[[str], bool]) -> str:
    """The wanted name, or wanted-2, wanted-3, ...; shortened where the number would make it too long."""

    def name(number: int) -> str:
        suffix = f"-{number}" if number > 1 else ""
        return wanted[: NODE_NAME_MAX_CHARS - len(suffix)] + suffix

    for number in range(1, _NUMBERS_IN_TURN + 1):
        if not is_taken(name(number)):
            return name(number)
    taken, free = _NUMBERS_IN_TURN, 2 * _NUMBERS_IN_TURN
    while is_taken(name(free)):
        taken, free = free, 2 * free
    while free - taken > 1:
        between = (taken + free) // 2
        taken, free = (between, free) if is_taken(name(between)) else (taken, between)
    return name(free)


def _job(row: Row) -> JobRow:
    return JobRow(**{**row, "state": JobState(row["state"])})


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
