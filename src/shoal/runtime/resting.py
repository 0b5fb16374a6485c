"""A device's clock and warmth held against its limits, every few seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from shoal.runtime import sensors
from shoal.runtime.device_limits import DeviceLimits

log = logging.getLogger(__name__)

#: How often a device looks. It is out of its hours, or too warm, for at most this long.
LOOK_S = 5.0


class Resting:
    def __init__(self, limits: DeviceLimits, *, root: Path = Path("/")) -> None:
        self._limits = limits
        #: Below it the system tells its sensors.
        self._root = root
        if limits.temperature_most_c and sensors.temperature_c(root=root) is None:
            log.warning("this device tells no temperature: --max-temperature has no effect")

    def why(self, *, rests: bool) -> str | None:
        """Why the device rests now; None: it works."""
        now = time.localtime()
        warmth_c = sensors.temperature_c(root=self._root) if self._limits.temperature_most_c else None
        return self._limits.why_rest(minute=now.tm_hour * 60 + now.tm_min, temperature_c=warmth_c, rests=rests)

    async def until_rest(self) -> str:
        """Wait until the device has to rest; why."""
        while (reason := self.why(rests=False)) is None:
            await asyncio.sleep(LOOK_S)
        return reason

    async def until_work(self) -> None:
        """Wait until the device may work."""
        if (reason := self.why(rests=False)) is None:
            return
        log.info("this device rests: %s", reason)
        while self.why(rests=True) is not None:
            await asyncio.sleep(LOOK_S)
        log.info("this device works again")
