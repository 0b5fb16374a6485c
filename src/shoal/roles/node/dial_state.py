"""This node's side of a session that it dialled: sends hello and heartbeats, decides when to give up and try again.

Pure state; the driver owns the connection.
"""

from __future__ import annotations

from collections import deque

from shoal.roles.node.doorway import TWICE
from shoal.roles.node.failure_detector import longer_after_s
from shoal.wire.messages import Facts, Heartbeat, Hello, Leads

#: Waits between attempts to reach a peer. The first is short: a peer that restarts is back at once.
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

#: How many devices a manager's core lets in within a second or two, and how many per second beyond that (277 were
#: measured, with TLS handshakes). A device that waits longer than a handshake may take would only dial again, so the
#: rest are asked to come later.
REDIAL_SPARED = 300
REDIALS_PER_S = 200

#: If another manager takes over within seconds: the longest wait between two rounds through all their addresses, and
#: for how many rounds.
SUCCESSOR_WAIT_S = 0.5
SUCCESSOR_TURNS = 30

#: The longest wait in any case.
REDIAL_MOST_S = 600.0

#: Waits between attempts while another device is connected under our name: it will not leave soon.
TWICE_BACKOFF_S = (10.0, 60.0, 180.0, 300.0)

#: How long an attempt may take: the first one, and later ones, which get longer.
CONNECT_FIRST_S = 2.0
CONNECT_LONGEST_S = 20.0

#: By how much the load, and by what share free memory and the link's rate, must change before a heartbeat reports them.
LOAD_STEP = 0.25
MEMORY_STEP = 0.125
RATE_STEP = 0.125

#: How long a peer may take to welcome us.
WELCOME_TIMEOUT_S = 15.0


def redial_s(devices: int) -> float:
    """Return over how many seconds a fleet's devices should spread their second attempts, or 0 if they are few."""
    return 0.0 if devices <= REDIAL_SPARED else min(devices / REDIALS_PER_S, REDIAL_MOST_S)


def _digest(text: str) -> bytes:
    # Imported here: it brings OpenSSL's 3 MB, which an agent that found its only manager does without.
    import hashlib

    return hashlib.sha256(text.encode()).digest()


