"""A database on a PostgreSQL server. Knows its dialect and that it may be away, not what the tables mean.

One writer at a time over all managers, as in a SQLite file: what is right there is right here. Only those that change
rows of one job run beside others. A server that is away is noticed within seconds, and dialled again with the next
call. Whether a commit whose answer was lost took place is asked afterwards (``pg_xact_status``), so no caller is left
in doubt while the server comes back in time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, LiteralString, TypeVar

from shoal.errors import Misuse, ShoalError
from shoal.extras import install_command
from shoal.store.base import BUSY_TIMEOUT_S, Away, Parameters, Row
from shoal.store.files import DiskFull
from shoal.store.schema import MIGRATIONS

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.rows import dict_row
except ImportError:
    raise Misuse(f"PostgreSQL needs a package that is not installed: {install_command('postgres')}") from None

log = logging.getLogger("shoal")

#: pg_current_xact_id is from 13, and 12 is not maintained any more.
_VERSION_LEAST = 130000

#: What a URL does not say. A link that is cut must show within seconds: others wait for what this process holds.
_DIALLING = {
    "application_name": "shoal",
    "connect_timeout": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "2",
    "tcp_user_timeout": "5000",
}
#: A process that is stopped in the middle of a transaction loses it after this: others wait for its lock.
IDLE_IN_TRANSACTION_S = 4.0
_STATEMENT_S = 30.0

#: After a failed attempt, calls fail at once for this long, because other work may wait for them.
_QUIET_S = 0.5
#: How long the outcome of a commit is asked for. It counts from the moment that its answer was lost.
_OUTCOME_S = 20.0
_ASK_EVERY_S = 0.2

#: Whatever the server is set to: a statement that waited for a row looks at the row as it is then (``store.seat``).
_BEGIN_OF_JOB = "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_current_xact_id()::text AS xact"
_BEGIN = _BEGIN_OF_JOB.replace("SELECT", "LOCK TABLE shoal_schema IN EXCLUSIVE MODE; SELECT")
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

#: Any number: every Shoal that brings a schema up to date takes the same.
_MIGRATING = 7_070_707

_VALUE = re.compile(r"'[^']*'|(?<!:):(?P<name>\w+)|(?P<place>\?)|(?P<percent>%)")
_TYPES = {"TEXT": 'TEXT COLLATE "C"', "REAL": "DOUBLE PRECISION", "INTEGER": "BIGINT", "WITHOUT ROWID": ""}


_Given = TypeVar("_Given")


class PostgresDatabase:
    """See ``base.Database``. Tables are made where there are none, and brought up to this release's schema."""

    def __init__(self, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S, is_known: bool = False) -> None:
        """``busy_timeout_s``: how long a statement waits for a row that another transaction has changed. ``is_known``:
        it held a cluster before, so one that is empty or not whole is being restored, and is away until then."""
        self._busy_timeout_s = busy_timeout_s
        self._is_known = is_known
        try:
            told = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            # Without the words of the library: they quote the URL, and a password may be in it.
            raise Misuse("the store is named as postgresql://HOST/DATABASE: this is no such address") from None
        self._conninfo = make_conninfo(url, **{name: each for name, each in _DIALLING.items() if name not in told})
        host = told.get("host") or told.get("hostaddr") or "localhost"
        port = told.get("port") or "5432"
        #: What errors call it: no user, no password.
        self.name = f"postgresql://{host}:{port}/{told.get('dbname') or ''}"
        self._lock = threading.RLock()
        self._connection: psycopg.Connection[Row] | None = None
        self._is_closed = False
        self._is_in_transaction = False
        self._quiet_until_s = 0.0
        self._last_failure = ""
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        with self._lock, self._errors_named():
            connection = self._connected()
            if connection.info.server_version < _VERSION_LEAST:
                raise Misuse(f"{self.name} is older than PostgreSQL 13: use a newer one")
            if _first(connection.execute("SHOW fsync")) != "on":
                raise Misuse(f"{self.name} runs with fsync = off and loses what it acknowledged: set fsync = on")
            if self._is_known and not self.is_whole():
                raise Away(f"{self.name} is empty or not whole: it is being restored, or was never restored")
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
                connection.execute("CREATE TABLE IF NOT EXISTS shoal_schema (version BIGINT NOT NULL)")
                row = connection.execute("SELECT MAX(version) AS version FROM shoal_schema").fetchone()
                version = int(row["version"] or 0) if row else 0
                if version > len(MIGRATIONS):
                    raise Misuse(
                        f"{self.name} was written by a newer Shoal (schema {version}, this one knows "
                        f"{len(MIGRATIONS)}): install that version or a later one"
                    )
                for statement in itertools.chain.from_iterable(MIGRATIONS[version:]):
                    connection.execute(_definition(statement))
                if version < len(MIGRATIONS):
                    connection.execute("DELETE FROM shoal_schema")
                    connection.execute("INSERT INTO shoal_schema VALUES (%s)", (len(MIGRATIONS),))

    def is_whole(self) -> bool:
        # A restore brings tables, then rows, then keys, and what refers to other tables last.
        (there,) = self.rows("SELECT to_regclass('shoal_schema') IS NOT NULL AS schema, to_regclass('serving') AS last")
        if not there["schema"] or there["last"] is None:
            return False
        (found,) = self.rows(
            "SELECT (SELECT COUNT(*) FROM shoal_schema) AS versions, (SELECT COUNT(*) FROM pg_constraint"
            " WHERE contype = 'f' AND conrelid = to_regclass('serving')) AS references_"
        )
        return bool(found["versions"]) and bool(found["references_"])

    def replicates_asynchronously(self) -> bool:
        """Whether a replica follows this server, and none has what was committed for certain."""
        (row,) = self.rows(
            "SELECT current_setting('synchronous_standby_names') = '' AS is_free,"
            " (SELECT COUNT(*) FROM pg_stat_replication) AS replicas"
        )
        return bool(row["is_free"]) and int(row["replicas"]) > 0

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._hang_up()

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        with self._lock, self._errors_named():
            return self._again_if_gone(
                lambda connection: connection.execute(_translated(query), _plain(parameters)).fetchall()
            )

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        if not self._is_in_transaction:
            with self.transaction():
                return self.change(statement, parameters)
        with self._lock, self._errors_named():
            return self._connected().execute(_translated(statement), _plain(parameters)).rowcount

    def change_each(self, statement: str, parameters: Iterable[Parameters]) -> int:
        if not self._is_in_transaction:
            with self.transaction():
                return self.change_each(statement, parameters)
        rows = [_plain(each) for each in parameters]
        if not rows:
            return 0
        with self._lock, self._errors_named():
            cursor = self._connected().cursor()
            cursor.executemany(_translated(statement), rows)
            return cursor.rowcount

    @contextlib.contextmanager
    def transaction(self, *, writes: bool = True, of_job: bool = False) -> Iterator[PostgresDatabase]:
        with self._lock, self._errors_named():
            number = self._again_if_gone(lambda connection: _begin(connection, writes=writes, of_job=of_job))
            self._is_in_transaction = True
            try:
                yield self
            except BaseException:
                self._is_in_transaction = False
                self._roll_back()
                raise
            self._is_in_transaction = False
            self._commit(number)

    # Below here the lock is held ----------------------------------------------------------------------

    def _connected(self) -> psycopg.Connection[Row]:
        if self._is_closed:
            raise Misuse(f"registry {self.name}: the connection is closed")
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self._is_in_transaction:
            raise Away(f"{self.name} went away in the middle of a transaction")
        now_s = time.monotonic()
        if now_s < self._quiet_until_s:
            raise Away(self._last_failure)
        self._connection = None
        try:
            self._connection = psycopg.connect(self._conninfo, autocommit=True, row_factory=dict_row)
            for setting, value in (
                ("lock_timeout", self._busy_timeout_s),
                ("statement_timeout", _STATEMENT_S),
                ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_S),
            ):
                self._connection.execute("SELECT set_config(%s, %s, false)", (setting, f"{value * 1000:.0f}ms"))
            if _first(self._connection.execute("SHOW synchronous_commit")) in ("off", "local"):
                # A server may be set to answer before it is durable; what we tell devices depends on it.
                self._connection.execute("SET synchronous_commit = on")
        except psycopg.OperationalError as error:
            self._hang_up()
            self._quiet_until_s = time.monotonic() + _QUIET_S
            self._last_failure = f"{self.name} cannot be reached: {_one_line(error)}"
            raise Away(self._last_failure) from error
        return self._connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _again_if_gone(self, use: Callable[[psycopg.Connection[Row]], _Given]) -> _Given:
        """Run what changes nothing; once more if the server restarted since the connection was last used."""
        connection = self._connected()
        try:
            return use(connection)
        except psycopg.Error:
            if self._is_in_transaction or not connection.closed:
                raise
        return use(self._connected())

    def _roll_back(self) -> None:
        if self._connection is None or self._connection.closed:
            return
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self._hang_up()

    def _commit(self, number: str) -> None:
        connection = self._connected()
        try:
            done = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            if not connection.closed:
                self._roll_back()
                raise
            # One without a number only read.
            if number and not self._took_place(number):
                raise Away(f"{self.name} went away and took the transaction back: {_one_line(error)}") from error
            return
        if done != "COMMIT":
            raise ShoalError(f"{self.name} took a transaction back ({done})")

    def _took_place(self, number: str) -> bool:
        """Whether a transaction was committed whose answer was lost."""
        give_up_s = time.monotonic() + _OUTCOME_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(Away, psycopg.OperationalError):
                outcome = self._outcome(number)
                if outcome != "in progress":
                    log.info("a commit lost its answer: it was %s", outcome)
                    return outcome == "committed"
            time.sleep(_ASK_EVERY_S)
        raise ShoalError(
            f"{self.name} went away while it committed and did not come back within {_OUTCOME_S:g} s: whether the last"
            " change was kept is not known"
        )

    def _outcome(self, number: str) -> str:
        try:
            row = self._connected().execute("SELECT pg_xact_status(%s::xid8) AS outcome", (number,)).fetchone()
        except psycopg.errors.InvalidParameterValue:
            return "aborted"  # a crash forgot its very number
        return str(row["outcome"]) if row else "aborted"

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.IntegrityError as error:
            raise Misuse(f"registry {self.name} refuses a row: {_one_line(error)}") from error
        except (psycopg.DataError, OverflowError, UnicodeEncodeError) as error:
            raise Misuse(f"registry {self.name} cannot hold a value: {_one_line(error)}") from error
        except psycopg.errors.DiskFull as error:
            raise DiskFull(f"the disk of {self.name} is full: {_one_line(error)}; free space on it") from error
        except psycopg.errors.LockNotAvailable as error:
            raise Away(
                f"{self.name} was locked for {self._busy_timeout_s:g} s by another writer: look at pg_stat_activity"
            ) from error
        except psycopg.errors.QueryCanceled as error:
            raise Away(f"{self.name} took too long: {_one_line(error)}; look at pg_stat_activity") from error
        except psycopg.errors.UndefinedTable as error:
            raise Away(f"{self.name} lacks tables: is it being restored? {_one_line(error)}") from error
        except psycopg.errors.ReadOnlySqlTransaction as error:
            self._hang_up()  # the name may lead to the new primary by now
            raise Away(f"{self.name} is read-only: is it a standby?") from error
        except psycopg.Error as error:
            if self._connection is None or self._connection.closed:
                raise Away(f"{self.name} went away: {_one_line(error)}") from error
            raise ShoalError(f"registry {self.name}: {_one_line(error)}") from error


