"""The pages of docs/operations, typed as they stand on machines of a town: see ``town``."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from town import ROOT, Machine, Page, Town, all_typed, blocks_of, until

from testbed.servers import haproxy_server, object_servers
from testbed.servers.object_servers import KEY, SECRET
from testbed.servers.postgres_server import PostgresServer, programs, running

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def blocks(request: pytest.FixtureRequest) -> Page:
    """The blocks that name the test that asks for them."""
    found = blocks_of(request.node.originalname, __file__)
    assert found, f"no page says that {request.node.name} runs it"
    return found


def names_of(page: str, blocks: Page) -> Page:
    return [block for block in blocks if block.page == f"docs/operations/{page}.md"]


def shows(machine: Machine, command: str, pattern: str) -> Callable[[], bool]:
    return lambda: re.search(pattern, machine.type(command)) is not None


def test_a_service_starts_is_backed_up_and_moves(tmp_path: Path, blocks: Page) -> None:
    """boot.md and backup.md: a manager and a device that start at boot, and the same cluster on another machine."""
    manager, line, device = names_of("boot", blocks)
    backup, restore, serve, again = names_of("backup", blocks)
    names = ("attic.lan", "cellar.lan", "attic-pi4")
    with Town(tmp_path, names) as town, all_typed(town, blocks):
        attic, cellar, board = (town[name] for name in names)
        attic.type(manager)
        attic.type(line)
        (board.home / "line.txt").write_text((attic.home / "line.txt").read_text())
        (board.folder / "srv" / "readings").mkdir()
        assert "Tasks run as shoal-trainer" in board.type(device)
        nodes = "sudo -u shoal shoal nodes --home /var/lib/shoal"
        until("the board is connected", shows(attic, nodes, r"attic-pi4.*alive"))
        left = board.folder / "var" / "lib" / "shoal-agent" / "join-line"
        until("the line is removed", lambda: not left.exists())

        (attic.folder / "mnt" / "usb").mkdir(mode=0o777)
        (attic.folder / "mnt" / "usb").chmod(0o777)
        attic.type(backup)
        (file,) = (attic.folder / "mnt" / "usb").glob("shoal-*.tar")
        assert file.stat().st_mode & 0o777 == 0o600
        attic.type("systemctl stop shoal-manager")
        (cellar.folder / "mnt" / "usb").mkdir()
        (cellar.folder / "mnt" / "usb" / "shoal-2026-11-16.tar").write_bytes(file.read_bytes())
        # The name is the new machine's from now on.
        town.meet(**{"attic.lan": "cellar.lan"})
        cellar.type(restore)
        up = cellar.stay(serve)
        up.until("is up at attic.lan:7070")
        until("the board is back", shows(cellar, nodes.partition("shoal ")[2], r"attic-pi4.*alive"))
        up.end()
        cellar.type(again)
        until("the board is back at the service", shows(cellar, nodes, r"attic-pi4.*alive"))


#: The job gets its name from the file, and three epochs from the plan.
TASK = (Path(__file__).parent / "clouds_task.py").read_text(encoding="utf-8")


def test_a_day_of_an_operator(tmp_path: Path, blocks: Page) -> None:
    """labels.md, audit.md, disk.md, metrics.md, fleet.md and stores.md's question: one manager in its own home."""
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")
    (audit,) = names_of("audit", blocks)
    rm, keep = names_of("disk", blocks)
    (fleet,) = names_of("fleet", blocks)
    join, train, label = names_of("labels", blocks)
    metrics, guarded = names_of("metrics", blocks)
    (ready,) = names_of("stores", blocks)
    with Town(tmp_path, ("attic.lan", "attic-pi4")) as town, all_typed(town, blocks):
        attic, board = town["attic.lan"], town["attic-pi4"]
        up = attic.stay(keep)
        device = board.stay(join, **{"shoal://…": up.until(r"shoal://\S+")})
        until("the board is connected", shows(attic, "shoal nodes", r"attic-pi4.*alive"))
        assert attic.type(ready).startswith("ready")

        (attic.home / "task.py").write_text(TASK)
        attic.type(train)
        told = attic.type(label).splitlines()
        assert told == [line for line in label.text.splitlines() if not line.startswith("$ ")]
        found = re.search(r"task-\w+", attic.type("shoal jobs"))
        assert found
        acts = attic.type(audit, **{"mnist-3fa2": found[0]})
        assert "submit a job" in acts
        assert re.search(r"acts, whole; the last hash is \w+", acts)
        assert '"is_whole": true' in acts

        exporter = attic.stay(metrics)
        exporter.until("Metrics are at")
        assert "shoal_jobs{" in attic.type("curl --silent http://127.0.0.1:7073/metrics")
        exporter.end()
        attic.stay(guarded).until("Metrics are at")
        assert (attic.home / ".shoal" / "metrics-token").stat().st_mode & 0o077 == 0
        (board.home / "token").write_text((attic.home / ".shoal" / "metrics-token").read_text())
        asked = "curl --silent --output /dev/null --write-out '%{http_code}' http://attic.lan:7073/metrics"
        assert board.type(asked) == "401"
        assert board.type(f'{asked} --header "Authorization: Bearer $(cat token)"') == "200"

        device.end()
        until("the board is lost", shows(attic, "shoal nodes", r"attic-pi4.*lost"))
        assert "would go" in attic.type(rm, **{"mnist-3fa2": found[0]})
        assert found[0] not in attic.type("shoal jobs")
        assert "attic-pi4" not in attic.type("shoal nodes")
        up.end()
        attic.stay(fleet).until("is up at")


