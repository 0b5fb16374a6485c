"""EDDL's closed forms of a batch on equal links: l the training, n the workers, S the model, B a link. Pure."""

from __future__ import annotations


def star_at_once_s(workers: int, *, compute_s: float, model_bytes: float, bytes_per_s: float) -> float:
    """t = l + 2nS/B: all models leave and return at once over one link (EDDL §4.3)."""
    return compute_s + 2 * workers * model_bytes / bytes_per_s


def star_in_turn_s(workers: int, *, compute_s: float, model_bytes: float, bytes_per_s: float) -> float:
    """t = l + (n + 1)S/B: while the last model leaves, the first updates return over the other direction."""
    return compute_s + (workers + 1) * model_bytes / bytes_per_s


def tree_at_once_s(
    workers: int, *, aggregators: int, compute_s: float, model_bytes: float, bytes_per_s: float
) -> float:
    """t = l + 2(g - 1 + n/g - 1)S/B: EDDL's 1-g-n, with the leader one of the aggregators and all of these working."""
    return compute_s + 2 * (aggregators - 1 + workers / aggregators - 1) * model_bytes / bytes_per_s