def _begin(connection: psycopg.Connection[Row], *, writes: bool, of_job: bool) -> str:
    """Open a transaction; its number if it may write."""
    if not writes:
        connection.execute(_BEGIN_READING)
        return ""
    try:
        cursor = connection.execute(_BEGIN_OF_JOB if of_job else _BEGIN)
    except psycopg.Error:
        if not connection.closed:
            connection.execute("ROLLBACK")
        raise
    while cursor.nextset():
        pass
    return _first(cursor)


def _first(cursor: psycopg.Cursor[Row]) -> str:
    row = cursor.fetchone()
    return str(next(iter(row.values()))) if row else ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


# SQL is text of this package; nothing a peer says becomes part of it, and values go beside it.


@functools.lru_cache(maxsize=512)
def _translated(statement: str) -> LiteralString:
    def placeholder(found: re.Match[str]) -> str:
        if found["name"]:
            return f"%({found['name']})s"
        if found["place"]:
            return "%s"
        return found[0].replace("%", "%%")

    return _VALUE.sub(placeholder, statement)


def _definition(statement: str) -> LiteralString:
    """A step of the schema in PostgreSQL's types; text is ordered by its bytes, as SQLite does."""
    for word, here in _TYPES.items():
        statement = re.sub(rf"\b{word}\b", here, statement)
    return statement


def _plain(parameters: Parameters) -> Parameters:
    if isinstance(parameters, Mapping):
        return {name: _value(each) for name, each in parameters.items()}
    return tuple(_value(each) for each in parameters)


def _value(each: Any) -> Any:
    """Return a value as SQLite stores it: NaN becomes NULL. PostgreSQL's text cannot have a zero byte."""
    if isinstance(each, float) and math.isnan(each):
        return None
    if isinstance(each, str) and "\0" in each:
        return each.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return each
