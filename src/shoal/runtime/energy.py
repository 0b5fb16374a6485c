"""What a device spent, in joules: *measured* by what sensors it has, or *estimated*, and then by what model.

Reads files below a root, "/" on a device; the clock and the processor time are the caller's.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from shoal.runtime.sensors import batteries, board, known, number, numbered, text

MEASURED, ESTIMATED = "measured", "estimated"

#: Watts that one busy core adds, by what is in the board's name. A Pi 4 draws 2.7 W idle and 6.4 W with four busy cores
#: (docs/profiles.md); the others are of the same order: what vendors state for the processor, divided by its cores.
WATTS_A_CORE: tuple[tuple[str, float], ...] = (
    ("raspberry pi 5", 1.8),
    ("raspberry pi 4", 0.9),
    ("raspberry pi 3", 0.7),
    ("raspberry pi zero 2", 0.4),
    ("raspberry pi", 0.6),
    ("jetson", 1.5),
)
#: A board of none of these names, by its architecture, and one of no known architecture.
WATTS_A_CORE_ARM, WATTS_A_CORE_OTHER = 0.8, 5.0

_MICRO = 1e-6
_JOULES_PER_WH = 3600.0

#: Files with a battery's voltage: the one that it is made for, else the present one.
_VOLTAGES = ("voltage_min_design", "voltage_now")

#: Leases that the energy per CPU second is taken of: it changes as a device warms up and is used for other things.
RECENT_LEASES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Every energy sensor at one moment."""

    now_s: float
    #: Processor time of those whose energy is asked for, so far.
    cpu_s: float
    #: Counter -> joules so far, and where it begins again.
    counters_j: tuple[tuple[str, float, float], ...] = ()
    #: What the board, or its battery, draws now.
    watts: float | None = None
    watts_from: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergySpent:
    """What was spent between two readings."""

    joules: float
    #: ``measured`` or ``estimated``.
    kind: str
    #: By which sensor, or by which model.
    how: str

    def __str__(self) -> str:
        return f"{self.joules:.3g} J {self.kind} ({self.how})"


