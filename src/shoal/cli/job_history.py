"""The history of one job from successive Status values: the news of each, and the past. Pure; draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.cli.drift import Drift, drift_of
from shoal.cli.foremost import foremost
from shoal.cli.standing import JobStanding, standing
from shoal.errors import Misuse
from shoal.roles.manager.preparation import kind_of
from shoal.roles.manager.publishing import measure

if TYPE_CHECKING:
    from shoal.wire.messages import EvaluationView, EventView, JobView, NodeView, Progress, ServedView, Status

#: How much of a job's past is kept: more than any screen shows.
EVENTS_KEPT = 200
EVALUATIONS_KEPT = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """What one Status added."""

    state: str = ""
    #: What is wrong with the job, if that changed.
    trouble: str = ""
    events: tuple[EventView, ...] = ()
    evaluations: tuple[EvaluationView, ...] = ()


@dataclass(slots=True)
class Story:
    """Feed it each Status of a job with ``take``; the newest job view and the accumulated past are its fields."""

    job_id: str
    cluster: str = ""
    manager: str = ""
    job: JobView | None = None
    nodes: tuple[NodeView, ...] = ()
    events: list[EventView] = field(default_factory=list)
    evaluations: dict[int, EvaluationView] = field(default_factory=dict)
    last_event: int = 0
    #: How long the manager has not answered, which is the age of this status.
    unanswered_s: float = 0.0

    def take(self, status: Status) -> News:
        job = next((view for view in status.jobs if view.job == self.job_id), None)
        if job is None:
            raise Misuse(f"the cluster no longer knows job {self.job_id}: see `shoal jobs`")
        before, trouble = self.state, self.job.trouble if self.job else ""
        self.cluster, self.manager, self.job, self.nodes = status.cluster, status.manager, job, status.nodes
        self.unanswered_s = 0.0
        events = tuple(event for event in status.events if event.seq > self.last_event)
        self.events = foremost([*self.events, *events], EVENTS_KEPT)
        self.last_event = max((event.seq for event in events), default=self.last_event)
        evaluations = tuple(view for view in status.evaluations if view.version not in self.evaluations)
        for view in evaluations:
            self.evaluations[view.version] = view
        while len(self.evaluations) > EVALUATIONS_KEPT:
            del self.evaluations[next(iter(self.evaluations))]
        return News(
            state=self.state if self.state != before else "",
            trouble=job.trouble if kind_of(job.trouble) != kind_of(trouble) else "",
            events=events,
            evaluations=evaluations,
        )

    @property
    def progress(self) -> Progress | None:
        return self.job.progress if self.job else None

    @property
    def standing(self) -> JobStanding:
        """How it stands, why, and since when."""
        if self.job is None:
            return JobStanding(state="")
        if self.unanswered_s > 0:
            return JobStanding(state="unknown", reason="the manager does not answer", since_s=self.unanswered_s)
        return standing(self.job)

    @property
    def state(self) -> str:
        return self.standing.state

    @property
    def reason(self) -> str:
        return self.standing.reason

    @property
    def ended(self) -> bool:
        return self.job is not None and self.job.state.is_ended

    @property
    def served(self) -> ServedView | None:
        """The published version that is served."""
        return self.job.served if self.job else None

    @property
    def drift(self) -> Drift | None:
        """Whether it is worse lately than it was at its best."""
        return drift_of([self.evaluations[version] for version in sorted(self.evaluations)])

    @property
    def judged_by(self) -> str:
        return self.job.plan.judged_by if self.job else ""

    @property
    def curve(self) -> Sequence[float]:
        """Return the metric that compares versions, evaluation by evaluation."""
        metrics = (measure(view, self.judged_by) for view in self.evaluations.values())
        return [metric.value for metric in metrics if metric is not None and metric.value is not None]
