"""The same contest for energy, on the simulator's device model: phones that warm and drain. Nothing is measured.

Budget: 0.075 % of a battery, as in FLeet. The frequency of a modelled phone is not known, and profilers are told so.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from shoal.scheduling.profile.features import Features
from shoal.sim.devices import Build, ComputeJob, Device
from shoal.sim.profiles import builds
from shoal.sim.rng import Rng

BUDGET_SHARE = 0.075 / 100
PROFILE = "wifi-phones"

#: LeNet-5's forward pass.
GMACS_PER_EXAMPLE = 4.2e-4
BATCH = 32
#: From the end of a task to the next request of the same device.
REST_S = 90.0

_JOULES_PER_WH = 3600.0
#: A full battery of the profile's phones; what is left in each differs.
_FULL_WH = 12.0
BUDGET_J = BUDGET_SHARE * _FULL_WH * _JOULES_PER_WH


class Modelled:
    """``count`` phones, each of another kind."""

    def __init__(self, seed: int, count: int) -> None:
        chance = Rng(seed)
        self._devices = {
            f"phone-{place}": Device(build, chance.stream("jitter", str(place)))
            for place, build in enumerate(islice(_distinct(builds(PROFILE, 20 * count, chance)), count))
        }
        self._now_s = dict.fromkeys(self._devices, 0.0)

    @property
    def names(self) -> list[str]:
        return list(self._devices)

    def features(self, device: str, request: int) -> Features:
        phone, now_s = self._devices[device], self._now_s[device]
        return Features(
            device=device,
            kind=phone.build.kind,
            memory_total_mb=phone.build.memory_mb,
            temperature_c=phone.temperature_c(now_s),
            battery=min(1.0, phone.battery_left_wh(now_s) / _FULL_WH),
            joules_per_cpu_s=phone.build.train_watts,
        )

    def spend(self, device: str, request: int, examples: int) -> float:
        phone, began_s = self._devices[device], self._now_s[device]
        before_j = phone.spent_j(began_s)
        work = ComputeJob(gmacs_per_example=GMACS_PER_EXAMPLE, examples=examples, batches=-(-examples // BATCH))
        ended_s = began_s + phone.seconds_for(work, began_s)
        self._now_s[device] = ended_s + REST_S
        return phone.spent_j(ended_s) - before_j


def _distinct(drawn: Iterable[Build]) -> Iterable[Build]:
    seen = set()
    for build in drawn:
        if build.kind not in seen:
            seen.add(build.kind)
            yield build
