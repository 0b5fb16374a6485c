"""Versions of jobs on a real disk: durable before anyone is told, refused if of another model, continued from later."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.roles.actions import Save
from shoal.roles.events import Saved, SaveFailed, Stored, StoreFailed
from shoal.roles.node.checkpoint_transfer import packed, version_of
from shoal.runtime.job_versions import CHECKPOINT_EXTRA_BYTES, JobVersions
from shoal.runtime.journal import Journal
from shoal.runtime.kept_versions import KeptVersions
from shoal.runtime.manager_memory import ManagerMemory
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.publisher import Publisher
from shoal.scheduling.ledger import Applied
from shoal.store.depot import FolderDepot
from shoal.store.registry import Registry
from shoal.wire import tensors as tensor_files
from shoal.wire.messages import Dataset, JobSpec

pytestmark = pytest.mark.timeout(60)

SHA = "0" * 64


def save(version: int, *, values: int = 4, ending: list[str] | None = None) -> Save:
    ledger = {"epoch": 1, "batches": 9, "applied": [[0, 4]]}
    state: dict[str, Any] = {"job": "j", "version": version, "evaluations": [], "ending": ending, "elapsed_s": 1.0}
    row = Applied(epoch=0, batch=version, version=version, node="a", lease=version)
    tensors = {"w": np.full(values, version, np.float32)}
    return Save(version=version, tensors=tensors, state=state | {"ledger": ledger}, applied=(row,), after=version - 1)


class Home:
    def __init__(self, folder: Path) -> None:
        self.registry = Registry(folder / "registry.db")
        depot = FolderDepot(folder)
        self.blobs, self.models = depot.blobs, depot.models
        first = io.BytesIO()
        tensor_files.write(first, {"w": np.zeros(4, np.float32)}, {})
        initial = self.blobs.put(first.getvalue())
        none = Dataset(manifest=SHA, examples=1)
        self.spec = JobSpec(
            job="j", name="j", entry="t:T", bundle=SHA, initial=initial, train=none, test=none, plan=Plan()
        )
        self.registry.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
        self.noted: list[tuple[str, str]] = []
        journal = Journal(self.registry)
        journal.on_event = lambda event: self.noted.append((event.kind, event.reason))
        self.publisher = Publisher(self.registry, self.models, journal.add)
        self.posted: list[Stored | StoreFailed] = []
        register = MemberRegister(self.registry)
        self.versions = JobVersions(
            self.registry,
            self.blobs,
            KeptVersions(depot, self.registry, is_shared=False),
            journal,
            self.publisher,
            ManagerMemory(None, self.registry, register),
            spec={"j": self.spec}.get,
            post=self.posted.append,
        )

    def saves(self, made: Save) -> Saved | SaveFailed:
        told: list[Saved | SaveFailed] = []
        asyncio.run(self.versions.save("j", made, post=told.append))
        return told[0]

    def keeps(self, made: Save) -> Stored | StoreFailed:
        asyncio.run(self.versions.keep(packed(version_of(made), job="j", term=2)))
        return self.posted[-1]

    def applied(self) -> int:
        """Return the batches in the history that is kept."""
        return self.registry.applied_between("j", -1, 99)[0]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.registry.close()


def test_a_job_continues_from_its_newest_version_and_keeps_its_history(home: Home) -> None:
    assert home.versions.newest("j") is None
    assert home.saves(save(1)) == Saved(version=1)
    assert home.keeps(save(2)) == Stored(job="j", term=2, version=2)
    newest = home.versions.newest("j")
    assert newest is not None
    assert (newest.version, newest.tensors["w"].tolist()) == (2, [2.0] * 4)
    assert home.applied() == 2


def test_the_last_version_of_a_leader_elsewhere_is_named_as_such(home: Home) -> None:
    assert home.keeps(save(3, ending=["finished", "all epochs are done"])) == Stored(
        job="j", term=2, version=3, is_last=True
    )


def test_a_checkpoint_of_another_model_is_not_kept(home: Home) -> None:
    told = home.keeps(save(2, values=5))
    assert isinstance(told, StoreFailed)
    assert "the checkpoint is of another model than the job's" in told.reason
    assert home.noted == [
        ("version.refused", "version 2 of its leader: the checkpoint is of another model than the job's")
    ]
    assert home.versions.newest("j") is None


def test_a_disk_that_fails_is_reported_to_the_leader(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(KeptVersions, "kept", full)
    assert home.saves(save(1)) == SaveFailed(version=1, reason="no space left")
    assert home.keeps(save(1)) == StoreFailed(job="j", term=2, version=1, reason="no space left")


def test_a_version_that_cannot_be_published_is_durable_all_the_same(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise Misuse("the shelf is full")

    monkeypatch.setattr(home.publisher, "weigh", fails)
    assert home.saves(save(1)) == Saved(version=1)
    assert home.noted == [("publication.failed", "version 1: the shelf is full; trying again")]


def test_a_checkpoint_may_be_as_large_as_its_first_model_suggests(home: Home) -> None:
    facts = home.blobs.facts(home.spec.initial)
    assert facts is not None
    assert home.versions.most_bytes("j") == 3 * facts.size_bytes + CHECKPOINT_EXTRA_BYTES
    assert home.versions.most_bytes("another") == 0
    home.blobs.remove(home.spec.initial)
    assert home.versions.most_bytes("j") > 0, "what a hash names never changes"
