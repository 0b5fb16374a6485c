"""Rate limits and offences of each peer. Time is an argument.

A node treats two offences differently. It reads a peer that sends too much more slowly: that peer's own connection
fills up and the peer waits, which an honest peer in a hurry survives. It counts how often a peer breaks the contract,
and refuses a peer that breaks it again and again for a while, twice as long each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.errors import PeerViolation
from shoal.wire.limits import (
    CONTROL_MESSAGES_BURST,
    CONTROL_MESSAGES_PER_S,
    FETCHES_BURST,
    FETCHES_PER_S,
    OFFENCES_MAX,
    OFFENCES_WINDOW_S,
    OPENING_WAIT_MAX_S,
    OPENINGS_BURST,
    OPENINGS_PER_S,
    OPERATIONS_BURST,
    OPERATIONS_PER_S,
    RENEWALS_BURST,
    RENEWALS_PER_S,
    TURNED_AWAY_LONGEST_S,
    TURNED_AWAY_S,
    WORK_MESSAGES_BURST,
    WORK_MESSAGES_PER_S,
)
from shoal.wire.messages import Lane

#: Free text of an offence that is kept and repeated.
_OFFENCE_MAX_CHARS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """A burst that is allowed at once, and the rate per second after that."""

    burst: float
    per_s: float


#: Far above what any role sends: a heartbeat per second, a few messages per lease.
MESSAGES = {
    Lane.CONTROL: Rate(burst=CONTROL_MESSAGES_BURST, per_s=CONTROL_MESSAGES_PER_S),
    Lane.WORK: Rate(burst=WORK_MESSAGES_BURST, per_s=WORK_MESSAGES_PER_S),
}
OPENINGS = Rate(burst=OPENINGS_BURST, per_s=OPENINGS_PER_S)

#: Verbs that are answered once. Each costs a signature, a write or a file.
CALLS = {
    "Renew": Rate(burst=RENEWALS_BURST, per_s=RENEWALS_PER_S),
    "Operate": Rate(burst=OPERATIONS_BURST, per_s=OPERATIONS_PER_S),
    "Fetch": Rate(burst=FETCHES_BURST, per_s=FETCHES_PER_S),
}
OFFENCES = Rate(burst=OFFENCES_MAX, per_s=OFFENCES_MAX / OFFENCES_WINDOW_S)


@dataclass(slots=True)
class Bucket:
    """Tokens of one rate. It may go into debt: the debt is how long to wait."""

    rate: Rate
    tokens: float
    at_s: float

    @classmethod
    def full(cls, rate: Rate, now_s: float) -> Bucket:
        return cls(rate, rate.burst, now_s)

    def spend(self, count: float, now_s: float) -> float:
        """Take tokens; seconds until the last of them is really there."""
        tokens = min(self.rate.burst, self.tokens + (now_s - self.at_s) * self.rate.per_s) - count
        # A peer that does not wait as told (one with many streams) shall not owe more than it can ever work off.
        tokens = max(tokens, -max(self.rate.burst, count))
        self.tokens, self.at_s = tokens, now_s
        return -tokens / self.rate.per_s if tokens < 0.0 else 0.0

    def give_back(self, count: float) -> None:
        self.tokens += count


@dataclass(slots=True)
class _Peer:
    openings: Bucket
    offences: Bucket
    messages: dict[Lane, Bucket] = field(default_factory=dict)
    #: Verb -> its single calls. Streams are counted by ``openings``.
    calls: dict[str, Bucket] = field(default_factory=dict)
    #: Turned away until then, how often so far, and for what last.
    until_s: float = float("-inf")
    times: int = 0
    offence: str = ""


class Conduct:
    """The rates and offences of every peer that called. Peers are members with certificates: their number is bounded by
    those that joined."""

    def __init__(
        self,
        *,
        messages: dict[Lane, Rate] | None = None,
        openings: Rate = OPENINGS,
        offences: Rate = OFFENCES,
    ) -> None:
        self._messages = messages or MESSAGES
        self._openings = openings
        self._offences = offences
        self._peers: dict[str, _Peer] = {}

    def admit(self, node: str, now_s: float) -> None:
        """A peer calls. Raises if it is turned away."""
        peer = self._peers.get(node)
        if peer is not None:
            self._check(node, peer, now_s)

    def open(self, node: str, verb: str, now_s: float) -> float:
        """Count a stream or a call of a peer. Return how long it must wait first."""
        peer = self._known(node, now_s)
        bucket, what = peer.openings, "streams"
        if verb in CALLS:
            what = f"calls of {verb}"
            bucket = peer.calls.setdefault(verb, Bucket.full(CALLS[verb], now_s))
        wait_s = bucket.spend(1.0, now_s)
        if wait_s > OPENING_WAIT_MAX_S:
            # The peer is not let in, so it does not pay: else a peer that keeps calling would never come in again.
            bucket.give_back(1.0)
            per_s = bucket.rate.per_s
            rate = f"{per_s:g} {what} a second" if per_s >= 1 else f"{per_s * 60:g} {what} a minute"
            raise PeerViolation(f"opens more than {rate}", peer=node)
        return wait_s

    def hear(self, node: str, lane: Lane, now_s: float, *, cost: float = 1.0) -> float:
        """Count a peer's message. Return how long to wait before reading on. Raises if it was turned away meanwhile.

        ``cost`` is how many ordinary messages this one counts for.
        """
        peer = self._known(node, now_s)
        self._check(node, peer, now_s)
        bucket = peer.messages.get(lane)
        if bucket is None:
            bucket = peer.messages[lane] = Bucket.full(self._messages[lane], now_s)
        return bucket.spend(cost, now_s)

    def offend(self, node: str, offence: str, now_s: float) -> str:
        """Count an offence of a peer. Return the consequence as text, or an empty text if it was only counted."""
        peer = self._known(node, now_s)
        peer.offence = offence[:_OFFENCE_MAX_CHARS]
        if now_s < peer.until_s or not peer.offences.spend(1.0, now_s):
            return ""
        if now_s - peer.until_s > TURNED_AWAY_LONGEST_S:
            # It behaved for a long time: it may have been mended.
            peer.times = 0
        away_s = min(TURNED_AWAY_S * 2**peer.times, TURNED_AWAY_LONGEST_S)
        peer.times += 1
        peer.until_s = now_s + away_s
        # It starts afresh after that, and is turned away for longer the next time.
        peer.offences = Bucket.full(self._offences, peer.until_s)
        return (
            f"is turned away for {away_s:g} s: broke the contract more than {self._offences.burst:g} times"
            f" within a minute, last: {peer.offence}"
        )

    def _known(self, node: str, now_s: float) -> _Peer:
        peer = self._peers.get(node)
        if peer is None:
            fresh = Bucket.full(self._openings, now_s), Bucket.full(self._offences, now_s)
            peer = self._peers[node] = _Peer(*fresh)
        return peer

    def _check(self, node: str, peer: _Peer, now_s: float) -> None:
        if now_s < peer.until_s:
            left_s = peer.until_s - now_s
            raise TurnedAway(f"turned away for {left_s:.0f} s more, last for: {peer.offence}", peer=node)


class TurnedAway(PeerViolation):
    """A peer is kept out because of earlier offences. The refused call does not count as another."""
