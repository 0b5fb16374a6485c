"""This node's side of a session that it dialled: says hello, sends heartbeats, decides when to give up and try again.

Pure state; the driver owns the connection.
"""

from __future__ import annotations

import hashlib

from shoal.roles.node.doorway import TWICE
from shoal.wire.messages import Facts, Heartbeat, Hello, Leads

#: Waits between attempts to reach a peer. The first is short: a peer that restarts is back at once.
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

#: The same if another device has connected under our name: it will not leave soon.
TWICE_BACKOFF_S = (10.0, 60.0, 180.0, 300.0)

#: How long an attempt may take: the first one, and later ones, which get longer.
CONNECT_FIRST_S = 2.0
CONNECT_LONGEST_S = 20.0

#: How long a peer may take to welcome us.
WELCOME_TIMEOUT_S = 15.0


class DialState:
    def __init__(self, *, node: str, incarnation: str, peer: str) -> None:
        self._node = node
        self._incarnation = incarnation
        #: The peer's name as people read it.
        self._peer = peer
        self.welcomed = False
        self.heartbeat_s = 1.0
        self._lost_after_s = 8.0
        self._opened_s = 0.0
        #: Attempts in a row that did not lead to a welcome.
        self.attempts = 0
        #: Attempts in a row that were refused because another device uses our identity.
        self._twice = 0
        self._seq = 0
        self._answered = 0

    def on_opened(self, facts: Facts, now_s: float, *, leads: tuple[Leads, ...] = (), lends: bool = False) -> Hello:
        """There is a control stream."""
        self.welcomed = False
        self._opened_s = now_s
        self._seq = self._answered = 0
        return Hello(node=self._node, incarnation=self._incarnation, facts=facts, leads=leads, lends=lends)

    def on_welcome(self, *, heartbeat_s: float, lost_after_s: float) -> None:
        self.heartbeat_s, self._lost_after_s = heartbeat_s, lost_after_s
        self.welcomed = True

    def on_answered(self, seq: int) -> None:
        self._answered = max(self._answered, seq)

    def on_closed(self, reason: str | None = None) -> None:
        """The connection is over, or could not be made."""
        self._twice = self._twice + 1 if reason is not None and TWICE in reason else 0
        self.attempts = 0 if self.welcomed else self.attempts + 1
        self.welcomed = False

    def backoff_s(self) -> float:
        """How long to wait before the next attempt: longer each time, and different for each device, so that devices do
        not storm a peer that restarts."""
        base_s = BACKOFF_S[min(self.attempts, len(BACKOFF_S) - 1)]
        if self._twice:
            base_s = TWICE_BACKOFF_S[min(self._twice, len(TWICE_BACKOFF_S)) - 1]
        digest = hashlib.sha256(f"{self._node}/{self.attempts}".encode()).digest()
        return base_s * (0.75 + 0.5 * digest[0] / 255)

    def connect_timeout_s(self) -> float:
        """How long an attempt may take: short at first, as TCP resends lost packets ever more slowly."""
        return min(CONNECT_FIRST_S * 2.0 ** min(self.attempts, 10), CONNECT_LONGEST_S)

    def beat(
        self, now_s: float, *, load: float = 0.0, memory_free_mb: int = 0, link_bytes_per_s: float = 0.0
    ) -> tuple[Heartbeat | None, str | None]:
        """To be called every ``heartbeat_s`` while connected: the heartbeat to send, and why to hang up, if at all."""
        if not self.welcomed:
            if now_s - self._opened_s < WELCOME_TIMEOUT_S:
                return None, None
            return None, f"{self._peer} did not welcome this node within {WELCOME_TIMEOUT_S:g} s"
        self._seq += 1
        beat = Heartbeat(seq=self._seq, load=load, memory_free_mb=memory_free_mb, link_bytes_per_s=link_bytes_per_s)
        if (self._seq - self._answered) * self.heartbeat_s > self._lost_after_s:
            return beat, f"{self._peer} has not answered for {self._lost_after_s:g} s"
        return beat, None
