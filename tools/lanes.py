"""Commands that run side by side, and what each took. Does not know what the commands check.

One command at a time has the terminal; the steps of the lane behind it run one after another, and what each says is
printed when it ends. A command's processor time counts every process that it started and waited for.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

#: A step whose program is missing ends with this code, as in a shell.
NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class Step:
    """A command, with the name that the summary gives it and what its environment has beside ours."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """How a step ended and what it took."""

    name: str
    code: int
    wall_s: float
    cpu_s: float


class _Running:
    """Runs one step, and ends its process if the run is broken off."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def run(self, step: Step, output: IO[bytes] | None = None) -> Done:
        """Run a step to its end; what it says goes to ``output``, or to the terminal if that is None."""
        began_s = time.monotonic()
        print(f"$ {shlex.join(step.command)}{' &' if output else ''}", flush=True)
        try:
            self._process = subprocess.Popen(
                step.command,
                cwd=self._root,
                env={**os.environ, **step.environment},
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
            )
        except FileNotFoundError:
            print(f"{step.command[0]} is not installed", flush=True)
            return Done(step.name, NOT_FOUND, 0.0, 0.0)
        if self._is_stopped:
            self._process.kill()
        # Not Popen.wait(): only wait4 says what the process took. Popen learns the code from us.
        _, status, usage = os.wait4(self._process.pid, 0)
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        return Done(step.name, code, time.monotonic() - began_s, usage.ru_utime + usage.ru_stime)

    def stop(self) -> None:
        """End the step that runs, and any that would start now."""
        self._is_stopped = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped


def side_by_side(root: Path, front: Sequence[Step], behind: Sequence[Step] = ()) -> list[Done]:
    """Run two lanes of steps at once; returns how each step ended, those behind first."""
    hidden, shown = _Running(root), _Running(root)
    ended_behind: list[Done] = []

    def lane() -> None:
        for step in behind:
            if hidden.is_stopped:
                return
            with tempfile.TemporaryFile() as said:
                ended_behind.append(done := hidden.run(step, said))
                said.seek(0)
                text = said.read().decode(errors="replace")
            # In one write, so that the lane in front does not speak in between.
            sys.stdout.write(f"\n== {step.name}: exit {done.code} after {done.wall_s:.1f} s\n{text}")
            sys.stdout.flush()

    thread = threading.Thread(target=lane, name="lane behind")
    thread.start()
    try:
        ended = [shown.run(step) for step in front]
    except BaseException:
        hidden.stop()
        shown.stop()
        raise
    finally:
        thread.join()
    if len(ended_behind) != len(behind):
        raise RuntimeError(f"the lane behind ended after {len(ended_behind)} of {len(behind)} steps: see above")
    return [*ended_behind, *ended]
