"""A database in one SQLite file. Knows SQL and files, not what the tables mean."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.errors import Corrupt, Misuse, ShoalError
from shoal.store.base import BUSY_TIMEOUT_S, Parameters, Row
from shoal.store.files import DiskFull, make_directory
from shoal.store.schema import MIGRATIONS


class SqliteDatabase:
    """See ``base.Database``. The file is made where there is none, and brought up to this release's schema."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        make_directory(path.parent)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        # Autocommit: transactions are those that `transaction` opens, none that the module guesses.
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._errors_named():
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                self._connection.execute(f"PRAGMA {pragma}")
            damage = str(self._connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        if damage != "ok":
            raise self._damaged(damage)
        with self.transaction():
            version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            if version > len(MIGRATIONS):
                raise Misuse(
                    f"{self._path} was written by a newer Shoal (schema {version}, this one knows "
                    f"{len(MIGRATIONS)}): install that version or a later one"
                )
            for statement in itertools.chain.from_iterable(MIGRATIONS[version:]):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def is_whole(self) -> bool:
        return True

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        with self._lock, self._errors_named():
            return [dict(row) for row in self._connection.execute(query, parameters)]

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        with self._lock, self._errors_named():
            return self._connection.execute(statement, parameters).rowcount

    def change_each(self, statement: str, parameters: Iterable[Parameters]) -> int:
        with self._lock, self._errors_named():
            return max(self._connection.executemany(statement, parameters).rowcount, 0)

    @contextlib.contextmanager
    def transaction(self, *, writes: bool = True, of_job: bool = False) -> Iterator[SqliteDatabase]:
        with self._lock, self._errors_named():
            self._connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                yield self
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise Misuse(f"registry {self._path}: {error}") from error
        except sqlite3.IntegrityError as error:
            raise Misuse(f"registry {self._path} refuses a row: {error}") from error
        except sqlite3.Error as error:
            raise self._failed(error) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise Misuse(f"registry {self._path} cannot hold a value: {error}") from error

    def _failed(self, error: sqlite3.Error) -> ShoalError:
        # The low byte is the primary code, the rest says more about it.
        match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:
            case sqlite3.SQLITE_FULL:
                return DiskFull(
                    f"the disk that holds {self._path} is full: free space on it, then try again; "
                    "what the registry held before is untouched"
                )
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return self._damaged(str(error))
            case sqlite3.SQLITE_BUSY:
                return ShoalError(
                    f"registry {self._path} was locked for {BUSY_TIMEOUT_S:g} s: is a second manager using it?"
                )
        return ShoalError(f"registry {self._path}: {error}; check the disk and the rights on this file")

    def _damaged(self, what: str) -> Corrupt:
        return Corrupt(
            f"registry {self._path} is damaged ({what}): check the disk and restore the file from a copy, "
            "or move it away to start an empty cluster"
        )
