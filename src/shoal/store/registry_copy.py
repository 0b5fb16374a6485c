"""A registry as a file that can be moved elsewhere: copied while a manager writes it, and prepared for a restore.

The source is opened read-only and never migrated: the running manager may be of an older release.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Corrupt, Misuse, ShoalError
from shoal.roles.manager.going_back import TERMS_PASSED_OVER
from shoal.states import JobState

_BUSY_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedJob:
    """A job of a copied registry, as far as files depend on it."""

    job: str
    spec_json: str
    is_open: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedFiles:
    """The files that a copied registry names and needs."""

    jobs: tuple[NamedJob, ...]
    #: Hashes of published models.
    published: frozenset[str]
    #: Hashes of members' entries in shared sets.
    contributed: frozenset[str] = frozenset()


def copy_registry(source: Path, target: Path) -> None:
    """Copy a registry as it is at one moment, also while it is written, by SQLite's online backup."""
    if not source.is_file():
        raise Misuse(f"there is no registry {source}: name the --home of a manager")
    target.touch(mode=0o600)
    with (
        _errors_named(source),
        contextlib.closing(_open(source, "ro")) as live,
        contextlib.closing(_open(target, "rw")) as copy,
    ):
        live.backup(copy)
        # One file, without the two that a log ahead of it has beside it.
        copy.execute("PRAGMA journal_mode = DELETE")
        damage = str(copy.execute("PRAGMA quick_check(1)").fetchone()[0])
    if damage != "ok":
        raise Corrupt(f"registry {source} is damaged ({damage}): the backup would be too. Check the disk first")


def read_named(copy: Path) -> NamedFiles:
    """Return the files that a copy names. The copy is not changed: the release that wrote it may restore it."""
    with _errors_named(copy), contextlib.closing(_open(copy, "ro")) as database:
        jobs = database.execute("SELECT job, spec_json, state FROM jobs ORDER BY created_s, job").fetchall()
        published = database.execute("SELECT DISTINCT sha256 FROM published").fetchall()
        contributed = _contributed(database)
    return NamedFiles(
        jobs=tuple(
            NamedJob(job=str(job), spec_json=str(spec), is_open=JobState(state).is_open) for job, spec, state in jobs
        ),
        published=frozenset(str(sha256) for (sha256,) in published),
        contributed=contributed,
    )


def _contributed(database: sqlite3.Connection) -> frozenset[str]:
    # A manager of the release before has no such table.
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'contributions'").fetchone():
        return frozenset()
    found = database.execute("SELECT DISTINCT sha256 FROM contributions WHERE state != 'rejected'").fetchall()
    return frozenset(str(sha256) for (sha256,) in found)


def fence_restored(path: Path) -> None:
    """Prepare a restored registry, already migrated to this release's schema, for a manager.

    A leader that was appointed after the copy must not be mistaken for a recorded one: terms jump ahead, and leaders
    are removed. Join secrets become void, because any that were revoked or used up after the copy would be valid again.
    A member may have renewed its certificate after the copy: an unrecorded one is accepted until the member uses a
    newer one.
    """
    with _errors_named(path), contextlib.closing(_open(path, "rw")) as database, database:
        database.execute(
            "UPDATE jobs SET term = term + ?, leader = '', terms_json = '{}'"
            " WHERE state IN ('queued', 'running', 'stopping')",
            (TERMS_PASSED_OVER,),
        )
        database.execute("DELETE FROM tokens")
        database.execute(
            "UPDATE nodes SET restored_number ="
            " (SELECT COALESCE(MAX(number), 0) FROM certificates WHERE certificates.node = nodes.node)"
            " WHERE revoked_s IS NULL"
        )


def _open(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_BUSY_TIMEOUT_S)


@contextlib.contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise ShoalError(
            f"registry {path}: {error}; check the disk, and the rights of this user on its folder"
        ) from error
