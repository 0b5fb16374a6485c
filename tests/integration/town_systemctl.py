"""Stands for `systemctl` on a machine of ``town``: starts and stops the processes that installed units name.

A unit's command, user and environment hold here, and a start waits for READY=1, as with systemd. Its hardening,
restarts and watchdog do not: tests/unit/cli/test_cli_service.py has systemd-analyze read them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")
RUN = Path("/run")
READY_WITHIN_S = 120.0
STOPS_WITHIN_S = 30.0


def main(words: list[str]) -> int:
    action, *units = [word for word in words if not word.startswith("-")]
    if action == "daemon-reload":
        return 0
    for name in units:
        unit = name if name.endswith(".service") else f"{name}.service"
        if not (UNITS / unit).is_file():
            print(f"Unit {unit} not found.", file=sys.stderr)
            return 5
        if action in ("stop", "restart"):
            stop(unit)
        if action in ("start", "restart"):
            start(unit)
    return 0


def start(unit: str) -> None:
    """Start a unit and wait until it says that it serves."""
    lines = [line.partition("=")[::2] for line in (UNITS / unit).read_text().splitlines()]
    settings = dict(lines)
    given = dict(shlex.split(value)[0].split("=", 1) for key, value in lines if key == "Environment")
    command = shlex.split(settings["ExecStart"])
    if user := settings.get("User"):
        command = ["runuser", "-u", user, "--", *command]
    folder = Path(tempfile.mkdtemp(dir=RUN))
    folder.chmod(0o711)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, (RUN / f"{unit}.log").open("ab") as log:
        told.bind(str(folder / "notify"))
        (folder / "notify").chmod(0o666)
        process = subprocess.Popen(
            command,
            env={**os.environ, **given, "NOTIFY_SOCKET": str(folder / "notify")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
        (RUN / f"{unit}.pid").write_text(str(process.pid))
        give_up_s = time.monotonic() + READY_WITHIN_S
        told.settimeout(0.2)
        while time.monotonic() < give_up_s and process.poll() is None:
            with contextlib.suppress(TimeoutError):
                if told.recv(4096).startswith(b"READY=1"):
                    return
    sys.exit(f"Job for {unit} failed: {(RUN / f'{unit}.log').read_text()[-2000:]}")


def stop(unit: str) -> None:
    """Stop a unit if it runs, and wait for its end."""
    file = RUN / f"{unit}.pid"
    if not file.exists():
        return
    pid = int(file.read_text())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
    give_up_s = time.monotonic() + STOPS_WITHIN_S
    while time.monotonic() < give_up_s and runs(pid):
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    file.unlink()


def runs(pid: int) -> bool:
    """Whether any process of this session is there, other than as a zombie."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) == pid and state != "Z":
                return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
