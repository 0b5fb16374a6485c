"""How often a device should send a heartbeat: by what it does, and by how many devices there are. Pure functions.

If a device that works is lost, its lease is lost too, and every second counts. A device that waits holds no lease: a
broken session is noticed at once, and a silent device when it is given work, as fast as any other.
"""

from __future__ import annotations

import math

from shoal.roles.node.failure_detector import Patience

#: Heartbeats per second from all devices that work. If they are few, each sends one every ``Patience.heartbeat_s``.
WORKING_PER_S = 500

#: Heartbeats per second from all devices that wait.
IDLE_PER_S = 100

#: A device that waits sends at least this many times fewer.
IDLE_FACTOR = 5

#: The longest intervals. The one of a device that works bounds how long its lease is out when it falls silent.
WORKING_MOST_S = 10.0
IDLE_MOST_S = 60.0


def interval_s(patience: Patience, *, devices: int, is_idle: bool) -> float:
    """Return the seconds between two heartbeats of a device in a fleet of this size.

    They are an integer multiple of the shortest interval: otherwise every device that comes or goes would change the
    interval of all others."""
    least_s = patience.heartbeat_s
    if is_idle:
        times = max(IDLE_FACTOR, math.ceil(devices / IDLE_PER_S / least_s))
        return max(least_s, min(times * least_s, IDLE_MOST_S))
    times = max(1, math.ceil(devices / WORKING_PER_S / least_s))
    return max(least_s, min(times * least_s, WORKING_MOST_S))
