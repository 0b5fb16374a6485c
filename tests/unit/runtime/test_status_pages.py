"""The status of a manager without other managers: nodes by page, events of the cluster or of a job, evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import Patience
from shoal.runtime import status_pages
from shoal.runtime.cluster_view import OwnView
from shoal.runtime.ended_jobs import EndedJobs
from shoal.runtime.journal import Journal
from shoal.runtime.kept_versions import KeptVersions
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.publisher import Publisher
from shoal.runtime.status_pages import StatusPages
from shoal.runtime.stored_jobs import StoredJobs
from shoal.store.depot import FolderDepot
from shoal.store.registry import Registry
from shoal.wire.messages import AskStatus, ExecutorView, Status

pytestmark = pytest.mark.timeout(60)

LENDER = ExecutorView(node="pi-0", state="idle")


class Desk:
    def __init__(self, folder: Path) -> None:
        self.registry = Registry(folder / "registry.db")
        for number in range(5):
            self.registry.upsert_node(node=f"pi-{number}", role="node", facts_json="{}", state="pending", now_s=1.0)
        depot = FolderDepot(folder)
        self.journal = Journal(self.registry)
        stored = StoredJobs(self.registry, KeptVersions(depot, self.registry, is_shared=False), note=self.journal.add)
        manager = Manager(node="manager", patience=Patience())
        self.pages = StatusPages(
            self.registry,
            manager,
            MemberRegister(self.registry),
            empty=Status(cluster="pond", manager="manager"),
            own=OwnView(manager, lambda node, now_s: None),
            ended=EndedJobs(self.registry, stored, in_memory=manager.spec, post=print),
            publisher=Publisher(self.registry, depot.models, self.journal.add),
            executors=lambda: (LENDER,),
        )


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.registry.close()


def test_every_node_is_on_one_page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_pages, "NODES_SHOWN", 2)
    status = desk.pages.answer(AskStatus())
    assert (status.cluster, status.manager, status.executors) == ("pond", "manager", (LENDER,))
    pages = [[view.node for view in status.nodes]]
    while status.next_node:
        status = desk.pages.answer(AskStatus(after_node=status.next_node))
        assert status.events == (), "only the first page has more than nodes"
        pages.append([view.node for view in status.nodes])
    assert pages == [["pi-0", "pi-1"], ["pi-2", "pi-3"], ["pi-4"]]


def test_events_are_those_of_the_cluster_or_of_the_job_that_is_asked_for(desk: Desk) -> None:
    desk.journal.add("", "node", "pi-0 connected")
    desk.journal.add("j", "failed", "it broke", "Traceback")
    desk.journal.flush()
    assert [event.reason for event in desk.pages.answer(AskStatus()).events] == ["pi-0 connected"]
    assert [event.reason for event in desk.pages.answer(AskStatus(job="j")).events] == ["it broke"]
    [failure] = desk.pages.answer(AskStatus(job="j", tracebacks=True)).events
    assert failure.traceback == "Traceback"


def test_a_job_that_nobody_knows_has_no_view(desk: Desk) -> None:
    status = desk.pages.answer(AskStatus(job="none"))
    assert (status.jobs, status.evaluations) == ((), ())
    assert desk.pages.answer(AskStatus(called="none")).jobs == ()
    assert desk.pages.answer(AskStatus(ended_page=1)).jobs == ()
