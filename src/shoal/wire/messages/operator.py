"""An operator and the manager: what a person asks, and what the cluster answers."""

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

#: More pages of ended jobs than any cluster has.
ENDED_PAGE_MAX = 1_000_000


@message(to="manager", said_by={"Operate": ("operator",)})
class TransferJob(Message):
    """Let another node lead a job; empty: whichever is placed best."""

    job: str
    node: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class Submit(Message):
    spec: JobSpec


@message(to="manager", said_by={"Operate": ("operator",)})
class AskSpec(Message):
    """A job as it was submitted: what its code, its first model and its data are, by their hashes."""

    job: str


@message()
class SubmittedJob(Message):
    """With the signature: an operator who runs its code checks that as devices do."""

    spec: JobSpec


@message(to="manager", said_by={"Operate": ("operator",)})
class StopJob(Message):
    job: str
    reason: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class RemoveJob(Message):
    """An ended job goes, with its checkpoints, its published versions, and what it alone is made of."""

    job: str


@message(to="manager", said_by={"Operate": ("operator",)})
class CollectGarbage(Message):
    """What no job names goes."""

    #: Only say what would go.
    dry_run: bool = False


@message(to="manager", said_by={"Operate": ("operator",)})
class AskStatus(Message):
    """The nodes, the open jobs and the latest that ended; or one job with its latest events and evaluations."""

    job: str = ""
    after_event: int = 0
    #: Of its events, those alone that have a traceback, and it.
    tracebacks: bool = False
    #: The next page of nodes: those behind this one, by name. Empty: the first page, with all else.
    after_node: str = ""
    #: Only this page of the ended jobs, counted from 1, the latest first. 0: open jobs and the latest ended ones.
    ended_page: int = 0
    #: Only the jobs with this id, start of an id, or name; where there are none, those that a status lists.
    called: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.ended_page <= ENDED_PAGE_MAX:
            raise PeerViolation(f"AskStatus.ended_page is {self.ended_page}; it must be 0 to {ENDED_PAGE_MAX}")


@message(to="manager", said_by={"Operate": ("operator",)})
class AskActs(Message):
    """What operators did, page by page, oldest first."""

    #: Those behind this number.
    after: int = 0
    #: Only those about this job, node or token; empty: all.
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
    #: There are more behind this one; 0: these are the last.
    next_act: int = 0


@message()
class Done(Message):
    """The command took effect, durably."""

    job: str = ""
    reason: str = ""


@message()
class Denied(Message):
    """The command was refused."""

    reason: str
    #: Another manager answers it, which is dialled there; empty: none does.
    endpoint: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.endpoint and not is_endpoint(self.endpoint):
            raise PeerViolation(f"not where anyone can be dialled: {self.endpoint[:80]!r}")


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
    #: Seconds since it was last heard; negative: never since the manager started.
    heard_s: float = -1.0
    #: ``pending``, ``drained`` or ``revoked``; empty: a member like any other.
    standing: str = ""
    #: Which protocol it speaks; 0: it has not said since the manager started.
    protocol: int = 0
    #: When its card runs out (``identity.cards``), in seconds since 1970. 0 if it has none.
    card_until_s: float = 0.0
    #: What is wrong with it: it fails in its job, or could not prepare one. Empty if nothing is.
    trouble: str = ""
    #: How far it is with preparing its job, in words for people. Empty while it prepares none, or does not say.
    preparing: str = ""
    #: What it is, ``NAME=VALUE`` each; an operator's word wins over its own.
    labels: tuple[str, ...] = ()
    #: Where the manager that has it is dialled, or had it last. Empty if the cluster has one manager.
    manager: str = ""


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
    #: None: no version was published.
    served: ServedView | None = None
    #: Which versions were discarded last, and why; empty: none ever was.
    discarded: str = ""
    #: Seconds since the manager first heard that it is so: by its leader while the job runs. Below 0: not known.
    since_s: float = -1.0
    #: Seconds since its leader was last heard; below 0: not since the manager started.
    heard_s: float = -1.0
    #: What is wrong with it, in one sentence for people. Empty if nothing is.
    trouble: str = ""
    #: How many of its devices fail, also those that were let go because they could not prepare it.
    failing: int = 0
    #: Devices fail, and none trains.
    stalled: bool = False
    #: Where its manager is dialled. Empty if the cluster has one manager, or if no manager has it at this moment.
    manager: str = ""


@message()
class EventView(Message):
    """A decision and its reason, as recorded."""

    seq: int
    #: Seconds since 1970 by the manager's clock: for people, never for decisions.
    at_s: float
    kind: str
    reason: str
    #: Only where tracebacks were asked for.
    traceback: str = ""


@message()
class EvaluationView(Message):
    """How a version did on examples that it was not trained on."""

    version: int
    epoch: int
    #: The figures of the metrics of these names; None: no metric is called so.
    accuracy: float | None = None
    loss: float | None = None
    examples: int
    seconds: float
    metrics: tuple[MetricView, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        check_views(self.metrics)
        if not self.metrics:
            object.__setattr__(self, "metrics", plain_views(accuracy=self.accuracy, loss=self.loss))
        # A figure that is no number is none, however it was given.
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
    #: The pool: who multiplies for others.
    executors: tuple[ExecutorView, ...] = ()
    #: There are more nodes: ask again for those after this one. Empty: these were the last.
    next_node: str = ""
    #: How many jobs ended so, also those that are not listed here. 0 from a manager that lists all of them.
    finished_jobs: int = 0
    failed_jobs: int = 0
    stopped_jobs: int = 0
    #: The next page of ended jobs, or 0 if this was the last or no page was asked for.
    next_ended_page: int = 0

    def count(self, state: JobState) -> int:
        """Return how many jobs are in this state, also those that are not listed."""
        ended = {
            JobState.FINISHED: self.finished_jobs,
            JobState.FAILED: self.failed_jobs,
            JobState.STOPPED: self.stopped_jobs,
        }
        return max(ended.get(state, 0), sum(view.state is state for view in self.jobs))

    @property
    def ended_unlisted(self) -> int:
        """How many ended jobs are not listed here."""
        listed = sum(view.state.is_ended for view in self.jobs)
        return sum(self.count(state) for state in JobState if state.is_ended) - listed
