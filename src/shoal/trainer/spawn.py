"""Child processes: this Python again, with one of Shoal's modules. They share a command line, environment and shutdown.

Each child has to notice itself that its parent died: a trainer has the kernel end it, the others watch the pipe or the
socket that the parent holds. Every parent that is asked to stop ends its children itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import IO, TypeAlias

#: How long a process that is asked to end may take to do so.
STOP_TIMEOUT_S = 10.0

#: None for the parent's own.
Stream: TypeAlias = int | IO[bytes] | None


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module."""
    # -P: a file in the working directory must not be taken for a module.
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with some values changed."""
    return {**os.environ, **changes}


async def spawn(
    module: str,
    *arguments: str,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    fds: Sequence[int] = (),
    changes: Mapping[str, str] | None = None,
    own_session: bool = False,
) -> Process:
    """Start a module as a child.

    ``fds`` are open files that it gets under the same numbers, ``changes`` values of its environment. In its own
    session it does not get Ctrl-C, and its whole group can be ended.
    """
    return await asyncio.create_subprocess_exec(
        *command(module, *arguments),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=fds,
        env=environment(changes or {}),
        start_new_session=own_session,
    )


@contextlib.asynccontextmanager
async def child(
    module: str, *arguments: str, stdin: Stream = None, stdout: Stream = None, stderr: Stream = None
) -> AsyncIterator[Process]:
    """Start a child for the length of the block. Kills it if it still runs at the end."""
    process = await spawn(module, *arguments, stdin=stdin, stdout=stdout, stderr=stderr)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def end_process(process: Process) -> None:
    """End a process that we started: first ask it to end, then kill it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            # A stopped process handles no signals: wake it first.
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
