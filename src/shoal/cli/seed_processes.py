"""Plays plans for each of their seeds, in this process or several seeds at a time in processes of their own.

A simulation takes one processor: its roles run one after another, and it trains in one thread. Seeds share nothing, so
their results are the same in any number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from shoal.errors import Misuse, ShoalError
from shoal.learning.algorithm import Algorithm
from shoal.sim.algorithms import with_algorithm
from shoal.sim.outcome import Outcome
from shoal.sim.series import ReadySeed, SeedSeries, Setting, played, series_of
from shoal.sim.study import Glance

#: Reports how far a simulation is: the plan's name, the seed and a glance at it.
Look = Callable[[str, int, Glance], object]
PROCESSES_MAX = 256

_LOOK_EVERY_S = 0.5


def played_plans(
    plans: Mapping[str, Sequence[ReadySeed]],
    setting: Setting,
    *,
    algorithm: Algorithm | None = None,
    processes: int = 1,
    look: Look,
) -> list[SeedSeries]:
    """Simulate every plan for every seed. Raises Misuse before the first if the algorithm does not suit a plan."""
    if algorithm is not None:
        plans = {
            name: [replace(ready, plan=with_algorithm(ready.plan, algorithm)) for ready in readies]
            for name, readies in plans.items()
        }
    each = [(name, ready) for name, readies in plans.items() for ready in readies]
    if min(processes, len(each)) > 1:
        outcomes = iter(_played_apart(each, setting, algorithm, min(processes, len(each)), look))
    else:
        outcomes = (
            played(ready, setting, algorithm=algorithm, look=partial(look, name, ready.seed)) for name, ready in each
        )
    return [
        series_of(name, readies, setting, [next(outcomes) for _ in readies], algorithm=algorithm)
        for name, readies in plans.items()
    ]


def check_processes(processes: int, algorithm: Algorithm | None = None) -> None:
    """Raise Misuse if seeds cannot be simulated in this many processes."""
    if not 1 <= processes <= PROCESSES_MAX:
        raise Misuse(f"processes = {processes}: seeds are simulated in 1 to {PROCESSES_MAX} processes")
    if processes == 1:
        return
    if sys.modules["__main__"] is not sys.modules["__mp_main__"]:
        # This is such a process, and multiprocessing is importing the script in it, by the second name.
        raise Misuse(
            f"processes = {processes}: each process imports this script, and must not simulate then: put"
            ' `if __name__ == "__main__":` before the call'
        )
    if type(algorithm).__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise Misuse(
            f"processes = {processes}: another process cannot import {type(algorithm).__name__} from a notebook:"
            " define it in a file and import it here, or leave out processes"
        )


def _played_apart(
    each: Sequence[tuple[str, ReadySeed]], setting: Setting, algorithm: Algorithm | None, processes: int, look: Look
) -> list[Outcome]:
    # A forked child would have the locks of this process's threads, held for ever.
    context = multiprocessing.get_context("spawn")
    glances: Any = context.Queue()
    # Only this process can write to it, and nothing is written: it ends when this process closes it, or is killed.
    lifeline, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_keep, initargs=(glances, lifeline))
    try:
        futures = [pool.submit(_play, name, ready, setting, algorithm) for name, ready in each]
        _watch(futures, glances, look)
        return [future.result() for future in futures]
    except BaseException as error:
        # A seed failed or the user interrupts: nobody waits for the seeds under way, which may take hours.
        held.close()
        if not isinstance(error, BrokenProcessPool):
            raise
        raise ShoalError(
            "a process that simulated a seed ended early. What it said is above; if it said nothing, memory may be"
            " short, since each process needs as much as one simulation: ask for fewer"
        ) from None
    finally:
        # Nor do seeds begin then.
        pool.shutdown(cancel_futures=True)
        glances.close()
        held.close()
        lifeline.close()


def _watch(futures: Sequence[Future[Outcome]], glances: Any, look: Look) -> None:
    """Report glances until all futures are done or one failed."""
    left = set(futures)
    while left and not any(future.done() and future.exception() for future in futures):
        _, left = wait(left, timeout=_LOOK_EVERY_S, return_when=FIRST_EXCEPTION)
        while True:
            try:
                look(*glances.get_nowait())
            except queue.Empty:
                break


#: Where a process puts its glances.
_glances: Any = None


def _keep(glances: Any, lifeline: Connection) -> None:
    global _glances
    _glances = glances
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    """End this process once nobody waits for its results. If its parent is killed, it would wait for work for ever."""
    lifeline.poll(None)
    os._exit(1)


def _play(name: str, ready: ReadySeed, setting: Setting, algorithm: Algorithm | None) -> Outcome:
    return played(ready, setting, algorithm=algorithm, look=lambda glance: _glances.put((name, ready.seed, glance)))