class EnergyPerCpuSecond:
    """Joules per second of CPU time, from recent leases whose energy a sensor measured: FLeet's fifth feature (§2.2).

    Where energy is estimated from CPU time, the quotient would only give back the model's own watts, and is not taken.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_LEASES)

    def note(self, spent: EnergySpent, *, cpu_s: float) -> None:
        if spent.kind == MEASURED and cpu_s > 0 and spent.joules > 0:
            self._recent.append((spent.joules, cpu_s))

    @property
    def joules_per_cpu_s(self) -> float | None:
        """The quotient of both sums, or None if no sensor measured a lease yet."""
        return sum(j for j, _ in self._recent) / sum(s for _, s in self._recent) if self._recent else None


class EnergyMeter:
    """The best that this device has: a counter of energy, a sensor of power, or a model."""

    def __init__(self, *, root: Path = Path("/"), machine: str = "") -> None:
        """``machine``: the architecture, such as aarch64, for a board without a known name."""
        self._root = root
        self._board = board(root=root)
        self._watts_a_core = watts_a_core(self._board, machine)
        self._model = f"CPU seconds x {self._watts_a_core:g} W a core, {self._board or machine or 'unknown board'}"

    def read(self, *, now_s: float, cpu_s: float) -> Reading:
        watts, name = self._watts()
        return Reading(now_s=now_s, cpu_s=cpu_s, counters_j=tuple(self._counters()), watts=watts, watts_from=name)

    def spent(self, before: Reading, after: Reading) -> EnergySpent:
        begun = {name: joules for name, joules, _ in before.counters_j}
        spans = [
            (name, (joules - begun[name]) % wraps_j)
            for name, joules, wraps_j in after.counters_j
            # A counter that never wraps and went back was reset: the energy before the reset is not known.
            if name in begun and (joules >= begun[name] or math.isfinite(wraps_j))
        ]
        if spans:
            # The energy of the whole machine, all processes together.
            return EnergySpent(joules=sum(j for _, j in spans), kind=MEASURED, how=", ".join(name for name, _ in spans))
        if before.watts is not None and after.watts is not None:
            joules = (before.watts + after.watts) / 2 * max(0.0, after.now_s - before.now_s)
            return EnergySpent(
                joules=joules, kind=MEASURED, how=f"{after.watts_from} at both ends, times the seconds between"
            )
        return EnergySpent(
            joules=max(0.0, after.cpu_s - before.cpu_s) * self._watts_a_core, kind=ESTIMATED, how=self._model
        )

    def _counters(self) -> list[tuple[str, float, float]]:
        """Packages of powercap (RAPL), not the cores within them, which are counted there; then counters of boards."""
        found = []
        for zone in numbered(self._root / "sys/class/powercap", "*:[0-9]*"):
            micro, wraps = number(zone / "energy_uj"), number(zone / "max_energy_range_uj")
            if zone.name.count(":") == 1 and micro is not None and wraps:
                found.append((f"powercap {text(zone / 'name') or zone.name}", micro * _MICRO, wraps * _MICRO))
        # What a whole platform counts holds the packages.
        if found:
            return [each for each in found if each[0] == "powercap psys"] or found
        for chip in numbered(self._root / "sys/class/hwmon", "hwmon[0-9]*"):
            for counter in numbered(chip, "energy[0-9]*_input"):
                if (micro := number(counter)) is not None:
                    found.append((f"{text(chip / 'name')} {counter.name}", micro * _MICRO, math.inf))
        return found

    def _watts(self) -> tuple[float | None, str]:
        for chip in numbered(self._root / "sys/class/hwmon", "hwmon[0-9]*"):
            name = text(chip / "name")
            if micro := known(map(number, numbered(chip, "power[0-9]*_input"))):
                return sum(micro) * _MICRO, f"board sensor {name}"
            if text(chip / "name").startswith("ina") and (rails := _rails_w(chip)):
                return sum(rails), f"board sensor {name}"
        drawn = known(_battery_w(supply) for supply in batteries(self._root))
        return (sum(drawn), "battery") if drawn else (None, "")


def watts_a_core(board_name: str, machine: str) -> float:
    """By the class of the board."""
    found = (watts for words, watts in WATTS_A_CORE if words in board_name.lower())
    is_arm = machine.startswith(("arm", "aarch64"))
    return next(found, WATTS_A_CORE_ARM if is_arm else WATTS_A_CORE_OTHER)


def battery_joules(*, root: Path = Path("/")) -> float | None:
    """Return the energy of the device's full batteries, or None if it has none or does not know it.

    ``energy_full`` is in microwatt hours. Phones have ``charge_full`` in microampere hours, of which each is at about
    the voltage that the battery is made for.
    """
    found = known(_full_wh(supply) for supply in batteries(root))
    return sum(found) * _JOULES_PER_WH if found else None


def _full_wh(supply: Path) -> float | None:
    for state in ("full", "full_design"):
        energy, charge = number(supply / f"energy_{state}"), number(supply / f"charge_{state}")
        if energy is not None and energy > 0:
            return energy * _MICRO
        volts = next((v for name in _VOLTAGES if (v := number(supply / name)) is not None and v > 0), None)
        if charge is not None and charge > 0 and volts is not None:
            return charge * _MICRO * volts * _MICRO
    return None


def _rails_w(chip: Path) -> list[float]:
    """Volts times amperes of each rail, as a Jetson's sensor tells them."""
    rails = []
    for current in numbered(chip, "curr[0-9]*_input"):
        milliamperes = number(current)
        millivolts = number(chip / current.name.replace("curr", "in"))
        if milliamperes is not None and millivolts is not None:
            rails.append(milliamperes * millivolts * _MICRO)
    return rails


def _battery_w(supply: Path) -> float | None:
    """What it gives; None while it is charged, when the mains feeds the device."""
    if text(supply / "status") != "Discharging":
        return None
    power = number(supply / "power_now")
    if power is not None:
        return abs(power) * _MICRO
    current, voltage = number(supply / "current_now"), number(supply / "voltage_now")
    return abs(current) * _MICRO * voltage * _MICRO if current is not None and voltage is not None else None
