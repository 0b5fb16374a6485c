"""The nodes and jobs of a cluster as its manager knows them, and which node works for which job. Pure state."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from shoal.roles.events import LEFT, Liveness
from shoal.roles.manager.preparation import Unprepared
from shoal.roles.manager.reunion import Side, together
from shoal.scheduling.placement import Candidate
from shoal.states import JobState, WorkerState
from shoal.where import FACTS, parse_labels, parse_where
from shoal.wire.messages import Facts, JobSpec, Message, Progress
from shoal.wire.messages.base import PROTOCOL

#: Why a node that an operator holds back gets no work, as the node and people read it.
HELD_BACK = {
    "pending": "waits for an operator to approve it (`shoal nodes approve`)",
    "drained": "is drained: it finishes its lease and gets no other (`shoal nodes undrain`)",
}


class LeadershipStage(StrEnum):
    """How far a job is with its leader."""

    #: No node leads it.
    VACANT = "vacant"
    #: A node led it before the manager started again, and may still lead it.
    MISSED = "missed"
    #: The manager appointed a node, and the node sets itself up.
    APPOINTED = "appointed"
    LEADING = "leading"
    #: Its leader was asked to finish the round and to step down, and leads until then.
    PARTING = "parting"
    #: Its leader fell silent together with every worker, and may lead on beyond a cut. The manager appoints another one
    #: once it hears a worker.
    AWAY = "away"
    #: A leader of an older term, which led on beyond a cut, hands its history over.
    ADOPTING = "adopting"


class NodeMark(NamedTuple):
    """What other managers are to know of a node: what they read of it is old if this changed."""

    #: Whether this manager has it for certain: one that is suspect may be with another manager by now.
    is_here: bool
    #: What is told at once, and what can wait.
    view: Hashable
    figures: Hashable


#: Of a node that has not said hello.
_NO_FACTS = Facts()


@dataclass(slots=True)
class NodeRecord:
    """A node as the manager knows it."""

    node: str
    facts: Facts = _NO_FACTS
    state: Liveness = Liveness.LOST
    reason: str = "not seen since the manager started"
    #: The job it works for.
    job: str | None = None
    #: Jobs that it worked for when the manager gave it up. It may not know that.
    left_in: dict[str, None] = field(default_factory=dict)
    #: The process it runs in; None: the manager has not heard of one.
    incarnation: str | None = None
    #: Which protocol it speaks; 0: the manager has not heard.
    protocol: int = 0
    #: When the manager last heard it, and when it last found it silent.
    heard_s: float = 0.0
    suspect_s: float = 0.0
    load: float = 0.0
    memory_free_mb: int = 0
    link_bytes_per_s: float = 0.0
    #: How far it is with preparing its job, in words for people.
    preparing: str = ""
    #: Why an operator holds it back: ``pending`` or ``drained``.
    held: str | None = None
    #: The card that an operator signed for it, and whether it may be in sealed groups with signed members.
    card: bytes = field(repr=False, default=b"")
    is_signed: bool = True
    #: What an operator says that it is: it wins over what the node says.
    labels: tuple[str, ...] = ()
    #: Its leader has let it go, and it may not know yet: the manager gives it nothing before it hears it again.
    is_resting: bool = False
    #: When the manager told it that there is no work and when to come again; None: it did not.
    sent_s: float | None = None
    #: It is not told so in this session: it lends or sums up, or stayed although it was told.
    stays: bool = False
    #: Open jobs that it said it leads, in this session. It is not told so while it leads one of them.
    leads: frozenset[str] = frozenset()
    #: When it last said that it has work.
    busy_s: float = -math.inf
    #: From when on it may be sent to another manager.
    goes_s: float = 0.0
    #: How often in a row other managers seem to have had no use for it, and until when it is not sent to them.
    in_vain: int = 0
    kept_s: float = 0.0
    #: Where the manager is dialled that it was sent to. Empty: it was not sent, or is back.
    sent_to: str = ""

    @property
    def can_train(self) -> bool:
        """Whether it has an engine for some jobs; ``suits`` says for which. A hub trains nothing."""
        return self.is_available and bool(self.facts.torch or self.facts.onnx) and not self.facts.is_hub

    def may_seal(self, spec: JobSpec) -> bool:
        """Whether an operator signed this node's card, where the job seals only with such members."""
        return self.is_signed or not spec.plan.believes.has_signed_members

    @property
    def described(self) -> dict[str, str]:
        """What a plan's ``where`` may ask of this node: its facts and its labels, by name."""
        facts = {name: str(getattr(self.facts, name)) for name in FACTS if name != "node"}
        return {**facts, "node": self.node, **self._labelled}

    @property
    def labels_shown(self) -> tuple[str, ...]:
        """What it is, in the order of names: its own labels and, before them, those of an operator."""
        return tuple(f"{name}={value}" for name, value in sorted(self._labelled.items()))

    @property
    def _labelled(self) -> dict[str, str]:
        # Each of the two has at most LABELS_MAX labels: together they may have more.
        labels = {**parse_labels(self.facts.labels), **parse_labels(self.labels)}
        return {name: value for name, value in labels.items() if value}

    def is_wanted(self, spec: JobSpec) -> bool:
        """Whether the job's plan takes this node, by its labels and facts and by the release that it runs."""
        if spec.plan.needs_new_agents and 0 < self.protocol < PROTOCOL:
            return False
        return not spec.plan.where or parse_where(spec.plan.where)(self.described)

    def suits(self, spec: JobSpec) -> bool:
        """Whether it may work for this job and has an engine for it: PyTorch for any, onnxruntime for those that have
        graphs. A tab of a browser takes fewer."""
        if not self.is_wanted(spec):
            return False
        if self.facts.browser:
            return spec.suits_tabs
        if not self.may_seal(spec):
            return False
        return bool(self.facts.torch or (self.facts.onnx and spec.graphs))

    def may_stay_in(self, record: JobRecord) -> bool:
        """Whether the place that it has in this job is still one for it, by its labels, its facts and its role."""
        if self.node == record.helper:
            return True
        return self.is_wanted(record.spec) if self.facts.is_hub else self.suits(record.spec)

    @property
    def can_lead(self) -> bool:
        """A tab of a browser has no door that others could dial."""
        return self.is_available and not self.facts.browser

    @property
    def is_bound(self) -> bool:
        """It cannot be sent to another manager: it leads, lends or stayed, or is a tab, which dials one origin."""
        return self.stays or bool(self.leads or self.facts.browser)

    @property
    def has_parted(self) -> bool:
        """A tab whose user ended it, or that rests: a visitor who went and not a device that was lost. Nobody lists it
        until it comes back."""
        return bool(self.facts.browser) and self.state is Liveness.LOST and self.reason.startswith(LEFT)

    @property
    def is_available(self) -> bool:
        is_here = self.state is Liveness.ALIVE and self.sent_s is None
        return is_here and self.held is None and not self.is_resting

    @property
    def is_free(self) -> bool:
        return self.can_train and self.job is None

    @property
    def role(self) -> str:
        """What it is in a job, beside leading one."""
        return "hub" if self.facts.is_hub else "worker"

    @property
    def held_back(self) -> str | None:
        """Why it gets no work, as it and people read it; None: no operator holds it back."""
        return HELD_BACK.get(self.held) if self.held is not None else None

    @property
    def lacks(self) -> str | None:
        """Return what it cannot do for jobs, or None if it can train every job."""
        if self.facts.is_hub:
            return "a hub: it sums up for others, and trains nothing"
        if self.facts.torch:
            return None
        if self.facts.onnx:
            return "without PyTorch: it trains only jobs with graphs (`shoal train --portable`)"
        return "without PyTorch: it cannot train"

    def candidate(self) -> Candidate:
        return Candidate(node=self.node, cpus=self.facts.cpus, load=self.load, link_bytes_per_s=self.link_bytes_per_s)


