"""Which devices are busy when a round begins, and for how long. Times are in merges; knows no scheduler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.flock.pairing.pairs import Holder

#: §4.4.1: at most half of the devices.
BUSY_MOST = 0.5
#: How long at most, in merges, where nothing else is said: the paper does not say it.
LONGEST = 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """When each device is ready, in merges from the beginning of the round; 0: it is free."""

    ready: tuple[float, ...]

    @property
    def devices(self) -> int:
        return len(self.ready)

    @property
    def busy(self) -> tuple[bool, ...]:
        """All that a scheduler sees at the beginning."""
        return tuple(value > 0 for value in self.ready)

    def standings(self) -> list[Holder]:
        return [Holder(name=name_of(place), ready_s=value) for place, value in enumerate(self.ready)]


def name_of(place: int) -> str:
    return f"d{place:02d}"


def place_of(name: str) -> int:
    return int(name[1:])


def drawn(devices: int, *, seed: int, number: int, longest: float = LONGEST) -> Pattern:
    """From none to half of the devices are busy, each for up to ``longest``; all equally likely."""
    generator = np.random.default_rng([seed, devices, number])
    count = int(generator.integers(0, int(devices * BUSY_MOST) + 1))
    ready = np.zeros(devices)
    ready[generator.choice(devices, count, replace=False)] = generator.uniform(0, longest, count)
    return Pattern(ready=tuple(float(value) for value in ready))


def idle(devices: int) -> Pattern:
    return Pattern(ready=(0.0,) * devices)
