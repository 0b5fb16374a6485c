"""A drawn fleet for benchmarks of profilers: what each device is, and how its speed changes. Starts no processes.

A device's speed follows its frequency and memory, but only so far: a hidden factor is its own. From request to request
it warms and cools, slows with it as much as its own k says, wanders a little, and now and then another program takes
part of it for one to four requests. All of it is drawn before the first request, so that whoever sizes the tasks meets
the same conditions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.scheduling.profile.features import Features
from shoal.sim.rng import Rng, Stream

#: (memory in MB, summed highest frequency in MHz) of boards and phones as they are sold.
_BUILDS = (
    (1024, 4_800), (2048, 6_000), (2048, 7_200), (3072, 9_600), (4096, 10_800),
    (4096, 12_800), (6144, 14_400), (6144, 16_800), (8192, 18_400), (8192, 20_000),
)  # fmt: skip

#: How much of a device's speed its figures do not tell, as the deviation of a logarithm.
HIDDEN = 0.25

BURST_CHANCE = 0.03
BURST_MOST_REQUESTS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A device at one request."""

    temperature_c: float
    available_mb: float
    #: Of its nominal speed.
    speed: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One device of the fleet."""

    name: str
    memory_mb: float
    frequency_mhz: float
    #: The deviation of the logarithm of what one task takes, where tasks are drawn too.
    noise: float
    moments: tuple[Moment, ...]

    def features(self, request: int) -> Features:
        moment = self.moments[request]
        return Features(
            device=self.name,
            kind=f"kind of {self.name}",
            memory_total_mb=self.memory_mb,
            memory_available_mb=moment.available_mb,
            frequency_sum_mhz=self.frequency_mhz,
            temperature_c=moment.temperature_c,
        )


def draw_fleet(seed: int, count: int, *, requests: int, name: str = "device") -> list[Member]:
    """Devices that differ in speed by about ten times. Of another name they are others."""
    chance = Rng(seed)
    return [_member(f"{name}-{i + 1}", requests, chance.stream(name, str(i))) for i in range(count)]


def sudden_share(members: Sequence[Member], *, after: int, change: float = 0.15) -> float:
    """How many requests, but for the first so many, met a speed unlike that of the request before: nobody foresees
    those, and where they are a tenth no profiler's ninth decile is small."""
    pairs = [pair for member in members for pair in pairwise(member.moments[after - 1 :])]
    return sum(abs(math.log(now.speed / before.speed)) > change for before, now in pairs) / len(pairs)


def _member(name: str, requests: int, stream: Stream) -> Member:
    memory_mb, frequency_mhz = stream.pick(_BUILDS)
    told = 0.9 * math.log(frequency_mhz / 12_000) + 0.15 * math.log(memory_mb / 4096)
    nominal = math.exp(told + HIDDEN * stream.normal())
    return Member(
        name=name,
        memory_mb=memory_mb,
        frequency_mhz=frequency_mhz,
        noise=stream.between(0.03, 0.10),
        moments=tuple(_moments(requests, nominal, memory_mb, stream)),
    )


def _moments(requests: int, nominal: float, memory_mb: float, stream: Stream) -> list[Moment]:
    k = stream.between(0.0, 0.5)
    temperature_c, towards_c = stream.between(25.0, 35.0), stream.between(28.0, 48.0)
    wander, burst, burst_left = 0.0, 1.0, 0
    moments = []
    for _ in range(requests):
        moments.append(
            Moment(
                temperature_c=temperature_c,
                available_mb=memory_mb * stream.between(0.2, 0.6),
                speed=nominal / (math.exp(k * (temperature_c - 30) / 15 + wander) * burst),
            )
        )
        if stream.happens(0.15):
            # Put down, or taken up again.
            towards_c = stream.between(28.0, 48.0)
        temperature_c += 0.25 * (towards_c - temperature_c) + 0.7 * stream.normal()
        wander += 0.02 * stream.normal()
        burst_left -= 1
        if burst_left <= 0:
            burst = 1.0
            if stream.happens(BURST_CHANCE):
                burst, burst_left = stream.between(1.2, 1.7), 1 + stream.below(BURST_MOST_REQUESTS)
    return moments
