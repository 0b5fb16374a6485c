"""This node's side of a session that it dialled: says hello, sends heartbeats, decides when to give up and try again.

Pure state; the driver owns the connection.
"""

from __future__ import annotations

import hashlib
from collections import deque

from shoal.roles.node.doorway import TWICE
from shoal.roles.node.failure_detector import longer_after_s
from shoal.wire.messages import Facts, Heartbeat, Hello, Leads

#: Waits between attempts to reach a peer. The first is short: a peer that restarts is back at once.
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

#: A manager's core lets in so many devices within a second or two, whenever they come. Of more it lets in so many a
#: second (277 were measured, with handshakes of TLS); devices that would have to wait for longer than a handshake may
#: take dial again, in vain: so they are asked to come later.
REDIAL_SPARED = 300
REDIALS_PER_S = 200

#: Where another manager takes over within seconds, the longest wait between two turns of all their addresses, for so
#: many turns.
SUCCESSOR_WAIT_S = 0.5
SUCCESSOR_TURNS = 30

#: The longest wait of all.
REDIAL_MOST_S = 600.0

#: The same if another device has connected under our name: it will not leave soon.
TWICE_BACKOFF_S = (10.0, 60.0, 180.0, 300.0)

#: How long an attempt may take: the first one, and later ones, which get longer.
CONNECT_FIRST_S = 2.0
CONNECT_LONGEST_S = 20.0

#: By how much the load, and by what share free memory and the rate of the link have to change to be worth telling.
LOAD_STEP = 0.25
MEMORY_STEP = 0.125
RATE_STEP = 0.125

#: How long a peer may take to welcome us.
WELCOME_TIMEOUT_S = 15.0


def redial_s(devices: int) -> float:
    """Over how long the devices of a fleet are to spread their second attempts to connect; 0: few need not wait."""
    return 0.0 if devices <= REDIAL_SPARED else min(devices / REDIALS_PER_S, REDIAL_MOST_S)


