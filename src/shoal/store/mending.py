"""A database that went back in time, by a restore or by a failover that lost transactions, is made fit to go on from.

Each manager compares the database with what it remembers (``store.remembered``), and writes that again. The first that
finds out also does what a restore does: terms jump ahead, no leader is known, join secrets are void. All of it may be
done again without harm, by several managers in any order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from shoal.roles.manager.going_back import is_first_to_find, jumped_term
from shoal.roles.manager.seat_watch import home_of
from shoal.states import JobState
from shoal.store.base import Database, Statements
from shoal.store.checkpoints import version_in
from shoal.store.registry import Registry
from shoal.store.remembered import Remembered
from shoal.store.rows import JobRow
from shoal.store.seat import REWOUND, Tenure, rewind

_INCIDENTS = "incidents"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mended:
    """What was done about a database that went back, for people."""

    #: How it showed.
    signs: tuple[str, ...] = ()
    #: This manager was the first to find out: terms jumped, and join secrets are void.
    is_first: bool = False
    #: Job -> the version that the database knew, and the one that it goes on from.
    adopted: Mapping[str, tuple[int, int]]
    revoked: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    #: Jobs that were submitted since, and are queued again.
    submitted: tuple[str, ...] = ()

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what happened, each with the job that it is about, or with "" for the cluster."""
        did = [*(["terms jump ahead, and join lines are void: make new ones"] if self.is_first else [])]
        for names, what in (
            (self.revoked, "revoked again"),
            (self.ended, "ended again"),
            (self.submitted, "queued again"),
        ):
            if names:
                did.append(f"{what}: {', '.join(names)}")
        yield "", f"the database went back in time ({'; '.join(self.signs)}): {'; '.join(did) or 'nothing is missing'}"
        for job, (known, found) in sorted(self.adopted.items()):
            yield job, _adoption(known, found)


def _adoption(known: int, found: int) -> str:
    if found < 0:
        return "the database went back in time, and no checkpoint is left: the job begins again"
    if found <= known:
        return f"the database went back in time: the job goes on from version {found}"
    return (
        f"the database went back in time, to version {known}: the job goes on from version {found}, whose checkpoint is"
        f" the newest. Which device trained which batch of versions {known + 1} to {found} may be lost"
    )


def to_note(lines: Iterable[tuple[str, str]], registry: Registry) -> list[tuple[str, str]]:
    """Return these lines, each with the job whose events it goes to. A manager cannot add to the events of a job that
    another one has: such a line goes to the cluster's, with the job's name."""
    noted = []
    for job, line in lines:
        row = registry.job(job) if job and registry.is_shared else None
        is_own = not registry.is_shared or (row is not None and row.manager == registry.holder)
        noted.append((job, line) if not job or is_own else ("", f"{job}: {line}"))
    return noted


def signs_in(registry: Registry, remembered: Remembered, *, tenure: Tenure | None) -> list[str]:
    """Return how a database shows that it is behind what a manager remembers. ``tenure``: its seat, if managers share
    the database."""
    signs = [*_signs_in_seats(registry, remembered, tenure)] if tenure is not None else []
    found, knew = incidents(registry), remembered.incidents
    if knew is not None and found > knew:
        signs.append("another manager found out")
    elif knew is not None and found < knew:
        signs.append(f"it had gone back {knew} times, and knows of {found}")
    if (epoch := registry.members_epoch()) < remembered.members_epoch:
        signs.append(f"members had changed {remembered.members_epoch} times, and have {epoch} times")
    if forgotten := _not_revoked(registry, remembered):
        signs.append(f"{len(forgotten)} revoked members are not revoked, such as {forgotten[0]}")
    rows = {row.job: row for row in registry.open_jobs()}
    if reopened := [job for job in remembered.ended if job in rows]:
        signs.append(f"{len(reopened)} ended jobs are open, such as {reopened[0]}")
    for job, pulse in sorted(remembered.jobs.items()):
        if (row := rows.get(job)) is None:
            continue
        if row.term < pulse.term:
            signs.append(f"term {pulse.term} of {job} was given, and the last is {row.term}")
        if version_in(row.checkpoint) < version_in(pulse.checkpoint):
            signs.append(f"{job} was at version {version_in(pulse.checkpoint)}, and is at {version_in(row.checkpoint)}")
    return signs


