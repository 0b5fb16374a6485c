"""Multiplies in a child process, which the first task starts. It does not need torch.

It is a child and not a thread because it may be killed or run out of memory without ending the agent, and has a lower
priority than the device's own work. Also, a process fixes the threads of its linear algebra when it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import numpy as np

from shoal.errors import Corrupt
from shoal.offload.runtime.arena import Arena, aligned
from shoal.roles.actions import Multiply
from shoal.roles.events import Multiplied, MultiplyFailed
from shoal.trainer.spawn import command, environment

#: The module that the child runs.
CHILD_MODULE = "shoal.offload.runtime.multiply_child"

#: Right sides that a child keeps.
KEPT_MAX = 8
KEPT_MAX_BYTES = 256 << 20

#: The variable of each library of linear algebra for its number of threads.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def threads_told(otherwise: int) -> int:
    """The number of cores for a product, if the environment sets one."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() and int(told) else otherwise


class Multiplier:
    def __init__(self, *, threads: int = 1, nice: int = 0) -> None:
        """``nice``: how much priority a device's own work has."""
        self._threads = threads
        self._nice = nice
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-multiply")
        self._child: subprocess.Popen[bytes] | None = None
        self._arena = Arena()
        self._is_over = False
        #: Right sides that the child has, by their handles, the last used one at the end; compared by identity.
        self._kept: dict[int, np.ndarray] = {}
        self._handles = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def multiply(self, ask: Multiply) -> Multiplied | MultiplyFailed:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._multiply, ask)

    def stop(self) -> None:
        """End the child, whatever it computes. Safe to call twice."""
        if self._is_over:
            return
        self._is_over = True
        self._end_child()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._end_child()
        self._arena.close()

    # In the thread --------------------------------------------------------------------------------------

    def _multiply(self, ask: Multiply) -> Multiplied | MultiplyFailed:
        try:
            answer = self._asked(ask)
        except (OSError, ValueError, Corrupt) as error:
            answer = None
            reason = f"the process that multiplies could not be used: {error}"
        else:
            reason = "the process that multiplies was ended"
        if answer is None:
            # Killed, or out of memory: the next task starts another child.
            self._end_child()
            return MultiplyFailed(number=ask.number, reason=reason)
        header, result = answer
        if header["reason"]:
            return MultiplyFailed(number=ask.number, reason=header["reason"])
        tensors = {"result": result} if result is not None else {}
        return Multiplied(number=ask.number, seconds=float(header["seconds"]), tensors=tensors)

    def _asked(self, ask: Multiply) -> tuple[dict[str, Any], np.ndarray | None] | None:
        asks, answers = self._pipes()
        tensors = dict(ask.tensors)
        right = tensors.pop("right", None)
        handle, dropped, is_new = self._handle(right) if right is not None else (0, [], False)
        if right is not None and is_new:
            tensors["right"] = right
        result_at = sum(aligned(array.nbytes) for array in tensors.values())
        # A result is float32 or uint32; of a measure there is none.
        self._arena.grow(result_at + 4 * ask.rows * ask.columns)
        at, places = 0, []
        for name, array in tensors.items():
            places.append([name, at, array.dtype.name, array.shape])
            at = self._arena.put(at, array)
        header = {
            "kind": ask.kind,
            "rows": ask.rows,
            "inner": ask.inner,
            "columns": ask.columns,
            "right": handle,
            "drop": dropped,
            "tensors": places,
            "result_at": result_at,
        }
        asks.write(json.dumps(header).encode() + b"\n")
        asks.flush()
        line = answers.readline()
        if not line:
            return None
        told = json.loads(line)
        if told["result"] is None:
            return told, None
        # A copy: the next task goes there.
        return told, self._arena.copy(result_at, *told["result"])

    def _handle(self, right: np.ndarray) -> tuple[int, list[int], bool]:
        """The child's name for a right side, which it may have to drop first, and whether it lacks this one."""
        known = next((handle for handle, kept in self._kept.items() if kept is right), None)
        if known is not None:
            self._kept[known] = self._kept.pop(known)
            return known, [], False
        dropped = []
        while self._kept and (
            len(self._kept) >= KEPT_MAX
            or sum(kept.nbytes for kept in self._kept.values()) + right.nbytes > KEPT_MAX_BYTES
        ):
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            dropped.append(oldest)
        self._handles += 1
        self._kept[self._handles] = right
        return self._handles, dropped, True

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._is_over:
            raise ValueError("it was stopped")
        if self._child is None:
            self._kept.clear()
            self._child = subprocess.Popen(
                command(CHILD_MODULE, str(self._arena.fd), str(self._nice), str(self._threads)),
                pass_fds=(self._arena.fd,),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(dict.fromkeys(_THREADS, "1")),
                # Ctrl-C is for the program that waits: the child ends with its standard input.
                start_new_session=True,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        return self._child.stdin, self._child.stdout

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
