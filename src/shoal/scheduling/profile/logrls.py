"""Shoal's profiler: recursive least squares on the logarithm of the cost per example, in seconds or joules.

    log α = offset + k · (temperature - 30) / 15

A slope whose logarithm is known is never zero, and an error in the logarithm is a relative error, which means the same
on fast and slow devices. Each device has its own offset and k (``kalman``). They start from another device of the same
kind, if one is known. Otherwise they start from a ridge regression over all devices on log memory, log frequency and
temperature. The uncertainty of the start is known and shrinks with every task. A jump, such as another program that
starts to run, is followed at once and not averaged.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import TypeVar

import numpy as np

from shoal.errors import Misuse
from shoal.scheduling.profile.features import Features, unknown
from shoal.scheduling.profile.kalman import KalmanState, Tuning, mean_of, updated, variance_of
from shoal.scheduling.profile.lasting import line, names_in, packed_names, packed_rows, rows_in, table
from shoal.scheduling.profile.regression import ROWS_KEPT, Fitted, FleetRegression
from shoal.scheduling.profile.sizing import CostPrediction, Profiler, slope_of

_V = TypeVar("_V")

RIDGE = 0.1
REFIT_EVERY = 50

#: Newest tasks per device that the regression learns from. So a busy or dishonest device does not outvote the others,
#: and first tasks, which may have been too small to show its speed, drop out.
COLD_TASKS = 4

#: Standard deviation of k before the device's own tasks determine it.
K_SPREAD = 0.2

#: Standard deviation between devices of one kind, and of a device from the regression: at least and at most.
KIND_SPREAD = 0.15
COLD_SPREAD_LEAST, COLD_SPREAD_MOST = 0.1, 1.0

#: A device that was never measured is assumed to be at most this many times slower than the slowest known device.
SLOWER_MOST = 8.0

#: Devices to remember. A device that was forgotten is measured from the start when it comes back.
DEVICES_KEPT = 100_000

#: Devices in a snapshot, which the next leader gets: those seen last. A checkpoint is saved often.
DEVICES_LASTING = 2000

#: Limits for the logarithm of a slope, and for a variance.
LOG_MOST = 60.0
VARIANCE_MOST = 1e4

#: Separates a kind from the device that stands for it. No name has it: names have only printable characters.
_BETWEEN = "\t"

_NAMES = ("memory_total_mb", "frequency_sum_mhz", "temperature_c", "joules_per_cpu_s")
_TEMPERATURE = _NAMES.index("temperature_c")


class LogRls(Profiler):
    def __init__(self, *, unit: str = "s", energy: bool = False, tuning: Tuning | None = None) -> None:
        super().__init__(unit=unit)
        self._names = _NAMES if energy else _NAMES[:-1]
        self._tuning = tuning or Tuning()
        self._fleet = FleetRegression(ridge=RIDGE, refit_every=REFIT_EVERY, rows_each=COLD_TASKS)
        #: The logarithms of the smallest and the largest slope ever seen.
        self._least, self._most = math.inf, -math.inf
        self._devices: OrderedDict[str, KalmanState] = OrderedDict()
        #: Kind -> the device of this kind that was seen last, and so has the newest state.
        self._kinds: OrderedDict[str, str] = OrderedDict()

    def predict(self, features: Features) -> CostPrediction | None:
        state, basis = self._state(features)
        if state is None:
            return None
        warmth = warmth_of(features)
        missing = unknown(features, self._names)
        return CostPrediction(
            per_example=math.exp(mean_of(state, warmth)),
            spread=math.sqrt(variance_of(state, warmth, noise=self._tuning.noise)),
            is_cold=not state.tasks,
            basis=f"{basis}; {missing}" if missing else basis,
        )

    def observed(self, features: Features, examples: int, spent: float) -> None:
        slope = slope_of(examples, spent)
        # A device may report a time so short that it is 0 per example.
        log_slope = min(max(math.log(slope), -LOG_MOST), LOG_MOST) if slope else -LOG_MOST
        state, _ = self._state(features)
        if state is None:
            # The first task of all: there was nothing to predict it from.
            state = _begun(log_slope, 0.0, COLD_SPREAD_MOST**2)
        state = updated(state, warmth_of(features), log_slope, tuning=self._tuning)
        self._fleet.add(self._row(features), log_slope, features.device)
        self._least, self._most = min(self._least, log_slope), max(self._most, log_slope)
        _remember(self._devices, features.device, state)
        if features.kind:
            _remember(self._kinds, features.kind, features.device)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the state of the devices seen last. For all others only the regression remains."""
        if not self._devices:
            return {}
        rows = self._fleet.rows()
        owners = self._fleet.owners
        devices = list(self._devices.items())[-DEVICES_LASTING:]
        known = {device for device, _ in devices}
        kinds = [f"{kind}{_BETWEEN}{device}" for kind, device in self._kinds.items() if device in known]
        return {
            "devices": packed_names([device for device, _ in devices]),
            "states": np.array([astuple(state) for _, state in devices], dtype=np.float64),
            "kinds": packed_names(kinds),
            "owners": packed_names([device for device, _ in owners]),
            "counts": np.array([count for _, count in owners], dtype=np.int64),
            **packed_rows(rows),
            "ends": np.array([self._least, self._most], dtype=np.float64),
        }

    def restore(self, learned: Mapping[str, np.ndarray]) -> None:
        if not learned:
            return
        devices = names_in(learned, "devices")
        states = [_sound(values, self._tuning) for values in table(learned, "states", rows=len(devices), width=6)]
        kinds = [text.split(_BETWEEN) for text in names_in(learned, "kinds")]
        owners = names_in(learned, "owners")
        counts = line(learned, "counts", width=len(owners))
        rows = rows_in(learned, width=len(self._names) + 1)
        least, most = line(learned, "ends", width=2)
        if any(len(each) != 2 or each[1] not in devices for each in map(tuple, kinds)):
            raise Misuse("the snapshot names a device for a kind that it has no state of")
        if min(counts, default=1) < 1 or sum(counts) != len(rows) or len(rows) > ROWS_KEPT:
            raise Misuse("the snapshot's rows do not match the counts of its devices")
        if not -LOG_MOST <= least <= most <= LOG_MOST:
            raise Misuse("the snapshot's slopes are out of range")
        fleet = FleetRegression(ridge=RIDGE, refit_every=REFIT_EVERY, rows_each=COLD_TASKS)
        fleet.begin(list(zip(owners, map(int, counts), strict=True)), rows)
        self._fleet = fleet
        self._devices = OrderedDict(zip(devices, states, strict=True))
        self._kinds = OrderedDict((kind, device) for kind, device in kinds)
        self._least, self._most = least, most

    def _state(self, features: Features) -> tuple[KalmanState | None, str]:
        own = self._devices.get(features.device)
        if own is not None:
            return own, f"{own.tasks} tasks of its own"
        alike = self._devices.get(self._kinds.get(features.kind, "")) if features.kind else None
        if alike is not None:
            spread_var = KIND_SPREAD**2 + alike.offset_var
            return _begun(alike.offset, alike.k, spread_var), f"another {features.kind}"
        fitted = self._fleet.fitted
        if fitted is None:
            return None, ""
        return self._cold(features, fitted), f"regression over {fitted.devices} devices"

    def _cold(self, features: Features, fitted: Fitted) -> KalmanState:
        row = self._row(features)
        spread = min(COLD_SPREAD_MOST, max(COLD_SPREAD_LEAST, fitted.spread_at(row)))
        k = min(self._tuning.k_most, max(self._tuning.k_least, fitted.slopes[_TEMPERATURE]))
        # A new device first gets at most what the fastest known device could do. It is not assumed to be very much
        # slower than the slowest one either: a regression over similar devices is far off for a device that differs
        # from them.
        log_slope = min(self._most + math.log(SLOWER_MOST), max(self._least, fitted.at(row)))
        return _begun(log_slope - k * warmth_of(features), k, spread**2)

    def _row(self, features: Features) -> list[float]:
        memory, frequency, joules = (
            _log(features.get(name)) for name in ("memory_total_mb", "frequency_sum_mhz", "joules_per_cpu_s")
        )
        temperature = math.nan if features.temperature_c is None else warmth_of(features)
        return [memory, frequency, temperature, joules][: len(self._names)]


