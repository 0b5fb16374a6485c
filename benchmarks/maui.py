"""MAUI's profiler as FLeet compares with it (§3.3): one slope for all devices. Knows no features.

MAUI (Cuervo et al., MobiSys 2010) predicts E = θ₀ · cycles by linear regression; FLeet puts the number of examples in
place of the cycles, which it is proportional to.
"""

from __future__ import annotations

from shoal.scheduling.profile.features import Features
from shoal.scheduling.profile.sizing import CostPrediction, Profiler, slope_of


class Maui(Profiler):
    """θ₀ = Σ n·t / Σ n², over every task of every device."""

    def __init__(self, *, unit: str = "s") -> None:
        super().__init__(unit=unit)
        self._products = 0.0
        self._squares = 0.0
        self._tasks = 0

    def predict(self, features: Features) -> CostPrediction | None:
        if not self._tasks:
            return None
        return CostPrediction(
            per_example=self._products / self._squares,
            is_cold=False,
            basis=f"one slope for all devices, of {self._tasks} tasks",
        )

    def observed(self, features: Features, examples: int, spent: float) -> None:
        slope_of(examples, spent)
        self._products += examples * spent
        self._squares += examples * examples
        self._tasks += 1
