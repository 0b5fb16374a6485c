"""The figures that FLeet's text reports, to stand beside ours. Its plots are not read off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: How much sooner than DynSGD AdaSGD is at 80 % (§3.2, Figure 8).
FEWER_STEPS = {"D1": 0.144, "D2": 0.184}

#: F1@5 of hourly updates over that of daily ones (§3.1, Figure 6).
ONLINE_OVER_DAILY = 2.3

#: §3.1: 2.6 million tweets in 13 days; a gradient's way out and back, exponential above its least.
POSTS_A_SECOND = 2_600_000 / (13 * 86_400)
TRIP_LEAST_S, TRIP_MEAN_S = 7.1, 8.45
#: Figure 7: Gaussian up to here, and a long tail beyond.
TAIL_FROM = 65

#: Share of gradients dropped, and the accuracy that it costs at most (§3.5, Figure 15).
DROPPED_SMALL = (0.392, 0.022)
DROPPED_SIMILAR = (0.17, 0.048)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A budget of a task, and by how much nine of ten tasks miss it at most."""

    size: float
    off: Mapping[str, float]


#: §3.3, Figures 12 and 13: seconds, and points (hundredths) of a battery.
BUDGETS: Mapping[str, Budget] = {
    "seconds": Budget(size=3.0, off={"iprof": 0.75, "maui": 2.7}),
    "battery": Budget(size=0.075, off={"iprof": 0.01, "maui": 0.19}),
}
