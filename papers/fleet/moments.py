"""What the paper's accountant would say: Rényi privacy of a Gaussian mechanism on a Poisson sample. Pure.

Abadi et al. 2016, as Mironov, Talwar and Zhang 2019 write it for whole orders. It holds only where every example
tosses a coin for every step, which users who come when they like do not do; here to show what that assumption is
worth, not to be claimed.
"""

from __future__ import annotations

import math

ORDERS = range(2, 65)


def epsilon(*, sampled: float, multiplier: float, steps: int, delta: float) -> float:
    """The least over orders α of steps·RDP(α) + ln(1/δ)/(α - 1)."""
    return min(
        steps * divergence(order, sampled=sampled, multiplier=multiplier) + math.log(1 / delta) / (order - 1)
        for order in ORDERS
    )


def divergence(order: int, *, sampled: float, multiplier: float) -> float:
    """ln Σₖ C(α, k)·(1 - q)^(α-k)·q^k·e^((k² - k)/(2z²)) / (α - 1)."""
    logs = []
    for taken in range(order + 1):
        if sampled == 1 and taken < order:
            continue
        chosen = math.lgamma(order + 1) - math.lgamma(taken + 1) - math.lgamma(order - taken + 1)
        weight = taken * math.log(sampled) + ((order - taken) * math.log1p(-sampled) if sampled < 1 else 0.0)
        logs.append(chosen + weight + (taken * taken - taken) / (2 * multiplier**2))
    largest = max(logs)
    return (largest + math.log(sum(math.exp(value - largest) for value in logs))) / (order - 1)
