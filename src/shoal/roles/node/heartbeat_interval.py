"""How often a device is asked for a heartbeat: by what it does, and by how many devices there are. Pure functions.

A device that works is lost with its lease, and every second counts. A device that waits holds nothing: the break of its
session is noticed at once, as before, and a silent one is found out when it is given work, as fast as any other.
"""

from __future__ import annotations

import math

from shoal.roles.node.failure_detector import Patience

#: Heartbeats a second from devices that work. With fewer such devices each sends one every ``Patience.heartbeat_s``.
WORKING_PER_S = 500

#: The same from devices that wait: of so many at most a heartbeat a second is heard.
IDLE_PER_S = 100

#: A device that waits sends at least this many times fewer.
IDLE_FACTOR = 5

#: The longest intervals. The one of a device that works bounds how long its lease is out when it falls silent.
WORKING_MOST_S = 10.0
IDLE_MOST_S = 60.0


def interval_s(patience: Patience, *, devices: int, is_idle: bool) -> float:
    """The seconds between two heartbeats of a device in a fleet of this size, as a multiple of the shortest ones.

    Whole multiples: with every device that comes or goes all others would be told another interval otherwise."""
    least_s = patience.heartbeat_s
    if is_idle:
        times = max(IDLE_FACTOR, math.ceil(devices / IDLE_PER_S / least_s))
        return max(least_s, min(times * least_s, IDLE_MOST_S))
    times = max(1, math.ceil(devices / WORKING_PER_S / least_s))
    return max(least_s, min(times * least_s, WORKING_MOST_S))
