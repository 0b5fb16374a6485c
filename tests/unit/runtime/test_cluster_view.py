"""One view of a cluster: two managers on one SQLite file, with real roles, each of which reads what the other has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.plan import Plan
from shoal.roles.events import Asked, Liveness, OtherManager, OtherManagersSeen, PeerChanged, Received, Started
from shoal.roles.manager.manager import Manager
from shoal.roles.manager.other_managers import COMES_WITHIN_S
from shoal.roles.node.failure_detector import Patience
from shoal.runtime import cluster_view
from shoal.runtime.cluster_view import JOB_BYTES_PER_S, OLD_S, TURNS, ClusterView, OwnView
from shoal.states import JobState
from shoal.store.registry import Registry
from shoal.store.seat import Deposed, FencedDatabase, Seats, Tenure
from shoal.store.sqlite import SqliteDatabase
from shoal.wire.encoding import to_json
from shoal.wire.messages import (
    Dataset,
    Facts,
    Heartbeat,
    Hello,
    JobSpec,
    JobView,
    Leads,
    NodeView,
    Progress,
    Submit,
    WorkerView,
)

pytestmark = pytest.mark.timeout(60)

SHA = "0" * 64


@dataclass
class Clock:
    now_s: float


def spec_named(job: str, **plan: Any) -> JobSpec:
    none = Dataset(manifest=SHA, examples=1)
    return JobSpec(job=job, name=job, entry="task:T", bundle=SHA, initial=SHA, train=none, test=none, plan=Plan(**plan))


class Place:
    """One of the managers. Its clock has nothing to do with those of the others."""

    def __init__(self, database: SqliteDatabase, name: str, clock: Clock, *, ahead_s: float) -> None:
        self.seats = Seats(database)
        self.tenure: Tenure = self.seats.open(f"{name}/1", f"{name}:7070")
        self.registry = Registry(FencedDatabase(database, self.tenure), holder=self.tenure.holder)
        self.role = Manager(node="manager", patience=Patience())
        self._clock, self._ahead_s = clock, ahead_s
        self.heard_s: dict[str, float] = {}
        self.view = ClusterView(self.registry, OwnView(self.role, self._ago_s), clock=self.now_s)
        self.happens(Started())

    def now_s(self) -> float:
        return self._clock.now_s + self._ahead_s

    def _ago_s(self, node: str, now_s: float) -> float | None:
        return now_s - self.heard_s[node] if node in self.heard_s else None

    def happens(self, event: Any) -> None:
        self.role.handle(event, self.now_s())

    def hello(self, node: str, **told: Any) -> None:
        self.heard_s[node] = self.now_s()
        facts = Facts(host=node, torch="2.13")
        self.happens(Received(sender=node, message=Hello(node=node, incarnation="1", facts=facts, **told)))

    def loses(self, node: str, reason: str = "silent for 6.0 s") -> None:
        self.happens(PeerChanged(node=node, state=Liveness.LOST, reason=reason))

    def submit(self, job: str, **plan: Any) -> None:
        spec = spec_named(job, **plan)
        self.registry.add_job(job=job, name=job, spec_json=json.dumps(to_json(spec)), now_s=1.0)
        self.happens(Asked(question=1, message=Submit(spec=spec)))

    def nodes(self) -> dict[str, NodeView]:
        own = self.role.node_views(now_s=self.now_s())
        names = {view.node for view in own} | set(self.view.node_names)
        return {view.node: view for view in self.view.with_others(own, sorted(names))}

    def states(self) -> dict[str, tuple[str, str]]:
        return {node: (view.state, view.manager) for node, view in self.nodes().items()}

    def job(self, job: str) -> JobView:
        row = self.registry.job(job)
        assert row is not None
        return self.view.job(row)


@dataclass
class Cluster:
    a: Place
    b: Place
    clock: Clock

    def steps(self, times: int = 1) -> None:
        """Each writes and reads; with two rounds, each has read what the other wrote."""
        for _ in range(2 * times):
            self.clock.now_s += 2.0
            self.a.view.step()
            self.b.view.step()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    clock = Clock(1000.0)
    databases = [SqliteDatabase(tmp_path / "registry.sqlite") for _ in range(2)]
    Registry(databases[0])
    a, b = (Place(d, name, clock, ahead_s=s) for d, name, s in zip(databases, "ab", (0.0, 5e6), strict=True))
    yield Cluster(a, b, clock)
    for database in databases:
        database.close()


# Devices ---------------------------------------------------------------------------------------------------


def test_every_manager_lists_the_devices_of_all_with_the_manager_of_each(cluster: Cluster) -> None:
    cluster.a.hello("attic")
    cluster.b.hello("cellar")
    cluster.steps()
    told = {"attic": ("alive", "a:7070"), "cellar": ("alive", "b:7070")}
    assert cluster.a.states() == told
    assert cluster.b.states() == told
    assert cluster.a.nodes()["cellar"].facts == Facts(host="cellar", torch="2.13")


def test_a_device_that_went_to_another_manager_is_not_lost(cluster: Cluster) -> None:
    cluster.a.hello("pi")
    cluster.steps()
    there = (OtherManager(endpoint="b:7070", wants=1, starving=1),)
    cluster.a.happens(OtherManagersSeen(managers=there, jobs={"faces": "b:7070"}))
    cluster.a.loses("pi", "left: another manager has work")
    cluster.steps()
    on_its_way = {"pi": ("elsewhere", "b:7070")}
    assert (cluster.a.states(), cluster.b.states()) == (on_its_way, on_its_way)
    cluster.b.hello("pi")
    cluster.steps()
    arrived = {"pi": ("alive", "b:7070")}
    assert (cluster.a.states(), cluster.b.states()) == (arrived, arrived)
    cluster.b.loses("pi")
    cluster.steps()
    lost = {"pi": ("lost", "b:7070")}
    assert (cluster.a.states(), cluster.b.states()) == (lost, lost)
    assert cluster.a.nodes()["pi"].reason == "silent for 6.0 s"


def test_a_device_that_was_sent_and_did_not_arrive_is_lost_after_a_while(cluster: Cluster) -> None:
    cluster.a.hello("pi")
    cluster.a.happens(OtherManagersSeen(managers=(OtherManager(endpoint="b:7070", wants=1, starving=1),)))
    cluster.a.loses("pi", "left: another manager has work")
    cluster.steps()
    assert cluster.b.states()["pi"][0] == "elsewhere"
    cluster.clock.now_s += COMES_WITHIN_S
    cluster.steps()
    assert cluster.a.states()["pi"] == cluster.b.states()["pi"] == ("lost", "a:7070")


def test_a_manager_writes_its_device_again_where_another_lost_it_after_it_came(cluster: Cluster) -> None:
    """The other had a connection that was dead already, and told of the device once more."""
    cluster.b.hello("pi")
    cluster.a.hello("pi")
    cluster.steps()
    cluster.b.loses("pi")
    cluster.steps(2)
    assert cluster.b.states() == cluster.a.states() == {"pi": ("alive", "a:7070")}


def test_a_manager_whose_connection_is_dead_does_not_take_the_device_for_its_own(cluster: Cluster) -> None:
    cluster.a.hello("pi")
    cluster.steps()
    cluster.b.hello("pi")
    cluster.steps()
    for state in (Liveness.SUSPECT, Liveness.DORMANT):
        cluster.a.happens(PeerChanged(node="pi", state=state, reason="silent"))
        cluster.steps()
        assert cluster.a.states() == cluster.b.states() == {"pi": ("alive", "b:7070")}


def test_the_devices_of_a_manager_that_ended_are_on_their_way_and_then_lost(cluster: Cluster) -> None:
    cluster.b.hello("pi")
    cluster.b.hello("gone", leads=(Leads(job="x", term=1),))
    cluster.b.happens(PeerChanged(node="gone", state=Liveness.DORMANT, reason="sleeps"))
    cluster.steps()
    cluster.b.seats.give_up(cluster.b.tenure)
    with pytest.raises(Deposed):
        cluster.b.view.step()
    cluster.clock.now_s += 2.0
    cluster.a.view.step()
    assert cluster.a.states()["pi"] == ("elsewhere", "b:7070")
    assert cluster.a.states()["gone"][0] == "dormant", "it comes to whichever manager there is"
    cluster.clock.now_s += COMES_WITHIN_S
    assert cluster.a.nodes()["pi"].state == "lost"
    assert cluster.a.nodes()["pi"].reason == "its manager ended, and it came to no other one"
    cluster.a.hello("pi")
    cluster.a.view.step()
    assert cluster.a.states()["pi"] == ("alive", "a:7070")


def test_how_long_ago_a_device_was_heard_goes_by_no_other_clock(cluster: Cluster) -> None:
    cluster.b.hello("pi")
    cluster.b.hello("gone")
    cluster.steps()
    cluster.b.loses("gone")
    cluster.steps()
    assert cluster.a.nodes()["pi"].heard_s < 8.0, "it is heard all the time, and that is not written"
    began_s = cluster.a.nodes()["gone"].heard_s
    assert 4.0 <= began_s <= 12.0
    cluster.steps(5)
    assert cluster.a.nodes()["gone"].heard_s == pytest.approx(began_s + 20.0)


def test_a_manager_that_writes_nothing_any_more_has_devices_that_are_suspect(cluster: Cluster) -> None:
    cluster.b.hello("pi")
    cluster.steps()
    cluster.a.view.step()
    cluster.clock.now_s += OLD_S + 1
    cluster.a.view.step()
    view = cluster.a.nodes()["pi"]
    assert view.state == "suspect"
    assert "b:7070 has not said how it is for" in view.reason


def test_only_what_changed_is_written_and_figures_in_turns(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = cluster.b.registry.write_views

    def counted(here: Any = (), *, gone: Any = (), **rest: Any) -> None:
        written.append(len(here) + len(gone))
        write(here, gone=gone, **rest)

    monkeypatch.setattr(cluster.b.registry, "write_views", counted)
    monkeypatch.setattr(cluster_view, "ROWS_MAX", 40)
    for number in range(2 * TURNS):
        cluster.b.hello(f"pi-{number:03}")
    assert cluster.b.view.step(), "there is more"
    assert not cluster.b.view.step()
    cluster.b.view.step()
    assert written == [40, 20, 0]
    for number in range(2 * TURNS):
        beat = Heartbeat(seq=1, load=3.0, memory_free_mb=512)
        cluster.b.happens(Received(sender=f"pi-{number:03}", message=beat))
    written.clear()
    for _ in range(TURNS):
        cluster.b.view.step()
    assert written == [2] * TURNS, "load and memory are not news"
    cluster.a.view.step()
    assert {view.load for view in cluster.a.nodes().values()} == {3.0}


def test_a_forgotten_device_has_no_row(cluster: Cluster) -> None:
    cluster.b.registry.reserve_node("pi", "node", now_s=1.0)
    cluster.b.hello("pi")
    cluster.steps()
    cluster.b.registry.forget_node("pi", now_s=2.0)
    assert cluster.a.registry.views_since(0, limit=10) == []


# Jobs ------------------------------------------------------------------------------------------------------


def leads(place: Place, job: str, *, workers: int = 1, **told: Any) -> None:
    """The manager's node leads the job, and reports."""
    progress = Progress(
        **{
            "job": job,
            "term": 1,
            "state": "training",
            "workers": tuple(WorkerView(node=f"pi-{n}", state="working", reason="r" * 200) for n in range(workers)),
            **told,
        }
    )
    place.happens(Received(sender="manager", message=progress))


