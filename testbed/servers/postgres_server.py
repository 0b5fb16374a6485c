"""A PostgreSQL server of our own: in a folder of its own, on a port of its own, ended by its id."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from testbed.processes import bound

_STARTS_WITHIN_S = 90.0

#: Durable as in the field, but small: a test has little memory, and nobody reads its statistics.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "max_wal_size": "128MB",
    "max_worker_processes": "1",
    "max_parallel_workers": "0",
    "autovacuum": "off",
    "unix_socket_directories": "",
    "log_min_messages": "warning",
    "log_min_error_statement": "panic",
}


def programs() -> Path | None:
    """The folder of the newest server that is installed."""
    found = [Path(path).parent for path in (shutil.which("postgres"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    return next((path for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


class PostgresServer:
    """Runs as another user where the tests run as root, for PostgreSQL refuses that one."""

    def __init__(self, folder: Path, bin_folder: Path, *, copies: int = 0, is_bound: bool = False) -> None:
        """``copies``: the port of a server that this one is a replica of, until ``promote``. ``is_bound``: it is killed
        with the process that starts it, which is to do so from its main thread."""
        self._is_bound = is_bound
        #: The user of the server may write here.
        self.folder = folder
        self._data = folder / "data"
        self._log = folder / "log"
        # Of a link to a program, the folder where the others are too.
        self._programs = (bin_folder / "postgres").resolve().parent
        self._user = "postgres" if os.geteuid() == 0 else None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._schemas = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        if self._user:
            owner = pwd.getpwnam(self._user)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        if copies:
            there = ("-h", "127.0.0.1", "-p", str(copies), "-U", "shoal")
            self.run("pg_basebackup", "-D", str(self._data), "-R", "-c", "fast", "--no-sync", *there)
        else:
            ours = ("-U", "shoal", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions", "--no-sync")
            self.run("initdb", "-D", str(self._data), *ours)

    def _as_user(self) -> tuple[str, ...]:
        """Return the words before a command that make it run as the user of the server.

        With ``user=``, subprocess forks, and gRPC's threads are then started again in the child, which fails on a busy
        machine.
        """
        if not self._user:
            return ()
        return ("setpriv", f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups", "--")

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs to its end, as the user of the server."""
        made = subprocess.run(
            [*self._as_user(), str(self._programs / program), *arguments],
            cwd="/",
            capture_output=True,
            timeout=_STARTS_WITHIN_S,
        )
        if made.returncode:
            raise RuntimeError(f"{program}: {made.stderr.decode(errors='replace')}")

    def follow(self, port: int) -> None:
        """As a replica: follow the server that is reached at this port from the next start on."""
        line = f"primary_conninfo = 'host=127.0.0.1 port={port} user=shoal'\n"
        with (self._data / "postgresql.auto.conf").open("a") as file:
            file.write(line)

    def promote(self) -> None:
        """A replica becomes a server of its own, with what it has."""
        self.run("pg_ctl", "promote", "-w", "-D", str(self._data))

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        settings = [f"-c{name}={value}" for name, value in {**_SETTINGS, "port": str(self.port)}.items()]
        # A restart after a kill finds the children of the old one for a moment.
        give_up_s = time.monotonic() + _STARTS_WITHIN_S
        while True:
            with self._log.open("ab") as log:
                # The kernel forgets who bounds a process when that becomes another user: first the user.
                server = (str(self._programs / "postgres"), "-D", str(self._data), *settings)
                self._process = subprocess.Popen(
                    [*self._as_user(), *(bound(*server) if self._is_bound else server)],
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            while self._process.poll() is None:
                if self._answers():
                    return
                if time.monotonic() > give_up_s:
                    break
                time.sleep(0.05)
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url(), connect_timeout=2):
            return True
        return False

    def kill(self) -> None:
        """kill -9, of the server and with it of every session: nothing is written down first."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """At once, with what is open broken off."""
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        children = _children(process.pid) if number is signal.SIGKILL else []
        for pid in (process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=30)

    def url(self, schema: str = "") -> str:
        options = f"?options={quote(f'-csearch_path={schema}')}" if schema else ""
        return f"postgresql://shoal@127.0.0.1:{self.port}/postgres{options}"

    def new(self) -> str:
        """The address of an empty database (a schema of its own)."""
        import psycopg

        schema = f"t{next(self._schemas)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        return self.url(schema)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@contextlib.contextmanager
def running(bin_folder: Path) -> Iterator[PostgresServer]:
    """A server until the end of the block. Its folder lies where its user may go, and is removed."""
    place = pwd.getpwnam("postgres").pw_dir if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="shoal-test-", dir=place))
    try:
        server = PostgresServer(folder, bin_folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
