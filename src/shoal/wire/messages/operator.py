"""An operator's commands and questions, and the manager's answers."""

from __future__ import annotations

from dataclasses import field

from shoal.errors import PeerViolation
from shoal.plan import Plan
from shoal.states import JobState
from shoal.wire.messages.base import Message, is_endpoint, message
from shoal.wire.messages.job import JobSpec, Progress
from shoal.wire.messages.metrics import MetricView, check_views, figure_of, plain_views
from shoal.wire.messages.model import ServedView
from shoal.wire.messages.offload import ExecutorView
from shoal.wire.messages.session import Facts

#: More pages of ended jobs than a cluster can have.
ENDED_PAGE_MAX = 1_000_000


@message(to="manager", said_by={"Operate": ("operator",)})
class TransferJob(Message):
    """Let another node lead a job, or with an empty name the one that the manager places best."""

    job: str
    node: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class Submit(Message):
    spec: JobSpec


@message(to="manager", said_by={"Operate": ("operator",)})
class AskSpec(Message):
    """Ask for a job as it was submitted, with the hashes of its code, its first model and its data."""

    job: str


@message()
class SubmittedJob(Message):
    """The answer to ``AskSpec``. An operator who runs the job's code checks its signature, as devices do."""

    spec: JobSpec


@message(to="manager", said_by={"Operate": ("operator",)})
class StopJob(Message):
    job: str
    reason: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class RemoveJob(Message):
    """Delete an ended job, its checkpoints, its published versions, and the blobs that no other job uses."""

    job: str


@message(to="manager", said_by={"Operate": ("operator",)})
class CollectGarbage(Message):
    """Delete the blobs that no job uses."""

    #: Only report what would be deleted.
    dry_run: bool = False


@message(to="manager", said_by={"Operate": ("operator",)})
class AskStatus(Message):
    """Ask for the nodes, the open jobs and the latest ended ones; or for one job with its latest events and
    evaluations."""

    job: str = ""
    after_event: int = 0
    #: Only the events that have a traceback, with their tracebacks.
    tracebacks: bool = False
    #: The next page of nodes: those after this one by name. Empty for the first page, which has everything else too.
    after_node: str = ""
    #: Only this page of the ended jobs, counted from 1, latest first. 0 for the open jobs and the latest ended ones.
    ended_page: int = 0
    #: Only the jobs with this id, start of an id, or name. If there are none, the jobs that a status lists.
    called: str = ""

    def _check(self) -> None:
        if not 0 <= self.ended_page <= ENDED_PAGE_MAX:
            raise PeerViolation(f"AskStatus.ended_page is {self.ended_page}; it must be 0 to {ENDED_PAGE_MAX}")


@message(to="manager", said_by={"Operate": ("operator",)})
class AskActs(Message):
    """Ask for a page of the audit log, oldest rows first."""

    #: Only rows after this number.
    after: int = 0
    #: Only rows about this job, node or token. Empty for all rows.
    subject: str = ""


@message()
class ActView(Message):
    """A row of the audit log (``store.act_rows``)."""

    seq: int
    at_s: float
    operator: str
    certificate: str
    manager: str
    kind: str
    subject: str = ""
    text: str = ""
    is_refused: bool = False
    sha256: str


@message()
class ActList(Message):
    acts: tuple[ActView, ...] = ()
    #: The number after which the next page begins. 0 if this is the last page.
    next_act: int = 0


@message()
class Done(Message):
    """The command took effect, and its effect is durable."""

    job: str = ""
    reason: str = ""


@message()
class Denied(Message):
    """The command was refused."""

    reason: str
    #: Where to dial the manager that can carry it out. Empty if there is none.
    endpoint: str = ""

    def _check(self) -> None:
        if self.endpoint and not is_endpoint(self.endpoint):
            raise PeerViolation(f"Denied.endpoint is {self.endpoint[:80]!r}; it must be HOST:PORT")


