"""The manager against one that looks at every node each time: the same nodes get the same work, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.plan import Plan
from shoal.roles.events import Asked, Event, Liveness, MemberHeld, PeerChanged, Received, Started
from shoal.roles.manager.cluster_state import ClusterState, JobRecord, NodeRecord
from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import Patience
from shoal.states import JobState
from shoal.wire.messages import Dataset, Facts, Heartbeat, Hello, JobSpec, Progress, Released, StopJob, Submit

SHA = "0" * 64


class PlainRoster(ClusterState):
    """Keeps no lists: which nodes work and which are free is read from the nodes, in the order of their names."""

    def place(self, node: NodeRecord, job: str | None) -> None:
        if node.job != job:
            self.called_back.discard(node.node)
        node.job = job

    def look(self, node: NodeRecord) -> None:
        pass

    def take(self, fits: Callable[[NodeRecord], bool]) -> NodeRecord | None:
        return next(self._able(fits), None)

    def count_free(self, fits: Callable[[NodeRecord], bool], *, most: int) -> int:
        return min(most, sum(1 for _ in self._able(fits)))

    def _able(self, fits: Callable[[NodeRecord], bool]) -> Iterator[NodeRecord]:
        nodes = (self.nodes[name] for name in sorted(self.nodes))
        return (node for node in nodes if node.can_train and not node.job and fits(node))

    def members(self, job: str) -> list[str]:
        return [name for name in sorted(self.nodes) if self.nodes[name].job == job]

    def workers(self, job: str) -> list[str]:
        return [name for name in self.members(job) if not self.nodes[name].facts.is_hub]

    def count(self, job: str) -> int:
        return len(self.workers(job))

    def free_hubs(self) -> list[NodeRecord]:
        nodes = (self.nodes[name] for name in sorted(self.nodes))
        return [node for node in nodes if node.facts.is_hub and node.is_available and not node.job]

    def count_hubs(self, job: str) -> int:
        return len(self.members(job)) - self.count(job)


def plain_manager() -> Manager:
    with patch("shoal.roles.manager.manager.ClusterState", PlainRoster):
        return Manager(node="home", patience=Patience(), jobs=stored())


def spec(job: str, least: int, most: int, topology: str = "star") -> JobSpec:
    data = Dataset(manifest=SHA, examples=1)
    plan = Plan(workers_min=least, workers_max=max(least, most), topology=topology)
    return JobSpec(job=job, name=job, entry="task:T", bundle=SHA, initial=SHA, train=data, test=data, plan=plan)


def stored() -> list[JobRecord]:
    return [JobRecord(spec=spec("old", 1, 2), state=JobState.RUNNING, term=3)]


NODES = ("a", "b", "c", "d", "e", "f")
JOBS = st.sampled_from(("old", "x", "y", "z"))


def hello(node: str, incarnation: str, torch: str, is_hub: bool = False) -> Event:
    facts = Facts(torch=torch, is_hub=is_hub)
    return Received(sender=node, message=Hello(node=node, incarnation=incarnation, facts=facts))


def changed(node: str, state: Liveness) -> Event:
    return PeerChanged(node=node, state=state, reason="silent")


def ended(job: str, term: int, state: str) -> Event:
    return Received(sender="home", message=Progress(job=job, term=term, state=state, reason="because"))


def submitted(job: str, least: int, most: int, topology: str) -> Event:
    return Asked(question=1, message=Submit(spec=spec(job, least, most, topology)))


def held(node: str, hold: str) -> Event:
    return MemberHeld(node=node, hold=hold)


def released(job: str, term: int, node: str) -> Event:
    return Received(sender="home", message=Released(job=job, term=term, node=node))


def beat(node: str) -> Event:
    return Received(sender=node, message=Heartbeat(seq=1))


def stopped(job: str) -> Event:
    return Asked(question=1, message=StopJob(job=job))


hellos = st.builds(
    hello,
    st.sampled_from(NODES),
    st.sampled_from(("1", "2")),
    st.sampled_from(("2.11", "2.11", "")),
    st.sampled_from((False, False, True)),
)
EVENTS = st.lists(
    st.one_of(
        hellos,
        st.builds(changed, st.sampled_from(NODES), st.sampled_from(Liveness)),
        st.builds(ended, JOBS, st.sampled_from((1, 1, 4)), st.sampled_from(("training", "finished", "failed"))),
        st.builds(submitted, JOBS, st.integers(1, 2), st.integers(1, 4), st.sampled_from(("star", "tree"))),
        st.builds(stopped, JOBS),
        st.builds(held, st.sampled_from(NODES), st.sampled_from(("", "drained", "pending"))),
        st.builds(released, JOBS, st.sampled_from((1, 1, 4)), st.sampled_from(NODES)),
        st.builds(beat, st.sampled_from(NODES)),
    ),
    min_size=5,
    max_size=50,
)


@settings(max_examples=400)
@given(first=st.permutations(sorted(NODES)), events=EVENTS)
def test_everyone_gets_the_work_that_a_look_at_every_node_would_give(first: list[str], events: list[Event]) -> None:
    manager = Manager(node="home", patience=Patience(), jobs=stored())
    plain = plain_manager()
    for event in (Started(), *(hello(node, "1", "2.11") for node in first), *events):
        assert manager.handle(event, 0.0) == plain.handle(event, 0.0)
        assert manager.node_views() == plain.node_views()
        assert manager.job_views() == plain.job_views()
