"""A job: its specification, who leads it, who works for it, and how it stands."""

from __future__ import annotations

from dataclasses import field

from shoal.errors import PeerViolation
from shoal.plan import Plan
from shoal.states import ENDED, REPORTED
from shoal.wire.limits import BASE_PARTS_MAX, BATCHES_MAX, SEAL_CARD_MAX_BYTES
from shoal.wire.messages.base import Message, Tensors, is_endpoint, is_id, is_sha256, message
from shoal.wire.messages.metrics import MetricView, check_views


@message()
class Dataset(Message):
    """One split of a task's data, by the hash of its manifest in the store."""

    manifest: str = ""
    examples: int = 0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.manifest and not is_sha256(self.manifest):
            raise PeerViolation(f"a manifest is named by its sha256, not {self.manifest[:80]!r}")
        if self.examples < 0:
            raise PeerViolation(f"a data set has {self.examples} examples")


@message()
class JobSpec(Message):
    """A task and a plan, by content: code, initial model and data are named by their hashes."""

    job: str
    name: str
    #: ``module:Class`` inside the bundle.
    entry: str
    kwargs_json: str = "{}"
    bundle: str
    initial: str
    train: Dataset
    test: Dataset
    plan: Plan
    #: By the operator who submitted it, over everything else (see ``identity.signing``); base64.
    signature: str = ""
    #: That operator's certificate.
    signer_pem: str = ""
    #: The parts of the model's frozen base, which devices fetch and the leader does not; none: nothing is frozen.
    base: tuple[str, ...] = ()
    #: The captured graphs of its step, for devices without PyTorch; empty: it has none.
    graphs: str = ""
    #: By the operator's card key, over what ``signature`` is over; base64. Devices that pinned that key ask for it.
    card_signature: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        for name in ("bundle", "initial"):
            if not is_sha256(getattr(self, name)):
                raise PeerViolation(f"a job's {name} is named by its sha256, not {getattr(self, name)[:80]!r}")
        if len(self.base) > BASE_PARTS_MAX or not all(is_sha256(part) for part in self.base):
            raise PeerViolation(f"a frozen base has at most {BASE_PARTS_MAX} parts, each named by its sha256")
        if self.graphs and not is_sha256(self.graphs):
            raise PeerViolation(f"a job's graphs are named by their sha256, not {self.graphs[:80]!r}")
        if not self.job:
            raise PeerViolation("a job needs an id")
        if self.plan.data == "shared" and self.train.examples < 1:
            raise PeerViolation("a job with shared data needs at least one training example")
        batches = self.batches
        if batches > BATCHES_MAX:
            raise PeerViolation(f"{batches} batches an epoch, at most {BATCHES_MAX}: take a larger batch_size")

    @property
    def why_not_new(self) -> str | None:
        """Return why this must not be a new job, or None if it may."""
        if self.plan.ema and self.plan.data == "local" and not self.test.examples:
            return (
                "ema with data = 'local' needs held-out examples: new examples on devices are evaluated by the newest"
                " version, not by the mean. Give the task examples('test'), or leave ema out"
            )
        return self.plan.why_not_new

    @property
    def suits_tabs(self) -> bool:
        """Whether a tab of a browser can work for this job."""
        return self.why_no_tabs is None

    @property
    def why_no_tabs(self) -> str | None:
        """Return why a tab of a browser cannot work for this job, or None if it can. A tab runs the exported training
        step on shared examples, sends complete updates to a leader at the manager, and keeps nothing."""
        plan = self.plan
        reasons = {
            "the job has no exported training step": not self.graphs,
            "a frozen base is too large for a tab": bool(self.base),
            "a tab has no examples of its own": plan.data != "shared",
            "a tab has no door that an aggregator or a worker could dial": plan.topology != "star",
            "a tab keeps all shards, and windows are for disks": plan.shuffle != "full",
            "a tab sends and receives complete values": (plan.codec, plan.down) != ("dense", "dense"),
            "a tab keeps no privacy budget": plan.privacy is not None,
            "a tab cannot mask its updates": plan.believes.sealed is not None,
            "a tab keeps no momentum of its own": bool(plan.device_momentum),
            "a tab does not measure how fast it is": plan.work == "sized",
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    @property
    def batches(self) -> int:
        """Of an epoch; with local data, its leases."""
        if self.plan.data == "local":
            return self.plan.epoch_leases
        return -(-self.train.examples // self.plan.batch_size)


@message(to="node", answered_by={"Control": ("manager",)})
class Assign(Message):
    """The manager gives a node a role in a job. ``term`` fences: a message from an older term is refused."""

    job: str
    role: str
    term: int
    leader: str
    #: Where the leader is dialled; empty: where the manager is.
    leader_endpoint: str = ""
    spec: JobSpec
    reason: str = ""
    #: The node's card (``identity.cards``), for a job with signed members.
    card: bytes = field(repr=False, default=b"")

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if len(self.card) > SEAL_CARD_MAX_BYTES:
            raise PeerViolation(f"Assign.card has {len(self.card)} bytes; the maximum is {SEAL_CARD_MAX_BYTES}")


@message(to="node", answered_by={"Control": ("manager",)})
class Dismiss(Message):
    """The manager takes a role back; without a job, it lets go of the node."""

    job: str
    reason: str
    #: Without a job: where a manager is that has work for the node, or the job that it works for. Empty: try again.
    endpoint: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.endpoint and not is_endpoint(self.endpoint):
            raise PeerViolation(f"not where anyone can be dialled: {self.endpoint[:80]!r}")


@message()
class WorkerView(Message):
    """One worker as its leader sees it: what people read in ``shoal status``."""

    node: str
    state: str
    reason: str = ""
    batches: int = 0
    #: Median seconds from lease to update.
    lease_s: float = 0.0
    #: This worker's median over the median of all: above 1 is slow.
    slowness: float = 1.0
    bytes_up: int = 0
    bytes_down: int = 0
    failures: int = 0
    #: Median seconds of this that its trainer says it trained; the rest went to moving models and waiting.
    train_s: float = 0.0


@message()
class TopologyView(Message):
    """A way in which updates could meet, and what a batch is predicted to take then."""

    topology: str
    pace: str = "sync"
    batch_s: float = 0.0
    detail: str = ""
    chosen: bool = False


@message(to="manager", said_by={"Control": ("node",)})
class Progress(Message):
    """How a job stands, told by its leader to the manager about once a second and at every turn."""

    job: str
    term: int
    #: A ``LeaderPhase``; once the job is over, its ``JobState``.
    state: str
    #: Why it waits, or how it ended. While it trains or evaluates: what is wrong with that, empty if nothing is.
    reason: str = ""
    version: int = 0
    durable_version: int = 0
    epoch: int = 0
    batches_applied: int = 0
    batches_total: int = 0
    accuracy: float | None = None
    loss: float | None = None
    train_loss: float | None = None
    rounds_per_s: float = 0.0
    examples_per_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    refused: int = 0
    workers: tuple[WorkerView, ...] = ()
    #: Versions made between a lease and the merge of its update: the median of recent ones, and the most.
    staleness: float = 0.0
    staleness_max: int = 0
    #: Does one more worker bring anything? ``gains``, ``saturated``, ``unsure``, or empty while nothing was measured.
    #: What speaks for it; and the size from which on more bring too little, 0 if there is none.
    saturation: str = ""
    saturation_reason: str = ""
    saturated_at: int = 0
    #: From one version to the next, or where nobody waits as many updates as there are workers: the median of late
    #: rounds that nothing disturbed. And what of it was not training.
    round_s: float = 0.0
    sync_s: float = 0.0
    #: How updates meet now, and why; which pace that goes by.
    topology: str = ""
    topology_reason: str = ""
    pace: str = ""
    #: What a batch was predicted to take; 0: nothing was.
    predicted_s: float = 0.0
    #: What there was to choose from.
    alternatives: tuple[TopologyView, ...] = ()
    #: What would be lost with this leader: batches applied since its last durable version, or since it lost sight of
    #: the manager, and how many workers trained them.
    unsaved_batches: int = 0
    unsaved_workers: int = 0
    #: Batches applied under this term, and how many workers trained them.
    term_batches: int = 0
    term_workers: int = 0
    #: Of the latest evaluation.
    metrics: tuple[MetricView, ...] = ()
    #: Under ``private``: the epsilon that the job and the device that came most often have spent, and how often that
    #: came.
    epsilon: float = 0.0
    epsilon_worst: float = 0.0
    participations_worst: int = 0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        check_views(self.metrics)
        if self.state not in REPORTED:
            raise PeerViolation(f"{self.state[:80]!r} is not a state of a job")

    @property
    def is_last(self) -> bool:
        """The job is over: its leader says nothing after this."""
        return self.state in ENDED


@message(to="leading", answered_by={"Control": ("manager",)})
class Admit(Message):
    """These nodes work for a job that is led there: its leader's door opens to them."""

    job: str
    term: int
    nodes: tuple[str, ...] = ()
    #: These alone: a node that was admitted before and is not among them is shut out.
    anew: bool = False

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not all(is_id(node) for node in self.nodes):
            raise PeerViolation("a node is admitted by its id")


@message(to="leading", answered_by={"Control": ("manager",)})
class Revoke(Message):
    """This node was lost or shut out: its leases return."""

    job: str
    term: int
    node: str
    reason: str = ""


@message(to="leading", answered_by={"Control": ("manager",)})
class StopRequest(Message):
    """The job is to end: its leader makes the last version durable and reports."""

    job: str
    reason: str
    #: It ends as failed, not as stopped.
    failed: bool = False


@message(to="leading", answered_by={"Control": ("manager",)})
class HandOver(Message):
    """The manager asks a leader to finish its round, make it durable and step down."""

    job: str
    term: int
    reason: str = ""
    #: The version it hands over has at least this number: numbers below it were used by another leader.
    version_least: int = 0


@message(to="leading", answered_by={"Control": ("manager",)})
class StepDown(Message):
    """Nobody leads this job under this term or an older one any more. Also the answer to a leader's last word."""

    job: str
    term: int
    reason: str = ""


@message(to="manager", said_by={"Control": ("node",)})
class SteppedDown(Message):
    """A node does not lead a job under this term, or not any more."""

    job: str
    term: int
    reason: str
    #: It could not do it, and another node may.
    failed: bool = False


@message(to="manager", said_by={"Control": ("node",)}, cost=25.0)
class LeaderUnreachable(Message):
    """A worker cannot reach the leader it was given."""

    job: str
    term: int
    reason: str


@message(to="manager", said_by={"Control": ("node",)})
class LogRecord(Message):
    """A decision of a leader and its reason, for the manager to write down."""

    job: str
    term: int
    kind: str
    reason: str
    traceback: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not self.kind.isprintable():
            raise PeerViolation("a kind of decision that cannot be printed")


@message(to="manager", said_by={"Work": ("node",)}, cost=500.0)
class AskCheckpoint(Message):
    """A new leader asks where the job stands."""

    job: str
    term: int


@message(to="manager", said_by={"Work": ("node",)}, answered_by={"Work": ("manager",)}, cost=200.0)
class Checkpoint(Message):
    """A version with the ledger and state that belong to it, as the bytes of one file: to be kept, or to go on from.

    Version -1, without a file: there is none yet.
    """

    job: str
    term: int
    version: int
    #: Of the leader's saves: a version may be sent twice, with more in it the second time.
    number: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@message(to="leading", answered_by={"Work": ("manager",)})
class CheckpointKept(Message):
    """It is durable where the manager is: written, flushed, found again after a crash."""

    job: str
    term: int
    version: int
    number: int = 0


@message(to="leading", answered_by={"Work": ("manager",)})
class CheckpointRefused(Message):
    job: str
    term: int
    version: int
    reason: str
    number: int = 0


@message(to="leader", answered_by={"Control": ("manager",)})
class Release(Message):
    """The manager asks a leader to let a worker go, once it holds no lease."""

    job: str
    node: str
    reason: str = ""


@message(to="manager", said_by={"Control": ("node",)})
class Released(Message):
    """The leader has let a worker go."""

    job: str
    term: int
    node: str
    #: Why the worker could not prepare the job. Empty if it was let go for another reason.
    failure: str = ""
    #: The task's code raised: a device that is alike would fail alike.
    by_task: bool = False