#: Terms of a job that the manager remembers. A leader of an older term has nothing that could be kept.
TERMS_KEPT = 16


def next_version(durable: int | None) -> int:
    """The version that follows the newest durable one; None: no version is durable."""
    return 0 if durable is None else durable + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One leader of a job."""

    node: str
    #: The newest durable version when it was appointed: its history begins there. None: no version was durable.
    began: int | None


@dataclass(slots=True)
class JobRecord:
    """A job as the manager knows it."""

    spec: JobSpec
    state: JobState = JobState.QUEUED
    reason: str | None = None
    term: int = 0
    #: None: no node leads it.
    leader: str | None = None
    progress: Progress | None = None
    stage: LeadershipStage = LeadershipStage.VACANT
    #: Where workers dial its leader; None: on the manager's node, or the leader has not said where.
    endpoint: str | None = None
    #: The version of its leader that the disk writes now.
    storing: int | None = None
    #: The number of that save, as its leader counts them.
    storing_number: int = 0
    #: The node that its leader was asked to hand over to.
    successor: str | None = None
    #: Worker -> when it last said that it cannot reach the leader.
    cut_off: dict[str, float] = field(default_factory=dict)
    #: Node that was unable to lead the job -> until when the manager does not appoint it.
    unfit: dict[str, float] = field(default_factory=dict)
    #: The manager's node leads it because no device could.
    is_stopgap: bool = False
    #: Term -> its leader, and where its history begins.
    terms: dict[int, Term] = field(default_factory=dict)
    #: Term -> the work that its leader reported to have done under it.
    sides: dict[int, Side] = field(default_factory=dict)
    #: The newest version known to be durable.
    durable: int | None = None
    #: The newest durable version is the job's last: its end has yet to be told.
    is_done: bool = False
    #: While ``AWAY``: the stage before, since when, and whether the leader's last wait to be heard runs already.
    away_from: LeadershipStage = LeadershipStage.LEADING
    away_s: float = 0.0
    is_awaited: bool = False
    #: Leader of an older term that led on -> its last progress.
    claims: dict[str, Progress] = field(default_factory=dict)
    #: The leader of an older term whose history the manager adopts, and that term.
    heir: tuple[str, int] | None = None
    #: The last report of that leader.
    heir_claim: Progress | None = None
    #: Which versions were discarded last, and why.
    discarded: str | None = None
    #: When its leader last changed, and how often in a row another node was placed much better.
    appointed_s: float = 0.0
    outdone: int = 0
    #: When the manager last heard its leader, and since when the manager knows its state. None: not known.
    heard_s: float | None = None
    since_s: float | None = None
    #: Its devices have been with another manager, or with this one before it started again: until then they come back
    #: by themselves, and no other job gives any up for it.
    devices_come_by_s: float = 0.0
    #: Device that could not prepare it -> why, and until when it is not given the job again.
    unprepared: dict[str, Unprepared] = field(default_factory=dict)
    #: When it last had its least number of workers, and since when it has not. None if it has.
    met_s: float = -math.inf
    short_s: float | None = None
    #: The node that opens its sealed sums: it neither leads the job nor trains for it. None: its plan names none.
    helper: str | None = field(init=False)

    def __post_init__(self) -> None:
        self.helper = self.spec.plan.believes.helper

    def become(self, state: JobState, reason: str | None, now_s: float) -> None:
        """The manager decides on its state."""
        self.state, self.reason, self.since_s = state, reason, now_s

    def on_progress(self, progress: Progress, now_s: float) -> None:
        """Its leader reports."""
        before = self.progress
        is_news = before is None or (before.term, before.state) != (progress.term, progress.state)
        if self.state is JobState.RUNNING and (is_news or self.heard_s is None):
            self.since_s = now_s
        self.progress, self.heard_s = progress, now_s
        for view in progress.workers if self.unprepared else ():
            if view.state != WorkerState.FAILING:
                # It prepared the job after all.
                self.unprepared.pop(view.node, None)

    def on_durable(self, version: int) -> None:
        """This version is durable, and so is any that was known to be."""
        self.durable = version if self.durable is None else max(self.durable, version)

    @property
    def told(self) -> Progress | None:
        """The last report of its present leader, or None if that leader has not reported."""
        return self.progress if self.progress is not None and self.progress.term == self.term else None

    @property
    def is_open(self) -> bool:
        return self.state.is_open

    @property
    def is_led(self) -> bool:
        """A node leads it, if only until its round is over."""
        return self.stage in (LeadershipStage.LEADING, LeadershipStage.PARTING)

    @property
    def is_cut(self) -> bool:
        """Its workers may work for a leader beyond a cut, about which the manager has not decided."""
        return self.stage in (LeadershipStage.AWAY, LeadershipStage.ADOPTING)

    @property
    def leading_term(self) -> int:
        """The term under which its leader speaks: the newest, unless the manager adopts an older one."""
        return self.heir[1] if self.stage is LeadershipStage.ADOPTING and self.heir is not None else self.term

    def made_after(self, term: int) -> Side:
        """The work of leaders of later terms, as far as they reported it; after a restart, as far as the disk shows."""
        later = [side for number, side in self.sides.items() if number > term]
        if later:
            return together(later)
        made = max(0, next_version(self.durable) - next_version(self.forked_from(term)))
        return Side(batches=made, workers=min(1, made))

    def forked_from(self, term: int) -> int | None:
        """The newest durable version when the leader after this term's was appointed."""
        later = [number for number in self.terms if number > term]
        return self.terms[min(later)].began if later else self.durable


