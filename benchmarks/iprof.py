"""I-Prof, FLeet's profiler (§2.2): least squares for a first request, then a passive-aggressive model a device kind.

    α̂ = xᵀθ,  n = max(1, t_SLO / α̂)                                                            (eq. 1)
    θ ← θ + f/‖x‖² · sign(α - xᵀθ) · x,  f = max(0, |xᵀθ - α| - ε)                               (eq. 2)

x: available memory, total memory, temperature, summed highest frequency (for energy also joules a CPU second), scaled
to about 1, and a constant, which least squares needs. Two faults are mended, and shown with ``as_published=True``:

- xᵀθ is a plane: for a device unlike those it was fitted to it comes to zero or below, and eq. 1 then asks for endless
  work, or for one example. Here it is never less than half the least slope that was ever seen.
- ε = 0.1 cannot be in seconds an example, where slopes are hundredths: the model would never learn. In milliseconds it
  is a different share of the slope on every device. Here it is a share.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, TypeAlias

import numpy as np

from shoal.scheduling.profile.features import Features, unknown
from shoal.scheduling.profile.regression import Fitted, FleetRegression
from shoal.scheduling.profile.sizing import CostPrediction, Profiler, slope_of

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Feature -> what it is divided by.
_TIME = {"memory_available_mb": 4096.0, "memory_total_mb": 4096.0, "temperature_c": 30.0, "frequency_sum_mhz": 10_000.0}
_ENERGY = {**_TIME, "joules_per_cpu_s": 1.0}

#: As a share of the slope.
EPSILON = 0.05
#: As in the paper, the unit taken for milliseconds; its energies are in per cent of a battery.
EPSILON_PUBLISHED = {"s": 1e-4, "%": 6e-5}

#: Of the least slope ever seen.
FLOOR_SHARE = 0.5

#: The paper fits the cold start anew "periodically".
REFIT_EVERY = 50
KINDS_KEPT = 10_000


class IProf(Profiler):
    """``energy``: adds the feature that FLeet uses for energy."""

    def __init__(self, *, unit: str = "s", energy: bool = False, as_published: bool = False) -> None:
        super().__init__(unit=unit)
        self._scales = _ENERGY if energy else _TIME
        self._names = tuple(self._scales)
        self._as_published = as_published
        self._epsilon_published = EPSILON_PUBLISHED.get(unit, EPSILON_PUBLISHED["s"])
        self._fleet = FleetRegression(ridge=0.0, refit_every=REFIT_EVERY)
        #: Kind -> θ, the constant last.
        self._thetas: OrderedDict[str, Array] = OrderedDict()
        self._least = math.inf

    def predict(self, features: Features) -> CostPrediction | None:
        fitted = self._fleet.fitted
        if fitted is None:
            return None
        own = self._thetas.get(_kind(features))
        slope = fitted.at(self._row(features)) if own is None else float(own @ self._x(features, fitted))
        basis = f"least squares over {fitted.devices} devices" if own is None else f"model of {_kind(features)}"
        floor = FLOOR_SHARE * self._least
        if slope < floor and not self._as_published:
            basis += f", which said {slope:.3g}: raised to half the least ever seen"
            slope = floor
        missing = unknown(features, self._names)
        return CostPrediction(per_example=slope, is_cold=own is None, basis=f"{basis}; {missing}" if missing else basis)

    def observed(self, features: Features, examples: int, spent: float) -> None:
        slope = slope_of(examples, spent)
        fitted = self._fleet.fitted
        self._least = min(self._least, slope)
        self._fleet.add(self._row(features), slope, features.device)
        if fitted is None:
            return
        kind, x = _kind(features), self._x(features, fitted)
        own = self._thetas.get(kind)
        theta = _theta_of(fitted) if own is None else own
        epsilon = self._epsilon_published if self._as_published else EPSILON * slope
        self._thetas[kind] = passive_aggressive(theta, x, slope, epsilon=epsilon)
        self._thetas.move_to_end(kind)
        while len(self._thetas) > KINDS_KEPT:
            self._thetas.popitem(last=False)

    def _row(self, features: Features) -> list[float]:
        """With gaps."""
        values = ((features.get(name), scale) for name, scale in self._scales.items())
        return [math.nan if value is None else value / scale for value, scale in values]

    def _x(self, features: Features, fitted: Fitted) -> Array:
        """Without: what is not known counts as usual."""
        row = (mean if math.isnan(v) else v for v, mean in zip(self._row(features), fitted.means, strict=True))
        return np.array([*row, 1.0])


def passive_aggressive(theta: Array, x: Array, slope: float, *, epsilon: float) -> Array:
    """θ + f/‖x‖² · sign(α - xᵀθ) · x: the least change that brings xᵀθ within ε of α.   (FLeet eq. 2)"""
    error = slope - float(x @ theta)
    loss = max(0.0, abs(error) - epsilon)
    return theta + loss / float(x @ x) * math.copysign(1.0, error) * x


def _theta_of(fitted: Fitted) -> Array:
    """The same plane through the origin, with a constant."""
    constant = fitted.intercept - sum(slope * mean for slope, mean in zip(fitted.slopes, fitted.means, strict=True))
    return np.array([*fitted.slopes, constant])


def _kind(features: Features) -> str:
    """A device of no known kind is a kind of its own."""
    return features.kind or features.device
