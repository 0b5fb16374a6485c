"""One agent a home: a newer start takes the place of an older one, which is asked to end. Knows one file and processes.

Two agents of one home would be one member twice, and each would throw the other out of the cluster.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from shoal.errors import Misuse

log = logging.getLogger("shoal")

LOCK_FILE = "agent.lock"
#: Who is about to take the place of the agent that holds the lock, so that it can say why it ends.
NEXT_FILE = "agent.next"

#: How long an older agent has to end once it was asked to: it says goodbye and lets its trainers go.
ENDS_WITHIN_S = 30.0
LOOK_EVERY_S = 0.1


@contextlib.contextmanager
def sole_agent(folder: Path) -> Iterator[None]:
    """Hold this folder's lock for as long as this lasts; a process that holds it is asked to end first."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _try_lock(descriptor):
            _take_over(descriptor, folder)
        (folder / NEXT_FILE).unlink(missing_ok=True)
        note = json.dumps({"pid": os.getpid(), "started": _started(os.getpid())}).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note, 0)
        yield
    finally:
        os.close(descriptor)


def successor(folder: Path) -> int | None:
    """The process that asked the agent of this folder to end, and takes its place."""
    pid, started = _noted(folder / NEXT_FILE)
    return pid if pid and _started(pid) == started else None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take_over(descriptor: int, folder: Path) -> None:
    asked: set[int] = set()
    deadline_s = time.monotonic() + ENDS_WITHIN_S
    while not _try_lock(descriptor):
        # By its number and when it began: a number alone may be another program's by now.
        pid, started = _noted(folder / LOCK_FILE)
        if pid and pid not in asked and _started(pid) == started:
            asked.add(pid)
            log.warning("an agent runs from this home (process %d): it is asked to end, and this one takes over", pid)
            (folder / NEXT_FILE).write_text(json.dumps({"pid": os.getpid(), "started": _started(os.getpid())}))
            try:
                os.kill(pid, signal.SIGTERM)
            except PermissionError:
                raise Misuse(f"process {pid} of another user is the agent of {folder}: stop it first") from None
            except ProcessLookupError:
                pass
        if time.monotonic() > deadline_s:
            who = f" (process {pid})" if pid else ""
            raise Misuse(
                f"the agent{who} that runs from {folder} did not end within {ENDS_WITHIN_S:g} s:"
                " stop it, then start this one again"
            )
        time.sleep(LOOK_EVERY_S)


def _noted(path: Path) -> tuple[int, str]:
    """A process that wrote itself down, and when it began; (0, "") where nothing is to be read."""
    try:
        note = json.loads(path.read_bytes())
        return int(note["pid"]), str(note["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, ""


def _started(pid: int) -> str:
    """When a process began, in words that no other process of its number shares; empty: there is none."""
    try:
        # In ticks since the machine started: a clock that is set does not change it, as it changes a time of day.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    # Where there is no /proc.
    import psutil

    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""
