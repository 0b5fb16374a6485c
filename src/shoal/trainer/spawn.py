"""Child processes: this Python again, with a module of ours. One command line, one environment, one end for all.

How a child learns that its parent died differs, and is the child's own affair: a trainer asks the kernel, the others
watch the pipe or the socket that the parent holds. Every parent that is asked to stop ends its children itself.
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

#: None is what the parent has.
Stream: TypeAlias = int | IO[bytes] | None


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module."""
    # -P: a file in the working directory must not pass for a module.
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with some values changed."""
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

    ``fds`` are open files that it gets under the same numbers, ``changes`` values of its environment. In a session of
    its own it does not hear Ctrl-C, and its whole group can be ended.
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
    """A child that lives no longer than the block: one that is still running at its end is killed."""
    process = await spawn(module, *arguments, stdin=stdin, stdout=stdout, stderr=stderr)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def end_process(process: Process) -> None:
    """End a process that we started: politely, then not."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            # A stopped process handles nothing: wake it first.
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
