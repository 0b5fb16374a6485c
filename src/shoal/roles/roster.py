"""The nodes and jobs of a cluster as its manager knows them, and who works where. Pure state."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.roles.events import Liveness
from shoal.roles.reunion import Side
from shoal.states import JobState
from shoal.wire.messages import Facts, JobSpec, Progress
from shoal.workload.placement import Candidate

#: What it means for a node to be held back, as it and others read it.
HELD_BACK = {
    "pending": "waits for an operator to approve it (`shoal nodes approve`)",
    "drained": "is drained: it finishes its lease and gets no more (`shoal nodes undrain`)",
}


class Stage(StrEnum):
    """How far a job is with its leader."""

    #: Nobody leads it.
    VACANT = "vacant"
    #: A node led it before the manager started anew. It may still.
    MISSED = "missed"
    #: A node was told to, and sets itself up.
    APPOINTED = "appointed"
    LEADING = "leading"
    #: It leads, and was asked to finish its round and step down.
    PARTING = "parting"
    #: It fell silent together with every worker. It may lead on beyond a cut: another leads once a worker is heard.
    AWAY = "away"
    #: A leader of an older term, which led on beyond a cut, hands its history over.
    ADOPTING = "adopting"


@dataclass(slots=True)
class NodeRecord:
    node: str
    facts: Facts = field(default_factory=Facts)
    state: Liveness = Liveness.LOST
    reason: str = "not seen since the manager started"
    job: str = ""
    #: Jobs it was given up in, and may not know.
    left_in: dict[str, None] = field(default_factory=dict)
    incarnation: str = ""
    #: When it was last heard, and when it was last found to be silent.
    heard_s: float = 0.0
    suspect_s: float = 0.0
    load: float = 0.0
    memory_free_mb: int = 0
    link_bytes_per_s: float = 0.0
    #: Why an operator holds it back: ``pending``, ``drained``, or empty.
    held: str = ""
    #: Its leader has let it go, and it may not know yet: it is given nothing before it was heard again.
    is_resting: bool = False

    @property
    def can_train(self) -> bool:
        return self.state is Liveness.ALIVE and bool(self.facts.torch) and not self.held and not self.is_resting

    @property
    def can_lead(self) -> bool:
        return self.state is Liveness.ALIVE and not self.held and not self.is_resting

    @property
    def is_free(self) -> bool:
        return self.can_train and not self.job

    @property
    def held_back(self) -> str:
        """What it means for it to be held back, as it and others read it; empty: it is not."""
        return HELD_BACK.get(self.held, "")

    def candidate(self) -> Candidate:
        return Candidate(node=self.node, cpus=self.facts.cpus, load=self.load, link_bytes_per_s=self.link_bytes_per_s)


#: Terms of a job that are remembered: a leader of an older one that comes back has nothing that could be kept.
TERMS_KEPT = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One leader of a job."""

    node: str
    #: The newest durable version when it was appointed: where its history begins.
    began: int


