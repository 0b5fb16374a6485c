"""DCL's aggregation orders: static, seeded, chained by hashes; and sums that have the same bits each time. Pure.

Adding floats in another order gives other bits. An order that can be made again makes a sum that can be made again, so
that two who were asked the same must answer the same, bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shoal.errors import Misuse
from shoal.offload.shuffle import permutation


def static_layer_order(seed: bytes, *, layer: int, size: int) -> np.ndarray:
    """SLA: one order a layer, used whenever it is computed. (DCL §3.5)"""
    return permutation(seed, f"order of layer {layer}", size)


def dynamic_layer_order(seed: bytes, *, layer: int, computation: int, size: int) -> np.ndarray:
    """DLA from a seed: another order each time a layer is computed. (DCL §3.5)"""
    return permutation(seed, f"order of layer {layer} computation {computation}", size)


def chained_orders(seed: bytes, *, layer: int, size: int) -> Iterator[np.ndarray]:
    """DLA from a hash chain: each link is the SHA-256 of the one before, so that no number need be kept. (DCL §3.5)"""
    link = hashlib.sha256(f"layer {layer}".encode() + b"\0" + seed).digest()
    while True:
        yield permutation(link, "order of a link", size)
        link = hashlib.sha256(link).digest()


def sum_in_order(parts: Sequence[np.ndarray] | Mapping[int, np.ndarray], order: np.ndarray) -> np.ndarray:
    """Parts added one by one, in their own precision and in this order: the same bits wherever it is done."""
    numbers = order.tolist()
    if sorted(numbers) != list(range(len(parts))):
        raise Misuse(f"an order of {len(numbers)} does not name each of {len(parts)} parts once")
    if not numbers:
        raise Misuse("a sum needs at least one part")
    total = parts[numbers[0]].copy()
    for number in numbers[1:]:
        total += parts[number]
    return total
