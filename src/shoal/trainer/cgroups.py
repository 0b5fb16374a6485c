"""Control groups of Linux, in both versions: what all processes of one trainer may take together.

A group counts what limits of a single process do not: shared memory, files in memory, and all children. It is made
below the group of this process, so that whatever limits the agent limits the trainer too. It is removed after the
trainer ends or, if the agent was killed, when the next trainer starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.trainer.confine import RESERVE_BYTES, Groups, Limits

#: Room for what a group counts besides the task's memory: the kernel's data for each process, and the code it runs.
SPARE_BYTES = 128 << 20

_REMOVE_ATTEMPTS = 50
_REMOVE_PAUSE_S = 0.02


def make(name: str, limits: Limits) -> Groups:
    """Make groups with these limits, as far as this system allows, and return them."""
    memory_bytes = limits.memory_bytes and limits.memory_bytes + RESERVE_BYTES + SPARE_BYTES
    wanted = {"memory": memory_bytes, "pids": limits.processes_max}
    wanted = {kind: count for kind, count in wanted.items() if count}
    made: dict[str, Path] = {}
    why_not = ""
    for kind, count in wanted.items():
        try:
            made[kind] = _make(kind, name, count)
        except OSError as error:
            if kind == "memory" or not why_not:
                why_not = f"no control group can be made: {error.strerror}"
    folders = tuple(dict.fromkeys(map(str, made.values())))
    return Groups(folders=folders, memory="memory" in made, processes="pids" in made, why_not=why_not)


def ran_out_of_memory(groups: Groups) -> bool:
    """Whether the system ended a process because its group had no memory left."""
    for folder in map(Path, groups.folders):
        for file in (folder / "memory.events", folder / "memory.oom_control"):
            for line in _lines(file):
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.strip() not in ("", "0"):
                    return True
    return False


def remove(folders: Iterable[str]) -> bool:
    """End whatever still runs in these groups, and remove them. Return whether all are gone."""
    left = [folder for folder in folders if not _remove(Path(folder))]
    return not left


def _make(kind: str, name: str, count: int) -> Path:
    refused: OSError = FileNotFoundError(2, f"no {kind} controller of cgroups is mounted")
    for parent in _parents(kind):
        folder = parent / name
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            refused = error
            continue
        try:
            _set(folder, kind, count)
            return folder
        except OSError as error:
            refused = error
            with contextlib.suppress(OSError):
                folder.rmdir()
    raise refused


def _set(folder: Path, kind: str, count: int) -> None:
    if kind == "pids":
        (folder / "pids.max").write_text(str(count))
        return
    version_1 = folder / "memory.limit_in_bytes"
    (version_1 if version_1.exists() else _existing(folder / "memory.max")).write_text(str(count))
    # Swapped memory counts too, where the system counts it at all.
    for file, most in (("memory.memsw.limit_in_bytes", count), ("memory.swap.max", 0)):
        if (folder / file).exists():
            with contextlib.suppress(OSError):
                (folder / file).write_text(str(most))


def _existing(file: Path) -> Path:
    if not file.exists():
        raise FileNotFoundError(2, f"{file.parent.parent} gives its groups no {file.name}")
    return file


def _parents(kind: str) -> Iterator[Path]:
    """Yield the folders in which a group with this controller may be made, the best first."""
    for line in _lines(Path("/proc/mounts")):
        _, place, system, options, *_ = line.split()
        if system == "cgroup" and kind in options.split(","):
            yield _own_group(Path(place), kind)
        elif system == "cgroup2":
            own = _own_group(Path(place), "")
            with contextlib.suppress(OSError):
                # The system refuses this for a group with processes in it, unless it is the outermost.
                (own / "cgroup.subtree_control").write_text(f"+{kind}")
            yield own
            # A group with processes in it has no groups with limits below it. The next best place is beside it, unless
            # that would escape a limit.
            if own != Path(place) and all(line.strip() == "max" for line in _lines(own / "memory.max")):
                yield own.parent


def _own_group(place: Path, kind: str) -> Path:
    for line in _lines(Path("/proc/self/cgroup")):
        _, kinds, path = line.split(":", 2)
        if kind in kinds.split(","):
            own = place / path.lstrip("/")
            # A container may show its own group as the outermost.
            return own if own.is_dir() else place
    return place


def _remove(folder: Path) -> bool:
    if not folder.exists():
        return True
    # The group must not get new children while they are being ended.
    with contextlib.suppress(OSError):
        (folder / "pids.max").write_text("0")
    for _ in range(_REMOVE_ATTEMPTS):
        for line in _lines(folder / "cgroup.procs"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(line), signal.SIGKILL)
        try:
            folder.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(_REMOVE_PAUSE_S)
    return False


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
