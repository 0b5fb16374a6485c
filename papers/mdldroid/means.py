"""What becomes of the devices' updates: Eq. 1, 2 and 3, and their errors. Numpy only; knows no device and no time.

An update is what a device's model moved by, so that all of them are on one scale whatever the rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.errors import Misuse

#: (sender, receiver), in the order in which they merge.
Merges = Sequence[tuple[int, int]]


def pair(
    sender: np.ndarray, sender_theta: float, receiver: np.ndarray, receiver_theta: float
) -> tuple[np.ndarray, float]:
    """W = (θᵢ·Δwᵢ + θⱼ·Δwⱼ)/(θᵢ + θⱼ), and the *receiver's* θ becomes the sum; the sender retires.   (Eq. 3)

    The equation gives the sum to j, the text to i, and Algorithm 1 to nobody.
    """
    total = sender_theta + receiver_theta
    return (sender_theta * sender + receiver_theta * receiver) / total, total


def merged(updates: Sequence[np.ndarray], thetas: Sequence[float], merges: Merges) -> np.ndarray:
    """What the last receiver has: the θ-weighted mean of all, in whatever order they met."""
    held = [np.asarray(update, dtype=np.float64) for update in updates]
    theta = [float(value) for value in thetas]
    alive = set(range(len(held)))
    for sender, receiver in merges:
        if sender == receiver or not {sender, receiver} <= alive:
            raise Misuse(f"{sender} cannot merge into {receiver}: one of them has sent already")
        held[receiver], theta[receiver] = pair(held[sender], theta[sender], held[receiver], theta[receiver])
        alive.remove(sender)
    if len(alive) != 1:
        raise Misuse(f"{len(alive)} are left: it takes {len(held) - 1} merges until one is")
    return held[min(alive)]


def any_merges(count: int, generator: np.random.Generator) -> list[tuple[int, int]]:
    """Pairs by chance, until one is left."""
    alive = list(range(count))
    found = []
    while len(alive) > 1:
        sender, receiver = (int(value) for value in generator.choice(alive, 2, replace=False))
        alive.remove(sender)
        found.append((sender, receiver))
    return found


def halving_weights(count: int) -> np.ndarray:
    """NeighborSGD with one neighbour at a time: each hop halves what came before, so that the last has half.   (Eq. 2)

    The shares are 2^-(n-1), 2^-(n-1), 2^-(n-2), ..., 1/2: of nine devices the last two have three quarters.
    """
    if count < 1:
        raise Misuse("a mean takes one update at least")
    if count == 1:
        return np.ones(1)
    shares = [2.0 ** -(count - 1), *(2.0 ** -(count - place) for place in range(1, count))]
    return np.array(shares)


def neighbourhood_mean(updates: Sequence[np.ndarray], neighbours: Sequence[Sequence[int]]) -> np.ndarray:
    """(1/n)·Σⱼ (Σᵢ Δwᵢ + m·Δwⱼ)/2m over each j's m neighbours i: Eq. 2 as it is printed, on any graph."""
    parts = [
        (sum(updates[other] for other in near) + len(near) * updates[place]) / (2 * len(near))
        for place, near in enumerate(neighbours)
    ]
    return np.asarray(sum(parts) / len(parts))
