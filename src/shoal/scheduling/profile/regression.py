"""Ridge regression on rows with gaps: a figure that follows from others, over many devices. Knows no names."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Older rows go: a fleet changes, and memory is bounded.
ROWS_KEPT = 2000

#: Fewer devices than this say nothing about how sure a regression over devices is.
SPREAD_UNKNOWN = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """target = intercept + slopes · (row - means); gaps count as the mean."""

    intercept: float
    slopes: tuple[float, ...]
    means: tuple[float, ...]
    #: How far devices that were not fitted lie from it, as a deviation.
    spread: float
    devices: int
    #: (X'X + λ)⁻¹, for how far a row lies outside of what was fitted.
    inverse: tuple[tuple[float, ...], ...]

    def at(self, row: Sequence[float]) -> float:
        return self.intercept + sum(
            slope * away for slope, away in zip(self.slopes, self._away(row), strict=True) if slope
        )

    def spread_at(self, row: Sequence[float]) -> float:
        """Grows for a device unlike all that were fitted."""
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
    """Least squares with ``ridge`` added to the standardised features' squares; 0 is ordinary least squares.

    Rows of one device are no independent witnesses: how sure the fit is goes by the number of devices.
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
    # A feature that never varies has no slope; with 1 on its diagonal the rest can be solved.
    solvable = squares + np.diag(np.where(varies, ridge, 1.0))
    # Features may follow from each other exactly; the pseudo-inverse gives the smallest of the slopes that fit.
    inverse = np.linalg.pinv(solvable, hermitian=True)
    unit_slopes = inverse @ (unit.T @ y)
    count = len(set(devices))
    left = y - unit @ unit_slopes
    free = count - 1 - int(varies.sum())
    spread = math.sqrt(float(np.mean(left**2)) * count / free) if free > 0 else SPREAD_UNKNOWN
    # The rows of one device count as one.
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
    """Rows of many devices, fitted again once enough have come.

    ``rows_each``: so many of one device, the newest; None: all it has.
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
            # Of the device that was not heard for longest; of the only one there is, its oldest.
            quiet, rows = next(iter(self._rows.items()))
            rows.popleft()
            self._count -= 1
            if not rows:
                del self._rows[quiet]

    @property
    def owners(self) -> list[tuple[str, int]]:
        """Each device and how many of the rows are its own, in the order of the rows."""
        return [(device, len(own)) for device, own in self._rows.items()]

    def rows(self) -> list[tuple[float, ...]]:
        """Every row with its target behind it. From now on the fit uses these rows, so that a profiler that begins with
        them fits the same."""
        self._refit()
        return [(*row, target) for own in self._rows.values() for row, target in own]

    def begin(self, owners: Sequence[tuple[str, int]], rows: Sequence[Sequence[float]]) -> None:
        """Begin with these, as they were told of."""
        at = 0
        for device, count in owners:
            self._rows[device] = deque((tuple(row[:-1]), row[-1]) for row in rows[at : at + count])
            at += count
        self._count = at
        self._refit()

    @property
    def fitted(self) -> Fitted | None:
        """None while there are no rows."""
        if not self._rows:
            return None
        # While few are there every row counts much; later a fit now and then is enough.
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
