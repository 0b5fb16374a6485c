"""What a manager tells other programs of: a command or a web address for each kind of event, from ``hooks.toml``.

Nothing here holds up the manager: an event is put in a bounded queue, and threads carry it out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import stat
import subprocess
import threading
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from shoal.errors import Misuse
from shoal.runtime.event_kinds import KINDS, device_of
from shoal.runtime.journal import JournalEvent
from shoal.runtime.log_lines import stamp
from shoal.runtime.no_redirect import NoRedirect
from shoal.version import __version__

log = logging.getLogger("shoal")

HOOKS_FILE = "hooks.toml"

#: Everything that a hook can be for. ``hook.failed`` is not: a hook that fails would call itself.
EVENTS: frozenset[str] = frozenset(KINDS) - {"hook.failed"}

HOOKS_MAX = 20
#: Events that wait for one hook; beyond it the newest are left out, and counted.
WAITING_MAX = 100
COMMAND_TIMEOUT_S, COMMAND_TIMEOUT_MOST_S = 30.0, 600.0
WEBHOOK_TIMEOUT_S = 10.0
#: Tries of a webhook, and how long to wait before the next.
TRIES, RETRY_AFTER_S = 3, (1.0, 5.0)
#: What a command says is for its log, not for ours.
_OUTPUT_MAX_CHARS = 300

#: Writes that a hook failed into the journal: the name of the hook, and why.
Failed = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hook:
    on: frozenset[str]
    #: A program and its arguments; empty: a webhook.
    command: tuple[str, ...] = ()
    #: May hold a secret, so it is never printed whole.
    url: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_s: float = COMMAND_TIMEOUT_S

    @property
    def name(self) -> str:
        if self.command:
            return f"command {Path(self.command[0]).name}"
        parts = urllib.parse.urlsplit(self.url)
        return f"webhook {parts.scheme}://{parts.hostname}"


# Reading the file ------------------------------------------------------------------------------------------


def load_hooks(home: Path) -> tuple[Hook, ...]:
    """The hooks of the cluster in this home; none if there is no file."""
    file = home / HOOKS_FILE
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(1 << 20).decode("utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"{file} cannot be read: {error}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Misuse(f"{file} names commands that the manager runs, and others may write it: chmod go-w {file}")
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misuse(f"{file} is not TOML: {error}") from None
    return parse_hooks(told, str(file))


def parse_hooks(told: dict[str, Any], file: str) -> tuple[Hook, ...]:
    listed = told.get("hook", [])
    if set(told) - {"hook"} or not isinstance(listed, list):
        raise Misuse(f"{file} holds tables [[hook]] and nothing else")
    if len(listed) > HOOKS_MAX:
        raise Misuse(f"{file} has {len(listed)} hooks: at most {HOOKS_MAX}")
    return tuple(_hook(each, f"hook {number} of {file}") for number, each in enumerate(listed, 1))


def _hook(told: Any, where: str) -> Hook:
    def wrong(what: str) -> NoReturn:
        raise Misuse(f"{where}: {what}")

    if not isinstance(told, dict):
        wrong("write it as a table [[hook]]")
    if unknown := set(told) - {"on", "command", "url", "headers", "timeout_s"}:
        wrong(f"it has on, command or url, headers and timeout_s, not {min(unknown)!r}")
    on = told.get("on")
    if not isinstance(on, list) or not on or not all(isinstance(each, str) for each in on):
        wrong('name events, such as on = ["job.failed", "device.lost"]')
    if unknown := set(on) - EVENTS:
        wrong(f"there is no event {min(unknown)[:40]!r}: docs/operations/logs.md lists them")
    command, url = told.get("command", []), told.get("url", "")
    if bool(command) == bool(url):
        wrong("give it either a command or a url")
    if not isinstance(command, list) or not all(isinstance(each, str) and each for each in command):
        wrong('a command is a program and its arguments, such as command = ["/usr/local/bin/tell", "--loud"]')
    headers = told.get("headers", {})
    if not isinstance(headers, dict) or not all(
        isinstance(each, str) and each.isprintable() for each in headers.values()
    ):
        wrong("headers are texts, such as headers = { Authorization = 'Bearer …' }")
    if url and (not isinstance(url, str) or not _is_web(url)):
        wrong("a url begins with https:// or http:// and names a host")
    limit_s = told.get("timeout_s", COMMAND_TIMEOUT_S if command else WEBHOOK_TIMEOUT_S)
    most_s = COMMAND_TIMEOUT_MOST_S if command else WEBHOOK_TIMEOUT_S
    if isinstance(limit_s, bool) or not isinstance(limit_s, int | float) or not 0 < limit_s <= most_s:
        wrong(f"timeout_s is above 0 and at most {most_s:g}")
    return Hook(
        on=frozenset(on),
        command=tuple(command),
        url=url,
        headers=tuple(sorted(headers.items())),
        timeout_s=float(limit_s),
    )


def _is_web(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


# Carrying them out -----------------------------------------------------------------------------------------


def body_of(event: JournalEvent, *, cluster: str) -> bytes:
    told = {
        "event": event.kind,
        "cluster": cluster,
        "job": event.job or None,
        "node": device_of(event.kind, event.reason) or event.node or None,
        "reason": event.reason,
        "seq": event.seq,
        "ts": stamp(event.at_s),
    }
    return json.dumps(told, ensure_ascii=False).encode()


class Hooks:
    """A queue and a thread for each hook and kind: at most one of a kind at once, and none waits for another."""

    def __init__(self, hooks: tuple[Hook, ...], *, cluster: str, on_failed: Failed | None = None) -> None:
        self._cluster = cluster
        self._on_failed = on_failed
        self._stopping = threading.Event()
        self._lanes = {(number, name): _Lane(hook) for number, hook in enumerate(hooks) for name in sorted(hook.on)}
        for (_, name), lane in self._lanes.items():
            lane.thread = threading.Thread(target=self._carry_out, args=(lane,), name=f"hook {name}", daemon=True)
            lane.thread.start()

    def __call__(self, event: JournalEvent) -> None:
        """Hear of an event. Never blocks."""
        for (_, kind), lane in self._lanes.items():
            if kind == event.kind:
                lane.offer(body_of(event, cluster=self._cluster))

    def stop(self, timeout_s: float = 2.0) -> None:
        """Let go. What waits is not told; a command that runs is ended."""
        self._stopping.set()
        for lane in self._lanes.values():
            lane.close()
        deadline_s = time.monotonic() + timeout_s
        for lane in self._lanes.values():
            if lane.thread is not None:
                lane.thread.join(max(0.0, deadline_s - time.monotonic()))

    def _carry_out(self, lane: _Lane) -> None:
        while (body := lane.waiting.get()) is not None and not self._stopping.is_set():
            try:
                problem = _run(lane, body) if lane.hook.command else self._post(lane.hook, body)
            except Exception as error:
                # A thread that ends would leave every later event untold.
                problem = f"{type(error).__name__}: {error}"
            if left_out := lane.take_left_out():
                problem = f"{problem or 'it is too slow'}; {left_out} events were not told"
            if problem and not self._stopping.is_set():
                self._tell_failed(lane.hook.name, problem)

    def _tell_failed(self, name: str, problem: str) -> None:
        if self._on_failed is not None:
            self._on_failed(name, problem)
        else:
            log.warning("hook failed: %s: %s", name, problem)

    def _post(self, hook: Hook, body: bytes) -> str:
        """Why the webhook could not be told; empty: it was."""
        problem = ""
        for wait_s in (0.0, *RETRY_AFTER_S[: TRIES - 1]):
            if self._stopping.wait(wait_s):
                return problem
            try:
                _post_once(hook, body)
            except (OSError, ValueError) as error:
                # The address may hold a secret, and errors of this library may hold the address.
                problem = f"{_why(error)}, {TRIES} tries"
            else:
                return ""
        return problem


@dataclass(slots=True)
class _Lane:
    hook: Hook
    waiting: queue.Queue[bytes | None] = field(default_factory=lambda: queue.Queue(WAITING_MAX))
    thread: threading.Thread | None = None
    running: subprocess.Popen[bytes] | None = None
    _left_out: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, body: bytes) -> None:
        try:
            self.waiting.put_nowait(body)
        except queue.Full:
            with self._lock:
                self._left_out += 1

    def take_left_out(self) -> int:
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        return left_out

    def close(self) -> None:
        # The thread takes this, or finds after the event it is at that it is to stop.
        with contextlib.suppress(queue.Full):
            self.waiting.put_nowait(None)
        if (running := self.running) is not None and running.poll() is None:
            running.kill()


def _run(lane: _Lane, body: bytes) -> str:
    """Why the command failed; empty: it did not."""
    hook = lane.hook
    try:
        running = subprocess.Popen(
            hook.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/"
        )
    except OSError as error:
        return f"it could not be started: {error.strerror or error}"
    lane.running = running
    try:
        _, said = running.communicate(body, timeout=hook.timeout_s)
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
        return f"it ran for longer than {hook.timeout_s:g} s and was ended"
    finally:
        lane.running = None
    if running.returncode == 0:
        return ""
    last = said.decode("utf-8", "replace").strip()[-_OUTPUT_MAX_CHARS:]
    return f"it ended with exit code {running.returncode}" + (f": {last}" if last else "")


def _post_once(hook: Hook, body: bytes) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": f"shoal/{__version__}", **dict(hook.headers)}
    # Only http and https: checked when the file was read.
    request = urllib.request.Request(hook.url, data=body, method="POST", headers=headers)  # noqa: S310
    opener = urllib.request.build_opener(NoRedirect)
    # What it says in its answer is nothing to us: a server that drips it would only take time.
    opener.open(request, timeout=hook.timeout_s).close()


def _why(error: Exception) -> str:
    match error:
        case urllib.error.HTTPError():
            with error:
                return f"it answered {error.code}"
        case urllib.error.URLError():
            return f"it cannot be reached ({error.reason})"
        case TimeoutError():
            return "it did not answer in time"
        case _:
            return type(error).__name__


def described(hooks: tuple[Hook, ...]) -> list[str]:
    """One line a hook, without secrets, for the log."""
    return [f"{hook.name} on {', '.join(sorted(hook.on))}" for hook in hooks]
