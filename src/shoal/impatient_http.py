"""HTTP connections that must say what they want: a stranger's silence costs the others nothing.

uvicorn waits for the first request of a connection without an end, and counts connections only once they have asked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: A connection has sent the head of a request within this time.
REQUEST_WITHIN_S = 5.0
#: Connections of one address that have not asked yet. A school behind one address opens dozens of pages at a time.
SILENT_PER_ADDRESS = 64


def impatient(connections_max: int) -> type[H11Protocol]:
    """Return uvicorn's protocol with bounds on connections that have not asked, which one server's share."""
    silent: Counter[str] = Counter()

    class Impatient(H11Protocol):
        _due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > connections_max or silent[self._address] >= SILENT_PER_ADDRESS:
                transport.abort()
            else:
                self._expect()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self._is_waiting:
                self._stop_expecting()
            elif self._due is None and not self.transport.is_closing():
                # The head of a second request that drips.
                self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_expecting()
            super().connection_lost(exc)

        @property
        def _address(self) -> str:
            return self.client[0] if self.client is not None else ""

        @property
        def _is_waiting(self) -> bool:
            """Whether the next thing is the head of a request. An upgraded connection has another protocol."""
            cycle: Any = self.cycle
            return self.transport.get_protocol() is self and (cycle is None or cycle.response_complete)

        def _expect(self) -> None:
            silent[self._address] += 1
            self._due = asyncio.get_running_loop().call_later(REQUEST_WITHIN_S, self.transport.abort)

        def _stop_expecting(self) -> None:
            if self._due is None:
                return
            self._due.cancel()
            self._due = None
            silent[self._address] -= 1
            if not silent[self._address]:
                del silent[self._address]

    return Impatient
