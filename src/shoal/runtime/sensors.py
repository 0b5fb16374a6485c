"""What a Linux device senses of itself: clock, load, memory, warmth, charge. Files in, values out; sends nothing.

Everything is read below a root, "/" on a device. What a device does not have is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shoal.roles.events import Condition
from shoal.scheduling.profile.features import LIMITS, Features

#: Zones whose name says that they are at the processor; else the warmest of all is taken.
_CPU_ZONES = ("cpu", "x86_pkg_temp", "soc", "coretemp", "k10temp")

_MILLI = 1e-3

#: Linux counts processor time for programs in hundredths of a second, whatever its own clock is.
_TICKS_PER_S = 100


# Reading -----------------------------------------------------------------------------------------------


def text(path: Path) -> str:
    """Empty if it cannot be read: sensors come and go, and some want root."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \n\t")
    except OSError:
        return ""


def as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def number(path: Path) -> float | None:
    return as_number(text(path))


def numbered(folder: Path, pattern: str) -> list[Path]:
    """In order: what is read shall not depend on how a folder is sorted."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _within(name: str, value: float | None) -> float | None:
    """A broken sensor reads -273 or 65,535: that is as if there were none."""
    least, most = LIMITS[name]
    return value if value is not None and least <= value <= most else None


# What the device is, and how it is ----------------------------------------------------------------------


def features(device: str, *, root: Path = Path("/"), joules_per_cpu_s: float | None = None) -> Features:
    """Return the features of a device that a profiler uses, where known. Leases measured ``joules_per_cpu_s``."""
    total_mb, available_mb = (_memory_mb(root, field) for field in ("MemTotal", "MemAvailable"))
    return Features(
        device=device,
        kind=board(root=root),
        memory_total_mb=_within("memory_total_mb", total_mb),
        memory_available_mb=_within("memory_available_mb", available_mb),
        frequency_sum_mhz=_within("frequency_sum_mhz", frequency_sum_mhz(root=root)),
        temperature_c=_within("temperature_c", temperature_c(root=root)),
        load=_within("load", load(root=root)),
        battery=_within("battery", battery(root=root)),
        joules_per_cpu_s=_within("joules_per_cpu_s", joules_per_cpu_s),
    )


def board(*, root: Path = Path("/")) -> str:
    """Return the name of its model, from a board's device tree or a PC's firmware, or "" if neither has one."""
    tree = text(root / "proc/device-tree/model")
    vendor, product = (text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    return (tree or f"{vendor} {product}".strip())[:120]


def cpus(*, root: Path = Path("/")) -> int:
    """Processors that the system shows; 0 if it shows none."""
    return sum(line.startswith("processor") for line in text(root / "proc/cpuinfo").splitlines())


def cores_allowed(*, root: Path = Path("/")) -> float | None:
    """Return how many cores a container may use, or None if it may use all."""
    quota, _, period = text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not period:
        quota, period = (text(root / "sys/fs/cgroup/cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    try:
        allowed = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return allowed if allowed > 0 else None


def frequency_sum_mhz(*, root: Path = Path("/")) -> float | None:
    """The highest frequency of each core, summed; of the part that a container may use."""
    highest_khz = known(
        number(path) for path in numbered(root / "sys/devices/system/cpu", "cpu[0-9]*/cpufreq/cpuinfo_max_freq")
    )
    if highest_khz:
        count, sum_mhz = len(highest_khz), sum(highest_khz) * _MILLI
    else:
        # A virtual machine has no cpufreq, but may tell the present frequency of each processor.
        lines = text(root / "proc/cpuinfo").splitlines()
        present = known(as_number(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz"))
        count, sum_mhz = len(present), sum(present)
    if not count or not sum_mhz:
        return None
    allowed = cores_allowed(root=root)
    return sum_mhz * min(1.0, allowed / count) if allowed is not None else sum_mhz


def load(*, root: Path = Path("/")) -> float | None:
    """Processes that want to run, per CPU, over the last minute."""
    waiting = as_number(text(root / "proc/loadavg").partition(" ")[0])
    return None if waiting is None else waiting / (cpus(root=root) or 1)


def temperature_c(*, root: Path = Path("/")) -> float | None:
    """The warmest sensor of the processor, or the warmest of all if none says that it is there."""
    named: list[tuple[str, float]] = []
    for zone in numbered(root / "sys/class/thermal", "thermal_zone[0-9]*"):
        if (milli := number(zone / "temp")) is not None:
            named.append((text(zone / "type").lower(), milli * _MILLI))
    for chip in numbered(root / "sys/class/hwmon", "hwmon[0-9]*"):
        name = text(chip / "name").lower()
        named += [(name, milli * _MILLI) for milli in known(map(number, numbered(chip, "temp[0-9]*_input")))]
    sane = [(name, value) for name, value in named if _within("temperature_c", value) is not None]
    at_cpu = [value for name, value in sane if any(word in name for word in _CPU_ZONES)]
    return max(at_cpu or [value for _, value in sane], default=None)


def battery(*, root: Path = Path("/")) -> float | None:
    """Return the charge, from 0 to 1, or None without a battery."""
    percent = known(number(supply / "capacity") for supply in batteries(root))
    return min(percent) / 100 if percent else None


def is_charging(*, root: Path = Path("/")) -> bool | None:
    """Return whether it is on mains power, or None without a battery."""
    states = [text(supply / "status") for supply in batteries(root)]
    return any(state in ("Charging", "Full", "Not charging") for state in states) if states else None


def batteries(root: Path) -> list[Path]:
    """A mouse has one too; its scope is "Device"."""
    supplies = numbered(root / "sys/class/power_supply", "*")
    return [each for each in supplies if text(each / "type") == "Battery" and text(each / "scope") != "Device"]


# Busy or free --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Processors:
    """What all processors have done since the system began. In a container it is the whole machine's."""

    #: Working for anyone.
    used_s: float
    #: Working or idle.
    total_s: float
    #: Of ``used_s``, what was ours; the caller adds up its own processes.
    own_s: float