def test_a_job_of_another_manager_has_its_progress(cluster: Cluster) -> None:
    cluster.b.submit("faces")
    cluster.b.registry.set_job_state("faces", JobState.RUNNING, now_s=2.0, leader="manager")
    leads(cluster.b, "faces", version=7, epoch=2, accuracy=0.5, examples_per_s=12.0)
    cluster.steps()
    view = cluster.a.job("faces")
    assert view.state is JobState.RUNNING
    assert (view.leader, view.manager) == ("manager", "b:7070")
    assert view.progress is not None
    assert (view.progress.version, view.progress.epoch, view.progress.accuracy) == (7, 2, 0.5)
    assert [worker.node for worker in view.progress.workers] == ["pi-0"]
    assert 0 <= view.heard_s < 10.0
    leads(cluster.b, "faces", version=8)
    cluster.steps()
    told = cluster.a.job("faces").progress
    assert told is not None
    assert told.version == 8


def test_a_leader_that_fell_silent_is_silent_at_every_manager(cluster: Cluster) -> None:
    cluster.b.submit("faces")
    leads(cluster.b, "faces")
    cluster.steps(10)
    assert cluster.a.job("faces").heard_s == pytest.approx(40.0, abs=4.1)


def test_a_job_without_a_manager_says_so_and_grows_old(cluster: Cluster) -> None:
    cluster.b.submit("faces")
    leads(cluster.b, "faces")
    cluster.steps()
    cluster.b.seats.give_up(cluster.b.tenure)
    cluster.clock.now_s += 20.0
    cluster.a.view.step()
    view = cluster.a.job("faces")
    assert view.manager == ""
    assert view.heard_s > 20.0