@dataclass(slots=True)
class JobRecord:
    spec: JobSpec
    state: JobState = JobState.QUEUED
    reason: str = ""
    term: int = 0
    leader: str = ""
    progress: Progress | None = None
    stage: Stage = Stage.VACANT
    #: Where its leader is dialled; empty: where the manager is.
    endpoint: str = ""
    #: The version of its leader's that is being written down.
    storing: int | None = None
    #: Which of its leader's saves that is.
    storing_number: int = 0
    #: Its leader was asked to hand over: to this node, or (empty) to whoever is placed best.
    successor: str | None = None
    #: Workers that could not reach its leader, and when they said so.
    cut_off: dict[str, float] = field(default_factory=dict)
    #: Nodes that were found unable to lead it, and until when that counts.
    unfit: dict[str, float] = field(default_factory=dict)
    #: The manager's node leads it because no device could.
    is_stopgap: bool = False
    #: Term -> who was given it, and from where on.
    terms: dict[int, Term] = field(default_factory=dict)
    #: Term -> what its leader has told to have made under it.
    sides: dict[int, Side] = field(default_factory=dict)
    #: The newest version known to be durable; -1: none.
    durable: int = -1
    #: While ``AWAY``: what it was before, since when, and whether its leader's last chance to be heard runs already.
    away_from: Stage = Stage.LEADING
    away_s: float = 0.0
    is_awaited: bool = False
    #: Leaders of older terms that led on, and what each told last.
    claims: dict[str, Progress] = field(default_factory=dict)
    #: The leader of an older term whose history is to be adopted, and that term.
    heir: tuple[str, int] | None = None
    #: Which versions were discarded last, and why.
    discarded: str = ""
    #: When its leader last changed, and how often in a row another was found to be placed much better.
    appointed_s: float = 0.0
    outdone: int = 0
    #: When its leader was last heard, and when the manager first heard that it is as it is. None: not known.
    heard_s: float | None = None
    since_s: float | None = None

    def become(self, state: JobState, reason: str, now_s: float) -> None:
        """The manager decides how it stands."""
        self.state, self.reason, self.since_s = state, reason, now_s

    def hear(self, progress: Progress, now_s: float) -> None:
        """Its leader says how it stands."""
        before = self.progress
        is_news = before is None or (before.term, before.state) != (progress.term, progress.state)
        if self.state is JobState.RUNNING and (is_news or self.heard_s is None):
            self.since_s = now_s
        self.progress, self.heard_s = progress, now_s

    @property
    def is_open(self) -> bool:
        return self.state.is_open

    @property
    def is_led(self) -> bool:
        """Someone leads it, be it only until its round is over."""
        return self.stage in (Stage.LEADING, Stage.PARTING)

    @property
    def is_cut(self) -> bool:
        """Its workers may be at work for a leader that this manager has not settled with."""
        return self.stage in (Stage.AWAY, Stage.ADOPTING)

    @property
    def leading_term(self) -> int:
        """The term under which its leader speaks: the newest, unless an older one is being adopted."""
        return self.heir[1] if self.stage is Stage.ADOPTING and self.heir is not None else self.term

    def made_after(self, term: int) -> Side:
        """What leaders of later terms made, as far as they told. After a restart only the disk tells that some did."""
        later = [side for number, side in self.sides.items() if number > term]
        if later:
            return Side(batches=sum(side.batches for side in later), workers=max(side.workers for side in later))
        made = max(0, self.durable - self.forked_from(term))
        return Side(batches=made, workers=min(1, made))

    def forked_from(self, term: int) -> int:
        """The newest durable version when the next leader after this term's was appointed."""
        later = [number for number in self.terms if number > term]
        return self.terms[min(later)].began if later else self.durable


def sides_kept(terms: Mapping[int, Term], *, durable: int, between: Callable[[int, int], Side]) -> dict[int, Side]:
    """What each term made that is durable, read off the history: a manager that starts anew has nobody to ask.

    ``between``: what was applied after one version, up to and with another.
    """
    numbers = sorted(terms)
    ends = [*(terms[number].began for number in numbers[1:]), durable]
    return {number: between(terms[number].began, end) for number, end in zip(numbers, ends, strict=False)}


class Roster:
    """Who works for which job, and who is free. Every change of place goes through here; none looks at all nodes."""

    def __init__(self) -> None:
        self._workers: dict[str, set[str]] = {}
        #: Nodes whose leader was asked to let them go: another job needs them more.
        self.called_back: set[str] = set()
        #: Nodes that their leaders have let go, and that are about to be free.
        self.let_go: set[str] = set()
        #: Names in order. One that is not free any more stays until its turn: then it is passed over.
        self._free: list[str] = []
        self._listed: set[str] = set()

    def place(self, node: NodeRecord, job: str) -> None:
        """The node works for this job and no other; empty: for none."""
        if node.job:
            self._workers[node.job].discard(node.node)
        if node.job != job:
            self.called_back.discard(node.node)
        node.job = job
        if job:
            self._workers.setdefault(job, set()).add(node.node)

    def look(self, node: NodeRecord) -> None:
        """Something about this node changed: it may be free now."""
        if node.is_free and node.node not in self._listed:
            self._listed.add(node.node)
            heapq.heappush(self._free, node.node)

    def take(self, nodes: dict[str, NodeRecord]) -> NodeRecord | None:
        """The first free node by name, which is not listed any more."""
        while self._free:
            name = heapq.heappop(self._free)
            self._listed.remove(name)
            if nodes[name].is_free:
                return nodes[name]
        return None

    def count(self, job: str) -> int:
        return len(self._workers.get(job, ()))

    def workers(self, job: str) -> list[str]:
        return sorted(self._workers.get(job, ()))
