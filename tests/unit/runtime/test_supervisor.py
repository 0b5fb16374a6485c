"""What systemd is told, on a socket like its own, and that programs that a service starts do not speak for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.runtime.supervisor import STARTS_WITHIN_S, Supervisor

pytestmark = pytest.mark.timeout(60)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(params=["file", "abstract"])
def heard(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    name = str(tmp_path / "n") if request.param == "file" else f"@shoal-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "4000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taken:
        taken.settimeout(0.2)
        taken.bind(name.replace("@", "\0", 1) if request.param == "abstract" else name)
        yield taken


def told(heard: socket.socket) -> str:
    try:
        return heard.recv(4096).decode()
    except TimeoutError:
        return ""


def test_a_service_that_starts_asks_for_time_and_one_that_serves_is_alive(heard: socket.socket) -> None:
    clock = Clock()
    supervisor = Supervisor(clock=clock)
    supervisor.turn()
    assert told(heard) == f"EXTEND_TIMEOUT_USEC={STARTS_WITHIN_S * 1e6:.0f}"
    supervisor.ready("serves")
    assert told(heard) == "READY=1\nSTATUS=serves"
    clock.now_s += 1.0
    supervisor.turn()
    assert told(heard) == "WATCHDOG=1"
    clock.now_s += 0.5
    supervisor.turn()
    assert told(heard) == "", "twice in what systemd advises is enough"
    clock.now_s += 0.5
    supervisor.turn()
    assert told(heard) == "WATCHDOG=1"
    supervisor.stopping()
    assert told(heard) == "STOPPING=1"


def test_programs_that_it_starts_do_not_know_the_socket(heard: socket.socket) -> None:
    Supervisor()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)


def test_the_watch_of_another_process_is_not_ours(heard: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_PID", "1")
    supervisor = Supervisor()
    supervisor.ready("serves")
    assert told(heard).startswith("READY=1")
    supervisor.turn()
    assert told(heard) == ""


def test_without_systemd_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    supervisor = Supervisor()
    supervisor.ready("serves")
    supervisor.turn()
    supervisor.stopping()
