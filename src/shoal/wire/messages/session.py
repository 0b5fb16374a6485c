"""Messages between a node and the node that it dialled: greeting, heartbeats, goodbye."""

from __future__ import annotations

import math
from dataclasses import field

from shoal.errors import Misuse, PeerViolation
from shoal.where import parse_labels
from shoal.wire.limits import COME_MOST_S, MANAGERS_MAX
from shoal.wire.messages.base import PROTOCOL, Message, is_endpoint, message


@message()
class Facts(Message):
    """What a device reports about itself when it connects."""

    host: str = ""
    arch: str = ""
    cpus: int = 0
    memory_mb: int = 0
    python: str = ""
    #: Empty if PyTorch is not installed. Such a node can lead, and with ``onnx`` it can train jobs that have graphs.
    torch: str = ""
    shoal: str = ""
    #: The version of onnxruntime. Empty if it is not installed.
    onnx: str = ""
    #: The browser whose tab this is, such as ``Chromium 156``. Empty for an agent. A tab never leads, and takes only
    #: jobs that a tab can train (``JobSpec.suits_tabs``).
    browser: str = ""
    #: A hub sums the updates of other devices, for jobs that can use one, and does not train.
    is_hub: bool = False
    #: The labels that its owner gave it, each ``NAME=VALUE`` (``shoal.where``).
    labels: tuple[str, ...] = ()

    def _check(self) -> None:
        try:
            parse_labels(self.labels)
        except Misuse as error:
            raise PeerViolation(f"Facts.labels has an entry that is not a label: {error}") from error
        # These texts reach a log and an operator's terminal: a line break would forge a log line, and an escape
        # sequence is a command.
        if not (self.host + self.arch + self.python + self.torch + self.shoal + self.onnx + self.browser).isprintable():
            raise PeerViolation("Facts has a text that cannot be printed")


@message(to="manager", said_by={"Control": ("node",)})
class Leads(Message):
    """A node reports that it leads a job, and where the job's workers find it."""

    job: str
    term: int
    #: Where other members dial it.
    endpoint: str = ""

    def _check(self) -> None:
        if self.endpoint and not is_endpoint(self.endpoint):
            raise PeerViolation(f"Leads.endpoint is {self.endpoint[:80]!r}; it must be HOST:PORT")


@message(to="manager", said_by={"Control": ("node", "browser", "worker", "pending")}, cost=25.0)
class Hello(Message):
    """The first message on a control stream. A new incarnation is a new process, which holds no earlier lease."""

    node: str
    incarnation: str
    protocol: int = PROTOCOL
    facts: Facts = field(default_factory=Facts)
    #: The jobs this process leads.
    leads: tuple[Leads, ...] = ()
    #: Whether it multiplies matrices for other devices.
    lends: bool = False
    #: The jobs it works for, if the cluster has several managers: each job belongs to one of them.
    jobs: tuple[str, ...] = ()
    #: Another manager sent it here.
    is_referred: bool = False


@message(to="node", answered_by={"Control": ("manager", "node")})
class Welcome(Message):
    heartbeat_s: float
    lost_after_s: float
    reason: str = ""
    #: Seconds since 1970 by the manager's clock: a device may not know the time.
    time_s: float = 0.0
    #: The longest wait before a device's second attempt to reconnect; it doubles with every further attempt. 0 leaves
    #: it to the device.
    redial_s: float = 0.0
    #: Seconds after which an idle device dials again: it disconnects until then. 0 if it stays connected.
    come_s: float = 0.0
    #: Where the managers of this cluster are dialled, the sender first: if it fails, another takes over within seconds.
    #: Empty if the cluster has one manager.
    managers: tuple[str, ...] = ()

    def _check(self) -> None:
        if not 0 <= self.come_s <= COME_MOST_S:
            raise PeerViolation(f"Welcome.come_s is {self.come_s:g}; it must be 0 to {COME_MOST_S:g}")
        if len(self.managers) > MANAGERS_MAX or not all(map(is_endpoint, self.managers)):
            raise PeerViolation(f"Welcome.managers must list at most {MANAGERS_MAX} managers, each as HOST:PORT")


@message(to="manager", said_by={"Control": ("node", "browser", "worker", "pending")})
class Heartbeat(Message):
    seq: int
    #: Runnable processes per CPU.
    load: float = 0.0
    memory_free_mb: int = 0
    #: The best rate of its recent large transfers. 0 if unknown.
    link_bytes_per_s: float = 0.0
    #: It has no job to work for or to lead, and multiplies for nobody: it may be asked for fewer heartbeats.
    is_idle: bool = False
    #: Load, memory and rate are omitted because they are about the same as in the heartbeat before.
    is_same: bool = False
    #: How far it is with preparing a job, as text for people. Empty if it prepares none.
    preparing: str = ""

    def _check(self) -> None:
        if not -math.inf < self.load < math.inf:
            raise PeerViolation(f"Heartbeat.load is {self.load}; it must be finite")
        if not 0 <= self.link_bytes_per_s < math.inf:
            raise PeerViolation(
                f"Heartbeat.link_bytes_per_s is {self.link_bytes_per_s}; it must be finite and at least 0"
            )


@message(to="node", answered_by={"Control": ("manager", "node")})
class HeartbeatSeen(Message):
    #: The heartbeat that it answers. 0 if it only changes how often heartbeats are sent.
    seq: int
    #: Seconds from one heartbeat to the next. 0 keeps what ``Welcome`` said.
    next_s: float = 0.0


@message(to="manager", said_by={"Control": ("node", "browser", "worker", "pending")})
class Leave(Message):
    """A node disconnects on purpose: its leases are reassigned at once, without a time-out."""

    reason: str
    #: Seconds after which it dials again, as it was asked to. 0 if unknown.
    come_s: float = 0.0

    def _check(self) -> None:
        if not 0 <= self.come_s <= COME_MOST_S:
            raise PeerViolation(f"Leave.come_s is {self.come_s:g}; it must be 0 to {COME_MOST_S:g}")
