"""A device between its session and its roles: says hello, keeps heartbeats, knows the jobs it was given.

Pure state that both drivers share, as the switchboard is on the manager's node. It says what is to be done; a driver
does it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from shoal.roles.events import Connected, Disconnected, Event, Reassigned, Received, StopRequested
from shoal.wire.messages import Assign, Dismiss, Facts, Heartbeat, HeartbeatSeen, Hello, Leave, Message, Welcome

#: Waits between attempts to reach the manager. The first is short: a manager that restarts is back at once.
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

#: How long a manager may take to welcome us.
WELCOME_TIMEOUT_S = 15.0

#: How long a device waits for its goodbye to be heard.
GOODBYE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class ToWorker:
    job: str
    event: Event


@dataclass(frozen=True, slots=True)
class Employ:
    """Set up the worker of a job here."""

    assign: Assign


@dataclass(frozen=True, slots=True)
class Say:
    """To the manager, on the lane of the message."""

    message: Message


@dataclass(frozen=True, slots=True)
class HangUp:
    reason: str


Duty = ToWorker | Employ | Say | HangUp


class Station:
    def __init__(self, *, node: str, incarnation: str) -> None:
        self._node = node
        self._incarnation = incarnation
        #: Job -> who leads it.
        self._leaders: dict[str, str] = {}
        self.welcomed = False
        self.heartbeat_s = 1.0
        self._lost_after_s = 8.0
        self._opened_s = 0.0
        self._attempts = 0
        self._seq = 0
        self._answered = 0

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self._leaders)

    # The session ---------------------------------------------------------------------------------------

    def opened(self, facts: Facts, now_s: float) -> list[Duty]:
        """There is a control stream to the manager."""
        self.welcomed = False
        self._opened_s = now_s
        self._seq = self._answered = 0
        return [Say(Hello(node=self._node, incarnation=self._incarnation, facts=facts))]

    def closed(self) -> list[Duty]:
        """The connection is over, or could not be made."""
        self._attempts = 0 if self.welcomed else self._attempts + 1
        self.welcomed = False
        reason = "the connection ended"
        return [ToWorker(job, Disconnected(node=leader, reason=reason)) for job, leader in self._leaders.items()]

    def backoff_s(self) -> float:
        """How long to wait before the next attempt: longer each time, and different for each device, so that a
        restarted manager is not stormed."""
        base_s = BACKOFF_S[min(self._attempts, len(BACKOFF_S) - 1)]
        digest = hashlib.sha256(f"{self._node}/{self._attempts}".encode()).digest()
        return base_s * (0.75 + 0.5 * digest[0] / 255)

    def beat(self, now_s: float, *, load: float = 0.0, memory_free_mb: int = 0) -> list[Duty]:
        """To be called every ``heartbeat_s`` while connected. A manager that stops answering is given up."""
        if not self.welcomed:
            if now_s - self._opened_s < WELCOME_TIMEOUT_S:
                return []
            return [HangUp(f"the manager did not welcome this node within {WELCOME_TIMEOUT_S:g} s")]
        self._seq += 1
        beat = Say(Heartbeat(seq=self._seq, load=load, memory_free_mb=memory_free_mb))
        if (self._seq - self._answered) * self.heartbeat_s > self._lost_after_s:
            return [beat, HangUp(f"the manager has not answered for {self._lost_after_s:g} s")]
        return [beat]

    def leaving(self, reason: str) -> list[Duty]:
        """Say goodbye, so that nobody waits for us. The manager hangs up in answer."""
        return [Say(Leave(reason=reason))]

    # What the manager says -----------------------------------------------------------------------------

    def received(self, event: Received) -> list[Duty]:
        message = event.message
        match message:
            case Welcome():
                self.heartbeat_s, self._lost_after_s = message.heartbeat_s, message.lost_after_s
                self.welcomed = True
                return [ToWorker(job, Connected(node=leader)) for job, leader in self._leaders.items()]
            case HeartbeatSeen():
                self._answered = max(self._answered, message.seq)
                return []
            case Assign():
                return self._assigned(message)
            case Dismiss(job=""):
                return [HangUp(f"dismissed: {message.reason}")]
            case Dismiss():
                stop = ToWorker(message.job, StopRequested(reason=message.reason))
                return [stop] if message.job in self._leaders else []
            case _:
                job = str(getattr(message, "job", ""))
                return [ToWorker(job, event)] if job in self._leaders else []

    def ended(self, job: str) -> None:
        """The worker of this job is done."""
        self._leaders.pop(job, None)

    def _assigned(self, assign: Assign) -> list[Duty]:
        job = assign.job
        if assign.role != "worker":
            # Every device could lead one day; today a driver says that it cannot.
            return [Employ(assign)]
        known = job in self._leaders
        self._leaders[job] = assign.leader
        if known:
            return [ToWorker(job, Reassigned(term=assign.term, leader=assign.leader))]
        if not self.welcomed:
            return [Employ(assign)]
        return [Employ(assign), ToWorker(job, Connected(node=assign.leader))]