def test_a_job_that_nobody_wrote_yet_is_as_the_store_has_it(cluster: Cluster) -> None:
    cluster.b.submit("faces")
    view = cluster.a.job("faces")
    assert view.state is JobState.QUEUED
    assert view.since_s > 0, "since it was submitted"


def test_a_job_that_is_over_has_no_row_and_is_not_remembered(cluster: Cluster) -> None:
    cluster.b.submit("faces")
    leads(cluster.b, "faces")
    cluster.steps()
    cluster.b.registry.set_job_state("faces", JobState.FAILED, now_s=3.0, reason="it diverged")
    leads(cluster.b, "faces", state="failed", reason="it diverged")
    cluster.steps()
    assert cluster.a.registry.views_since(0, limit=10) == []
    view = cluster.a.job("faces")
    assert (view.state, view.reason, view.manager) == (JobState.FAILED, "it diverged", "b:7070")
    assert view.since_s > 0


def test_the_progress_of_a_large_job_is_written_less_often(cluster: Cluster) -> None:
    cluster.b.submit("faces")
    leads(cluster.b, "faces", workers=1000)
    cluster.steps()
    row = next(row for row in cluster.a.registry.views_since(0, limit=10) if row.kind == "job")
    every_s = len(row.view_json) / JOB_BYTES_PER_S
    assert every_s > 8.0
    leads(cluster.b, "faces", workers=1000, version=5)
    cluster.b.view.step()
    cluster.a.view.step()
    told = cluster.a.job("faces").progress
    assert told is not None
    assert told.version == 0
    leads(cluster.b, "faces", workers=1000, version=6, state="waiting", reason="too few workers")
    cluster.b.view.step()
    cluster.a.view.step()
    told = cluster.a.job("faces").progress
    assert told is not None
    assert told.version == 6, "what an operator must know is written at once"


def test_what_a_manager_reads_for_the_first_time_comes_in_pages(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_view, "READ_MAX", 7)
    monkeypatch.setattr(cluster_view, "ROWS_MAX", 10)
    for number in range(25):
        cluster.b.hello(f"pi-{number:02}")
    for _ in range(3):
        cluster.b.view.step()
    cluster.a.view.step()
    assert len(cluster.a.view.node_names) == 25
