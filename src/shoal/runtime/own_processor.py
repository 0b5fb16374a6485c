"""Which processor a device trains on, and its threads: said once when it joins, kept with its membership.

The agent's own ``--device`` and ``--threads`` come first, then the environment, then the choice made when it joined.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from shoal.errors import Misuse
from shoal.identity.identity import load_private_json, save_private_json
from shoal.runtime.paths import Paths
from shoal.trainer.processors import (
    DEVICE_VARIABLE,
    ENGINE_VARIABLE,
    THREADS_VARIABLE,
    checked_device,
    checked_engine,
    checked_threads,
)

PROCESSOR_FILE = "processor.json"


def remember(places: Paths, *, device: str, threads: int) -> None:
    """From its next start on, the agent knows this choice. Empty and 0 keep what it knew."""
    known_device, known_threads = remembered(places)
    fields = {"device": device or known_device, "threads": str(threads) if threads else known_threads}
    save_private_json(places.node / PROCESSOR_FILE, fields)


def remembered(places: Paths) -> tuple[str, str]:
    """The device and the number of threads as texts; empty where nothing was said."""
    if not (places.node / PROCESSOR_FILE).exists():
        return "", ""
    device, threads = load_private_json(places.node / PROCESSOR_FILE, ("device", "threads"))
    return device, threads


def choice_of(places: Paths, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that an agent of this home would set for its trainers."""
    known = dict(zip((DEVICE_VARIABLE, THREADS_VARIABLE), remembered(places), strict=True))
    return {name: told for name, kept in known.items() if (told := environment.get(name, "") or kept)}


def expose(places: Paths, *, device: str, threads: int) -> None:
    """Set what trainers look for, for this process and those it starts."""
    os.environ.update(choice_of(places))
    if device:
        os.environ[DEVICE_VARIABLE] = checked_device(device)
    if threads:
        os.environ[THREADS_VARIABLE] = str(checked_threads(threads))


def choose_engine(name: str) -> None:
    """Train only by this engine, in this process and its children. Empty means the best that is installed."""
    if name:
        os.environ[ENGINE_VARIABLE] = checked_engine(name)


def keep_to(count: int) -> None:
    """Run this process and its children on this many of the cores that it may use. 0 means all."""
    if not count:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise Misuse("--cores: this system keeps no process to some of its cores; use --threads")
    # The last ones: interrupts are mostly served by the first.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-count:])
