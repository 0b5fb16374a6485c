"""Every node leads a share of the parameters: which share, and how long a round then takes. Pure.

The load. N workers train a model of S bytes; node i leads the share x_i of it. To sum the shares, it sends the parts
that others lead, (1 - x_i) S, and receives its own share from the N - 1 others. To distribute the result it is the
other way round. Over both halves each direction of its link carries

    S (1 + (N - 2) x_i)          for a node that trains,       S N x_i          for one that only leads,

so the slower of the two directions decides: b_i = min(up, down). All finish together at the time t if

    x_i = max(0, (b_i t / S - 1) / (N - 2)),   Σ x_i = 1.

This is water filling: t rises until the shares add up to 1. A link that cannot even send its own update by then gets no
share, and the round takes as long as the slowest of those needs: t* = max(S / b_min, 2 (N - 1) S / Σ b_i) if all train.
(This is the load balancing of DeDLOC and hivemind in closed form; EDDL's splitting 1-g-n is the case of g leaders with
equal shares.)

t* assumes that distributing begins, piece by piece, while summing is still running. ``phases_s`` is the time with a
pause between the two. On equal links both are 2 (N - 1)/N · S/b.

On one shared medium, such as a Wi-Fi channel, none of this helps. The channel carries the sum of all loads, 2 (N - 1) S
whatever the shares are, where a star has 2 N S. And between two stations of an access point every byte crosses the
channel twice, where a star with a wired leader needs it once. Then it is best to give all shares to the node with the
best link, which is a star.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse
from shoal.topology.cluster import ClusterNode


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Which node leads how much, in the order of the nodes, and how long it takes."""

    nodes: tuple[str, ...]
    shares: tuple[float, ...]
    #: Summing and distributing, one overlapping the other, without training.
    sync_s: float
    reason: str


def water_fill(workers: Sequence[ClusterNode], *, model_bytes: float, only_lead: Sequence[ClusterNode] = ()) -> Shares:
    """Return the best shares for nodes with separate links.

    ``only_lead`` are nodes that hold shares without training, such as an always-on machine.
    """
    if not workers:
        raise Misuse("nobody trains: give at least one worker")
    if not model_bytes > 0:
        raise Misuse(f"model_bytes is {model_bytes}; it must be positive")
    nodes = (*workers, *only_lead)
    rates = np.array([node.narrow_bytes_per_s for node in nodes]) / model_bytes
    trains = np.arange(len(nodes)) < len(workers)
    if len(workers) <= 2:
        # With two workers each sends and receives one model, however they divide it. A single worker sends nothing.
        shares = trains / len(workers)
    else:
        shares = _pour(rates, at_first=trains.astype(float), for_all=np.where(trains, len(workers) - 2, len(workers)))
    loads_s = _loads(shares, trains) / rates
    return Shares(
        nodes=tuple(node.name for node in nodes),
        shares=tuple(float(share) for share in shares),
        sync_s=float(loads_s.max()),
        reason=_reason(nodes, shares, loads_s),
    )


def _pour(rates: np.ndarray, *, at_first: np.ndarray, for_all: np.ndarray) -> np.ndarray:
    """Return shares x with (at_first + for_all · x) / rate equal for all nodes that have a share, and Σ x = 1.

    As a function of time, the sum of x is piecewise linear, with a bend where a node begins to take part. So go through
    the bends in order to find the node that begins last; a division then gives the time on its line.
    """
    begins_s = at_first / rates
    taking_part = np.zeros(len(rates), dtype=bool)
    time_s = 0.0
    for place in np.argsort(begins_s, kind="stable"):
        if taking_part.any() and time_s <= begins_s[place]:
            break
        taking_part[place] = True
        slope = float(np.sum((rates / for_all)[taking_part]))
        time_s = (1 + float(np.sum((at_first / for_all)[taking_part]))) / slope
    shares = np.where(taking_part, np.maximum(0.0, (rates * time_s - at_first) / for_all), 0.0)
    return np.asarray(shares / shares.sum())


def _loads(shares: np.ndarray, trains: np.ndarray) -> np.ndarray:
    """Return the bytes, in models, over each direction of each node's link, in both halves together."""
    count = int(trains.sum())
    return np.where(trains, 1 + (count - 2) * shares, count * shares)


def phases_s(
    workers: Sequence[ClusterNode],
    shares: Sequence[float],
    *,
    model_bytes: float,
    only_lead: Sequence[ClusterNode] = (),
    observer: ClusterNode | None = None,
) -> tuple[float, float]:
    """Return how long summing takes, and then distributing, if the second begins when the first is over everywhere.

    Each half takes as long as its busiest link or shared medium. The ``observer`` receives every share in the second
    half and sends none: a leader that keeps the versions.
    """
    nodes = (*workers, *only_lead)
    if len(shares) != len(nodes):
        raise Misuse(f"there are {len(shares)} shares for {len(nodes)} nodes; give one per node")
    count = len(workers)
    busy_s: list[dict[tuple[str, str], float]] = [{}, {}]

    def carry(half: int, node: ClusterNode, up_bytes: float, down_bytes: float) -> None:
        for way, link_s in (("up", up_bytes / node.up_bytes_per_s), ("down", down_bytes / node.down_bytes_per_s)):
            link = ("air", node.medium) if node.medium else (way, node.name)
            busy_s[half][link] = busy_s[half].get(link, 0.0) + link_s

    if observer is not None:
        carry(1, observer, 0.0, model_bytes)
    for place, (node, share) in enumerate(zip(nodes, shares, strict=True)):
        trains = place < count
        # The parts that others lead, and its own share times the number of other workers.
        theirs_bytes = model_bytes * (1 - share) if trains else 0.0
        own_bytes = model_bytes * share * (count - 1 if trains else count)
        told_bytes = model_bytes * share if observer is not None else 0.0
        carry(0, node, theirs_bytes, own_bytes)
        carry(1, node, own_bytes + told_bytes, theirs_bytes)
    first, second = (max(half.values()) for half in busy_s)
    return first, second


def _reason(nodes: Sequence[ClusterNode], shares: np.ndarray, loads_s: np.ndarray) -> str:
    leading = int(np.count_nonzero(shares > 0))
    least, most = float(shares[shares > 0].min()), float(shares.max())
    each = f"{100 * most:.1f} %" if most - least < 5e-4 else f"{100 * least:.1f} to {100 * most:.1f} %"
    told = f"{leading} of {len(nodes)} nodes lead {each} of the model each"
    slowest = int(np.argmax(loads_s))
    if leading < len(nodes) and shares[slowest] == 0:
        told += f"; {nodes[slowest].name} leads nothing, and still finishes last: {loads_s[slowest]:.2f} s"
    return told
