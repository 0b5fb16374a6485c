"""Which processor a device trains on, and on how many cores. Standard library only; asks the system, not torch.

An owner sets both with ``shoal join --device ... --threads ...``; the agent passes them to its trainers.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from shoal.errors import Misuse

DEVICE_VARIABLE = "SHOAL_DEVICE"
THREADS_VARIABLE = "SHOAL_TORCH_THREADS"
ENGINE_VARIABLE = "SHOAL_ENGINE"

#: The engines, each with the module of its process.
ENGINES = {"torch": "shoal.trainer.child", "onnx": "shoal.trainer.portable.child"}
#: The process that runs the algorithm of a job for its leader.
ALGORITHM_MODULE = "shoal.trainer.algorithm_child"

#: A core is big if it has more than this share of the largest core's capacity. Little cores of boards and phones have
#: 0.2 to 0.45 of it, a phone's second cluster of big cores 0.6 to 0.9.
BIG_SHARE = 0.5

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,2})?")
_THREADS_MAX = 1024


def checked_device(name: str) -> str:
    if not _DEVICE.fullmatch(name):
        raise Misuse(f"--device {name}: there is auto, cpu, cuda:N and mps")
    return name


def checked_threads(count: int) -> int:
    if not 1 <= count <= _THREADS_MAX:
        raise Misuse(f"--threads {count}: a trainer has 1 to {_THREADS_MAX} threads")
    return count


def device_of(environment: Mapping[str, str]) -> str:
    """Return the processor that the device's owner chose, or else the best that PyTorch finds."""
    return checked_device(environment.get(DEVICE_VARIABLE, "") or "auto")


def checked_engine(name: str) -> str:
    if name not in ENGINES:
        raise Misuse(f"--engine {name}: there is {', '.join(ENGINES)}")
    return name


def engine_of(environment: Mapping[str, str]) -> str:
    """Return the engine that the device's owner chose, or else PyTorch, unless only onnxruntime is installed."""
    if told := environment.get(ENGINE_VARIABLE, ""):
        return checked_engine(told)
    has_onnx_alone = find_spec("torch") is None and find_spec("onnxruntime") is not None
    return "onnx" if has_onnx_alone else "torch"


def threads_of(environment: Mapping[str, str], *, root: Path = Path("/")) -> int:
    """Return as many threads as the device's owner set; else one per core that training uses."""
    told = environment.get(THREADS_VARIABLE, "")
    if not told:
        return _within_quota(len(big_cores(_affinity(), capacities(root))), root)
    if not (told.isascii() and told.isdigit()):
        raise Misuse(f"{THREADS_VARIABLE} is {told!r}: set a number of threads")
    return checked_threads(int(told))


def cores_of(environment: Mapping[str, str], *, root: Path = Path("/")) -> tuple[int, ...]:
    """Return the cores that a trainer keeps to, or () if it may run on every core of this process.

    An owner who sets a number of threads has chosen already, and agents that share a machine have to share all of it.
    """
    allowed = _affinity()
    big = big_cores(allowed, capacities(root))
    is_chosen = bool(environment.get(THREADS_VARIABLE, "")) or not hasattr(os, "sched_setaffinity")
    return () if is_chosen or len(big) == len(allowed) else big


def big_cores(allowed: Iterable[int], capacities: Mapping[int, int]) -> tuple[int, ...]:
    """Return the big ones of the allowed cores, or all of them if they are alike or a capacity is not known.

    FLeet §2.4 trains only on the big cores of a big.LITTLE processor: they need less energy for the same work. Also,
    each parallel loop ends with its slowest thread, so big cores would wait for little ones.
    """
    cores = sorted(allowed)
    if not cores or any(core not in capacities for core in cores):
        return tuple(cores)
    least = BIG_SHARE * max(capacities[core] for core in cores)
    return tuple(core for core in cores if capacities[core] > least)


def capacities(root: Path = Path("/")) -> dict[int, int]:
    """Return the capacity of each core as Linux reports it, 1024 for the largest, or {} if it does not report any."""
    found = {}
    for file in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpu_capacity"):
        with contextlib.suppress(OSError, ValueError):
            found[int(file.parent.name.removeprefix("cpu"))] = int(file.read_text())
    return found


def keep_to(cores: tuple[int, ...]) -> None:
    """Run the calling thread, and threads that it starts from now on, on these cores; () changes nothing.

    If a core was taken offline meanwhile, the trainer runs on any core.
    """
    if cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)


def share_of_cores(agents: int) -> int:
    """Return how many threads each of several agents on this machine gets."""
    return max(1, cores() // max(1, agents))


def cores() -> int:
    """Return how many cores this process may use, by its affinity and by the quota of its control group."""
    return _within_quota(len(_affinity()), Path("/"))


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _within_quota(count: int, root: Path) -> int:
    return max(1, min(count, _quota_cores(root) or count))


def _quota_cores(root: Path) -> int | None:
    """Return the quota of the control group in cores, rounded up, or None if there is none."""
    quota_us = period_us = 0
    try:
        new = root / "sys/fs/cgroup/cpu.max"
        if new.exists():
            quota, period = new.read_text().split()
            quota_us, period_us = (0 if quota == "max" else int(quota)), int(period)
        else:
            folder = root / "sys/fs/cgroup/cpu"
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            period_us = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return -(-quota_us // period_us) if quota_us > 0 and period_us > 0 else None
