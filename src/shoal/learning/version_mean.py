"""The exponential mean of a job's versions: what is evaluated and published instead of the newest. Pure numpy.

Polyak & Juditsky (1992) averaged all iterates; the exponential weights are those that Adam gives to gradients, with its
correction for the first ones (Kingma & Ba 2015), so that the mean of few versions is not mostly the first model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class VersionMean:
    """The mean of versions 1 to t, in which version i has the weight d^(t-i). No array of it changes later."""

    #: The first model as long as there is no version; then the mean, also of the buffers.
    values: np.ndarray
    #: The sum of all weights: 0 before the first version.
    weight: float = 0.0

    def after(self, model: np.ndarray, *, decay: float) -> VersionMean:
        """Return the mean with one version more: S' = 1 + d·S;  m' = m + (w - m) / S'."""
        weight = 1.0 + decay * self.weight
        if weight == 1.0:
            # Not by the sum: of the first version the mean is that version, bit for bit.
            return VersionMean(model, weight)
        values: np.ndarray = model - self.values
        values *= np.float32(1.0 / weight)
        values += self.values
        values.flags.writeable = False
        return VersionMean(values, weight)
