"""PostgreSQL that dies, restarts and is stopped: nothing acknowledged is lost, nothing is there in half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="PostgreSQL needs psycopg: pip install 'shoal[postgres]'")

import psycopg

from shoal.errors import Misuse, ShoalError
from shoal.scheduling.ledger import Applied
from shoal.store.base import Away
from shoal.store.opening import open_stores
from shoal.store.postgres import IDLE_IN_TRANSACTION_S, PostgresDatabase
from shoal.store.registry import Registry
from testbed.servers.postgres_server import PostgresServer, programs, running

pytestmark = pytest.mark.timeout(300)

#: Writes history until it is killed: every version that was acknowledged is a line on its standard output.
WRITER = """
import sys
from shoal.errors import ShoalError
from shoal.scheduling.ledger import Applied
from shoal.store.postgres import PostgresDatabase
from shoal.store.registry import Registry

registry = Registry(PostgresDatabase(sys.argv[1]))
version = int(sys.argv[2])
while True:
    version += 1
    rows = [Applied(epoch=version, batch=n, version=version, node="pi", lease=version) for n in range(20)]
    while True:
        try:
            registry.restore_applied("j", rows, after=version - 1)
            break
        except ShoalError:
            pass
    print(version, flush=True)
"""


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    found = programs()
    if found is None:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    with running(found) as server:
        yield server


def batch(version: int) -> Applied:
    return Applied(epoch=version, batch=1, version=version, node="pi", lease=version)


def add_job(registry: Registry) -> None:
    registry.add_job(job="j", name="j", spec_json="{}", now_s=1.0)


def test_what_was_acknowledged_survives_kill_9_of_server_and_writer(own_server: PostgresServer) -> None:
    url = own_server.new()
    with Registry(PostgresDatabase(url)) as registry:
        add_job(registry)
    acknowledged = 0
    for victim in ("server", "writer", "server"):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, url, str(acknowledged)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        try:
            for _ in range(12):
                acknowledged = int(writer.stdout.readline())
            if victim == "server":
                own_server.kill()
                own_server.start()
                # The writer goes on by itself.
                for _ in range(5):
                    acknowledged = int(writer.stdout.readline())
        finally:
            writer.kill()
            rest = writer.stdout.read().split()
            writer.stdout.close()
            writer.wait(timeout=30)
        # A last line may be cut in half with its writer.
        acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
        with Registry(PostgresDatabase(url)) as registry:
            epochs = {audit.epoch: audit for audit in registry.audit("j")}
            assert set(range(1, acknowledged + 1)) <= set(epochs)
            # Whole or absent: each version's rows were one transaction.
            assert {(audit.batches, audit.distinct) for audit in epochs.values()} == {(20, 20)}
            assert max(epochs) <= acknowledged + 1
            acknowledged = max(epochs)


def _die_at_commit(database: PostgresDatabase, server: PostgresServer, *, is_durable: bool) -> None:
    connection = database._connection
    assert connection is not None

    def execute(query: str, *rest: object) -> object:
        if query != "COMMIT":
            return psycopg.Connection.execute(connection, query, *rest)  # type: ignore[arg-type]
        if is_durable:
            psycopg.Connection.execute(connection, query)
        server.kill()
        server.start()
        return psycopg.Connection.execute(connection, "SELECT 1")

    connection.execute = execute  # type: ignore[method-assign, assignment]


def test_a_commit_that_lost_its_answer_is_known_afterwards(own_server: PostgresServer) -> None:
    """The server dies after it made a commit durable and before it says so, or before it did anything."""
    database = PostgresDatabase(own_server.new())
    with Registry(database) as registry:
        add_job(registry)
        for is_durable in (True, False):
            number = registry.next_term("j")
            _die_at_commit(database, own_server, is_durable=is_durable)
            if is_durable:
                assert registry.next_term("j") == number + 1
            else:
                with pytest.raises(ShoalError):
                    registry.next_term("j")
            job = registry.job("j")
            assert job is not None
            assert job.term == number + is_durable


def test_while_it_is_away_calls_fail_at_once_and_then_go_on(own_server: PostgresServer) -> None:
    with Registry(PostgresDatabase(own_server.new())) as registry:
        add_job(registry)
        own_server.kill()
        began_s = time.monotonic()
        for _ in range(50):
            with pytest.raises(Away, match="postgresql://127"):
                registry.next_term("j")
        assert time.monotonic() - began_s < 30
        own_server.start()
        give_up_s = time.monotonic() + 30
        while True:
            try:
                assert registry.next_term("j") == 1
                break
            except Away:
                assert time.monotonic() < give_up_s
                time.sleep(0.1)


def test_a_writer_that_is_stopped_in_a_transaction_holds_nobody_up_for_long(postgres_server: PostgresServer) -> None:
    url = postgres_server.new()
    with Registry(PostgresDatabase(url)) as registry:
        add_job(registry)
        stopped = (
            "import sys, time\nfrom shoal.store.postgres import PostgresDatabase\n"
            "database = PostgresDatabase(sys.argv[1])\n"
            "try:\n"
            "    with database.transaction():\n"
            "        database.change(\"UPDATE jobs SET name = 'late' WHERE job = 'j'\")\n"
            "        print('in', flush=True)\n"
            "        sys.stdin.readline()\n"
            "    print('kept', flush=True)\n"
            "except Exception as error:\n"
            "    print(type(error).__name__, flush=True)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", stopped, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "in\n"
            os.kill(process.pid, signal.SIGSTOP)
            began_s = time.monotonic()
            assert registry.next_term("j") == 1
            assert time.monotonic() - began_s < IDLE_IN_TRANSACTION_S + 5
            os.kill(process.pid, signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "Away\n", "it learns that its transaction is gone"
        finally:
            process.kill()
            process.wait(timeout=30)
            process.stdin.close()
            process.stdout.close()
        job = registry.job("j")
        assert job is not None
        assert job.name == "j"


def test_a_lock_that_lasts_is_tried_again_as_a_store_that_is_away(postgres_server: PostgresServer) -> None:
    """A manager would drop what follows from a record of its own if another writer were slow."""
    url = postgres_server.new()
    slow, quick = PostgresDatabase(url), PostgresDatabase(url, busy_timeout_s=0.2)
    Registry(slow)
    with slow.transaction() as held:
        held.change("UPDATE counters SET value = value")
        with pytest.raises(Away, match=r"locked for 0\.2 s by another writer"):
            quick.change("UPDATE counters SET value = value")
    quick.change("UPDATE counters SET value = value")
    slow.close()
    quick.close()


def test_writers_of_two_processes_take_turns(postgres_server: PostgresServer) -> None:
    url = postgres_server.new()
    with Registry(PostgresDatabase(url)) as one, Registry(PostgresDatabase(url)) as other:
        add_job(one)
        terms: list[int] = []

        def take(registry: Registry) -> None:
            terms.extend([registry.next_term("j") for _ in range(25)])

        threads = [threading.Thread(target=take, args=(each,)) for each in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert sorted(terms) == list(range(1, 51))


def test_two_shelves_are_read_at_one_moment(postgres_server: PostgresServer) -> None:
    url = postgres_server.new()
    reader, writer = PostgresDatabase(url), PostgresDatabase(url)
    with Registry(writer) as registry:
        add_job(registry)
        with reader.transaction(writes=False):
            before = reader.rows("SELECT term FROM jobs")
            registry.next_term("j")
            assert reader.rows("SELECT term FROM jobs") == before == [{"term": 0}]
        assert reader.rows("SELECT term FROM jobs") == [{"term": 1}]
    reader.close()


def test_text_keeps_its_order_and_a_zero_byte_breaks_nothing(postgres_server: PostgresServer) -> None:
    with Registry(PostgresDatabase(postgres_server.new())) as registry:
        for node in ("b", "B", "a", "a-2", "a.1", "A"):
            registry.upsert_node(node=node, role="node", facts_json="{}", state="enrolled", now_s=1.0)
        assert [row.node for row in registry.nodes()] == sorted(("b", "B", "a", "a-2", "a.1", "A"))
        registry.add_events("j", [(1.0, "kind", "100 % of a\0b: it's ?")])
        assert registry.events_after("j", 0, limit=1)[0].text == "100 % of a\N{REPLACEMENT CHARACTER}b: it's ?"


def test_a_newer_schema_is_refused(postgres_server: PostgresServer) -> None:
    url = postgres_server.new()
    PostgresDatabase(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE shoal_schema SET version = 99")
    with pytest.raises(Misuse, match="written by a newer Shoal"):
        PostgresDatabase(url)


def test_a_password_is_in_no_error(postgres_server: PostgresServer, tmp_path: Path) -> None:
    secret = "hunter2-hunter2"
    for url in (
        f"postgresql://shoal:{secret}@127.0.0.1:1/postgres",
        f"postgresql://shoal:{secret}@127.0.0.1:{postgres_server.port}/nowhere",
        f"postgresql://shoal:{secret}@[broken",
        f"host=127.0.0.1 password={secret} = =",
    ):
        with pytest.raises(ShoalError) as caught:
            PostgresDatabase(url)
        told = [str(caught.value), repr(caught.value), json.dumps(str(caught.value.__cause__))]
        assert all(secret not in text for text in told)


def test_what_cannot_be_durable_is_refused(own_server: PostgresServer) -> None:
    url = own_server.new()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("ALTER SYSTEM SET synchronous_commit = off")
        connection.execute("SELECT pg_reload_conf()")
    give_up_s = time.monotonic() + 30
    while True:
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute("SHOW fsync").fetchone()
        if row == ("off",):
            break
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
    with pytest.raises(Misuse, match="set fsync = on"):
        PostgresDatabase(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = on")
        connection.execute("SELECT pg_reload_conf()")
    time.sleep(1.0)
    database = PostgresDatabase(url)
    assert database.rows("SHOW synchronous_commit") == [{"synchronous_commit": "on"}]
    database.close()


def test_replicas_none_of_which_is_synchronous_are_found(own_server: PostgresServer, tmp_path: Path) -> None:
    """A start warns of them: a failover may lose what was acknowledged."""
    url = own_server.new()
    stores = [open_stores(_made(tmp_path / "a"), owner="ab" * 32, store=url)]
    found = programs()
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="shoal-replica-", dir=own_server._data.parent) as folder:
        Path(folder).chmod(0o755)
        replica = PostgresServer(Path(folder) / "replica", found, copies=own_server.port)
        replica.follow(own_server.port)
        replica.start()
        try:
            _until(lambda: len(stores[0].database.rows("SELECT 1 FROM pg_stat_replication")) == 1)
            stores.append(open_stores(tmp_path / "a", owner="ab" * 32, store=url))
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
            _until(
                lambda: (
                    stores[0].database.rows(
                        "SELECT 1 AS is_set WHERE current_setting('synchronous_standby_names') <> ''"
                    )
                    != []
                )
            )
            stores.append(open_stores(tmp_path / "a", owner="ab" * 32, store=url))
        finally:
            replica.kill()
            for each in stores:
                each.close()
    assert [len(each.warnings) for each in stores] == [0, 1, 0]
    assert "synchronous_standby_names" in stores[1].warnings[0]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _until(holds: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.1)
