"""The figures that FLeet's text reports, to stand beside ours. Its plots are not read off."""

from __future__ import annotations

#: How much sooner than DynSGD AdaSGD is at 80 % (§3.2, Figure 8).
FEWER_STEPS = {"D1": 0.144, "D2": 0.184}

#: F1@5 of hourly updates over that of daily ones (§3.1, Figure 6).
ONLINE_OVER_DAILY = 2.3

#: Share of gradients dropped, and the accuracy that it costs at most (§3.5, Figure 15).
DROPPED_SMALL = (0.392, 0.022)
DROPPED_SIMILAR = (0.17, 0.048)