class DialState:
    def __init__(self, *, node: str, incarnation: str, peer: str) -> None:
        self._node = node
        self._incarnation = incarnation
        #: The peer's name as people read it.
        self._peer = peer
        self.welcomed = False
        #: Where the peer may be dialled, in order; empty: where its driver knows.
        self._endpoints: tuple[str, ...] = ()
        #: If the peer is gone, another takes its place.
        self._has_successor = False
        #: A manager sent this node to another one, which is dialled next; empty: none did.
        self._referred = ""
        #: It was sent there in the session that is about to end.
        self._is_going = False
        #: Over how long the peer wants attempts to be spread; 0: it did not say.
        self._redial_s = 0.0
        #: The peer has no work: how long after this session it is dialled again; 0: it did not say.
        self._come_s = 0.0
        #: How often the peer wants a heartbeat: by its welcome, and by its last answer.
        self._welcome_s = 1.0
        self.heartbeat_s = 1.0
        self._lost_after_s = 8.0
        self._opened_s = 0.0
        #: Attempts in a row that did not lead to a welcome.
        self.attempts = 0
        #: Attempts in a row that were refused because another device uses our identity.
        self._twice = 0
        self._seq = 0
        #: (number, interval) of the heartbeats that the peer has not answered.
        self._unanswered: deque[tuple[int, float]] = deque()
        #: This node had nothing to do at the last heartbeat.
        self._is_idle = False
        #: It is given up because it does not answer.
        self._is_silent = False
        #: The peer said something else since the last heartbeat was due.
        self._is_heard = False
        #: Load, memory, rate and whether it waited, as the peer knows them.
        self._told: tuple[float, int, float, bool] | None = None
        #: The peer said in this session how often it wants heartbeats: so it knows one that leaves out what it knows.
        self._is_paced = False

    def on_opened(
        self,
        facts: Facts,
        now_s: float,
        *,
        leads: tuple[Leads, ...] = (),
        lends: bool = False,
        jobs: tuple[str, ...] = (),
    ) -> Hello:
        """There is a control stream. ``jobs``: those that this node works for."""
        self.welcomed = False
        self._come_s = 0.0
        self._opened_s = now_s
        self._seq = 0
        self._unanswered.clear()
        self._is_heard = False
        self._told, self._is_paced = None, False
        return Hello(
            node=self._node,
            incarnation=self._incarnation,
            facts=facts,
            leads=leads,
            lends=lends,
            # A manager that is alone has every job.
            jobs=jobs if self._has_successor or self._referred else (),
            is_referred=bool(self._referred),
        )

    def know(self, endpoint: str, managers: tuple[str, ...] = ()) -> None:
        """Where the peer was reached last, and where it or its successors may be; none: it is alone."""
        if {endpoint, *managers} != set(self._endpoints):
            others = [each for each in dict.fromkeys(managers) if each != endpoint]
            # Devices whose manager is gone spread over the others.
            first = hashlib.sha256(self._node.encode()).digest()[1] % max(1, len(others))
            self._endpoints = (endpoint, *others[first:], *others[:first])
        self._has_successor = bool(managers)

    def refer(self, endpoint: str) -> None:
        """The peer sends this node to another manager, which is tried once before the turn of all."""
        self._referred, self._is_going = endpoint, True

    @property
    def endpoint(self) -> str:
        """Where to dial now. After a session first its manager, unless it fell silent, then the others in turn."""
        if self._referred:
            return self._referred
        return self._endpoints[self.attempts % len(self._endpoints)] if self._endpoints else ""

    @property
    def _turns(self) -> int:
        """How often all addresses were tried in vain."""
        return self.attempts // max(1, len(self._endpoints))

    def on_welcome(
        self, *, heartbeat_s: float, lost_after_s: float, redial_s: float = 0.0, managers: tuple[str, ...] = ()
    ) -> None:
        if self._endpoints:
            # It counts from the manager that answered. A proxy would lead to any of them.
            answered = managers[0] if managers else self.endpoint
            self._endpoints, self.attempts = (), 0
            self.know(answered, managers)
        self._referred = ""
        self._redial_s = redial_s
        self._welcome_s = self.heartbeat_s = heartbeat_s
        self._lost_after_s = lost_after_s
        self.welcomed = True

    def on_sent_away(self, come_s: float) -> None:
        """The peer has no work for this node, which says goodbye now."""
        self._come_s = come_s

    @property
    def is_sent_away(self) -> bool:
        return self._come_s > 0

    def on_answered(self, seq: int, *, next_s: float = 0.0) -> bool:
        """The peer heard a heartbeat, and says how often it wants them; 0: as its welcome said. Whether the next one is
        to be sent at once: the peer wants more of them than before."""
        while self._unanswered and self._unanswered[0][0] <= seq:
            self._unanswered.popleft()
        self._is_paced = self._is_paced or next_s > 0
        before_s, self.heartbeat_s = self.heartbeat_s, next_s or self._welcome_s
        if self.heartbeat_s < before_s:
            # A heartbeat that left a moment ago stands for a long time to come, which is not to be waited for any more.
            shorter = ((sent, min(every_s, self.heartbeat_s)) for sent, every_s in self._unanswered)
            self._unanswered = deque(shorter, self._unanswered.maxlen)
        return self.heartbeat_s < before_s

    def on_heard(self) -> None:
        """The peer said something that is as good as an answer to a heartbeat."""
        self._is_heard = True

    def is_heard(self) -> bool:
        """Whether it did since this was asked last."""
        heard, self._is_heard = self._is_heard, False
        return heard

    def on_closed(self, reason: str | None = None) -> None:
        """The connection is over, or could not be made."""
        self._twice = self._twice + 1 if reason is not None and TWICE in reason else 0
        # A peer that fell silent may be frozen: its port accepts connections, and nothing comes of them.
        first = 1 if self._is_silent and len(self._endpoints) > 1 else 0
        self.attempts = first if self.welcomed else self.attempts + 1
        self._is_silent = False
        if not self._is_going:
            self._referred = ""
        self._is_going = False
        # The next session begins with a welcome, and with its interval: a device that was told to send few heartbeats
        # would be lost before its first one otherwise.
        self.heartbeat_s = self._welcome_s
        if not self.welcomed:
            # It came when it was told to, in vain.
            self._come_s = 0.0
        self.welcomed = False

    def backoff_s(self) -> float:
        """How long to wait before the next attempt: longer each time, and different for each device, so that devices do
        not storm a peer that restarts. One that was sent away comes when it was told to: its peer has spread them. A
        peer with several addresses is tried at all of them before a wait, unless many devices without work would."""
        if self._come_s:
            return self._come_s
        if self._referred:
            return BACKOFF_S[0]
        turns = self._turns
        is_patient = bool(self._redial_s) and self._is_idle
        if self._endpoints and self.attempts % len(self._endpoints) and not self._twice and not is_patient:
            return BACKOFF_S[0]
        base_s = BACKOFF_S[min(turns, len(BACKOFF_S) - 1)]
        if self._has_successor and turns <= SUCCESSOR_TURNS:
            base_s = min(base_s, SUCCESSOR_WAIT_S)
        if self._twice:
            base_s = TWICE_BACKOFF_S[min(self._twice, len(TWICE_BACKOFF_S)) - 1]
        digest = hashlib.sha256(f"{self._node}/{self.attempts}".encode()).digest()
        wait_s = base_s * (0.75 + 0.5 * digest[0] / 255)
        if self._redial_s and (turns or (is_patient and self.attempts)) and not self._twice:
            # The first attempt is at once: a session that breaks alone is back before its leases are given away. Then
            # anywhere within the time that all need ("full jitter"), which grows as long as they come in vain.
            span_s = min(self._redial_s * 2.0 ** min(max(0, turns - 1), 10), REDIAL_MOST_S)
            wait_s = max(wait_s, span_s * int.from_bytes(digest[1:4], "big") / (1 << 24))
        return wait_s

    def connect_timeout_s(self) -> float:
        """How long an attempt may take: short at first, as TCP resends lost packets ever more slowly."""
        return min(CONNECT_FIRST_S * 2.0 ** min(self._turns, 10), CONNECT_LONGEST_S)

    def beat(
        self,
        now_s: float,
        *,
        load: float = 0.0,
        memory_free_mb: int = 0,
        link_bytes_per_s: float = 0.0,
        is_idle: bool = False,
        preparing: str = "",
    ) -> tuple[Heartbeat | None, str | None]:
        """To be called every ``heartbeat_s`` while connected: the heartbeat to send, and why to hang up, if at all."""
        if not self.welcomed:
            if now_s - self._opened_s < WELCOME_TIMEOUT_S:
                return None, None
            return None, f"{self._peer} did not welcome this node within {WELCOME_TIMEOUT_S:g} s"
        self._seq += 1
        self._unanswered.append((self._seq, self.heartbeat_s))
        self._is_idle = is_idle
        state = (load, memory_free_mb, link_bytes_per_s, is_idle)
        if self._is_paced and self._told is not None and _is_about(state, self._told):
            beat = Heartbeat(seq=self._seq, is_idle=is_idle, is_same=True, preparing=preparing)
        else:
            self._told = state
            beat = Heartbeat(
                seq=self._seq,
                load=load,
                memory_free_mb=memory_free_mb,
                link_bytes_per_s=link_bytes_per_s,
                is_idle=is_idle,
                preparing=preparing,
            )
        # Counted in heartbeats: a device that slept has not waited.
        lost_after_s = longer_after_s(self._lost_after_s, heartbeat_s=self._welcome_s, every_s=self.heartbeat_s)
        if sum(every_s for _, every_s in self._unanswered) > lost_after_s:
            self._is_silent = True
            return beat, f"{self._peer} has not answered for {lost_after_s:g} s"
        return beat, None


def _is_about(state: tuple[float, int, float, bool], told: tuple[float, int, float, bool]) -> bool:
    """Whether nobody would decide otherwise by the newer figures."""
    load, memory_mb, rate, is_idle = state
    told_load, told_memory_mb, told_rate, was_idle = told
    return (
        is_idle == was_idle
        and abs(load - told_load) <= LOAD_STEP
        and abs(memory_mb - told_memory_mb) <= MEMORY_STEP * told_memory_mb
        and abs(rate - told_rate) <= RATE_STEP * told_rate
    )
