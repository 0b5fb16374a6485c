"""What the cases of a first day share: commands run as a person runs them, and how their output is checked.

A case gets an empty folder, runs the real command and returns what a person saw. It raises ``NotHeld`` if that is not
what a person should see. Every process that is started here is ended here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: The longest that any one thing is waited for, on a busy machine.
WAIT_S = 90.0
POLL_S = 0.1

#: How wide the terminal of a person is taken to be, and how high two screens of it are.
COLUMNS = 80
TWO_SCREENS = 60

#: Variables of the caller that would change what a command prints.
_LEFT_OUT = ("SHOAL_HOME", "SHOAL_DEBUG", "SHOAL_LOG", "FORCE_COLOR", "COLORTERM")


class NotHeld(Exception):
    """What a person saw is not what a person should see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One thing that a user does on the first day. ``run`` gets an empty folder and returns what the user saw."""

    name: str
    run: Callable[[Path], str]
    #: Whether ``--quick`` leaves the case out.
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a user's terminal: this tree's source first, 80 columns, no colours."""
    kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    paths = [str(ROOT / "src"), *filter(None, [kept.get("PYTHONPATH", "")])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "TERM": "dumb"}
    return kept | own | dict(given or {})


def command(*words: str) -> list[str]:
    """A Shoal command as a list of arguments, run by this Python."""
    return [sys.executable, "-m", "shoal.cli.main", *words]


def run(
    *words: str, cwd: Path, env: Mapping[str, str] | None = None, program: Sequence[str] = (), within_s: float = WAIT_S
) -> Seen:
    """Run a command to its end. ``program`` takes the place of ``shoal``, or comes before it with its own words."""
    arguments = [*program, *words] if program else command(*words)
    try:
        done = subprocess.run(
            arguments, cwd=cwd, env=environment(env), capture_output=True, text=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise NotHeld(f"`shoal {' '.join(words)}` did not end within {within_s:g} s: {_tail(late.stdout)}") from None
    return Seen(done.returncode, done.stdout, done.stderr)


class Running:
    """A command that runs beside the case, with its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, words: str, *, within_s: float = WAIT_S) -> str:
        """Return all that was printed, once it has these words."""
        deadline_s = time.monotonic() + within_s
        while words not in self.text:
            if self.process.poll() is not None and words not in self.text:
                raise NotHeld(f"the command ended with {self.process.returncode} before {words!r}: {_tail(self.text)}")
            if time.monotonic() > deadline_s:
                raise NotHeld(f"{words!r} was not printed within {within_s:g} s: {_tail(self.text)}")
            time.sleep(POLL_S)
        return self.text


@contextlib.contextmanager
def running(
    *words: str, cwd: Path, log: str, env: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> Iterator[Running]:
    """Run a command for as long as the block runs. ``before`` comes in front of it, such as `ip netns exec NAME`."""
    path = cwd / log
    with path.open("wb") as file:
        process = subprocess.Popen(
            [*before, *command(*words)],
            cwd=cwd,
            env=environment(env),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Running(process, path)
    finally:
        end(process)


def end(process: subprocess.Popen[bytes], *, within_s: float = 15.0) -> None:
    """End a process of ours and those that it started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(within_s)


@contextlib.contextmanager
def manager(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a manager of cluster ``attic`` on loopback, with its home in ``boss``. Gives a line for twenty devices."""
    words = ("up", "--host", "127.0.0.1", "--port", "0", "--name", "attic", "--home", str(folder / "boss"), *options)
    with running(*words, cwd=folder, log="boss.log", env=env) as boss:
        boss.wait_for("Ctrl-C here stops the manager")
        yield join_line(boss.text)


def join_line(text: str) -> str:
    """Return the join line in what a command printed."""
    found = next((word for word in text.split() if word.startswith("shoal://")), "")
    expect(bool(found), f"no join line was printed: {_tail(text)}")
    return found


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """A folder in which this user can write nothing."""
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o500)
        yield folder
        return
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=4k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotHeld(f"cannot mount a read-only file system here: {error}") from None
    try:
        yield folder
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(folder)], check=True, capture_output=True, timeout=10)


def without(folder: Path, *packages: str) -> dict[str, str]:
    """Return an environment in which Python does not find these packages, as where they were never installed."""
    hook = folder / "hook"
    hook.mkdir(exist_ok=True)
    hidden = "\n".join(f"sys.modules[{name!r}] = None" for name in packages)
    (hook / "sitecustomize.py").write_text(f"import sys\n{hidden}\n")
    return {"PYTHONPATH": os.pathsep.join((str(hook), str(ROOT / "src")))}


def expect(condition: bool, otherwise: str) -> None:
    """Raise ``NotHeld`` with these words unless the condition holds."""
    if not condition:
        raise NotHeld(otherwise)


def expect_words(seen: str, *words: str) -> None:
    """Every one of these words is in what was printed, whatever lines it was broken into."""
    flat = " ".join(seen.split())
    missing = [word for word in words if word not in flat]
    expect(not missing, f"{missing} is not in: {_tail(flat)}")


def until(condition: Callable[[], bool], otherwise: str, *, within_s: float = WAIT_S) -> None:
    """Wait until the condition holds, and raise ``NotHeld`` if it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        expect(time.monotonic() < deadline_s, f"not within {within_s:g} s: {otherwise}")
        time.sleep(POLL_S)


def line_of(text: str, words: str) -> str:
    """The first line with these words, to show what a person saw."""
    return next((line.strip() for line in text.splitlines() if words in line), "")[:300]


def _tail(text: str | bytes | None, chars: int = 400) -> str:
    whole = text.decode(errors="replace") if isinstance(text, bytes) else text or ""
    return whole.strip()[-chars:]
