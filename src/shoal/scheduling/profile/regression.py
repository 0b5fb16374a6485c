"""Ridge regression over rows of many devices, some with missing values."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Older rows are removed: a fleet changes, and memory is bounded.
ROWS_KEPT = 2000

#: The spread if there are too few devices to estimate it.
SPREAD_UNKNOWN = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """target = intercept + slopes · (row - means); a missing value counts as the mean."""

    intercept: float
    slopes: tuple[float, ...]
    means: tuple[float, ...]
    #: Standard deviation of devices that were not fitted.
    spread: float
    devices: int
    #: (X'X + λ)⁻¹, to compute how far a row is outside of the fitted rows.
    inverse: tuple[tuple[float, ...], ...]

    def at(self, row: Sequence[float]) -> float:
        return self.intercept + sum(
            slope * away for slope, away in zip(self.slopes, self._away(row), strict=True) if slope
        )

    def spread_at(self, row: Sequence[float]) -> float:
        """Return the standard deviation at a row. It grows for a device unlike all fitted ones."""
        away = self._away(row)
        leverage = sum(
            left * each * right
            for left, line in zip(away, self.inverse, strict=True)
            for each, right in zip(line, away, strict=True)
        )
        return self.spread * math.sqrt(1.0 + 1.0 / self.devices + leverage)

    def _away(self, row: Sequence[float]) -> list[float]:
        return [0.0 if math.isnan(value) else value - mean for value, mean in zip(row, self.means, strict=True)]


def fit(rows: Sequence[Sequence[float]], targets: Sequence[float], devices: Sequence[str], *, ridge: float) -> Fitted:
    """Return least squares with ``ridge`` added to the squares of the standardised features. 0 is ordinary least
    squares.

    Rows of one device are not independent, so the certainty of the fit depends on the number of devices.
    """
    x, targets_mean = np.array(rows, dtype=np.float64), float(np.mean(targets))
    y = np.array(targets, dtype=np.float64) - targets_mean
    is_known = ~np.isnan(x)
    means = np.where(is_known, x, 0.0).sum(axis=0) / np.maximum(1, is_known.sum(axis=0))
    away = np.where(is_known, x - means, 0.0)
    scale = away.std(axis=0)
    varies = scale > 1e-9 * np.maximum(1.0, np.abs(means))
    safe = np.where(varies, scale, 1.0)
    unit = np.where(varies, away / safe, 0.0)
    squares = unit.T @ unit
    # A feature that never varies has no slope; with 1 on its diagonal the other slopes can be solved for.
    solvable = squares + np.diag(np.where(varies, ridge, 1.0))
    # Features may be linearly dependent; the pseudo-inverse gives the smallest of the slopes that fit.
    inverse = np.linalg.pinv(solvable, hermitian=True)
    unit_slopes = inverse @ (unit.T @ y)
    count = len(set(devices))
    left = y - unit @ unit_slopes
    free = count - 1 - int(varies.sum())
    spread = math.sqrt(float(np.mean(left**2)) * count / free) if free > 0 else SPREAD_UNKNOWN
    # All rows of one device count as one.
    inverse = np.where(np.outer(varies, varies), inverse / np.outer(safe, safe), 0.0) * len(y) / count
    return Fitted(
        intercept=targets_mean,
        slopes=tuple(float(slope) for slope in np.where(varies, unit_slopes / safe, 0.0)),
        means=tuple(float(mean) for mean in means),
        spread=spread,
        devices=count,
        inverse=tuple(tuple(float(each) for each in line) for line in inverse),
    )


class FleetRegression:
    """Rows of many devices, fitted again once enough new rows have come.

    ``rows_each``: newest rows to keep per device, or None to keep all.
    """

    def __init__(self, *, ridge: float, refit_every: int, rows_each: int | None = None) -> None:
        self._ridge = ridge
        self._refit_every = refit_every
        self._rows: OrderedDict[str, deque[tuple[tuple[float, ...], float]]] = OrderedDict()
        self._rows_each = rows_each
        self._count = 0
        self._new = 0
        self._fitted: Fitted | None = None

    def add(self, row: Sequence[float], target: float, device: str) -> None:
        own = self._rows.setdefault(device, deque())
        own.append((tuple(row), target))
        self._rows.move_to_end(device)
        self._count += 1
        self._new += 1
        if self._rows_each is not None and len(own) > self._rows_each:
            own.popleft()
            self._count -= 1
        while self._count > ROWS_KEPT:
            # Remove the oldest row of the device that was silent for longest.
            quiet, rows = next(iter(self._rows.items()))
            rows.popleft()
            self._count -= 1
            if not rows:
                del self._rows[quiet]

    @property
    def owners(self) -> list[tuple[str, int]]:
        """Each device and its number of rows, in the order of the rows."""
        return [(device, len(own)) for device, own in self._rows.items()]

    def rows(self) -> list[tuple[float, ...]]:
        """Return every row, followed by its target. From now on the fit uses rows in this order, so that a profiler
        that restores them gets the same fit."""
        self._refit()
        return [(*row, target) for own in self._rows.values() for row, target in own]

    def begin(self, owners: Sequence[tuple[str, int]], rows: Sequence[Sequence[float]]) -> None:
        """Replace all rows with these, in the given order."""
        at = 0
        for device, count in owners:
            self._rows[device] = deque((tuple(row[:-1]), row[-1]) for row in rows[at : at + count])
            at += count
        self._count = at
        self._refit()

    @property
    def fitted(self) -> Fitted | None:
        """The current fit, or None while there are no rows."""
        if not self._rows:
            return None
        # With few rows each one matters much, so fit often; later an occasional fit is enough.
        if self._fitted is None or self._new >= min(self._refit_every, max(1, self._count // 4)):
            self._refit()
        return self._fitted

    def _refit(self) -> None:
        if not self._rows or (self._fitted is not None and not self._new):
            return
        rows, targets, devices = zip(
            *((row, target, device) for device, own in self._rows.items() for row, target in own), strict=True
        )
        self._fitted = fit(rows, targets, devices, ridge=self._ridge)
        self._new = 0
