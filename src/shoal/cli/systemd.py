"""Puts units in place and asks systemd about them. Knows files and programs of the system, not what a unit says."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

from shoal.errors import Misuse
from shoal.store.files import write_atomically

#: Where an administrator's units lie.
UNITS = Path("/etc/systemd/system")

#: Here only where systemd runs as the first process.
_RUNNING = Path("/run/systemd/system")

_TIMEOUT_S = 120.0


def check_runs() -> None:
    if not _RUNNING.is_dir() or shutil.which("systemctl") is None:
        raise Misuse(
            "systemd does not run on this machine: `--dry-run` prints the unit for another one, and any other way to"
            " start a program at boot can run its ExecStart line"
        )
    if os.geteuid() != 0:
        raise Misuse("services are installed by root: run the same command with sudo")


def is_installed(name: str) -> bool:
    return (UNITS / name).is_file()


def users_of(name: str) -> set[str]:
    """The users that an installed unit names."""
    found = set()
    for line in (UNITS / name).read_text().splitlines() if is_installed(name) else ():
        key, _, value = line.partition("=")
        if key == "User":
            found.add(value)
        elif key == "Environment" and value.strip('"').startswith("SHOAL_TRAINER_USER="):
            found.add(value.strip('"').partition("=")[2])
    return found


def make_user(name: str) -> bool:
    """Make a user without a home, a shell and a password, where there is none of this name. Whether one was made."""
    if user_exists(name):
        return False
    _run("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name)
    return True


def user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def give_folder(folder: Path, user: str) -> None:
    """Make a folder that this user alone can open."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    entry = pwd.getpwnam(user)
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    folder.chmod(0o700)


def put_secret(file: Path, text: str, user: str) -> None:
    """Write a file that this user alone can read."""
    write_atomically(file, lambda out: out.write(text.encode()))
    entry = pwd.getpwnam(user)
    os.chown(file, entry.pw_uid, entry.pw_gid)


def closed_to_others(path: Path) -> Path | None:
    """The first folder on the way to a path that other users cannot walk through; None: all are open."""
    # A virtual environment's Python is a link to another one.
    for folder in (*reversed(path.absolute().parents), *reversed(path.resolve().parents)):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def start_at_boot(name: str, text: str) -> None:
    """Put a unit in place; start it now and at every boot."""
    file = UNITS / name
    write_atomically(file, lambda out: out.write(text.encode()))
    # Units hold no secret, and people look at them.
    file.chmod(0o644)
    _run("systemctl", "daemon-reload")
    _run("systemctl", "enable", name)
    # Also one that runs already: it may have other options now.
    _run("systemctl", "restart", name)


def remove(name: str) -> None:
    _run("systemctl", "disable", "--now", name)
    (UNITS / name).unlink(missing_ok=True)
    _run("systemctl", "daemon-reload")


def state_of(name: str) -> tuple[str, str]:
    """Whether a unit starts at boot, and whether it runs, in systemd's words."""
    return _ask("is-enabled", name), _ask("is-active", name)


def _ask(question: str, name: str) -> str:
    command = ("systemctl", question, name)
    told = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    return told.stdout.strip() or "unknown"


def _run(*command: str) -> None:
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise Misuse(f"`{' '.join(command)}` could not be run: {error}") from None
    if told.returncode:
        raise Misuse(f"`{' '.join(command)}` failed: {told.stderr.strip() or told.stdout.strip()}")
