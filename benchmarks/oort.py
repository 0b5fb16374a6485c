"""What a device's next update is worth, after Oort (Lai et al., OSDI 2021). Pure functions."""

from __future__ import annotations

import math

from shoal.errors import Misuse

#: Oort's own: how hard slowness is punished, and what not having been asked for long is worth.
SLOWNESS_POWER = 2.0
STALENESS_WEIGHT = 0.1


def statistical_utility(examples: int, mean_squared_loss: float) -> float:
    """|B| · sqrt(mean of loss²): many examples that the model is bad at."""
    if examples < 0 or not (math.isfinite(mean_squared_loss) and mean_squared_loss >= 0):
        raise Misuse(f"{examples} examples with a mean squared loss of {mean_squared_loss}: both are 0 or more")
    return examples * math.sqrt(mean_squared_loss)


def slowness(wanted_s: float, took_s: float, *, power: float = SLOWNESS_POWER) -> float:
    """(T / t)^a for one that takes longer than is wanted, 1 for all others."""
    return 1.0 if took_s <= wanted_s else (wanted_s / took_s) ** power


def staleness_bonus(round_now: int, round_last: int) -> float:
    """sqrt(0.1 · ln R / L): what is known of a device since round L is less sure in round R, so it is tried again."""
    return math.sqrt(STALENESS_WEIGHT * math.log(max(1, round_now)) / max(1, round_last))


def oort_utility(
    *, examples: int, mean_squared_loss: float, wanted_s: float, took_s: float, round_now: int, round_last: int
) -> float:
    """U = (|B| · sqrt(mean loss²) + sqrt(0.1 · ln R / L)) · (T/t)^a, the last where t > T."""
    base = statistical_utility(examples, mean_squared_loss) + staleness_bonus(round_now, round_last)
    return base * slowness(wanted_s, took_s)