def processors(*, own_s: float, root: Path = Path("/")) -> Processors | None:
    """None if the system does not count it. Waiting for a disk is idle; what a hypervisor takes away, others use."""
    name, *fields = text(root / "proc/stat").partition("\n")[0].split()[:9] or [""]
    ticks = known(as_number(field) for field in fields)
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user.
    if name != "cpu" or len(ticks) != 8 or len(fields) != 8:
        return None
    idle, waiting = ticks[3:5]
    total = sum(ticks)
    return Processors(used_s=(total - idle - waiting) / _TICKS_PER_S, total_s=total / _TICKS_PER_S, own_s=own_s)


def process_cpu_s(pid: int, *, root: Path = Path("/")) -> float:
    """Return the processor time that a process has used so far, or 0 if it has ended."""
    # Its name stands in brackets and may hold anything.
    fields = text(root / f"proc/{pid}/stat").rpartition(")")[2].split()
    ticks = known(as_number(field) for field in fields[11:13])
    return sum(ticks) / _TICKS_PER_S


def used_by_others(before: Processors | None, after: Processors | None) -> float | None:
    """Return the share of processor time that others used between two readings, or None if unknown."""
    if before is None or after is None or after.total_s <= before.total_s:
        return None
    others_s = (after.used_s - before.used_s) - (after.own_s - before.own_s)
    return min(1.0, max(0.0, others_s / (after.total_s - before.total_s)))


def condition(*, in_use: float | None = None, root: Path = Path("/")) -> Condition:
    """Return the device's condition before a merge. ``in_use`` is from ``used_by_others``, since the last call.

    A headless system cannot report whether a person uses the device, but it reports load from other processes.
    """
    return Condition(
        memory_available_mb=_within("memory_available_mb", _memory_mb(root, "MemAvailable")),
        battery=_within("battery", battery(root=root)),
        is_charging=is_charging(root=root),
        in_use=in_use,
        load=_within("load", load(root=root)),
    )


def _memory_mb(root: Path, field: str) -> float | None:
    for line in text(root / "proc/meminfo").splitlines():
        if line.startswith(f"{field}:"):
            kilobytes = as_number(line.partition(":")[2].removesuffix("kB"))
            return None if kilobytes is None else kilobytes / 1024
    return None