def _signs_in_seats(registry: Registry, remembered: Remembered, tenure: Tenure) -> Iterator[str]:
    """A seat that is gone does not show it: the manager's home may be older than the database."""
    seat, beats = remembered.seat
    known = {**tenure.ended_before, **tenure.before}
    if REWOUND < known.get(seat, beats) < beats:
        yield f"its seat had counted to {beats}, not {known[seat]}"
    if (starts := registry.counter(_starts_of(tenure))) < remembered.starts:
        yield f"this manager had started {remembered.starts} times, not {starts}"


def _starts_of(tenure: Tenure) -> str:
    return f"starts {home_of(tenure.holder)}"


def count_start(database: Database, registry: Registry, remembered: Remembered, tenure: Tenure) -> None:
    """Count, in the database and then in the home, that a manager has compared the two. A database in which that count
    is lower later went back."""
    name = _starts_of(tenure)
    with database.transaction():
        number = max(registry.counter(name), remembered.starts) + 1
        registry.set_counter(name, number)
    remembered.on_started(number)


def incidents(registry: Registry) -> int:
    """Return how often this database went back, as far as it knows."""
    return registry.counter(_INCIDENTS)


def _not_revoked(registry: Registry, remembered: Remembered) -> list[str]:
    """The members that this manager remembers as shut out, and that are not, nor were since."""
    nodes = {row.node: row for row in registry.nodes()}
    return sorted(
        node
        for node, told in remembered.revoked.items()
        if (row := nodes.get(node)) is not None and (row.revoked_s is None or row.revoked_s < told.revoked_s)
    )


def mend(
    database: Database,
    registry: Registry,
    remembered: Remembered,
    *,
    signs: list[str],
    newest: Mapping[str, str],
    is_restored: bool = False,
) -> Mended:
    """Write again what a manager remembers. ``registry`` is on ``database``, which proves its manager's seat if there
    are several. ``newest``: job -> the name of the newest checkpoint that its depot has. ``is_restored``: an operator
    says that the database was restored, whatever this manager remembers."""
    # Members first: from here on other managers may start over, and let in who is not shut out.
    revoked = _not_revoked(registry, remembered)
    for node in revoked:
        told = remembered.revoked[node]
        if told.is_forgotten:
            registry.forget_node(node, now_s=told.revoked_s)
        else:
            registry.revoke_node(node, now_s=told.revoked_s, reason=told.reason)
    with database.transaction() as statements:
        known = registry.counter(_INCIDENTS)
        # Whoever counted on since this manager last looked has done what is done once.
        knew = remembered.incidents or 0
        is_first = is_restored or is_first_to_find(known, knew)
        number = max(known, knew) + 1 if is_first else known
        jobs = _Jobs(statements, registry, remembered, newest, is_first=is_first)
        jobs.mend()
        if is_first:
            _fence(statements, least_epoch=remembered.members_epoch)
            registry.set_counter(_INCIDENTS, number)
        others = {row["holder"] for row in statements.rows("SELECT holder FROM seats")} - {registry.holder}
        rewind(statements, sorted(others if is_first else others & jobs.owners))
    remembered.on_incident(number)
    # What showed it is of the past: the next start must not find it again, and have terms jump once more.
    remembered.on_counted("", 0)
    remembered.on_started(0)
    remembered.flush()
    return Mended(
        signs=tuple(signs),
        is_first=is_first,
        adopted=jobs.adopted,
        revoked=tuple(revoked),
        ended=tuple(jobs.ended),
        submitted=tuple(jobs.submitted),
    )


def _fence(statements: Statements, *, least_epoch: int) -> None:
    """Join secrets that were revoked or used up since would be good again. A certificate that was issued since is not
    recorded, and is good until its member uses a newer one. Members are read again by all managers."""
    statements.change("DELETE FROM tokens")
    statements.change(
        "UPDATE nodes SET restored_number ="
        " (SELECT COALESCE(MAX(number), 0) FROM certificates WHERE certificates.node = nodes.node)"
        " WHERE revoked_s IS NULL"
    )
    statements.change(
        "UPDATE counters SET value = CASE WHEN value < :least THEN :least ELSE value END + 1 WHERE name = 'members'",
        {"least": least_epoch},
    )


