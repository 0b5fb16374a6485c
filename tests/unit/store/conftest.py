"""Every store that a registry may be in: the same tests run on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.store.base import Database
from shoal.store.registry import Registry
from shoal.store.sqlite import SqliteDatabase
from testbed.servers.postgres_server import PostgresServer, programs, running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests: each takes a schema of its own."""
    pytest.importorskip("psycopg", reason="PostgreSQL needs psycopg: pip install 'shoal[postgres]'")
    found = programs()
    if found is None:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    with running(found) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def open_database(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Database]:
    """Opens one and the same database, as often as it is called: as many managers would."""
    if request.param == "sqlite":
        path = tmp_path / "cluster" / "registry.db"
        return lambda: SqliteDatabase(path)
    url = request.getfixturevalue("postgres_server").new()
    from shoal.store.postgres import PostgresDatabase

    return lambda: PostgresDatabase(url)


@pytest.fixture
def registry(open_database: Callable[[], Database]) -> Iterator[Registry]:
    with Registry(open_database()) as opened:
        yield opened
