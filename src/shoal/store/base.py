"""The interface of a registry's database.

A statement is written once, in the SQL that SQLite and PostgreSQL agree on, with ``?`` or ``:name`` for its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from shoal.errors import ShoalError

Parameters = Sequence[Any] | Mapping[str, Any]
Row = dict[str, Any]

#: How long a writer waits for the writer before it.
BUSY_TIMEOUT_S = 10.0


class Away(ShoalError):
    """The database cannot be reached or is locked. The attempted transaction had no effect and may be retried."""


class Statements(Protocol):
    """Runs statements: each by itself, or as part of the transaction that the caller has open."""

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]: ...

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        """Run a statement. Return how many rows it changed."""
        ...

    def change_each(self, statement: str, parameters: Iterable[Parameters]) -> int:
        """Run a statement once for each set of parameters. Return how many rows that changed altogether."""
        ...


class Database(Statements, Protocol):
    """One connection and one lock: methods may be called from any thread, and block it.

    Errors are ``Misuse`` for what can never be stored, and ``ShoalError`` for what may work later.
    """

    def transaction(self, *, writes: bool = True, of_job: bool = False) -> AbstractContextManager[Statements]:
        """Run a transaction: all or nothing, and durable when it ends. Writing transactions run one after the other,
        in all processes that use the database. A transaction that does not write sees one snapshot.

        With ``of_job`` it changes only rows of one job or one seat, which nobody else changes meanwhile. Such
        transactions may run concurrently."""
        ...

    def is_whole(self) -> bool:
        """Whether all tables exist, with their keys. They may not while a restore runs."""
        ...

    def close(self) -> None: ...