def _sound(values: Sequence[float], tuning: Tuning) -> KalmanState:
    """Return the filter state in these values. Raises Misuse if it would lead to the root of a negative number or to an
    overflow."""
    offset, k, offset_var, k_var, covar, tasks = values
    state = KalmanState(offset=offset, k=k, offset_var=offset_var, k_var=k_var, covar=covar, tasks=int(tasks))
    likely = abs(offset) <= LOG_MOST and tuning.k_least <= k <= tuning.k_most and tasks >= 0
    spread = 0 < offset_var <= VARIANCE_MOST and 0 < k_var <= VARIANCE_MOST
    if not likely or not spread or covar**2 > offset_var * k_var * (1 + 1e-9):
        raise Misuse("the snapshot has a device whose filter state is out of range")
    return state


def warmth_of(features: Features) -> float:
    """Return (temperature - 30) / 15, or 0 if the temperature is unknown, so that only the offset is learned."""
    return 0.0 if features.temperature_c is None else (features.temperature_c - 30.0) / 15.0


def _begun(offset: float, k: float, offset_var: float) -> KalmanState:
    return KalmanState(offset=offset, k=k, offset_var=offset_var, k_var=K_SPREAD**2)


def _log(value: float | None) -> float:
    return math.nan if not value else math.log(value)


def _remember(kept: OrderedDict[str, _V], name: str, value: _V) -> None:
    kept[name] = value
    kept.move_to_end(name)
    while len(kept) > DEVICES_KEPT:
        kept.popitem(last=False)
