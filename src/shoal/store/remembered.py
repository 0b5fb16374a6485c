"""What a manager remembers in its home of what it wrote to its database, so that it knows a database that went back.

Two small files. Facts that were acknowledged (revocations, endings, submitted jobs) are durable when a method returns.
The pulse (the count of the seat, terms, versions) changes all the time, and is written by ``flush``. A file that is
damaged is as good as none: what it held is in the database, unless that went back just now.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.store.files import make_directory, write_atomically
from shoal.store.rows import NodeRow

log = logging.getLogger("shoal")

#: The newest of each that are kept. A database goes back by minutes or days, not by all that ever was.
REVOKED_KEPT = 20_000
ENDED_KEPT = 5_000
#: The newest jobs are kept as they were submitted: a database that went back may not know them.
SUBMISSIONS_KEPT = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RevokedMember:
    """A revoked member."""

    revoked_s: float
    reason: str = ""
    is_forgotten: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSubmission:
    """A job as it was submitted."""

    name: str
    spec_json: str
    created_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedJob:
    """How a job ended."""

    state: str
    reason: str
    ended_s: float
    #: The name of its last checkpoint. Empty if it has none, or if checkpoints have no names here.
    checkpoint: str = ""
    #: As it was submitted, if it ended lately.
    submission: JobSubmission | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPulse:
    """How far an open job of this manager is."""

    term: int = 0
    terms_json: str = "{}"
    #: The name of the newest checkpoint that was acknowledged.
    checkpoint: str = ""


@dataclass(slots=True)
class _Facts:
    revoked: dict[str, RevokedMember] = field(default_factory=dict)
    ended: dict[str, EndedJob] = field(default_factory=dict)
    submitted: dict[str, JobSubmission] = field(default_factory=dict)
    #: How often somebody found that this database went back, as far as this manager knows. None if it never looked.
    incidents: int | None = None


@dataclass(slots=True)
class _Pulse:
    seat: str = ""
    beats: int = 0
    #: How often this manager had started, as the database counted it.
    starts: int = 0
    members_epoch: int = 0
    jobs: dict[str, JobPulse] = field(default_factory=dict)


class Remembered:
    """Methods may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        make_directory(folder)
        facts, pulse = _read(folder / "facts.json"), _read(folder / "pulse.json")
        try:
            self._facts = _Facts(
                revoked={node: RevokedMember(**row) for node, row in facts.get("revoked", {}).items()},
                ended={job: _ended(row) for job, row in facts.get("ended", {}).items()},
                submitted={job: JobSubmission(**row) for job, row in facts.get("submitted", {}).items()},
                incidents=facts.get("incidents"),
            )
            self._pulse = _Pulse(
                seat=str(pulse.get("seat", "")),
                beats=int(pulse.get("beats", 0)),
                starts=int(pulse.get("starts", 0)),
                members_epoch=int(pulse.get("members_epoch", 0)),
                jobs={job: JobPulse(**row) for job, row in pulse.get("jobs", {}).items()},
            )
        except (TypeError, ValueError, AttributeError) as error:
            log.warning("%s cannot be read (%s): this manager remembers nothing", folder, error)
            self._facts, self._pulse = _Facts(), _Pulse()
        self._is_pulse_new = False

    # What it holds -------------------------------------------------------------------------------------

    @property
    def incidents(self) -> int | None:
        return self._facts.incidents

    @property
    def seat(self) -> tuple[str, int]:
        """Return the last seat of this home and how far it had counted. An empty name if it was given up."""
        return self._pulse.seat, self._pulse.beats

    @property
    def starts(self) -> int:
        """Return how often this manager had started, as the database counted it."""
        return self._pulse.starts

    @property
    def members_epoch(self) -> int:
        return self._pulse.members_epoch

    @property
    def revoked(self) -> dict[str, RevokedMember]:
        with self._lock:
            return dict(self._facts.revoked)

    @property
    def ended(self) -> dict[str, EndedJob]:
        with self._lock:
            return dict(self._facts.ended)

    @property
    def submitted(self) -> dict[str, JobSubmission]:
        with self._lock:
            return dict(self._facts.submitted)

    @property
    def jobs(self) -> dict[str, JobPulse]:
        with self._lock:
            return dict(self._pulse.jobs)

    # Facts ---------------------------------------------------------------------------------------------

    def on_revoked(self, nodes: Iterable[NodeRow]) -> None:
        """Remember those of these members that are shut out."""
        with self._lock:
            known = self._facts.revoked
            found = {
                row.node: RevokedMember(revoked_s=row.revoked_s, reason=row.reason, is_forgotten=bool(row.is_forgotten))
                for row in nodes
                if row.state == "revoked" and row.revoked_s is not None
            }
            if all(known.get(node) == row for node, row in found.items()):
                return
            newest = sorted({**known, **found}.items(), key=lambda each: each[1].revoked_s)
            self._facts.revoked = dict(newest[-REVOKED_KEPT:])
            self._write_facts()

    def on_submitted(self, job: str, submitted: JobSubmission) -> None:
        """Remember a job, and how far the seat had counted then: a database that lacks the job has counted less far, or
        the job was removed from it since."""
        with self._lock:
            if job in self._facts.submitted:
                return
            self._facts.submitted[job] = submitted
            self._write_facts()
        self.flush()

    def on_ended(self, job: str, ended: EndedJob) -> None:
        with self._lock:
            pulse = self._pulse.jobs.get(job, JobPulse())
            ended = replace(
                ended,
                checkpoint=ended.checkpoint or pulse.checkpoint,
                submission=ended.submission or self._facts.submitted.get(job),
            )
            before = self._facts.ended.get(job)
            if before is not None and before.state == ended.state:
                return
            newest = sorted({**self._facts.ended, job: ended}.items(), key=lambda each: each[1].ended_s)
            self._facts.ended = {
                name: row if place < SUBMISSIONS_KEPT else replace(row, submission=None)
                for place, (name, row) in enumerate(reversed(newest[-ENDED_KEPT:]))
            }
            self._drop_open(job)
            self._write_facts()

    def on_removed(self, jobs: Iterable[str]) -> None:
        """Forget jobs that are gone, or that another manager ended."""
        with self._lock:
            gone = [job for job in jobs if job in self._facts.submitted or job in self._pulse.jobs]
            ended = [job for job in jobs if job in self._facts.ended]
            for job in gone:
                self._drop_open(job)
            for job in ended:
                del self._facts.ended[job]
            if gone or ended:
                self._write_facts()

    def on_incident(self, number: int) -> None:
        """The database has what this manager remembers, and went back this often."""
        with self._lock:
            if number != self._facts.incidents:
                self._facts.incidents = number
                self._write_facts()

    def _drop_open(self, job: str) -> None:
        self._facts.submitted.pop(job, None)
        self._is_pulse_new |= self._pulse.jobs.pop(job, None) is not None

    # The pulse -----------------------------------------------------------------------------------------

    def on_started(self, number: int) -> None:
        with self._lock:
            self._is_pulse_new |= number != self._pulse.starts
            self._pulse.starts = number

    def on_counted(self, seat: str, beats: int) -> None:
        """The seat of this home has counted so far. An empty name if it was given up."""
        with self._lock:
            self._is_pulse_new |= (seat, beats) != self.seat
            self._pulse.seat, self._pulse.beats = seat, beats

    def on_members(self, epoch: int) -> None:
        with self._lock:
            self._is_pulse_new |= epoch != self._pulse.members_epoch
            self._pulse.members_epoch = epoch

    def on_term(self, job: str, term: int, terms_json: str) -> None:
        with self._lock:
            self._set_job(job, term=term, terms_json=terms_json)

    def on_version(self, job: str, checkpoint: str) -> None:
        with self._lock:
            self._set_job(job, checkpoint=checkpoint)

    def _set_job(self, job: str, **changed: Any) -> None:
        before = self._pulse.jobs.get(job, JobPulse())
        self._pulse.jobs[job] = after = replace(before, **changed)
        self._is_pulse_new |= before != after

    def flush(self) -> None:
        """Make the pulse durable, if it is another than before."""
        with self._lock:
            if not self._is_pulse_new:
                return
            self._is_pulse_new = False
            text = json.dumps(asdict(self._pulse)).encode()
        write_atomically(self._folder / "pulse.json", lambda file: file.write(text))

    def _write_facts(self) -> None:
        text = json.dumps(asdict(self._facts)).encode()
        write_atomically(self._folder / "facts.json", lambda file: file.write(text))


def _ended(row: dict[str, Any]) -> EndedJob:
    submission = row.pop("submission", None)
    return EndedJob(**row, submission=JobSubmission(**submission) if submission else None)


def _read(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s): this manager does not remember what it held", path, error)
        return {}
    return held if isinstance(held, dict) else {}