class DialState:
    def __init__(self, *, node: str, incarnation: str, peer: str) -> None:
        self._node = node
        self._incarnation = incarnation
        #: The peer's name as people read it.
        self._peer = peer
        self.welcomed = False
        #: Addresses of the peer, in the order to dial them. Empty if only the driver has the address.
        self._endpoints: tuple[str, ...] = ()
        #: Whether another manager takes over if the peer fails.
        self._has_successor = False
        #: The manager to dial next, to which another one sent this node. Empty if none did.
        self._referred = ""
        #: Whether it was sent there in the session that is about to end.
        self._is_going = False
        #: Over how many seconds the peer wants attempts to be spread, or 0 if it did not say.
        self._redial_s = 0.0
        #: How many seconds after this session to dial a peer that has no work, or 0 if it did not say.
        self._come_s = 0.0
        #: The interval of heartbeats by the peer's welcome, and by its last answer.
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
        #: Whether this node had nothing to do at the last heartbeat.
        self._is_idle = False
        #: Whether the peer was given up because it did not answer.
        self._is_silent = False
        #: Whether the peer sent another message since the last heartbeat was due.
        self._is_heard = False
        #: Load, memory, rate and whether this node waited, as last sent to the peer.
        self._told: tuple[float, int, float, bool] | None = None
        #: Whether the peer set an interval in this session: it then accepts heartbeats without unchanged values.
        self._is_paced = False

    def greet(
        self,
        facts: Facts,
        now_s: float,
        *,
        leads: tuple[Leads, ...] = (),
        lends: bool = False,
        jobs: tuple[str, ...] = (),
    ) -> Hello:
        """Return the hello for a new control stream. ``jobs`` are those that this node works for."""
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
            # The only manager has every job.
            jobs=jobs if self._has_successor or self._referred else (),
            is_referred=bool(self._referred),
        )

    def know(self, endpoint: str, managers: tuple[str, ...] = ()) -> None:
        """Note where the peer was reached last, and the addresses of it and its successors (none if it has none)."""
        if {endpoint, *managers} != set(self._endpoints):
            others = [each for each in dict.fromkeys(managers) if each != endpoint]
            # Devices whose manager failed spread over the others.
            first = _digest(self._node)[1] % len(others) if len(others) > 1 else 0
            self._endpoints = (endpoint, *others[first:], *others[:first])
        self._has_successor = bool(managers)

    def refer(self, endpoint: str) -> None:
        """Dial another manager, to which the peer sent this node, once before the round through all."""
        self._referred, self._is_going = endpoint, True

    @property
    def endpoint(self) -> str:
        """The address to dial now: after a session first the same manager, unless it fell silent, then the others."""
        if self._referred:
            return self._referred
        return self._endpoints[self.attempts % len(self._endpoints)] if self._endpoints else ""

    @property
    def _turns(self) -> int:
        """The number of times that all addresses failed."""
        return self.attempts // max(1, len(self._endpoints))

    def on_welcome(
        self, *, heartbeat_s: float, lost_after_s: float, redial_s: float = 0.0, managers: tuple[str, ...] = ()
    ) -> None:
        if self._endpoints:
            # The order starts at the manager that answered, as a proxy may lead to any of them.
            answered = managers[0] if managers else self.endpoint
            self._endpoints, self.attempts = (), 0
            self.know(answered, managers)
        self._referred = ""
        self._redial_s = redial_s
        self._welcome_s = self.heartbeat_s = heartbeat_s
        self._lost_after_s = lost_after_s
        self.welcomed = True

    def on_sent_away(self, come_s: float) -> None:
        """Note that the peer has no work for this node, which says goodbye now."""
        self._come_s = come_s

    @property
    def is_sent_away(self) -> bool:
        return self._come_s > 0

    def on_answered(self, seq: int, *, next_s: float = 0.0) -> bool:
        """Note the answer to a heartbeat. ``next_s`` is the interval that the peer wants, or 0 for that of its welcome.

        Returns whether to send the next heartbeat at once, because the peer wants a shorter interval."""
        while self._unanswered and self._unanswered[0][0] <= seq:
            self._unanswered.popleft()
        self._is_paced = self._is_paced or next_s > 0
        before_s, self.heartbeat_s = self.heartbeat_s, next_s or self._welcome_s
        if self.heartbeat_s < before_s:
            # Heartbeats that already left were to cover the longer interval; now they count for the shorter one.
            shorter = ((sent, min(every_s, self.heartbeat_s)) for sent, every_s in self._unanswered)
            self._unanswered = deque(shorter, self._unanswered.maxlen)
        return self.heartbeat_s < before_s

    def on_heard(self) -> None:
        """Note a message of the peer that counts as an answer to a heartbeat."""
        self._is_heard = True

    def is_heard(self) -> bool:
        """Return whether the peer sent such a message since the last call."""
        heard, self._is_heard = self._is_heard, False
        return heard

    def on_closed(self, reason: str | None = None) -> None:
        """The connection is over, or could not be made."""
        self._twice = self._twice + 1 if reason is not None and TWICE in reason else 0
        # A peer that fell silent may be frozen: its port accepts connections, but it does not answer.
        first = 1 if self._is_silent and len(self._endpoints) > 1 else 0
        self.attempts = first if self.welcomed else self.attempts + 1
        self._is_silent = False
        if not self._is_going:
            self._referred = ""
        self._is_going = False
        # The next session begins with the interval of its welcome. With a longer one from this session, the device
        # would be lost before its first heartbeat.
        self.heartbeat_s = self._welcome_s
        if not self.welcomed:
            # It dialled at the time it was given, and failed.
            self._come_s = 0.0
        self.welcomed = False

    def backoff_s(self) -> float:
        """Return how long to wait before the next attempt: longer each time, and different for each device, so that
        devices do not storm a peer that restarts.

        A device that was sent away comes at the time its peer set. A peer with several addresses is tried at all of
        them before a wait, unless many devices without work would do so."""
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
        digest = _digest(f"{self._node}/{self.attempts}")
        wait_s = base_s * (0.75 + 0.5 * digest[0] / 255)
        if self._redial_s and (turns or (is_patient and self.attempts)) and not self._twice:
            # The first attempt is immediate: a single broken session is back before its leases are given away. Later
            # ones are at random within the time that all devices need ("full jitter"), which grows while they fail.
            span_s = min(self._redial_s * 2.0 ** min(max(0, turns - 1), 10), REDIAL_MOST_S)
            wait_s = max(wait_s, span_s * int.from_bytes(digest[1:4], "big") / (1 << 24))
        return wait_s

    def connect_timeout_s(self) -> float:
        """Return how long an attempt may take: short at first, as TCP resends lost packets ever more slowly."""
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
        """Return the heartbeat to send, or why to hang up. To be called every ``heartbeat_s`` while connected."""
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
        # Counted in heartbeats: the time that a device slept is not silence of its peer.
        lost_after_s = longer_after_s(self._lost_after_s, heartbeat_s=self._welcome_s, every_s=self.heartbeat_s)
        if sum(every_s for _, every_s in self._unanswered) > lost_after_s:
            self._is_silent = True
            return beat, f"{self._peer} has not answered for {lost_after_s:g} s"
        return beat, None


def _is_about(state: tuple[float, int, float, bool], told: tuple[float, int, float, bool]) -> bool:
    """Whether the newer values are so close to those last sent that they would change no decision."""
    load, memory_mb, rate, is_idle = state
    told_load, told_memory_mb, told_rate, was_idle = told
    return (
        is_idle == was_idle
        and abs(load - told_load) <= LOAD_STEP
        and abs(memory_mb - told_memory_mb) <= MEMORY_STEP * told_memory_mb
        and abs(rate - told_rate) <= RATE_STEP * told_rate
    )
