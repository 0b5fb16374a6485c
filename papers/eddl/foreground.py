"""A device's own work, to be disturbed: a process that computes, or copies memory, and counts what it did."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

KINDS = ("cpu", "memory")
ROOT = Path(__file__).resolve().parent.parent.parent

#: More than any cache holds.
_COPIED_BYTES = 64 << 20


def rate(kind: str, *, seconds: float, before: Sequence[str] = (), cpu: int | None = None) -> float:
    """Pieces of work a second of one process. ``before`` are the words that start a command on a device."""
    command = (*before, sys.executable, "-m", "papers.eddl.foreground", kind, "--seconds", str(seconds))
    if cpu is not None:
        command += ("--cpu", str(cpu))
    search = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))}
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds + 60,
        check=True,
        env={**os.environ, **search},
    )
    return float(done.stdout)


def loss(measure: Callable[[], float], *, disturb: Callable[[bool], None], pairs: int) -> float:
    """The part of a rate that is lost while something else runs: ``disturb`` says whether it may.

    With and without take turns, and each pair is compared by itself: what else the machine does comes and goes.
    """
    ratios = []
    for _ in range(pairs):
        rates = {}
        for disturbed in (False, True):
            disturb(disturbed)
            rates[disturbed] = measure()
        ratios.append(rates[True] / rates[False])
    return 1 - median(ratios)


def work(kind: str, *, seconds: float) -> float:
    """The same, in this process."""
    source = np.zeros(_COPIED_BYTES if kind == "memory" else 1 << 16, np.uint8)
    target = np.empty_like(source)
    done, began_s = 0, time.monotonic()
    while (now_s := time.monotonic()) < began_s + seconds:
        if kind == "memory":
            np.copyto(target, source)
        else:
            hashlib.sha256(source.data).digest()
        done += 1
    return done / (now_s - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--cpu", type=int, help="the core to stay on")
    given = parser.parse_args()
    if given.cpu is not None:
        os.sched_setaffinity(0, {given.cpu})
    print(work(given.kind, seconds=given.seconds))


if __name__ == "__main__":
    main()
