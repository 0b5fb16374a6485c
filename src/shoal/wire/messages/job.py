"""A job: its specification, its leader and workers, and its progress."""

from __future__ import annotations

from dataclasses import field

from shoal.errors import PeerViolation
from shoal.learning.algorithm_name import AlgorithmName
from shoal.plan import Plan
from shoal.states import ENDED, REPORTED
from shoal.wire.limits import BASE_PARTS_MAX, BATCHES_MAX, SEAL_CARD_MAX_BYTES
from shoal.wire.messages.base import Message, Tensors, is_endpoint, is_id, is_sha256, message
from shoal.wire.messages.metrics import MetricView, check_views


@message()
class Dataset(Message):
    """One split of a task's data, named by the hash of its manifest in the store."""

    manifest: str = ""
    examples: int = 0

    def _check(self) -> None:
        if self.manifest and not is_sha256(self.manifest):
            raise PeerViolation(f"a manifest is named by its sha256, not {self.manifest[:80]!r}")
        if self.examples < 0:
            raise PeerViolation(f"Dataset.examples is {self.examples}; it must be at least 0")


@message()
class JobSpec(Message):
    """A task and a plan. Code, initial model and data are named by their hashes."""

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
    #: The submitting operator's signature over everything else (see ``identity.signing``), in base64.
    signature: str = ""
    #: That operator's certificate.
    signer_pem: str = ""
    #: The parts of the model's frozen base. Devices fetch them, the leader does not. Empty if nothing is frozen.
    base: tuple[str, ...] = ()
    #: The exported training step, for devices without PyTorch. Empty if there is none.
    graphs: str = ""
    #: The signature of the operator's card key over the bytes that ``signature`` covers, in base64. Devices that pinned
    #: that key require it.
    card_signature: str = ""

    def _check(self) -> None:
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
            raise PeerViolation(
                f"an epoch has {batches} batches; the maximum is {BATCHES_MAX}. Set a larger batch_size"
            )

    @property
    def why_not_new(self) -> str | None:
        """Return why this must not be a new job, or None if it may."""
        if self.plan.ema and self.plan.data == "local" and not self.test.examples:
            return (
                "ema with data = 'local' needs held-out examples: new examples on devices are evaluated by the newest"
                " version, not by the mean. Give the task examples('test'), or leave ema out"
            )
        if self.plan.algorithm and not AlgorithmName.parse(self.plan.algorithm).hooks:
            return (
                f"algorithm = {self.plan.algorithm!r} does not say which methods it has, and a leader asks none then."
                " `shoal train` adds them"
            )
        return self.plan.why_not_new

    @property
    def suits_tabs(self) -> bool:
        """Whether a tab of a browser can work for this job."""
        return self.why_no_tabs is None

    @property
    def why_no_tabs(self) -> str | None:
        """Return why a tab of a browser cannot work for this job, or None if it can. A tab runs the exported training
        step on shared examples or on rows of its own, and sends complete updates to a leader at the manager."""
        plan = self.plan
        is_local = plan.data == "local"
        reasons = {
            "the job has no exported training step": not self.graphs,
            "a frozen base is too large for a tab": bool(self.base),
            "a tab has no door that an aggregator or a worker could dial": plan.topology != "star",
            "a tab sends and receives complete values": (plan.codec, plan.down) != ("dense", "dense"),
            "a tab keeps no privacy budget for examples of others": plan.privacy is not None and not is_local,
            "a tab cannot mask its updates": plan.believes.sealed is not None,
            "a tab keeps no momentum of its own": bool(plan.device_momentum),
            "a tab does not measure how fast it is": plan.work == "sized" and not is_local,
            "a tab does not measure its energy": bool(plan.budget_joules or plan.budget_battery_percent),
            "a tab adds no noise to the labels that it reports": bool(plan.labels_epsilon),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    @property
    def batches(self) -> int:
        """The number of batches in an epoch; with local data, of leases."""
        if self.plan.data == "local":
            return self.plan.epoch_leases
        return -(-self.train.examples // self.plan.batch_size)


@message(to="node", answered_by={"Control": ("manager",)})
class Assign(Message):
    """The manager gives a node a role in a job. ``term`` is a fence: messages of older terms are refused."""

    job: str
    role: str
    term: int
    leader: str
    #: Where to dial the leader. Empty if it runs on the manager.
    leader_endpoint: str = ""
    spec: JobSpec
    reason: str = ""
    #: The node's card (``identity.cards``), for a job with signed members.
    card: bytes = field(repr=False, default=b"")

    def _check(self) -> None:
        if len(self.card) > SEAL_CARD_MAX_BYTES:
            raise PeerViolation(f"Assign.card has {len(self.card)} bytes; the maximum is {SEAL_CARD_MAX_BYTES}")


@message(to="node", answered_by={"Control": ("manager",)})
class Dismiss(Message):
    """The manager ends a node's role in a job; without a job, it disconnects the node."""

    job: str
    reason: str
    #: Without a job: where to dial the manager that has the node's job, or work for it. Empty if the node should dial
    #: this manager again.
    endpoint: str = ""

    def _check(self) -> None:
        if self.endpoint and not is_endpoint(self.endpoint):
            raise PeerViolation(f"Dismiss.endpoint is {self.endpoint[:80]!r}; it must be HOST:PORT")


@message()
class WorkerView(Message):
    """One worker as its leader sees it, shown in ``shoal status``."""

    node: str
    state: str
    reason: str = ""
    batches: int = 0
    #: Median seconds from lease to update.
    lease_s: float = 0.0
    #: This worker's median divided by the median of all workers: above 1 is slow.
    slowness: float = 1.0
    bytes_up: int = 0
    bytes_down: int = 0
    failures: int = 0
    #: Median seconds of a lease that its trainer reports as training. The rest was transfer and waiting.
    train_s: float = 0.0


@message()
class TopologyView(Message):
    """A topology that the job could use, and the predicted seconds per batch."""

    topology: str
    pace: str = "sync"
    batch_s: float = 0.0
    detail: str = ""
    chosen: bool = False


@message(to="manager", said_by={"Control": ("node",)})
class Progress(Message):
    """A job's progress. The leader sends it to the manager about once per second and at every change of state."""

    job: str
    term: int
    #: A ``LeaderPhase``, or a ``JobState`` once the job is over.
    state: str
    #: Why it waits, or how it ended. While it trains or evaluates, what is wrong, or empty.
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
    #: How many versions were made between a lease and the merge of its update: the median of recent ones, and the most.
    staleness: float = 0.0
    staleness_max: int = 0
    #: Whether another worker helps: ``gains``, ``saturated``, ``unsure``, or empty if it was not measured. Then the
    #: evidence, and the number of workers above which more help too little, 0 if there is none.
    saturation: str = ""
    saturation_reason: str = ""
    saturated_at: int = 0
    #: Seconds from one version to the next, or with an asynchronous pace for as many updates as there are workers: the
    #: median of recent undisturbed rounds. Then how much of that was not training.
    round_s: float = 0.0
    sync_s: float = 0.0
    #: The topology in use, why it was chosen, and the pace.
    topology: str = ""
    topology_reason: str = ""
    pace: str = ""
    #: The predicted seconds per batch. 0 if there is no prediction.
    predicted_s: float = 0.0
    #: The topologies that were compared.
    alternatives: tuple[TopologyView, ...] = ()
    #: What would be lost with this leader: batches applied since its last durable version, or since it lost contact
    #: with the manager, and how many workers trained them.
    unsaved_batches: int = 0
    unsaved_workers: int = 0
    #: Batches applied under this term, and how many workers trained them.
    term_batches: int = 0
    term_workers: int = 0
    #: The results of the latest evaluation.
    metrics: tuple[MetricView, ...] = ()
    #: Under ``private``: the epsilon used by the job, and by the device that took part most often; and how often that
    #: device did.
    epsilon: float = 0.0
    epsilon_worst: float = 0.0
    participations_worst: int = 0
    #: How many devices have an update in some version. 0 if the leader's release does not count them.
    took_part: int = 0

    def _check(self) -> None:
        check_views(self.metrics)
        if self.state not in REPORTED:
            raise PeerViolation(f"Progress.state is {self.state[:80]!r}, which is not a state of a job")

    @property
    def is_last(self) -> bool:
        """Whether the job is over, so that its leader reports nothing after this."""
        return self.state in ENDED


@message(to="leading", answered_by={"Control": ("manager",)})
class Admit(Message):
    """The manager tells a leader which nodes work for its job, and may connect to it."""

    job: str
    term: int
    nodes: tuple[str, ...] = ()
    #: Whether the list replaces the earlier ones: a node that is not in it is no longer admitted.
    anew: bool = False

    def _check(self) -> None:
        if not all(is_id(node) for node in self.nodes):
            raise PeerViolation("Admit.nodes has an entry that is not an id")


@message(to="leading", answered_by={"Control": ("manager",)})
class Revoke(Message):
    """A node is lost or revoked: the leader reassigns its leases."""

    job: str
    term: int
    node: str
    reason: str = ""


@message(to="leading", answered_by={"Control": ("manager",)})
class StopRequest(Message):
    """The manager ends a job: its leader makes the last version durable and reports."""

    job: str
    reason: str
    #: Whether the job ends as failed and not as stopped.
    failed: bool = False


@message(to="leading", answered_by={"Control": ("manager",)})
class HandOver(Message):
    """The manager asks a leader to finish its round, make it durable and step down."""

    job: str
    term: int
    reason: str = ""
    #: The least number for the version that it hands over: another leader used the numbers below.
    version_least: int = 0


@message(to="leading", answered_by={"Control": ("manager",)})
class StepDown(Message):
    """End a job's leadership under this term and all earlier ones. Also the answer to a leader's last report."""

    job: str
    term: int
    reason: str = ""


@message(to="manager", said_by={"Control": ("node",)})
class SteppedDown(Message):
    """A node does not lead a job under this term, or no longer does."""

    job: str
    term: int
    reason: str
    #: The node could not lead it, and another node may.
    failed: bool = False


@message(to="manager", said_by={"Control": ("node",)}, cost=25.0)
class LeaderUnreachable(Message):
    """A worker cannot reach its leader."""

    job: str
    term: int
    reason: str


@message(to="manager", said_by={"Control": ("node",)})
class LogRecord(Message):
    """A leader's decision and its reason, for the manager to record."""

    job: str
    term: int
    kind: str
    reason: str
    traceback: str = ""

    def _check(self) -> None:
        if not self.kind.isprintable():
            raise PeerViolation("LogRecord.kind has characters that cannot be printed")


@message(to="manager", said_by={"Work": ("node",)}, cost=500.0)
class AskCheckpoint(Message):
    """A new leader asks for the job's latest checkpoint."""

    job: str
    term: int


@message(to="manager", said_by={"Work": ("node",)}, answered_by={"Work": ("manager",)}, cost=200.0)
class Checkpoint(Message):
    """A version with its ledger and state, as the bytes of one file: to store, or to continue from.

    The version is -1, and there is no file, if the job has no checkpoint yet.
    """

    job: str
    term: int
    version: int
    #: Counts the leader's saves: it may send a version twice, with more in it the second time.
    number: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@message(to="leading", answered_by={"Work": ("manager",)})
class CheckpointKept(Message):
    """The manager has made a checkpoint durable: it survives a crash of the manager."""

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
    """The manager asks a leader to release a worker once that holds no lease."""

    job: str
    node: str
    reason: str = ""


@message(to="manager", said_by={"Control": ("node",)})
class Released(Message):
    """The leader has released a worker."""

    job: str
    term: int
    node: str
    #: Why the worker could not prepare the job. Empty if it was released for another reason.
    failure: str = ""
    #: The task's code raised: a similar device would fail in the same way.
    by_task: bool = False