@message()
class NodeView(Message):
    node: str
    #: ``alive``, ``suspect``, ``dormant``, ``lost``, or ``elsewhere``: on its way to another manager.
    state: str
    reason: str = ""
    job: str = ""
    facts: Facts = field(default_factory=Facts)
    load: float = 0.0
    memory_free_mb: int = 0
    #: Seconds since its last message. Negative if the manager got none since it started.
    heard_s: float = -1.0
    #: ``pending``, ``drained`` or ``revoked``. Empty for an ordinary member.
    standing: str = ""
    #: Its protocol. 0 if the manager does not know it since it started.
    protocol: int = 0
    #: When its card expires (``identity.cards``), in seconds since 1970. 0 if it has none.
    card_until_s: float = 0.0
    #: Why it fails in its job or could not prepare one. Empty if nothing is wrong.
    trouble: str = ""
    #: How far it is with preparing its job, as text for people. Empty if it prepares none or does not report it.
    preparing: str = ""
    #: Its labels, each ``NAME=VALUE``. An operator's labels override the device's.
    labels: tuple[str, ...] = ()
    #: Where to dial the manager that it is connected to, or was last. Empty if the cluster has one manager.
    manager: str = ""
    #: The best rate of its recent large downloads. 0 if unknown.
    link_bytes_per_s: float = 0.0


@message()
class JobView(Message):
    job: str
    name: str
    state: JobState
    reason: str = ""
    leader: str = ""
    plan: Plan
    progress: Progress | None = None
    model_size: int = 0
    train_examples: int = 0
    test_examples: int = 0
    term: int = 0
    #: None if no version was published.
    served: ServedView | None = None
    #: Which versions were discarded last, and why. Empty if none ever was.
    discarded: str = ""
    #: Seconds since the manager first saw it in this state; while the job runs, its leader reports the state. Negative
    #: if unknown.
    since_s: float = -1.0
    #: Seconds since its leader's last message. Negative if the manager got none since it started.
    heard_s: float = -1.0
    #: What is wrong with it, as one sentence for people. Empty if nothing is.
    trouble: str = ""
    #: How many of its devices fail, including those that were released because they could not prepare it.
    failing: int = 0
    #: Devices fail, and none trains.
    stalled: bool = False
    #: Where to dial its manager. Empty if the cluster has one manager, or if the job has none at the moment.
    manager: str = ""


@message()
class EventView(Message):
    """A decision and its reason, as recorded."""

    seq: int
    #: Seconds since 1970 by the manager's clock: for people, never for decisions.
    at_s: float
    kind: str
    reason: str
    #: Empty unless tracebacks were asked for.
    traceback: str = ""


@message()
class EvaluationView(Message):
    """A version's results on held-out examples."""

    version: int
    epoch: int
    #: The figures of the metrics with these names, or None if there is no such metric.
    accuracy: float | None = None
    loss: float | None = None
    examples: int
    seconds: float
    metrics: tuple[MetricView, ...] = ()

    def _check(self) -> None:
        check_views(self.metrics)
        if not self.metrics:
            object.__setattr__(self, "metrics", plain_views(accuracy=self.accuracy, loss=self.loss))
        # A figure that is not finite counts as missing.
        object.__setattr__(self, "accuracy", figure_of(self.metrics, "accuracy"))
        object.__setattr__(self, "loss", figure_of(self.metrics, "loss"))


@message()
class Status(Message):
    cluster: str
    manager: str
    nodes: tuple[NodeView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    events: tuple[EventView, ...] = ()
    evaluations: tuple[EvaluationView, ...] = ()
    #: The executors of the offload pool.
    executors: tuple[ExecutorView, ...] = ()
    #: The node after which the next page begins. Empty if this is the last page.
    next_node: str = ""
    #: How many jobs ended in each way, including those not listed here. 0 from a manager that lists all of them.
    finished_jobs: int = 0
    failed_jobs: int = 0
    stopped_jobs: int = 0
    #: The next page of ended jobs, or 0 if this was the last or no page was asked for.
    next_ended_page: int = 0

    def count(self, state: JobState) -> int:
        """Return how many jobs are in this state, including those not listed."""
        ended = {
            JobState.FINISHED: self.finished_jobs,
            JobState.FAILED: self.failed_jobs,
            JobState.STOPPED: self.stopped_jobs,
        }
        return max(ended.get(state, 0), sum(view.state is state for view in self.jobs))

    @property
    def ended_unlisted(self) -> int:
        """The number of ended jobs that are not listed here."""
        listed = sum(view.state.is_ended for view in self.jobs)
        return sum(self.count(state) for state in JobState if state.is_ended) - listed
