"""Whether a device is busy or free to merge now. Values in, a verdict and its reason out; reads no sensor.

MDLdroid (§3.3.1) uses five values: free memory, battery, in use, charging, CPU. It gives no thresholds; those here are
ours. An unknown value never makes a device busy: most boards have no battery, and many cannot report their load.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.roles.events import Condition


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """The limits beyond which a device counts as busy."""

    #: Memory for a merge: two partials and some reserve. The caller knows the size of the model, and sets it.
    memory_least_mb: float = 64.0
    #: Lowest battery charge, unless the device is charging ...
    battery_least: float = 0.2
    #: ... and lowest charge while charging: it may charge more slowly than it discharges.
    battery_least_charging: float = 0.05
    #: Whether to merge only while charging.
    only_charging: bool = False
    in_use_most: float = 0.5
    #: Load per processor. A trainer on all processors makes it 1; twice that means that others work too.
    load_most: float = 2.0
    #: A busy device becomes free again only if it is better than a threshold by this share. Otherwise a device at the
    #: threshold would change with each reading.
    margin: float = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Availability:
    is_free: bool
    reason: str


#: The defaults.
USUAL = Thresholds()

#: Thresholds that never make a device busy, for one that has nothing else to do.
ANY_TIME = Thresholds(
    memory_least_mb=0.0, battery_least=0.0, battery_least_charging=0.0, in_use_most=10.0, load_most=1e9
)


def judge(condition: Condition, thresholds: Thresholds = USUAL, *, was_free: bool = True) -> Availability:
    """Return busy if any of the five values is beyond its limit; the first one is the reason."""
    more = 1.0 if was_free else 1.0 + thresholds.margin
    reasons = (
        _memory(condition, thresholds.memory_least_mb * more),
        _battery(condition, thresholds, more),
        _in_use(condition, thresholds.in_use_most / more),
        _load(condition, thresholds.load_most / more),
    )
    reason = next((each for each in reasons if each is not None), None)
    return Availability(is_free=reason is None, reason=reason or _well(condition))


def _memory(condition: Condition, least_mb: float) -> str | None:
    free_mb = condition.memory_available_mb
    if free_mb is None or free_mb >= least_mb:
        return None
    return f"{free_mb:.0f} MB of memory free, {least_mb:.0f} needed"


def _battery(condition: Condition, thresholds: Thresholds, more: float) -> str | None:
    if condition.battery is None:
        return None
    if thresholds.only_charging and condition.is_charging is False:
        return "not charging, and configured to work only while charging"
    on_charger = condition.is_charging is True
    least = (thresholds.battery_least_charging if on_charger else thresholds.battery_least) * more
    if condition.battery >= least:
        return None
    return f"battery at {condition.battery:.0%}{', though charging' if on_charger else ''}; {least:.0%} needed"


def _in_use(condition: Condition, most: float) -> str | None:
    used = condition.in_use
    return f"in use: other programs take {used:.0%} of its processors" if used is not None and used > most else None


def _load(condition: Condition, most: float) -> str | None:
    load = condition.load
    return f"load per processor is {load:.1f}; the limit is {most:.1f}" if load is not None and load > most else None


def _well(condition: Condition) -> str:
    names = ("memory_available_mb", "battery", "in_use", "load")
    known = [name for name in names if getattr(condition, name) is not None]
    return f"free by {len(known)} of {len(names)} known values" if known else "free: no value is known"