STORE = "postgresql://shoal@db.lan/shoal"
KEYS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def test_one_manager_becomes_three_and_is_restored(tmp_path: Path, blocks: Page) -> None:
    """stores.md and restore.md, with a real PostgreSQL, HAProxy and object store."""
    if programs() is None:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    if why := haproxy_server.missing() or object_servers.missing("rclone"):
        pytest.skip(why)
    start, proxy, first, second, issue, third, revoke = names_of("stores", blocks)
    dump, tar, put_back, restore = names_of("restore", blocks)
    names = ("a.lan", "b.lan", "c.lan", "shoal.lan", "attic-pi4")
    keys = {f"{name}=...": f"{name}={value}" for name, value in KEYS.items()}
    with stores(tmp_path / "stores") as (server, bucket), Town(tmp_path / "town", names, also={"db.lan": ""}) as town:
        a, b, c, door, board = (town[name] for name in names)
        with relays(town, {5432: server.port, 9000: bucket}), all_typed(town, blocks):
            for machine in (a, b, c):
                machine.environment["AWS_ENDPOINT_URL"] = "http://db.lan:9000"
            alone = a.stay(start, **keys)
            board.stay("shoal join " + alone.until(r"shoal://\S+"))
            until("the board is connected", shows(a, "shoal nodes", r"attic-pi4.*alive"))

            for machine in (a, b, c):
                machine.environment |= {"SHOAL_STORE": STORE, "AWS_REGION": "eu-west-1", **KEYS}
            (door.home / "docs").symlink_to(ROOT / "docs")
            (door.folder / "etc" / "haproxy").mkdir(exist_ok=True)
            door.type(proxy)
            door.stay("haproxy -db -f /etc/haproxy/haproxy.cfg")
            alone.end()
            managers = [a.stay(first), b.stay(second)]
            a.type(issue)
            managers.append(c.stay(third))
            for manager in managers:
                manager.until("is up at shoal.lan:7070")
            asked = "curl --insecure https://shoal.lan:7071/readyz || :"
            until("HAProxy finds a manager", shows(board, asked, "^ready"))
            until("the board is back", shows(c, "shoal nodes", r"attic-pi4.*alive"))

            # The manager that has the board's connection may be any of the three.
            managers[0].end(signal.SIGKILL)
            until("the board is at another manager", shows(b, "shoal nodes", r"attic-pi4.*alive.*[bc]\.lan"))
            assert "void" in b.type(revoke)
            managers[2].end()
            # Whoever has its disk cannot start it again.
            assert c.stay(third).process.wait(120) != 0

            door.environment |= {"PGHOST": "db.lan", "PGUSER": "shoal"}
            door.type(dump)
            b.type(tar)
            assert (b.home / "authority.tar").stat().st_mode & 0o077 == 0
            managers[1].end()
            door.type(put_back)
            assert "join lines are void" in b.type(restore)
            b.stay(second.commands.splitlines()[-1]).until("is up at shoal.lan:7070")
            until("the board is back", shows(b, "shoal nodes", r"attic-pi4.*alive"))


@contextlib.contextmanager
def stores(folder: Path) -> Iterator[tuple[PostgresServer, int]]:
    """A PostgreSQL with the empty database `shoal`, and the port of an object store with the bucket `my-bucket`."""
    found = programs()
    assert found is not None
    (folder / "objects" / "my-bucket").mkdir(parents=True)
    with running(found) as server, object_servers.running("rclone", folder / "objects") as objects:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shoal")
        yield server, int(objects.endpoint.rpartition(":")[2])


@contextlib.contextmanager
def relays(town: Town, ports: dict[int, int]) -> Iterator[None]:
    """Pass connections of the machines to these ports of db.lan on to servers of this machine's loopback."""
    with contextlib.ExitStack() as stack:
        for port, to in ports.items():
            at = ("--listen", f"{town.network.address}:{port}", "--to", f"127.0.0.1:{to}")
            process = subprocess.Popen(
                [sys.executable, "-m", "testbed.proxy", *at],
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))},
            )
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
            assert process.stdout is not None
            stack.callback(process.stdout.close)
            assert process.stdout.readline()
        yield
