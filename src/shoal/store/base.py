"""What a registry needs of a database, whichever it is. Knows no tables and no dialect.

A statement is written once, in the SQL that SQLite and PostgreSQL agree on, with ``?`` or ``:name`` for its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from shoal.errors import ShoalError

Parameters = Sequence[Any] | Mapping[str, Any]
Row = dict[str, Any]

#: How long a writer waits for the one before it.
BUSY_TIMEOUT_S = 10.0


class Away(ShoalError):
    """The database cannot be reached. Nothing of the transaction that was tried is there, and it may be tried again."""


class Statements(Protocol):
    """Runs statements: each by itself, or as part of the transaction that the caller has open."""

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]: ...

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        """How many rows the statement touched."""
        ...

    def change_each(self, statement: str, parameters: Iterable[Parameters]) -> int:
        """Once for each; how many rows that touched altogether."""
        ...


class Database(Statements, Protocol):
    """One connection and one lock: methods may be called from any thread, and block it.

    Errors are ``Misuse`` for what can never be stored, and ``ShoalError`` for what may work later.
    """

    def transaction(self, *, writes: bool = True, of_job: bool = False) -> AbstractContextManager[Statements]:
        """All or nothing, and durable when it ends. Those that write run one after the other, over every process that
        uses the database; one that does not write sees a single moment.

        ``of_job``: it changes rows of one job or one seat, which nobody else changes meanwhile. It may run beside
        others."""
        ...

    def is_whole(self) -> bool:
        """Whether all tables are there, with their keys: a restore may be under way."""
        ...

    def close(self) -> None: ...
