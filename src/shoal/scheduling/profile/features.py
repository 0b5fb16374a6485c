"""What is known of a device when it asks for work. A value; does not know how any of it was read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.errors import Misuse

#: What a device may say, from and to: a figure beyond is a broken sensor or a lie, and would bend every regression.
LIMITS: dict[str, tuple[float, float]] = {
    "memory_total_mb": (1.0, 1e8),
    "memory_available_mb": (0.0, 1e8),
    "frequency_sum_mhz": (1.0, 1e7),
    "temperature_c": (-60.0, 150.0),
    "load": (0.0, 1e4),
    "battery": (0.0, 1.0),
    "joules_per_cpu_s": (0.0, 1e4),
}

#: How a feature is called when it is told that nobody knows it.
_WORDS = {
    "memory_total_mb": "memory",
    "memory_available_mb": "free memory",
    "frequency_sum_mhz": "frequency",
    "temperature_c": "temperature",
    "load": "load",
    "battery": "battery",
    "joules_per_cpu_s": "joules a CPU second",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """A device and its state. None: not known, which is allowed."""

    #: This device and no other.
    device: str
    #: What it is called in a shop; devices of one kind are much alike. Empty: not known.
    kind: str = ""
    memory_total_mb: float | None = None
    memory_available_mb: float | None = None
    #: The highest frequency of each core, summed.
    frequency_sum_mhz: float | None = None
    temperature_c: float | None = None
    #: Processes that want to run, per CPU.
    load: float | None = None
    #: What is left of the charge, from 0 to 1.
    battery: float | None = None
    #: FLeet's measure of how well a device uses its energy: what it spends in a second of CPU time.
    joules_per_cpu_s: float | None = None

    def __post_init__(self) -> None:
        if not self.device:
            raise Misuse("features belong to a device: give its name")
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                raise Misuse(f"{self.device}: {name} is {value}, not between {least:g} and {most:g}; None if not known")

    def get(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value


def unknown(features: Features, names: tuple[str, ...]) -> str:
    """Which of these are not known, in words; empty if all are."""
    missing = [_WORDS[name] for name in names if features.get(name) is None]
    return f"{', '.join(missing)} not known" if missing else ""
