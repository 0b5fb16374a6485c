"""Which processor a device trains on, and on how many cores. Standard library only; asks the system, not torch.

An owner says it with ``shoal join --device ... --threads ...``; the agent keeps it, and hands it to its trainers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from shoal.errors import Misuse

DEVICE_VARIABLE = "SHOAL_DEVICE"
THREADS_VARIABLE = "SHOAL_TORCH_THREADS"
ENGINE_VARIABLE = "SHOAL_ENGINE"

#: What trains, and the module of its process.
ENGINES = {"torch": "shoal.trainer.child", "onnx": "shoal.trainer.portable.child"}

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
    """The processor that the device's owner chose; else the best that PyTorch finds."""
    return checked_device(environment.get(DEVICE_VARIABLE, "") or "auto")


def checked_engine(name: str) -> str:
    if name not in ENGINES:
        raise Misuse(f"--engine {name}: there is {', '.join(ENGINES)}")
    return name


def engine_of(environment: Mapping[str, str]) -> str:
    """What trains on this device, as its owner chose; else PyTorch, unless onnxruntime alone is installed."""
    if told := environment.get(ENGINE_VARIABLE, ""):
        return checked_engine(told)
    has_onnx_alone = find_spec("torch") is None and find_spec("onnxruntime") is not None
    return "onnx" if has_onnx_alone else "torch"


def threads_of(environment: Mapping[str, str]) -> int:
    """As many threads as the device's owner said; else all cores: an agent has its machine to itself."""
    told = environment.get(THREADS_VARIABLE, "")
    if not told:
        return cores()
    if not (told.isascii() and told.isdigit()):
        raise Misuse(f"{THREADS_VARIABLE} is {told!r}: say a number of threads")
    return checked_threads(int(told))


def share_of_cores(agents: int) -> int:
    """The threads of each of some agents that share this machine."""
    return max(1, cores() // max(1, agents))


def cores() -> int:
    """The cores that this process may use: by its affinity, and by the quota of its control group."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota_cores() or allowed))


def _quota_cores() -> int | None:
    """The quota of the control group, rounded up; None: there is none."""
    quota_us = period_us = 0
    try:
        new = Path("/sys/fs/cgroup/cpu.max")
        if new.exists():
            quota, period = new.read_text().split()
            quota_us, period_us = (0 if quota == "max" else int(quota)), int(period)
        else:
            folder = Path("/sys/fs/cgroup/cpu")
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            period_us = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return -(-quota_us // period_us) if quota_us > 0 and period_us > 0 else None
