"""Who made what: names carry the id of the process that owns them. Knows neither links nor quotas.

An id is used again after a while. So an owner also writes down when it began: a process of the same id that began at
another time is a stranger, and what carries the id was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

#: Links have short names, at most 15 characters; a process id may take seven of them.
NAMESPACE, BRIDGE, LINK, MEDIUM = "shoal-", "shb", "shv", "shi"
_NAME = re.compile(rf"(?:{NAMESPACE}|{BRIDGE}|{LINK}|{MEDIUM})(\d+)-\d+")

#: Only root makes testbeds, and this is root's place for what lasts until the next start of the machine.
RECORDS = Path("/run/shoal-testbed")

_STAT_STATE, _STAT_BEGAN = 0, 19
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_END_TIMEOUT_S = 5.0

#: One for everything a process makes, so that two testbeds of one process do not collide.
_numbers = itertools.count(1)


def next_number() -> int:
    return next(_numbers)


def owner_of(name: str) -> int | None:
    """The process that a name speaks of; None for names that are not ours."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def is_alive(pid: int) -> bool:
    """Whether the process that owns what carries this id still runs."""
    began = _began(pid)
    if began is None:
        return False
    try:
        return (RECORDS / str(pid)).read_text() == began
    except OSError:
        # It owns something and has not written it down: it may be about to.
        return True


def is_left_behind(pid: int) -> bool:
    """Whether what carries this id was made by a testbed that is gone. A name alone proves nothing: others may give
    their links names like ours, and those wrote nothing down."""
    return (RECORDS / str(pid)).exists() and not is_alive(pid)


def record() -> None:
    """Write down when this process began, before it makes anything."""
    RECORDS.mkdir(mode=0o700, exist_ok=True)
    path = RECORDS / str(os.getpid())
    began = _began(os.getpid()) or ""
    if not path.exists() or path.read_text() != began:
        path.write_text(began)


def forget(pid: int) -> None:
    (RECORDS / str(pid)).unlink(missing_ok=True)


def recorded() -> list[int]:
    """Processes that wrote down that they may own something."""
    with contextlib.suppress(OSError):
        return sorted(int(path.name) for path in RECORDS.iterdir() if path.name.isdigit())
    return []


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One process at a time: two that look for a free network at once would find the same."""
    RECORDS.mkdir(mode=0o700, exist_ok=True)
    with (RECORDS / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until this is over: what is half taken down would stay."""
    if threading.current_thread() is not threading.main_thread():
        # Python hands signals to the main thread alone.
        yield
        return
    told: list[int] = []

    def later(number: int, frame: FrameType | None) -> None:
        told.append(number)

    before = {number: signal.signal(number, later) for number in _ENDING}
    try:
        yield
    finally:
        for ending, handler in before.items():
            signal.signal(ending, signal.SIG_DFL if handler is None else handler)
    for number in dict.fromkeys(told):
        os.kill(os.getpid(), number)


def end_all(pids: Callable[[], list[int]]) -> None:
    """Kill these processes, and those they start meanwhile, and wait until they are gone."""
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while (found := pids()) and time.monotonic() < deadline_s:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _began(pid: int) -> str | None:
    """When a process began, in ticks since the machine did; None if it is gone, or dead and not yet waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STAT_STATE] in "ZX" else fields[_STAT_BEGAN]
