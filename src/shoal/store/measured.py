"""A database that counts its calls. A transaction is one call, with all that is done in it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from shoal.store.base import Database, Parameters, Row, Statements
from shoal.store.usage import StoreUsage


class MeasuredDatabase:
    """See ``base.Database``."""

    def __init__(self, database: Database, usage: StoreUsage) -> None:
        self._database = database
        self._usage = usage
        #: A transaction belongs to one thread: what that thread does meanwhile is part of it.
        self._here = threading.local()

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        if getattr(self._here, "is_counted", False):
            yield
            return
        self._here.is_counted = True
        try:
            with self._usage.call():
                yield
        finally:
            self._here.is_counted = False

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        with self._call():
            return self._database.rows(query, parameters)

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        with self._call():
            return self._database.change(statement, parameters)

    def change_each(self, statement: str, parameters: Iterable[Parameters]) -> int:
        with self._call():
            return self._database.change_each(statement, parameters)

    @contextlib.contextmanager
    def transaction(self, *, writes: bool = True, of_job: bool = False) -> Iterator[Statements]:
        with self._call(), self._database.transaction(writes=writes, of_job=of_job) as database:
            yield database

    def is_whole(self) -> bool:
        with self._call():
            return self._database.is_whole()

    def close(self) -> None:
        self._database.close()
