"""An HAProxy of our own with the configuration of docs/operations/haproxy.cfg, on ports of our own, ended by its id."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

CONFIGURATION = Path(__file__).parents[2] / "docs" / "operations" / "haproxy.cfg"

_STARTS_WITHIN_S = 30.0


def program() -> str:
    """Where it is installed; empty: nowhere. Not every user looks among the programs of the system."""
    return shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or ""


def missing() -> str:
    """Why there is none here; empty: there is one."""
    return "" if program() else "no HAProxy here: apt-get install haproxy"


def configuration(door: int, managers: Sequence[int]) -> str:
    """The documented one, for a door on this port and the next and managers on theirs, all on this machine."""
    text = CONFIGURATION.read_text()
    text = text.replace("bind :7070", f"bind 127.0.0.1:{door}").replace("bind :7071", f"bind 127.0.0.1:{door + 1}")
    for name, port in zip("abc", managers, strict=True):
        text = text.replace(f"{name}.lan:7070 port 7071", f"127.0.0.1:{port} port {port + 1}")
        text = text.replace(f"{name}.lan:7071", f"127.0.0.1:{port + 1}")
    if re.search(r"\.lan|[: ]707[01]\b", text):
        raise RuntimeError(f"{CONFIGURATION.name} names an address that is not replaced")
    return text


@contextlib.contextmanager
def running(folder: Path, *, door: int, managers: Sequence[int]) -> Iterator[None]:
    """In front of the managers on these ports, each with the next one, until the end of the block."""
    path = folder / "haproxy.cfg"
    path.write_text(configuration(door, managers))
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [program(), "-db", "-f", str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _wait_for(process, door, folder / "haproxy.log")
        yield
    finally:
        process.kill()
        process.wait(timeout=30)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up_s = time.monotonic() + _STARTS_WITHIN_S
    while process.poll() is None and time.monotonic() < give_up_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.05)
    raise RuntimeError(f"HAProxy did not start: {log.read_text(errors='replace')[-2000:]}")


def free_pair() -> int:
    """A port that is free with the next one, of those that the system gives to no outgoing connection."""
    for _ in range(100):
        port = 20_000 + 2 * secrets.randbelow(6_000)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", port))
            two.bind(("127.0.0.1", port + 1))
            return port
    raise RuntimeError("no two free ports side by side")
