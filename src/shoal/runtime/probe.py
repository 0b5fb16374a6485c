"""What this device is and how busy it is, read from the system. Small: an idle agent imports it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket

from shoal import __version__
from shoal.wire.messages import Facts


def facts() -> Facts:
    """What the device says about itself when it connects."""
    return Facts(
        host=socket.gethostname()[:120],
        arch=platform.machine(),
        cpus=os.cpu_count() or 0,
        memory_mb=_memory_mb("MemTotal"),
        python=platform.python_version(),
        torch=_torch_version(),
        shoal=__version__,
    )


def _torch_version() -> str:
    """Read from the package's metadata: importing torch would cost 200 MB."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def load() -> float:
    """Processes that want to run, per CPU, over the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def memory_free_mb() -> int:
    return _memory_mb("MemAvailable")


def _memory_mb(field: str) -> int:
    """A field of /proc/meminfo; 0 where there is none."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith(f"{field}:"):
                    return int(line.split()[1]) // 1024
    except OSError:
        pass
    return 0
