"""A device's state when it asks for work. A value; does not depend on how it was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.errors import Misuse

#: The allowed range of each feature. A value beyond it is a broken sensor or a lie, and would distort every regression.
LIMITS: dict[str, tuple[float, float]] = {
    "memory_total_mb": (1.0, 1e8),
    "memory_available_mb": (0.0, 1e8),
    "frequency_sum_mhz": (1.0, 1e7),
    "temperature_c": (-60.0, 150.0),
    "load": (0.0, 1e4),
    "battery": (0.0, 1.0),
    "joules_per_cpu_s": (0.0, 1e4),
}

#: The names of features in the message that they are unknown.
_WORDS = {
    "memory_total_mb": "memory",
    "memory_available_mb": "free memory",
    "frequency_sum_mhz": "frequency",
    "temperature_c": "temperature",
    "load": "load",
    "battery": "battery",
    "joules_per_cpu_s": "joules per CPU second",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """A device and its state. None if a value is unknown."""

    #: The device's unique name.
    device: str
    #: Product name; devices of one kind are much alike. Empty if unknown.
    kind: str = ""
    memory_total_mb: float | None = None
    memory_available_mb: float | None = None
    #: The sum of the cores' highest frequencies.
    frequency_sum_mhz: float | None = None
    temperature_c: float | None = None
    #: Processes that want to run, per CPU.
    load: float | None = None
    #: Remaining charge, from 0 to 1.
    battery: float | None = None
    #: FLeet's measure of energy efficiency: joules per second of CPU time.
    joules_per_cpu_s: float | None = None

    def __post_init__(self) -> None:
        if not self.device:
            raise Misuse("give the name of the device that the features belong to")
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                raise Misuse(
                    f"{self.device}: {name} is {value}; it must be from {least:g} to {most:g}, or None if unknown"
                )

    def get(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value


def unknown(features: Features, names: tuple[str, ...]) -> str:
    """Return which of these features are unknown, as text. Empty if all are known."""
    missing = [_WORDS[name] for name in names if features.get(name) is None]
    return f"{', '.join(missing)} unknown" if missing else ""
