"""One thread for a process that computes: on a shared machine, threads that wait for one another measure the others."""

from __future__ import annotations

import os
import sys

#: Read by the libraries when they are first imported: too late for a process that runs already.
VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def again_on_one_core(module: str) -> None:
    """Become ``python -m module`` with the same words and one thread; does nothing where that is so already."""
    if all(os.environ.get(name) == "1" for name in VARIABLES):
        return
    words = [sys.executable, "-m", module, *sys.argv[1:]]
    os.execve(sys.executable, words, one_thread(dict(os.environ)))


def one_thread(environment: dict[str, str]) -> dict[str, str]:
    return environment | dict.fromkeys(VARIABLES, "1")


def set_one_thread() -> None:
    """One thread for this process, unless its environment says otherwise; before the libraries are imported."""
    for name in VARIABLES:
        os.environ.setdefault(name, "1")
