"""Sends models from a node one after the other, like the transport. A pure queue over the virtual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from shoal.sim.kernel import Kernel

#: Sends a message, and calls its argument once the message has left.
Send = Callable[[Callable[[], object]], object]


class SendSlots:
    """A queue of sends. A turn ends when its message has left, or after a moment: a slow peer never delays a fast one.

    Without a holding time, all are sent at once and share the link, as in EDDL.
    """

    def __init__(self, kernel: Kernel, *, hold_s: float) -> None:
        self._kernel = kernel
        self._hold_s = hold_s
        self._waiting: deque[Send] = deque()
        #: The number of the current turn.
        self._turn = 0
        self._is_taken = False

    def take(self, send: Send) -> None:
        """Send a message when its turn comes."""
        if not self._hold_s:
            send(lambda: None)
        elif self._is_taken:
            self._waiting.append(send)
        else:
            self._begin(send)

    def _begin(self, send: Send) -> None:
        self._is_taken = True
        self._turn += 1
        turn = self._turn
        self._kernel.after(self._hold_s, self._over, turn)
        send(lambda: self._over(turn))

    def _over(self, turn: int) -> None:
        if turn != self._turn or not self._is_taken:
            return
        self._is_taken = False
        if self._waiting:
            self._begin(self._waiting.popleft())
