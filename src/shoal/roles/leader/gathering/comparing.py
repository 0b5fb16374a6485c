"""Updates that lie with aggregators, in a shard in parts, compared before they are summed up. Pure; both sides.

An aggregator sees its part of every update. What a robust rule needs to know adds up over parts (``learning.robust``):
products of updates, or their squared distances from a centre. So the leader asks each aggregator for those of its part
(``Reduce.weigh``), adds them up, weighs as in a star, and only then has the parts summed up, by its weights. In a tree
an aggregator has whole updates of its group: those are cut one by one, as they come, and not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shoal.compress.sparse import Sparse
from shoal.errors import PeerViolation
from shoal.learning.robust import gram_of, squared_distance
from shoal.roles.leader.weighing import WeightsGiven
from shoal.trust import DEVICES_MAX, Rule
from shoal.wire.coded import norm_of
from shoal.wire.messages import Tensors

#: The tensor of an answer.
PRODUCTS = "products"

#: The most bytes that an answer takes: one half of a symmetric matrix in float64, with its diagonal.
PRODUCTS_MAX_BYTES = 8 * DEVICES_MAX * (DEVICES_MAX + 1) // 2

#: A sum is as long as its products say, up to this share of the longest piece's square: both are rounded.
_SUM_OFF = 1e-3


def products_bytes(rule: Rule, devices: int) -> int:
    """What an aggregator's answer takes."""
    return 8 * (devices * (devices + 1) // 2 if rule == "nearest" else devices)


def compared(
    rule: Rule, pieces: Sequence[np.ndarray | Sparse], scales: Sequence[float], centre: np.ndarray | None
) -> Tensors:
    """An aggregator's answer about its pieces, each by its scale."""
    if rule == "nearest":
        whole = gram_of(pieces, scales)
        return {PRODUCTS: whole[np.triu_indices(len(pieces))]}
    assert centre is not None
    far = [squared_distance(piece, centre, scale=scale) for piece, scale in zip(pieces, scales, strict=True)]
    return {PRODUCTS: np.array(far, dtype=np.float64)}


def distances_of(tensors: Tensors, count: int) -> np.ndarray:
    """The squared distances of so many pieces of whole updates, as an aggregator of a tree told them."""
    comparison = ComparedRound("clip", (1,) * count)
    comparison.add("", tensors)
    return comparison.total()


@dataclass(slots=True)
class ComparedRound:
    """One round whose updates are compared: what the leader heard of its parts, and what came of it."""

    rule: Rule
    #: What each update counts for before it is compared: its examples, or 1 for each device.
    examples: tuple[float, ...]
    #: Aggregator -> the products of its part.
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    #: How much each update counts, or None until every part is here.
    verdict: WeightsGiven | None = None

    def add(self, node: str, tensors: Tensors) -> None:
        """Take the products of an aggregator's part. Raises PeerViolation if they cannot be right."""
        count = len(self.examples)
        told = tensors.get(PRODUCTS)
        size = products_bytes(self.rule, count) // 8
        if told is None or len(tensors) != 1 or told.dtype != np.float64 or told.shape != (size,):
            raise PeerViolation(f"it sent no products of {count} updates")
        if not np.isfinite(told).all():
            raise PeerViolation("it sent products that are not finite")
        part = np.array(told)
        if self.rule == "nearest":
            part = np.zeros((count, count))
            part[np.triu_indices(count)] = told
            part += np.triu(part, 1).T
        if ((np.diag(part) if part.ndim == 2 else part) < 0).any():
            raise PeerViolation("it sent the square of an update as a negative number")
        self.parts[node] = part

    def total(self) -> np.ndarray:
        """Return the products of whole updates, summed in the order of nodes, so that rounding is always the same."""
        return np.asarray(sum(self.parts[node] for node in sorted(self.parts)))

    def check_sum(self, node: str, mean: np.ndarray) -> None:
        """The length of a weighted sum follows from the products that its aggregator told: ‖Σ wᵢ·uᵢ‖² = w'·G·w."""
        if self.rule != "nearest" or self.verdict is None:
            return
        products = self.parts[node]
        examples = np.array(self.examples, dtype=np.float64)
        weights = np.array(self.verdict.voices) * examples / examples.sum()
        expected, found = float(weights @ products @ weights), norm_of(mean) ** 2
        if abs(found - expected) > _SUM_OFF * float(np.diag(products).max()):
            raise PeerViolation(f"it sent a mean of norm² {found:.3g}; its products give {expected:.3g}")
