"""Hooks: what the file may say, and real commands and a real web server that hear of events."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import Misuse
from shoal.runtime import hooks as module
from shoal.runtime.hooks import WAITING_MAX, Hook, Hooks, described, load_hooks, parse_hooks
from shoal.runtime.journal import JournalEvent

#: Patience on a busy machine.
WAIT_S = 120.0

LOST = JournalEvent(job="", seq=7, at_s=1.0, kind="device.lost", reason="attic: silent for 12.0 s")
FAILED = JournalEvent(job="mnist-1", seq=3, at_s=2.0, kind="job.failed", reason="no device is left")
SATURATED = JournalEvent(job="mnist-1", seq=4, at_s=3.0, kind="saturation.estimated", reason="saturated at 4 workers")


def command(tmp_path: Path, program: str) -> tuple[str, ...]:
    file = tmp_path / "hook.py"
    file.write_text(program)
    return (sys.executable, str(file), str(tmp_path / "told"))


APPEND = """
import sys
with open(sys.argv[1], "a") as told:
    told.write(sys.stdin.read() + "\\n")
"""


def lines(path: Path, count: int) -> list[dict[str, Any]]:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        text = path.read_text() if path.exists() else ""
        if text.count("\n") >= count:
            return [json.loads(line) for line in text.splitlines()]
        time.sleep(0.02)
    raise AssertionError(f"not {count} lines in {path}")


@contextmanager
def webhook(*statuses: int) -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """A real server that answers with these statuses, then 204; and what it was sent."""
    sent: queue.Queue[dict[str, Any]] = queue.Queue()
    answers = iter(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sent.put({"path": self.path, "token": self.headers.get("Authorization"), **json.loads(body)})
            status = next(answers, 204)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret-path", sent
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@contextmanager
def running(*hooks: Hook) -> Iterator[tuple[Hooks, queue.Queue[tuple[str, str]]]]:
    failed: queue.Queue[tuple[str, str]] = queue.Queue()
    telling = Hooks(hooks, cluster="home", on_failed=lambda name, why: failed.put((name, why)))
    try:
        yield telling, failed
    finally:
        telling.stop(WAIT_S)


def test_a_command_gets_the_event_on_its_standard_input(tmp_path: Path) -> None:
    wanted = frozenset({"job.failed", "device.lost", "saturation.estimated"})
    with running(Hook(on=wanted, command=command(tmp_path, APPEND))) as (telling, failed):
        for event in (
            LOST,
            FAILED,
            SATURATED,
            JournalEvent(job="", seq=8, at_s=4.0, kind="device.connected", reason="x connected"),
        ):
            telling(event)
        told = {each["event"]: each for each in lines(tmp_path / "told", 3)}
        assert failed.empty()
    assert set(told) == {"device.lost", "job.failed", "saturation.estimated"}
    assert told["device.lost"] == {
        "event": "device.lost",
        "cluster": "home",
        "job": None,
        "node": "attic",
        "reason": "attic: silent for 12.0 s",
        "seq": 7,
        "ts": "1970-01-01T00:00:01.000Z",
    }
    assert told["job.failed"]["job"] == "mnist-1"


def test_a_webhook_is_posted_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_AFTER_S", (0.01, 0.01))
    with webhook(503, 500) as (url, sent):
        hook = Hook(on=frozenset({"job.failed"}), url=url, headers=(("Authorization", "Bearer x"),), timeout_s=10.0)
        with running(hook) as (telling, failed):
            telling(FAILED)
            got = [sent.get(timeout=WAIT_S) for _ in range(3)]
            assert failed.empty()
    assert {each["path"] for each in got} == {"/secret-path"}
    assert got[2]["token"] == "Bearer x"
    assert got[2]["reason"] == "no device is left"


def test_after_three_tries_it_is_told_without_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_AFTER_S", (0.01, 0.01))
    with (
        webhook(302, 500, 404) as (url, sent),
        running(Hook(on=frozenset({"job.failed"}), url=url)) as (telling, failed),
    ):
        telling(FAILED)
        name, why = failed.get(timeout=WAIT_S)
        paths = [sent.get(timeout=WAIT_S)["path"] for _ in range(3)]
    assert paths == ["/secret-path"] * 3, "an event follows no redirection"
    assert name == "webhook http://127.0.0.1"
    assert why == "it answered 404, 3 tries"
    assert "secret-path" not in repr(described((Hook(on=frozenset({"job.failed"}), url=url),)))


@pytest.mark.parametrize(
    ("program", "limit_s", "why"),
    [
        ("import sys; sys.exit('no such bell')", 60.0, "it ended with exit code 1: no such bell"),
        ("import time; time.sleep(600)", 0.5, "it ran for longer than 0.5 s and was ended"),
    ],
)
def test_a_command_that_fails_or_hangs_is_told(tmp_path: Path, program: str, limit_s: float, why: str) -> None:
    hook = Hook(on=frozenset({"device.lost"}), command=command(tmp_path, program), timeout_s=limit_s)
    with running(hook) as (telling, failed):
        telling(LOST)
        assert failed.get(timeout=WAIT_S) == (f"command {Path(sys.executable).name}", why)


def test_a_program_that_is_not_there_is_told() -> None:
    with running(Hook(on=frozenset({"device.lost"}), command=("/no/such/program",))) as (telling, failed):
        telling(LOST)
        assert failed.get(timeout=WAIT_S) == ("command program", "it could not be started: No such file or directory")


def test_a_slow_hook_holds_nobody_up_and_runs_once_at_a_time(tmp_path: Path) -> None:
    # It waits for a file; a second one at the same time would find the mark of the first.
    program = """
