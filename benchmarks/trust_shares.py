"""Noise that devices add before they seal: what it costs, and whether an auditor learns more than the account says.

``--quick`` measures the processor time of one device at 720,967 values, the noise beside that of a leader at one
epsilon, and audits trainings on real handwriting: half of them with a writer, half without (its device sends zeros).
Eight writers are eight devices; the network is that of ``trust_private``. The auditor knows every writer's examples and
sees every model, and guesses by how far the models moved along the writer's updates. How well it guesses gives a lower
bound of epsilon (Nasr et al. 2021; Clopper and Pearson 1934), which has to stay below the epsilon that the plan states.
The same audit of trainings without noise shows that the auditor would see a leak.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from statistics import median

import numpy as np

from benchmarks.trust_private import BATCH, SIZE, STEPS, WRITERS, Handwriting, first_model, leases
from shoal.data.files import data_dir
from shoal.learning.accountant import ratio_for
from shoal.learning.clipping import clipped
from shoal.learning.privacy import SharedPrivacy
from shoal.plan import Plan, epochs
from shoal.sealing.noise import NoisePoint
from shoal.sealing.stream import stream
from testbed.results import say

PERNET = 720_967

#: Of an audit: devices of a version, versions, and what is stated. Every update is longer than the clip.
DEVICES, VERSIONS = 8, 2
EPSILON, DELTA, CLIP = 2.0, 1e-3, 0.1


def plan_of(epsilon: float, delta: float, *, devices: int, versions: int, clip: float = CLIP) -> Plan:
    return Plan(
        trust=f"sealed(8, 10%, 30%) + private({epsilon:g}, {delta:g})",
        data="local",
        cohort=devices,
        workers_min=devices,
        epoch_leases=devices,
        until=epochs(versions),
        clip_update=clip,
    )


def privacy_of(plan: Plan) -> SharedPrivacy:
    privacy = plan.privacy
    assert isinstance(privacy, SharedPrivacy)
    return privacy


# What it costs ------------------------------------------------------------------------------------------------------


def cost(values: int, *, devices: int = 50) -> dict[str, float]:
    """Of one device and version, in milliseconds of a core; and the noise by that of one leader, both afresh."""
    privacy = privacy_of(plan_of(8.0, 1e-5, devices=devices, versions=8))
    point = privacy.point
    update = np.random.default_rng(1).standard_normal(values).astype(np.float32)
    point.encode(update[:10], factor=1.0, chance=bytes(32))
    took_ms = []
    for number in range(5):
        started = time.process_time()
        point.encode(update, factor=1.0, chance=number.to_bytes(32, "big"))
        took_ms.append(1e3 * (time.process_time() - started))
    gaussian = math.sqrt(privacy.participations) / ratio_for(8.0, delta=1e-5)
    return {
        "shares_device_cpu_ms": median(took_ms),
        "shares_to_leader_noise": privacy.multiplier / gaussian,
        "shares_whole_to_smallest": math.sqrt(privacy.devices / privacy.certain),
    }


# An audit -----------------------------------------------------------------------------------------------------------


def trained(point: NoisePoint, images: np.ndarray, labels: np.ndarray, *, is_member: bool, seed: int) -> float:
    """Score the models of one training as an auditor would. The audit asks whether the last writer took part."""
    model, seen, chance = first_model(np.random.default_rng(0)), 0.0, stream(seed.to_bytes(32, "big"))
    for _ in range(VERSIONS):
        updates = [clipped(update, clip=point.clip) for update in leases(model, images, labels)]
        asked = updates[-1].astype(np.float64)
        if not is_member:
            updates[-1] = np.zeros_like(updates[-1])
        total = np.zeros(SIZE, dtype="<u4")
        for update in updates:
            total += point.encode(update, factor=1.0, chance=chance.update(bytes(32)))
        change = point.decode(total, times=1.0 / DEVICES)
        # Of the sum it knows all but the noise and whether the writer is in it.
        rest = DEVICES * change.astype(np.float64) - np.sum(updates[:-1], axis=0)
        seen += float(rest @ asked) / float(np.linalg.norm(asked))
        model = model + change
    return seen


def writers_of(data: Handwriting, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of a lease of each of eight writers."""
    rng = np.random.default_rng(seed)
    chosen = np.stack([rng.choice(data.of[writer], BATCH * STEPS) for writer in rng.permutation(WRITERS)[:DEVICES]])
    return data.images[chosen], data.labels[chosen]


def audited(point: NoisePoint, data: Handwriting, *, trainings: int, seed: int = 0) -> float:
    """The epsilon that an auditor can be sure of, with 95 % confidence, from so many trainings of each kind."""
    images, labels = writers_of(data, seed=seed)
    without, with_it = (
        np.array(
            [
                trained(point, images, labels, is_member=is_member, seed=2 * number + is_member)
                for number in range(seed * trainings, (seed + 1) * trainings)
            ]
        )
        for is_member in (False, True)
    )
    # Half way between what is expected of the two.
    return bound_of(without, with_it, level=VERSIONS * point.clip / 2)


def bound_of(without: np.ndarray, with_it: np.ndarray, *, level: float) -> float:
    """The largest lower bound of epsilon of guesses by a level that was chosen before."""
    best = 0.0
    for hits, false in ((with_it > level, without > level), (without <= level, with_it <= level)):
        low, high = _low(int(hits.sum()), hits.size), 1 - _low(int((~false).sum()), false.size)
        if low > DELTA:
            best = max(best, math.log((low - DELTA) / high))
    return best


def _low(hits: int, of: int, *, miss: float = 0.025) -> float:
    """The smallest chance with which so many hits are not unlikely (Clopper and Pearson 1934), by halving."""
    if hits == 0:
        return 0.0
    low, high = 0.0, hits / of
    for _ in range(50):
        middle = (low + high) / 2
        logs = [
            math.lgamma(of + 1)
            - math.lgamma(each + 1)
            - math.lgamma(of - each + 1)
            + each * math.log(middle)
            + (of - each) * math.log1p(-middle)
            for each in range(hits, of + 1)
        ]
        low, high = (low, middle) if sum(map(math.exp, logs)) > miss else (middle, high)
    return low


def audit(data: Handwriting, *, trainings: int, seed: int = 0) -> dict[str, float]:
    privacy = privacy_of(plan_of(EPSILON, DELTA, devices=DEVICES, versions=VERSIONS))
    point = privacy.point
    silent = NoisePoint(point.clip, point.length, 1, DEVICES)
    return {
        "audit_epsilon": audited(point, data, trainings=trainings, seed=seed),
        "audit_stated": privacy.epsilon,
        "audit_without_noise": audited(silent, data, trainings=trainings, seed=seed),
    }


def main() -> None:
    # Here: the benchmark of all of trust may import this one.
    from benchmarks.trust import load

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    quick = parser.parse_args().quick
    result = cost(PERNET)
    say(f"a device rounds and draws for {result['shares_device_cpu_ms']:.0f} ms of a core at {PERNET:,} values")
    digits = load(data_dir() / "mnist")
    result |= audit(Handwriting(digits.images, digits.labels, digits.writers), trainings=60 if quick else 1000)
    say(f"an auditor is sure of epsilon {result['audit_epsilon']:.2f}; the account states {result['audit_stated']:.2f}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
