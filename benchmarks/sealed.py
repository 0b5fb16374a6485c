"""What a sealed sum costs beside a plain one: bytes of a device, and processor time of devices and leader.

The protocol as it is, without a network: every device seals a real vector, some are lost in each phase, and the leader
opens the sum. Times are of one core, and medians over devices. A part of ``benchmarks.trust``.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from shoal.learning.partial import Partial
from shoal.sealing import pair
from shoal.sealing.device import ENTROPY_BYTES, GroupPlace, SealedUpdate, seal
from shoal.sealing.fixed import FixedPoint
from shoal.sealing.graph import shape_of
from shoal.sealing.group import MaskGraph
from shoal.sealing.label import Label
from shoal.sealing.opening import SumOpening, unmask

COLLUDING, LOST = 0.1, 0.3


@dataclass(slots=True)
class SealedCost:
    exact: bool
    bytes_ratio: float
    device_ms: float
    leader_ratio: float
    labels: list[bytes] = field(default_factory=list)


def sealed_cost(devices: int, values: int, *, lost: float = 0.0) -> SealedCost:
    """Make one version of so many devices. A share of them is lost, a third of that share in each phase."""
    rng = np.random.default_rng(devices)
    private = [os.urandom(32) for _ in range(devices)]
    members = tuple((f"device-{place:04}", pair.public_of(key)) for place, key in enumerate(private))
    group = MaskGraph.of(shape_of(devices, COLLUDING, LOST), tuple(os.urandom(16) for _ in members), least=8)
    base = rng.standard_normal(values).astype(np.float32) * np.float32(0.01)
    label = Label(
        origin="", job="job", term=1, formation=0, group=1, members=members, bound=3, weight_most=1, base=b"base"
    ).digest()
    fixed = FixedPoint(3, devices)
    gone = [set(part.tolist()) for part in np.array_split(rng.permutation(devices)[: int(devices * lost)], 3)]
    total, truth = np.zeros(values, "<u4"), np.zeros(values, "<u4")
    states: dict[int, SealedUpdate] = {}
    seals: dict[int, bytes] = {}
    device_ms: dict[int, float] = {}
    sum_s = 0.0
    for place in range(devices):
        if place in gone[0]:
            continue
        update = base + np.float32(place * 1e-4)
        keys = {other: pair.pair_key(private[place], members[place], members[other]) for other in group.near[place]}
        entropy = os.urandom(ENTROPY_BYTES)
        start_s = time.process_time()
        seat = GroupPlace(group, place, label, keys)
        words, seals[place], states[place] = seal(seat, update, fixed=fixed, factor=1.0, entropy=entropy)
        device_ms[place] = 1e3 * (time.process_time() - start_s)
        start_s = time.process_time()
        np.add(total, words, out=total)
        sum_s += time.process_time() - start_s
        truth += fixed.encode(update, factor=1.0, chance=entropy[32:64])
    opening = SumOpening(group, seals, label)
    small = 0
    for place in sorted(opening.present - gone[1]):
        start_s = time.process_time()
        agreement = states[place].agree(opening.present)
        device_ms[place] += 1e3 * (time.process_time() - start_s)
        small = max(small, len(agreement.macs) + len(agreement.edges))
        opening.on_agreed(place, agreement.macs, agreement.edges)
    opening.begin()
    for place in sorted(opening.agreed - gone[2]):
        request = opening.request(place)
        start_s = time.process_time()
        vanished = states[place].envelopes_of(request.vanished, request.vanished_envelopes)
        shares, edges = states[place].open(request.macs, request.envelopes, vanished)
        device_ms[place] += 1e3 * (time.process_time() - start_s)
        opening.on_opened(place, shares, edges)
    start_s = time.process_time()
    unmask(total, opening.masks(), label)
    open_s = time.process_time() - start_s
    plain = 4 * values
    up = plain + len(seals[min(seals)]) + small + 17 * group.shape.neighbours
    return SealedCost(
        exact=bool(np.array_equal(total, truth)),
        bytes_ratio=up / plain,
        device_ms=median(device_ms.values()),
        leader_ratio=(sum_s + open_s) / _plain_s(base, len(seals)),
        labels=[hashlib.sha256(label + bytes([place % 256, place // 256])).digest() for place in states],
    )


def _plain_s(update: np.ndarray, devices: int) -> float:
    """What the leader takes to sum up as many plain updates."""
    partial = Partial(update.size)
    start_s = time.process_time()
    for _ in range(devices):
        partial.add(update, weight=1.0)
    return time.process_time() - start_s


def measure_sealed(values: int) -> dict[str, float | bool | int]:
    """What ``benchmarks.trust`` says of sealed sums."""
    eight, sixty_four = sealed_cost(8, values), sealed_cost(64, values)
    lost = sealed_cost(64, values, lost=0.3)
    labels = [*eight.labels, *sixty_four.labels, *lost.labels]
    return {
        "sealed8_bytes": round(eight.bytes_ratio, 5),
        "sealed64_bytes": round(sixty_four.bytes_ratio, 5),
        "sealed8_device_cpu_ms": round(eight.device_ms, 1),
        "sealed64_device_cpu_ms": round(sixty_four.device_ms, 1),
        "sealed64_leader_ratio": round(sixty_four.leader_ratio, 2),
        "sealed64_leader_ratio_lost30": round(lost.leader_ratio, 2),
        "exact": eight.exact and sixty_four.exact and lost.exact,
        "labels_twice": len(labels) - len(set(labels)),
    }
