"""A filter of two figures, a device's offset and what warmth does to it, seen through one sum. Pure functions.

    log slope = offset + k · warmth + noise

Offset and k drift a little from task to task. Kalman 1960, written out for two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class KalmanState:
    offset: float
    k: float
    #: Variances of the two and their covariance.
    offset_var: float
    k_var: float
    covar: float = 0.0
    #: Tasks seen.
    tasks: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """Deviations, as shares, and where k lies."""

    offset_drift: float = 0.03
    k_drift: float = 0.01
    k_least: float = 0.0
    k_most: float = 0.8
    #: A surprise of more than so many deviations is a jump.
    jump: float = 3.0
    #: How much of a jump's square is added to the offset's variance.
    jump_share: float = 1 / 3
    #: Of one measurement: about as much as tasks under a steady quota scatter. The same for all devices; learned for
    #: each, from a dozen tasks, it was worse.
    noise: float = 0.05


def mean_of(state: KalmanState, warmth: float) -> float:
    return state.offset + state.k * warmth


def variance_of(state: KalmanState, warmth: float, *, noise: float) -> float:
    """Of the next measurement."""
    return state.offset_var + 2 * state.covar * warmth + state.k_var * warmth**2 + noise**2


def updated(state: KalmanState, warmth: float, measured: float, *, tuning: Tuning) -> KalmanState:
    """After one more measurement."""
    state = replace(
        state,
        offset_var=state.offset_var + tuning.offset_drift**2,
        k_var=state.k_var + tuning.k_drift**2,
        tasks=state.tasks + 1,
    )
    surprise = measured - mean_of(state, warmth)
    total = variance_of(state, warmth, noise=tuning.noise)
    if surprise**2 > tuning.jump**2 * total:
        # Something happened to the device: what was known of its offset is worth less now.
        state = replace(state, offset_var=state.offset_var + tuning.jump_share * surprise**2)
        total = variance_of(state, warmth, noise=tuning.noise)
    gain_offset = (state.offset_var + state.covar * warmth) / total
    gain_k = (state.covar + state.k_var * warmth) / total
    # Joseph's form is not needed for two figures and a positive noise; k's own limits only make it surer.
    return replace(
        state,
        offset=state.offset + gain_offset * surprise,
        k=min(tuning.k_most, max(tuning.k_least, state.k + gain_k * surprise)),
        offset_var=max(1e-12, state.offset_var - gain_offset * (state.offset_var + state.covar * warmth)),
        k_var=max(1e-12, state.k_var - gain_k * (state.covar + state.k_var * warmth)),
        covar=state.covar - gain_offset * (state.covar + state.k_var * warmth),
    )
