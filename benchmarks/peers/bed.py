"""Machines of this contest: a server and four clients, each a network of its own on this machine. Knows no peer.

What a client's link carried is counted by the kernel at its end of the cable; what its processes hold is their resident
memory together; what kills one kills every process that it runs, at once, as a power cut does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from testbed.commands import ip
from testbed.devices import Board, Testbed
from testbed.processes import children_of, memory_mb

SERVER = "server"
_GONE_WITHIN_S = 20.0
POLL_S = 0.1


class Machine:
    """Where commands of a user run. Every process that is started here is ended here, by its id."""

    def __init__(self, name: str, folder: Path, bed: Testbed) -> None:
        self.name = name
        self.home = folder / name
        self.home.mkdir(parents=True, exist_ok=True)
        self._device = bed[name]
        self._log = self.home / "output.log"
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return self._device.address

    def start(self, *command: str, environment: Mapping[str, str], cwd: Path | None = None) -> None:
        """A command that stays. Its words go to the machine's log."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._device.exec(*command),
                cwd=cwd or self.home,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)

    def run(self, *command: str, environment: Mapping[str, str], cwd: Path, limit_s: float) -> str:
        """A command that ends; what it printed. That it does not end in time or fails is an error."""
        done = subprocess.run(
            self._device.exec(*command),
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        )
        text = done.stdout.decode(errors="replace")
        if done.returncode:
            raise Stuck(f"{' '.join(command)} failed: {text[-1500:]}")
        return text

    def said(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def processes(self) -> list[int]:
        """All in its network, and their children: a confined one may have a network of its own."""
        found = [int(pid) for pid in ip("netns", "pids", self._device.namespace).split()]
        for pid in found:
            with suppress(OSError):
                found += [child for child in children_of(pid) if child not in found]
        return found

    def memory_mb(self) -> float:
        total = 0.0
        for pid in self.processes():
            with suppress(OSError, ValueError):
                total += memory_mb(pid)
        return total

    def crossed_bytes(self) -> tuple[int, int]:
        """Sent and received since the machine was made: frames on its cable, with their headers."""
        return crossed(ip("netns", "exec", self._device.namespace, "cat", "/proc/net/dev"))

    def kill(self) -> None:
        """kill -9 of everything at once."""
        ends_by = time.monotonic() + _GONE_WITHIN_S
        while pids := self.processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()
            if time.monotonic() > ends_by:
                raise Stuck(f"processes of {self.name} do not end: {pids}")
            time.sleep(POLL_S)
        for process in self._started:
            process.wait(_GONE_WITHIN_S)
        self._started.clear()


class Stuck(Exception):
    """Something did not happen in time, or failed."""


class Machines:
    def __init__(self, folder: Path, clients: list[str]) -> None:
        self.folder = folder
        self._names = clients
        self._bed = Testbed([Board(name=name) for name in (SERVER, *clients)])

    @contextmanager
    def up(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._bed)
            self.server = Machine(SERVER, self.folder, self._bed)
            self.clients = [Machine(name, self.folder, self._bed) for name in self._names]
            for machine in (self.server, *self.clients):
                stack.callback(machine.kill)
            yield


def command_of(pid: int) -> str:
    """The words that a process was started with; none if it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def crossed(table: str) -> tuple[int, int]:
    """Sent and received bytes of eth0, out of /proc/net/dev."""
    for line in table.splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "eth0":
            fields = figures.split()
            return int(fields[8]), int(fields[0])
    raise Stuck("this machine has no eth0")


def wait_until(is_so: Callable[[], object], *, limit_s: float, what: str) -> None:
    ends_by = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > ends_by:
            raise Stuck(f"{what}: not within {limit_s:g} s")
        time.sleep(POLL_S)
