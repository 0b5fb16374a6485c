"""What a process of this machine takes: processor time, memory; its children; and how one ends with its parent."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def cpu_s(*pids: int) -> float:
    """Processor time these processes have used so far, with all their threads."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process now (VmRSS) or at its peak (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no {field}")


def bound(*command: str) -> tuple[str, ...]:
    """The words that run a command which the kernel kills when the thread that started it ends, also after ``kill -9``
    and also if it was stopped. Elsewhere than on Linux, the command as it is.

    The process keeps the id that it was started with. To be started from the main thread, which ends with its process.
    """
    if sys.platform != "linux" or shutil.which("setpriv") is None:
        return command
    return ("setpriv", "--pdeathsig", "KILL", "--", *command)
