"""The process that multiplies: reads a task, computes it, writes the result, until its parent closes. Needs only numpy.

``multiplier`` runs it as ``python -m shoal.offload.runtime.multiply_child ARENA NICE THREADS``, and gives the linear
algebra one thread in the environment. The bits of a product do not depend on THREADS (``offload.tiling``).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from shoal.errors import ShoalError
from shoal.offload.kinds import compute, measured
from shoal.offload.runtime.arena import Arena

Compute = Callable[..., np.ndarray]


def serve(asks: BinaryIO, answers: BinaryIO, arena: Arena, multiply: Compute = compute, *, threads: int = 1) -> None:
    """Answer each line of JSON that tells where tensors lie in the arena, by another. Tests replace ``multiply``."""
    #: Handle -> a right side that was sent once and is used again.
    kept: dict[int, np.ndarray] = {}
    for line in asks:
        header = json.loads(line)
        for handle in header["drop"]:
            kept.pop(handle, None)
        tensors = {name: arena.at(at, dtype, shape) for name, at, dtype, shape in header["tensors"]}
        if "right" in tensors:
            kept[header["right"]] = np.array(tensors["right"])
        if header["right"] in kept:
            tensors["right"] = kept[header["right"]]
        began_s = time.perf_counter()
        told: dict[str, Any] = {"reason": "", "seconds": 0.0, "result": None}
        try:
            result = _done(header, tensors, multiply, threads)
            if result is not None:
                arena.put(header["result_at"], result)
                told["result"] = [result.dtype.name, result.shape]
            told["seconds"] = time.perf_counter() - began_s
        except (ShoalError, MemoryError, ValueError) as error:
            told["reason"] = str(error)[:1000] or type(error).__name__
        del tensors
        answers.write(json.dumps(told).encode() + b"\n")
        answers.flush()


def _done(header: dict[str, Any], tensors: dict[str, np.ndarray], multiply: Compute, threads: int) -> np.ndarray | None:
    sides = {name: header[name] for name in ("rows", "inner", "columns")}
    if header["kind"] == "measure":
        measured(**sides, threads=threads)
        return None
    return multiply(header["kind"], tensors, **sides, threads=threads)


def main(multiply: Compute = compute) -> None:
    # Text that is printed by mistake must not pass for an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.nice(int(sys.argv[2]))
    try:
        serve(sys.stdin.buffer, answers, Arena(int(sys.argv[1])), multiply, threads=int(sys.argv[3]))
    except BrokenPipeError:
        # The parent was killed meanwhile: there is nothing left to answer or to flush.
        os._exit(0)


if __name__ == "__main__":
    main()