class _Jobs:
    """The jobs of a database that went back, within one transaction."""

    def __init__(
        self,
        statements: Statements,
        registry: Registry,
        remembered: Remembered,
        newest: Mapping[str, str],
        *,
        is_first: bool,
    ) -> None:
        self._statements = statements
        self._registry = registry
        self._remembered = remembered
        self._newest = newest
        self._is_first = is_first
        self.adopted: dict[str, tuple[int, int]] = {}
        self.ended: list[str] = []
        self.submitted: list[str] = []
        #: Managers whose jobs changed.
        self.owners: set[str] = set()

    def mend(self) -> None:
        rows = {row.job: row for row in self._registry.jobs()}
        for row in rows.values():
            if row.state.is_ended:
                continue
            mended = self._mended(row)
            if mended != row:
                self._write(mended)
                self.owners.add(row.manager)
        self._submit_again(rows)

    def _mended(self, row: JobRow) -> JobRow:
        row = replace(row, checkpoint=self._checkpoint(row))
        if (told := self._remembered.ended.get(row.job)) is not None:
            self.ended.append(row.job)
            return replace(row, state=JobState(told.state), reason=told.reason, ended_s=told.ended_s, leader="")
        pulse = self._remembered.jobs.get(row.job)
        return self._jumped(row, pulse_term=pulse.term if pulse is not None else 0)

    def _jumped(self, row: JobRow, *, pulse_term: int) -> JobRow:
        """Make the term jump ahead, so that a leader appointed since is not mistaken for a recorded one. The leaders of
        earlier terms stay recorded, so that their versions can be adopted."""
        pulse = self._remembered.jobs.get(row.job)
        term = jumped_term(row.term, pulse_term, is_first=self._is_first)
        known = json.loads(row.terms_json)
        terms = known | (json.loads(pulse.terms_json) if pulse is not None else {})
        if term != row.term:
            row = replace(row, term=term, leader="")
        return replace(row, terms_json=json.dumps(terms)) if terms != known else row

    def _checkpoint(self, row: JobRow) -> str:
        """The newest checkpoint: of those that the depot has, if this manager is the first to find out, else the one
        that it remembers. Empty names stay: a manager that is alone goes on from its newest file."""
        pulse, told = self._remembered.jobs.get(row.job), self._remembered.ended.get(row.job)
        names = [row.checkpoint, *(each.checkpoint for each in (pulse, told) if each is not None)]
        if self._is_first and self._registry.is_shared:
            names.append(self._newest.get(row.job, ""))
        newest = max(names, key=version_in)
        if version_in(newest) > version_in(row.checkpoint):
            self.adopted[row.job] = (version_in(row.checkpoint), version_in(newest))
            return newest
        return row.checkpoint

    def _submit_again(self, rows: Mapping[str, JobRow]) -> None:
        """Jobs that were submitted since the database's past are not in it. Those that have ended come back as they
        ended."""
        ended = {job: told.submission for job, told in self._remembered.ended.items() if told.submission is not None}
        for job, told in sorted({**self._remembered.submitted, **ended}.items()):
            if job in rows:
                continue
            self._statements.change(
                "INSERT INTO jobs (job, name, spec_json, state, reason, term, created_s, progress_json, manager)"
                " VALUES (?, ?, ?, 'queued', '', 0, ?, '{}', ?)",
                (job, told.name, told.spec_json, told.created_s, self._registry.holder),
            )
            row = self._registry.job(job)
            assert row is not None
            self._write(self._mended(row))
            if job not in ended:
                self.submitted.append(job)

    def _write(self, row: JobRow) -> None:
        self._statements.change(
            "UPDATE jobs SET state = ?, reason = ?, term = ?, ended_s = ?, leader = ?, terms_json = ?, checkpoint = ?"
            " WHERE job = ?",
            (row.state, row.reason, row.term, row.ended_s, row.leader, row.terms_json, row.checkpoint, row.job),
        )
