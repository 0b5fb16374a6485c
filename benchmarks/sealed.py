"""What a sealed sum costs beside a plain one: bytes of a device, and processor time of devices and leader.

The protocol as it is, without a network: every device seals a real vector, some are lost in each phase, and the leader
opens the sum. Times are of one core, the least of several: other processes make work slower, never faster. And how
often a device seals under a label twice, over seeds in which leaders die. A part of ``benchmarks.trust``.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dst.case import case
from dst.run import FuzzRun
from dst.seal_oracle import LabelCount
from shoal.learning.partial import Partial
from shoal.sealing import pair
from shoal.sealing.device import ENTROPY_BYTES, GroupPlace, SealedUpdate, seal
from shoal.sealing.fixed import BOUND_FIRST, FixedPoint, bound_after, word_type
from shoal.sealing.graph import shape_of
from shoal.sealing.group import MaskGraph
from shoal.sealing.helped import seal_for_helper, sum_of_masks
from shoal.sealing.label import Label
from shoal.sealing.opening import SumOpening, unmask

COLLUDING, LOST = 0.1, 0.3

#: How often a sum is opened.
TIMES = 3


@dataclass(slots=True)
class SealedCost:
    exact: bool
    bytes_ratio: float
    device_ms: float
    leader_ratio: float


def sealed_cost(devices: int, values: int, *, lost: float = 0.0, bits: int = 32) -> SealedCost:
    """Make one version of so many devices, in words of so many bits. A share of them is lost, a third of that share in
    each phase."""
    rng = np.random.default_rng(devices)
    private = [os.urandom(32) for _ in range(devices)]
    members = tuple((f"device-{place:04}", pair.public_of(key)) for place, key in enumerate(private))
    group = MaskGraph.of(
        shape_of(devices, math.ceil(round(devices * COLLUDING, 9)), LOST),
        tuple(os.urandom(16) for _ in members),
        least=8,
    )
    base = rng.standard_normal(values).astype(np.float32) * np.float32(0.01)
    label = Label(
        origin="", job="job", term=1, formation=0, group=1, members=members, bound=3, weight_most=1, base=b"base"
    ).digest()
    fixed = FixedPoint(3, devices, bits)
    gone = [set(part.tolist()) for part in np.array_split(rng.permutation(devices)[: int(devices * lost)], 3)]
    total, truth = (np.zeros(values, word_type(bits)) for _ in range(2))
    states: dict[int, SealedUpdate] = {}
    seals: dict[int, bytes] = {}
    device_ms: dict[int, float] = {}
    sums_s = []
    for place in range(devices):
        if place in gone[0]:
            continue
        update = base + np.float32(place * 1e-4)
        others = [other for other in range(devices) if other != place]
        keys = {other: pair.pair_key(private[place], members[place], members[other]) for other in others}
        entropy = os.urandom(ENTROPY_BYTES)
        start_s = time.process_time()
        seat = GroupPlace(group, place, label, keys)
        words, seals[place], states[place] = seal(seat, update, fixed=fixed, entropy=entropy)
        device_ms[place] = 1e3 * (time.process_time() - start_s)
        start_s = time.process_time()
        np.add(total, words, out=total)
        sums_s.append(time.process_time() - start_s)
        truth += fixed.encode(update, factor=1.0, chance=entropy[32:64])
    opening = SumOpening(group, seals, label)
    small = 0
    for place in sorted(opening.present - gone[1]):
        start_s = time.process_time()
        macs = states[place].agree(opening.present)
        device_ms[place] += 1e3 * (time.process_time() - start_s)
        small = max(small, len(macs))
        opening.on_agreed(place, macs)
    opening.begin()
    # Those that vanish after they agreed are found missing, and the others asked once more.
    while True:
        for place in sorted(opening.agreed - gone[2]):
            request = opening.request(place)
            start_s = time.process_time()
            vanished = states[place].envelopes_of(request.vanished, request.vanished_envelopes)
            part = states[place].open(request.macs, request.envelopes, vanished)
            device_ms[place] += 1e3 * (time.process_time() - start_s)
            opening.on_opened(place, part, request.vanished)
        if opening.is_enough or not opening.begin_again():
            break
    opens_s = []
    for _ in range(TIMES):
        masked = total.copy()
        start_s = time.process_time()
        unmask(masked, opening.masks(), label)
        opens_s.append(time.process_time() - start_s)
    leader_s = len(seals) * min(sums_s) + min(opens_s)
    plain = 4 * values
    up = total.nbytes + len(seals[min(seals)]) + small + 17 * group.shape.neighbours
    return SealedCost(
        exact=bool(np.array_equal(masked, truth)),
        bytes_ratio=up / plain,
        device_ms=min(device_ms.values()),
        leader_ratio=leader_s / (len(seals) * _plain_s(base, base + np.float32(1))),
    )


@dataclass(slots=True)
class HelpedCost:
    exact: bool
    device_ms: float
    leader_ratio: float
    helper_ms: float


def helped_cost(devices: int, values: int) -> HelpedCost:
    """Make one version of so many devices whose sum a helper opens."""
    helper_private, base = os.urandom(32), np.random.default_rng(devices).standard_normal(values).astype(np.float32)
    helper, fixed = ("helper", pair.public_of(helper_private)), FixedPoint(3, devices)
    base *= np.float32(0.01)
    private = [os.urandom(32) for _ in range(devices)]
    members = tuple((f"device-{place:04}", pair.public_of(key)) for place, key in enumerate(private))
    label = Label(
        origin="", job="job", term=1, formation=0, group=1, members=members, bound=3, weight_most=1, base=b"base"
    ).digest()
    total, truth = (np.zeros(values, word_type(32)) for _ in range(2))
    envelopes: dict[int, bytes] = {}
    device_s, sums_s = [], []
    for place in range(devices):
        update, entropy = base + np.float32(place * 1e-4), os.urandom(ENTROPY_BYTES)
        key = pair.pair_key(private[place], members[place], helper)
        start_s = time.process_time()
        words, envelopes[place] = seal_for_helper(
            update, key=key, label=label, place=place, fixed=fixed, entropy=entropy
        )
        device_s.append(time.process_time() - start_s)
        start_s = time.process_time()
        np.add(total, words, out=total)
        sums_s.append(time.process_time() - start_s)
        truth += fixed.encode(update, factor=1.0, chance=entropy[32:64])
    keys = {place: pair.pair_key(helper_private, helper, member) for place, member in enumerate(members)}
    start_s = time.process_time()
    masks = sum_of_masks(keys, envelopes, label, words=values, bits=32)
    helper_s = time.process_time() - start_s
    start_s = time.process_time()
    np.subtract(total, masks, out=total)
    leader_s = devices * min(sums_s) + time.process_time() - start_s
    return HelpedCost(
        exact=bool(np.array_equal(total, truth)),
        device_ms=1e3 * min(device_s),
        leader_ratio=leader_s / (devices * _plain_s(base, base + np.float32(1))),
        helper_ms=1e3 * helper_s,
    )


def _plain_s(*updates: np.ndarray) -> float:
    """Measure how long a leader adds up one plain update. Each is another than the one before, so no cache has it."""
    partial = Partial(updates[0].size)
    taken_s = []
    for _ in range(8):
        for update in updates:
            start_s = time.process_time()
            partial.add(update, weight=1.0)
            taken_s.append(time.process_time() - start_s)
    return min(taken_s)


class WordMean:
    """Means of sealed updates as a leader finds them, without their masks, which cancel. Bounds follow each other as at
    the leader."""

    def __init__(self, devices: int, *, bits: int, seed: int) -> None:
        self._devices, self._bits, self._seed = devices, bits, seed
        self._bound, self._sums = BOUND_FIRST[bits], 0

    def mean(self, updates: np.ndarray) -> np.ndarray:
        fixed = FixedPoint(self._bound, self._devices, self._bits)
        total = np.zeros(updates.shape[1], word_type(self._bits))
        for device, update in enumerate(updates):
            chance = hashlib.sha256(f"{self._seed} {self._sums} {device}".encode()).digest()
            total += fixed.encode(update, factor=1.0, chance=chance)
        self._sums += 1
        mean = fixed.decode(total, times=1 / len(updates))
        self._bound = bound_after(mean, bits=self._bits, before=self._bound)
        return mean


def labels_of(seeds: Iterable[int]) -> dict[str, int]:
    """Play these seeds of sealed jobs with their faults: how many seals devices made, how many of them under a label
    that the device had used before, and in how many jobs a device sealed for more than one leader."""
    used = twice = moved = 0
    for seed in seeds:
        count = LabelCount()
        FuzzRun(case("sealed", seed), observers=[count]).run()
        used, twice = used + count.used, twice + count.twice
        jobs = [job for job, _ in count.terms]
        moved += sum(jobs.count(job) > 1 for job in set(jobs))
    return {"labels_twice": twice, "labels_used": used, "labels_jobs_of_several_leaders": moved}


def measure_sealed(values: int) -> dict[str, float | bool]:
    """What ``benchmarks.trust`` says of the cost of sealed sums."""
    eight, sixty_four = sealed_cost(8, values), sealed_cost(64, values)
    lost, short = sealed_cost(64, values, lost=0.3), sealed_cost(64, values, bits=16)
    helped = helped_cost(64, values)
    return {
        "sealed8_bytes": round(eight.bytes_ratio, 5),
        "sealed64_bytes": round(sixty_four.bytes_ratio, 5),
        "sealed8_device_cpu_ms": round(eight.device_ms, 1),
        "sealed64_device_cpu_ms": round(sixty_four.device_ms, 1),
        "sealed64_leader_ratio": round(sixty_four.leader_ratio, 2),
        "sealed64_leader_ratio_lost30": round(lost.leader_ratio, 2),
        "int16_bytes": round(short.bytes_ratio, 5),
        "int16_device_cpu_ms": round(short.device_ms, 1),
        "helper64_device_cpu_ms": round(helped.device_ms, 1),
        "helper64_leader_ratio": round(helped.leader_ratio, 2),
        "helper64_helper_cpu_ms": round(helped.helper_ms, 1),
        "exact": eight.exact and sixty_four.exact and lost.exact and short.exact and helped.exact,
    }
