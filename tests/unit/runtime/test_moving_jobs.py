"""Two managers' nodes on one store: a job that is led at one is given to the other, by the drivers as they are."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import Refused, ShoalError
from shoal.identity.names import RemoteIdentity
from shoal.learning.layout import Entry, Layout
from shoal.plan import Plan
from shoal.runtime.manager_node import ManagerNode
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.own_cluster import open_cluster
from shoal.runtime.paths import Paths
from shoal.runtime.shared_jobs import SharedJobs
from shoal.store.depot import FolderDepot
from shoal.store.registry import Registry
from shoal.store.rows import JobRow
from shoal.store.seat import FencedDatabase, GivenAway, Seats
from shoal.store.sqlite import SqliteDatabase
from shoal.trainer.prepared_job import LAYOUT_NOTE
from shoal.wire import tensors
from shoal.wire.encoding import to_json
from shoal.wire.messages import Dataset, Done, DrainManager, JobSpec, UndrainManager

pytestmark = pytest.mark.timeout(120)

ANN = RemoteIdentity(node="ann", role="operator", cluster="c")


class Manager:
    """A manager's node, without a server."""

    def __init__(self, folder: Path, name: str) -> None:
        database = SqliteDatabase(folder / "registry.sqlite")
        Registry(database)
        self.seats = Seats(database)
        self.tenure = self.seats.open(f"{name}/1", f"{name}:7070")
        self.registry = Registry(FencedDatabase(database, self.tenure), holder=self.tenure.holder)
        places = Paths(folder / name)
        _, identity = open_cluster(places, name="c")
        self.node = ManagerNode(
            identity,
            ManagerOptions(home=places.home),
            registry=self.registry,
            depot=FolderDepot(folder / "depot"),
            is_shared=True,
        )
        self.close = database.close

    @property
    def shared(self) -> SharedJobs:
        assert self.node.shared is not None
        return self.node.shared

    async def look(self) -> None:
        seats = await asyncio.to_thread(self.seats.look)
        own = self.tenure.holder
        is_drained = any(seat.is_drained for seat in seats if seat.holder == own)
        await self.shared.look([seat for seat in seats if seat.holder != own], is_drained=is_drained)

    def row(self, job: str) -> JobRow:
        row = self.registry.job(job)
        assert row is not None
        return row


@contextlib.asynccontextmanager
async def managers(folder: Path) -> AsyncIterator[tuple[Manager, Manager]]:
    both = Manager(folder, "a"), Manager(folder, "b")
    for each in both:
        await each.node.start()
    yield both
    for each in both:
        await each.node.stop()
        each.close()


async def until(is_so: Callable[[], bool], *look: Manager) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            for each in look:
                await each.look()
            await asyncio.sleep(0.05)


def add_job(manager: Manager, folder: Path) -> None:
    """Queue job ``j``."""
    model, layout = io.BytesIO(), Layout((Entry("flat", (4,), 0, "parameter"),))
    tensors.write(model, {"flat": np.zeros(4, np.float32)}, {LAYOUT_NOTE: layout.to_json()})
    first = FolderDepot(folder / "depot").blobs.put(model.getvalue())
    none = Dataset(manifest=first, examples=1)
    spec = JobSpec(job="j", name="j", entry="t:T", bundle=first, initial=first, train=none, test=none, plan=Plan())
    manager.registry.add_job(job="j", name="j", spec_json=json.dumps(to_json(spec)), now_s=1.0)


def test_a_drained_manager_gives_its_job_away_and_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with managers(tmp_path) as (a, b):
            add_job(a, tmp_path)
            await until(lambda: a.row("j").term == 1, a, b)
            assert a.node.open_jobs == ("j",)

            done = await a.node.operate(ANN, DrainManager(manager="a:7070", reason="new disk"))
            assert isinstance(done, Done)
            with pytest.raises(Refused, match="no other manager could take the jobs"):
                await a.node.operate(ANN, DrainManager(manager="b:7070"))
            # Its leader is on a's machine: it hands over before the job goes, and b leads under a new term.
            await until(lambda: a.row("j").manager == b.tenure.holder, a)
            await until(lambda: b.row("j").term == 2, a, b)
            assert (a.node.open_jobs, b.node.open_jobs) == ((), ("j",))
            with pytest.raises(GivenAway):
                a.registry.next_term("j")
            told = [event.text for event in b.registry.events_after("j", 0, limit=50)]
            assert any("the manager at b:7070 has it from here on" in text for text in told), "written before it went"

            acts = [(row.operator, row.kind, row.subject, row.text) for row in a.registry.acts(after=0, limit=9)]
            assert acts[0] == ("ann", "drain a manager", "a:7070", "new disk")
            # Back in service, a may be given the job in turn.
            await b.node.operate(ANN, UndrainManager(manager="a:7070"))
            await b.node.operate(ANN, DrainManager())
            await until(lambda: a.row("j").manager == a.tenure.holder and a.row("j").term == 3, a, b)
            assert a.node.open_jobs == ("j",)

    asyncio.run(story())


def test_a_job_is_given_although_the_store_failed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is not away may still fail: a writer before it takes too long, or the answer of a commit is lost.
    The role waits for the outcome, and the job would be nobody's."""
    failed: list[str] = []

    async def story() -> None:
        async with managers(tmp_path) as (a, b):
            add_job(a, tmp_path)
            await until(lambda: a.row("j").term == 1, a, b)
            give_job = a.registry.give_job

            def locked(job: str, address: str) -> bool:
                if not failed:
                    failed.append(job)
                    raise ShoalError("registry postgresql://db was locked for 10 s by another writer")
                return give_job(job, address)

            monkeypatch.setattr(a.registry, "give_job", locked)
            await a.node.operate(ANN, DrainManager(manager="a:7070"))
            await until(lambda: b.row("j").term == 2, a, b)
            assert failed == ["j"]
            assert (a.node.open_jobs, b.node.open_jobs) == ((), ("j",))

    asyncio.run(story())
