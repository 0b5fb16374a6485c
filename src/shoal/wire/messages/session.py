"""A node and the node that it dialled: who is there, and who is alive."""

from __future__ import annotations

import math
from dataclasses import field

from shoal.errors import Misuse, PeerViolation
from shoal.where import parse_labels
from shoal.wire.limits import COME_MOST_S, MANAGERS_MAX
from shoal.wire.messages.base import PROTOCOL, Message, is_endpoint, message


@message()
class Facts(Message):
    """What a device says about itself when it connects."""

    host: str = ""
    arch: str = ""
    cpus: int = 0
    memory_mb: int = 0
    python: str = ""
    #: Empty where PyTorch is not installed: such a node can lead, and train jobs that have graphs if it has ``onnx``.
    torch: str = ""
    shoal: str = ""
    #: The version of onnxruntime; empty where it is not installed.
    onnx: str = ""
    #: The browser whose tab this is, such as ``Chromium 156``; empty: an agent. A tab never leads, and takes jobs that
    #: have graphs and nothing that a tab cannot do (``JobSpec.suits_tabs``).
    browser: str = ""
    #: A hub: it sums up updates of others for jobs that can use that, and trains nothing.
    is_hub: bool = False
    #: What its owner says that it is, ``NAME=VALUE`` each (``shoal.where``).
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        try:
            parse_labels(self.labels)
        except Misuse as error:
            raise PeerViolation(f"a device says that it is something which is not a label: {error}") from error
        # They end up in a log and on an operator's terminal, where a new line is a lie and an escape a command.
        if not (self.host + self.arch + self.python + self.torch + self.shoal + self.onnx + self.browser).isprintable():
            raise PeerViolation("facts that cannot be printed")


@message(to="manager", said_by={"Control": ("node",)})
class Leads(Message):
    """A node leads a job from here on, or still does: its workers find it there."""

    job: str
    term: int
    #: Where other members dial it.
    endpoint: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.endpoint and not is_endpoint(self.endpoint):
            raise PeerViolation(f"not where anyone can be dialled: {self.endpoint[:80]!r}")


@message(to="manager", said_by={"Control": ("node", "browser", "worker", "pending")}, cost=25.0)
class Hello(Message):
    """The first message on a control stream. A new incarnation is a new process: it holds no old lease."""

    node: str
    incarnation: str
    protocol: int = PROTOCOL
    facts: Facts = field(default_factory=Facts)
    #: The jobs this process leads.
    leads: tuple[Leads, ...] = ()
    #: It multiplies matrices for others.
    lends: bool = False
    #: The jobs it works for, where the cluster has several managers: each job has one of them.
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
    #: Up to how long a device waits before its second attempt to connect again, and twice as long before each further
    #: one; 0: for as long as it sees fit.
    redial_s: float = 0.0
    #: There is no work: a device that has nothing to do hangs up, and dials again after so many seconds. 0: it stays.
    come_s: float = 0.0
    #: Where the managers of this cluster are dialled, the speaker first: if it falls silent, another takes over within
    #: seconds. Empty: it is alone.
    managers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.come_s <= COME_MOST_S:
            raise PeerViolation(f"asks to come again in {self.come_s:g} s")
        if len(self.managers) > MANAGERS_MAX or not all(map(is_endpoint, self.managers)):
            raise PeerViolation("names managers that cannot be dialled, or too many")


@message(to="manager", said_by={"Control": ("node", "browser", "worker", "pending")})
class Heartbeat(Message):
    seq: int
    #: Processes that want to run, per CPU.
    load: float = 0.0
    memory_free_mb: int = 0
    #: The best rate of its large transfers of late; 0: not known.
    link_bytes_per_s: float = 0.0
    #: It works for no job, leads none and lends nothing: it may be asked for fewer heartbeats.
    is_idle: bool = False
    #: Load, memory and rate are left out: they are about those of the heartbeat before.
    is_same: bool = False
    #: How far it is with preparing a job, in words for people. Empty while it prepares none.
    preparing: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not -math.inf < self.load < math.inf:
            raise PeerViolation("a load that is not finite")
        if not 0 <= self.link_bytes_per_s < math.inf:
            raise PeerViolation("a rate that cannot be")


@message(to="node", answered_by={"Control": ("manager", "node")})
class HeartbeatSeen(Message):
    #: 0: it answers none, and only tells how often heartbeats are wanted from now on.
    seq: int
    #: How long after a heartbeat the next one is sent; 0: as the welcome said.
    next_s: float = 0.0


@message(to="manager", said_by={"Control": ("node", "browser", "worker", "pending")})
class Leave(Message):
    """A node says goodbye: its leases return at once, nobody has to wait for a time-out."""

    reason: str
    #: It comes again after so many seconds, as it was told to; 0: it does not say.
    come_s: float = 0.0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.come_s <= COME_MOST_S:
            raise PeerViolation(f"says it comes again in {self.come_s:g} s")
