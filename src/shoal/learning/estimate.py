"""A mean over several seeds with its 95 % interval, by Student's t. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

#: Quantiles of Student's t for a two-sided interval of 95 %, by degrees of freedom from 1.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
#: With more degrees of freedom than the table has.
_T_MANY = 2.042


@dataclass(frozen=True, slots=True)
class Estimate:
    mean: float
    #: Half the width of the interval, or None for a single value, of which nobody knows how it varies, and for values
    #: that are not finite.
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        if len(values) < 2 or not all(map(math.isfinite, values)):
            return cls(fmean(values), None)
        freedom = len(values) - 1
        quantile = _T[freedom - 1] if freedom <= len(_T) else _T_MANY
        return cls(fmean(values), quantile * stdev(values) / math.sqrt(len(values)))

    @property
    def is_apart_from_zero(self) -> bool:
        """Whether the interval leaves out zero: of differences, that one is larger than the other."""
        return self.half is not None and abs(self.mean) > self.half

    def to_plain(self) -> dict[str, float | None]:
        return {"mean": self.mean, "half": self.half}


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Return the mean of the differences, seed by seed. Effects that a seed has on both, such as its fleet, cancel."""
    return Estimate.of([one - other for one, other in zip(ours, theirs, strict=True)])
