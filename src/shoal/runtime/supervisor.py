"""Tells systemd that this service serves and that its event loop is alive: datagrams to the socket of ``Type=notify``.

Written out here: the protocol is a line of text, and no library for it is on every device.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable

#: While a service starts, each turn of its loop asks systemd to wait this much longer: a manager may wait for its
#: database.
STARTS_WITHIN_S = 60.0


class Supervisor:
    """The service manager that started this process, if there is one that listens. ``turn`` belongs in the loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        # Taken out: systemd listens only to this process, and tasks need not know of it.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        pid = os.environ.pop("WATCHDOG_PID", "")
        every = os.environ.pop("WATCHDOG_USEC", "")
        is_ours = not pid or pid == str(os.getpid())
        #: Half of what systemd waits, as it advises; 0 means that it does not watch.
        self._every_s = int(every) / 2e6 if every.isdecimal() and is_ours else 0.0
        self._clock = clock
        self._is_ready = False
        self._turned_s = -STARTS_WITHIN_S

    def ready(self, status: str) -> None:
        """The service does its work from now on."""
        self._is_ready = True
        self._tell(f"READY=1\nSTATUS={status}")

    def turn(self) -> None:
        """The event loop turned."""
        every_s = self._every_s if self._is_ready else STARTS_WITHIN_S / 4
        now_s = self._clock()
        if not every_s or now_s - self._turned_s < every_s / 2:
            return
        self._turned_s = now_s
        self._tell("WATCHDOG=1" if self._is_ready else f"EXTEND_TIMEOUT_USEC={STARTS_WITHIN_S * 1e6:.0f}")

    async def run(self) -> None:
        """Turn as often as it takes, until cancelled; at once over if nobody watches."""
        while self._address and self._every_s:
            self.turn()
            await asyncio.sleep(self._every_s / 2)

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def _tell(self, text: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is one of Linux's own, which is in no file system.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            # Never wait: a full queue means that systemd does not read, and what it asks for is told again.
            to.setblocking(False)
            to.sendto(text.encode(), address)