def sides_kept(
    terms: Mapping[int, Term], *, durable: int | None, between: Callable[[int | None, int], Side]
) -> dict[int, Side]:
    """The durable work of each term, read from the history: a manager that starts again has no leader to ask.

    ``between``: the batches that were applied after one version (None: from the first), up to and with another.
    """
    numbers = sorted(terms)
    ends = [*(terms[number].began for number in numbers[1:]), durable]
    return {
        number: Side() if end is None else between(terms[number].began, end)
        for number, end in zip(numbers, ends, strict=False)
    }


#: Ended jobs that the manager keeps in memory, the latest: it answers for the others from its store.
ENDED_KEPT = 20


class ClusterState:
    """The nodes, the jobs, and which node works for which job. Every change of place goes through ``place``.

    Placing a node and finding a free one looks at no other node: there may be tens of thousands.
    """

    def __init__(self, jobs: Iterable[JobRecord] = ()) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        #: In the order they were submitted.
        self.jobs: dict[str, JobRecord] = {}
        #: Those of them that are over, in the order they ended or were looked up.
        self._ended: dict[str, None] = {}
        #: Nodes whose leader was asked to let them go: another job needs them more.
        self.called_back: set[str] = set()
        #: Nodes that their leaders have let go, and that are about to be free.
        self.let_go: set[str] = set()
        self._workers: dict[str, set[str]] = {}
        #: Job -> its hubs, which are none of its workers; and every hub that there is.
        self._hubs: dict[str, set[str]] = {}
        self._hubs_known: set[str] = set()
        #: Names in order. A node that is not free any more stays until its turn, and is passed over then.
        self._free: list[str] = []
        self._listed: set[str] = set()
        for record in jobs:
            self.add_job(record)

    # Jobs and their leaders ------------------------------------------------------------------------------

    def add_job(self, record: JobRecord) -> None:
        self.jobs[record.spec.job] = record
        if not record.is_open:
            self.on_ended(record.spec.job)

    def on_ended(self, job: str) -> None:
        """A job is over, or one that is over was looked up. Of those only the latest are kept in memory."""
        self._ended.pop(job, None)
        self._ended[job] = None
        for oldest in list(self._ended)[:-ENDED_KEPT]:
            self.forget_job(oldest)

    def open_jobs(self) -> list[JobRecord]:
        return [record for record in self.jobs.values() if record.is_open]

    def led_by(self, node: str) -> list[JobRecord]:
        return [record for record in self.open_jobs() if record.leader == node]

    @property
    def is_settled(self) -> bool:
        """No job waits to hear of the leader it had. Until then nodes stay in the jobs that they may work for."""
        return not any(record.stage is LeadershipStage.MISSED for record in self.open_jobs())

    def job_of(self, sender: str, message: Message) -> JobRecord | None:
        """The open job that a message is about, if its sender leads this job under the message's term."""
        record = self.jobs.get(str(getattr(message, "job", "")))
        if record is None or not record.is_open:
            return None
        term = int(getattr(message, "term", 0))
        return record if (sender, term) == (record.leader, record.leading_term) else None

    def forget_job(self, job: str) -> None:
        """An ended job is off the books. A node that was away since before it ended is still told that it is over."""
        del self.jobs[job]
        self._ended.pop(job, None)
        self._workers.pop(job, None)
        self._hubs.pop(job, None)

    def forget_node(self, name: str) -> None:
        """A node that is not here is off the books."""
        node = self.nodes.pop(name, None)
        if node is None:
            return
        self.place(node, None)
        for record in self.jobs.values():
            record.unprepared.pop(name, None)
        self.called_back.discard(name)
        self.let_go.discard(name)
        self._hubs_known.discard(name)
        if name in self._listed:
            self._listed.remove(name)
            self._free.remove(name)
            heapq.heapify(self._free)

    # Nodes and their jobs --------------------------------------------------------------------------------

    def place(self, node: NodeRecord, job: str | None) -> None:
        """The node works for this job and no other, or is a hub of it; None: for no job."""
        if node.job is not None:
            self._workers.get(node.job, set()).discard(node.node)
            self._hubs.get(node.job, set()).discard(node.node)
        if node.job != job:
            self.called_back.discard(node.node)
        node.job = job
        if job is not None:
            self._of(node).setdefault(job, set()).add(node.node)

    def _of(self, node: NodeRecord) -> dict[str, set[str]]:
        return self._hubs if node.facts.is_hub else self._workers

    def look(self, node: NodeRecord) -> None:
        """Something about this node changed: list it if it is free now."""
        if node.facts.is_hub:
            self._hubs_known.add(node.node)
            return
        self._hubs_known.discard(node.node)
        if node.is_free and node.node not in self._listed:
            self._listed.add(node.node)
            heapq.heappush(self._free, node.node)

    @staticmethod
    def reaches_leader(node: NodeRecord, record: JobRecord, *, home: str) -> bool:
        """Whether a worker can dial the leader of a job. A tab of a browser reaches only the manager's node."""
        return not node.facts.browser or record.leader in (None, home)

    def take(self, fits: Callable[[NodeRecord], bool]) -> NodeRecord | None:
        """Return the first free node by name that fits, or None. It leaves the list."""
        return self._take_free(fits)

    def count_free(self, fits: Callable[[NodeRecord], bool], *, most: int) -> int:
        """Return how many free nodes fit, and at most ``most``: it looks at no more of them than it has to."""
        free = (node for name in self._free if (node := self.nodes[name]).is_free and fits(node))
        return sum(1 for _ in islice(free, most))

    def take_for_others(self, now_s: float) -> NodeRecord | None:
        """The first free node by name that may be sent to another manager. It leaves the list. A tab of a browser may
        not: it can dial the origin of its page alone."""
        leaders = {record.leader for record in self.open_jobs()}
        return self._take_free(
            lambda node: not (max(node.goes_s, node.kept_s) > now_s or node.is_bound or node.node in leaders)
        )

    def _take_free(self, fits: Callable[[NodeRecord], bool]) -> NodeRecord | None:
        passed_over: list[str] = []
        found = None
        while self._free and found is None:
            name = heapq.heappop(self._free)
            node = self.nodes[name]
            if node.is_free and not fits(node):
                passed_over.append(name)
                continue
            self._listed.remove(name)
            found = node if node.is_free else None
        for name in passed_over:
            heapq.heappush(self._free, name)
        return found

    def free_hubs(self) -> list[NodeRecord]:
        """Hubs that may be given to a job, by name. There are few of them."""
        hubs = (self.nodes[name] for name in sorted(self._hubs_known))
        return [hub for hub in hubs if hub.is_available and hub.job is None]

    def count_hubs(self, job: str) -> int:
        return len(self._hubs.get(job, ()))

    def count(self, job: str) -> int:
        """Workers of a job. Its helper trains nothing, and is not counted."""
        workers, record = self._workers.get(job, ()), self.jobs.get(job)
        return len(workers) - (record is not None and record.helper in workers)

    def workers(self, job: str) -> list[str]:
        return sorted(self._workers.get(job, ()))

    def members(self, job: str) -> list[str]:
        """Its workers and its hubs."""
        return sorted((*self._workers.get(job, ()), *self._hubs.get(job, ())))