import os, sys, time
mark = sys.argv[1] + ".mark"
os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.01)
os.remove(mark)
"""
    hook = Hook(on=frozenset({"device.lost"}), command=command(tmp_path, program), timeout_s=WAIT_S)
    with running(hook) as (telling, failed):
        began_s = time.monotonic()
        for _ in range(WAITING_MAX + 50):
            telling(LOST)
        took_s = time.monotonic() - began_s
        (tmp_path / "told.go").touch()
        _, why = failed.get(timeout=WAIT_S)
    assert took_s < 60, "the manager does not wait for a hook"
    assert why.startswith("it is too slow; ")
    assert int(why.split()[4]) >= 49


def test_stopping_ends_a_command_that_runs(tmp_path: Path) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()) + chr(10)); time.sleep(600)"
    telling = Hooks((Hook(on=frozenset({"device.lost"}), command=command(tmp_path, program)),), cluster="home")
    telling(LOST)
    lines(tmp_path / "told", 1)
    began_s = time.monotonic()
    telling.stop(WAIT_S)
    assert time.monotonic() - began_s < WAIT_S


# The file --------------------------------------------------------------------------------------------------


def test_a_file_of_hooks(tmp_path: Path) -> None:
    assert load_hooks(tmp_path) == ()
    file = tmp_path / "hooks.toml"
    file.write_text(
        """
[[hook]]
on = ["job.failed", "device.lost"]
command = ["/usr/local/bin/tell", "--loud"]

[[hook]]
on = ["saturation.estimated"]
url = "https://example.org/hook/abc"
headers = { Authorization = "Bearer x" }
timeout_s = 5
"""
    )
    file.chmod(0o600)
    first, second = load_hooks(tmp_path)
    assert first == Hook(on=frozenset({"job.failed", "device.lost"}), command=("/usr/local/bin/tell", "--loud"))
    assert (second.headers, second.timeout_s) == ((("Authorization", "Bearer x"),), 5.0)
    assert "abc" not in repr(second)
    assert "Bearer" not in repr(second)
    file.chmod(0o622)
    with pytest.raises(Misuse, match="others may write it: chmod go-w"):
        load_hooks(tmp_path)
    file.chmod(0o600)
    file.write_text("[[hook")
    with pytest.raises(Misuse, match="is not TOML"):
        load_hooks(tmp_path)


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        ({"on": [], "url": "https://a"}, "name events"),
        ({"on": ["moonrise"], "url": "https://a"}, "there is no event 'moonrise'"),
        ({"on": ["hook.failed"], "url": "https://a"}, "there is no event 'hook.failed': docs/operations/logs.md lists"),
        ({"on": ["worker.lost"], "url": "https://a"}, "there is no event 'worker.lost'"),
        ({"on": ["saturation.estimated"]}, "either a command or a url"),
        ({"on": ["saturation.estimated"], "url": "https://a", "command": ["b"]}, "either a command or a url"),
        ({"on": ["saturation.estimated"], "command": "rm -rf /"}, "a program and its arguments"),
        ({"on": ["saturation.estimated"], "url": "file:///etc/passwd"}, "begins with https:// or http://"),
        ({"on": ["saturation.estimated"], "url": "https://a", "headers": {"A": 1}}, "headers are texts"),
        ({"on": ["saturation.estimated"], "url": "https://a", "timeout_s": 60}, "at most 10"),
        ({"on": ["saturation.estimated"], "url": "https://a", "shell": True}, "not 'shell'"),
    ],
)
def test_a_hook_that_cannot_be_is_refused(hook: dict[str, Any], why: str) -> None:
    with pytest.raises(Misuse, match=why):
        parse_hooks({"hook": [hook]}, "hooks.toml")
