"""How the root gives the model to all devices: a binomial broadcast, and its alternatives. Knows no rounds.

Each device with the model hands it on, so that the holders double each time: ⌈log2 N⌉ rounds instead of N - 1
(MDLdroid §3.2.3). Those who get it early hand it on most often; so they come in the order of what they have left. The
root begins: it has the sum, and that one device schedules and another broadcasts would be one more hop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.errors import Misuse
from shoal.flock.pairing.links import Links
from shoal.flock.pairing.pairs import Holder
from shoal.topology.cluster import ClusterNode
from shoal.topology.flows import FlowTransfer, finish_times_s
from shoal.topology.shard import phases_s


def richest_first(devices: Sequence[Holder], *, root: str) -> list[str]:
    """All devices but the root; the one that spent least first."""
    ordered = sorted(devices, key=lambda each: (each.spent_joules, each.name))
    return [each.name for each in ordered if each.name != root]


def rounds_needed(devices: int) -> int:
    """⌈log2 N⌉."""
    return max(0, devices - 1).bit_length()


def binomial(root: str, others: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Round by round (sender, receiver): each holder sends it to one device without it, in the order of ``others``."""
    if root in others or len(set(others)) < len(others):
        raise Misuse("a broadcast goes from the root to others, each named once")
    have, rounds = [root], []
    while len(have) <= len(others):
        told = others[len(have) - 1 : 2 * len(have) - 1]
        rounds.append(list(zip(have, told, strict=False)))
        have += told
    return rounds


def sends(rounds: Sequence[Sequence[tuple[str, str]]]) -> dict[str, int]:
    """How often each device hands it on."""
    counts: dict[str, int] = {}
    for one_round in rounds:
        for sender, _ in one_round:
            counts[sender] = counts.get(sender, 0) + 1
    return counts


def told_s(rounds: Sequence[Sequence[tuple[str, str]]], *, links: Links) -> dict[str, float]:
    """When each has it, if everyone sends one after the other and nobody waits for a round to end.

    ``links`` say how long a model takes from one to another.
    """
    free_s: dict[str, float] = {}
    told: dict[str, float] = {}
    for one_round in rounds:
        for sender, receiver in one_round:
            done_s = free_s.get(sender, 0.0) + links.merge_s(sender, receiver)
            told[receiver] = free_s[sender] = free_s[receiver] = done_s
    return told


def soonest(root: str, others: Sequence[str], *, links: Links) -> list[list[tuple[str, str]]]:
    """For links that differ: the next of ``others`` gets it from the holder that is soonest. One send a round.

    On equal links that is the binomial broadcast. Of two that are as soon, the one that has it longer sends.
    """
    free_s = {root: 0.0}
    order: list[list[tuple[str, str]]] = []
    for receiver in others:
        at_s, sender = math.inf, root
        for each, free in free_s.items():
            if (done_s := free + links.merge_s(each, receiver)) < at_s:
                at_s, sender = done_s, each
        free_s[sender] = free_s[receiver] = at_s
        order.append([(sender, receiver)])
    return order


# Against others ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Broadcasts:
    """Until everyone has the model, on the same links."""

    binomial_s: float
    #: The root sends it to each: a leader's way, over its one uplink.
    multicast_s: float
    #: Everyone has a share and sends it to all others: the second half of ``shape = shard``. It takes that the sum was
    #: made in shares too, by all of them at once.
    all_gather_s: float


def compare(
    root: str,
    others: Sequence[str],
    *,
    nodes: Mapping[str, ClusterNode],
    size_bytes: float,
    shares: Sequence[float] | None = None,
) -> Broadcasts:
    """All three by the same fluid model (``flows``, ``shard``): transfers share links, and air where it is shared.

    ``shares`` are of the root and then of the others; equal unless given.
    """
    everyone = [nodes[name] for name in (root, *others)]
    equal = [1 / len(everyone)] * len(everyone)
    gathered_s = phases_s(everyone, shares or equal, model_bytes=size_bytes)[1] if others else 0.0
    # A share crosses one link to the next: the longest delay there is, once.
    delay_s = sum(sorted((node.latency_s for node in everyone), reverse=True)[:2]) if others else 0.0
    return Broadcasts(
        binomial_s=_flow_s(binomial(root, others), nodes, size_bytes),
        multicast_s=_flow_s([[(root, other) for other in others]], nodes, size_bytes),
        all_gather_s=gathered_s + delay_s,
    )


def _flow_s(rounds: Sequence[Sequence[tuple[str, str]]], nodes: Mapping[str, ClusterNode], size_bytes: float) -> float:
    """Each device sends one thing at a time, once it has it."""
    transfers: list[FlowTransfer] = []
    told_by: dict[str, int] = {}
    for one_round in rounds:
        for sender, receiver in one_round:
            after = (told_by[sender],) if sender in told_by else ()
            told_by[receiver] = len(transfers)
            transfers.append(FlowTransfer(source=sender, target=receiver, size_bytes=size_bytes, after=after))
    return max(finish_times_s(transfers, nodes, hold_s=math.inf), default=0.0)
