"""A Kalman filter of two values, a device's offset and the effect of warmth on it, observed as one sum. Pure functions.

    log slope = offset + k · warmth + noise

Offset and k drift a little from task to task. After Kalman 1960, written out for two values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class KalmanState:
    offset: float
    k: float
    #: Variances of offset and k, and their covariance.
    offset_var: float
    k_var: float
    covar: float = 0.0
    #: Tasks observed.
    tasks: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """Relative standard deviations, and the limits of k."""

    offset_drift: float = 0.03
    k_drift: float = 0.01
    k_least: float = 0.0
    k_most: float = 0.8
    #: An error of more than this many standard deviations is a jump.
    jump: float = 3.0
    #: Share of a jump's square that is added to the offset's variance.
    jump_share: float = 1 / 3
    #: Standard deviation of one measurement: about as much as tasks under a steady quota vary. The same for all
    #: devices; learning it for each, from a dozen tasks, was worse.
    noise: float = 0.05


def mean_of(state: KalmanState, warmth: float) -> float:
    return state.offset + state.k * warmth


def variance_of(state: KalmanState, warmth: float, *, noise: float) -> float:
    """Return the variance of the next measurement."""
    return state.offset_var + 2 * state.covar * warmth + state.k_var * warmth**2 + noise**2


def updated(state: KalmanState, warmth: float, measured: float, *, tuning: Tuning) -> KalmanState:
    """Return the state after one more measurement."""
    state = replace(
        state,
        offset_var=state.offset_var + tuning.offset_drift**2,
        k_var=state.k_var + tuning.k_drift**2,
        tasks=state.tasks + 1,
    )
    surprise = measured - mean_of(state, warmth)
    total = variance_of(state, warmth, noise=tuning.noise)
    if surprise**2 > tuning.jump**2 * total:
        # Something happened to the device: the knowledge about its offset is less certain now.
        state = replace(state, offset_var=state.offset_var + tuning.jump_share * surprise**2)
        total = variance_of(state, warmth, noise=tuning.noise)
    gain_offset = (state.offset_var + state.covar * warmth) / total
    gain_k = (state.covar + state.k_var * warmth) / total
    # Joseph's form is not needed for two values and positive noise; the limits of k make it safer still.
    return replace(
        state,
        offset=state.offset + gain_offset * surprise,
        k=min(tuning.k_most, max(tuning.k_least, state.k + gain_k * surprise)),
        offset_var=max(1e-12, state.offset_var - gain_offset * (state.offset_var + state.covar * warmth)),
        k_var=max(1e-12, state.k_var - gain_k * (state.covar + state.k_var * warmth)),
        covar=state.covar - gain_offset * (state.covar + state.k_var * warmth),
    )
