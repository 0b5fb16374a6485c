"""How far a masked product may be off."""

from __future__ import annotations

import math

import numpy as np

from shoal.offload.masking import FixedLeft, FixedRight


def error_bound(left: np.ndarray, right: np.ndarray, fixed_left: FixedLeft, fixed_right: FixedRight) -> np.ndarray:
    """Bound the error of a masked product: half a unit of X and of W in each term, and one rounding.

    |Y - X·W| <= 2^-(e+1)·‖W_j‖₁ + 2^-(f+1)·‖X_i‖₁ + b·2^-(e+f+2) + 2^-24·|Y|, with e, f the exponents of X, of W.
    """
    x, w = np.abs(left.astype(np.float64)), np.abs(right.astype(np.float64))
    half_x = np.ldexp(0.5, -fixed_left.exponents)[:, None]
    half_w = math.ldexp(0.5, -fixed_right.exponent)
    whole = half_x * w.sum(axis=0) + half_w * x.sum(axis=1)[:, None] + left.shape[1] * half_x * half_w
    # Below the smallest normal number of float32, rounding is as wide as the smallest of all.
    return np.asarray(whole + (x @ w + whole) * 2.0**-24 + 2.0**-149)
