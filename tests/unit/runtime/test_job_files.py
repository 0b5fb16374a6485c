"""Files of jobs on a real disk: which job names a file, and which files leave with a job."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.plan import Plan
from shoal.roles.actions import DropOldJobs
from shoal.roles.events import JobsOutdated
from shoal.roles.manager.retention import KeepJobs
from shoal.runtime import prepared_cache
from shoal.runtime.acts import AuditLog
from shoal.runtime.job_files import FRESH_S, JobFiles
from shoal.runtime.job_retention import JobRetention
from shoal.runtime.kept_versions import KeptVersions
from shoal.runtime.manager_memory import ManagerMemory
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.paths import Paths
from shoal.states import JobState
from shoal.store.checkpoints import CheckpointStore
from shoal.store.depot import FolderDepot
from shoal.store.files import bytes_below
from shoal.store.registry import Registry
from shoal.trainer.package import listing_of, spec_of
from shoal.wire.encoding import to_json
from testbed.echo_job import echo_job

pytestmark = pytest.mark.timeout(60)

DAY_S = 86400.0


class Disk:
    """A manager's disk with jobs on it: each has a bundle of its own, and all have the same data."""

    def __init__(self, folder: Path) -> None:
        self.places = Paths(folder / "home")
        self.registry = Registry(self.places.registry)
        depot = FolderDepot(self.places.registry.parent)
        self.blobs, self.models = depot.blobs, depot.models
        self.files = JobFiles(self.places, self.registry, depot)
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        self.ready = echo_job(self._scratch, values=8, batches=4)
        self.own: dict[str, str] = {}

    def add(self, job: str, *, ended_s: float | None = None) -> None:
        ready = replace(self.ready, bundle=f"code of {job}".encode())
        self.own[job] = self.blobs.put(ready.bundle)
        self.blobs.put(Path(ready.prepared.model))
        for manifest in (ready.prepared.train, ready.prepared.test):
            self.blobs.put(listing_of(manifest))
            for path in ready.prepared.paths(manifest):
                self.blobs.put(Path(path))
        spec = spec_of(ready, Plan(), job=job)
        self.registry.add_job(job=job, name=job, spec_json=json.dumps(to_json(spec)), now_s=1.0)
        store = CheckpointStore(self.places.checkpoints(job))
        store.save(version=1, tensors={"flat": np.zeros(8, np.float32)}, state={})
        self.registry.add_events(job, [(1.0, "kind", "text")])
        self.registry.add_tracebacks(job, [(1.0, "why", "where")])
        if ended_s is not None:
            self.registry.set_job_state(job, JobState.FINISHED, now_s=ended_s)

    def age(self) -> None:
        """As if all of it had been written long ago."""
        before_s = time.time() - 2 * FRESH_S
        for path in self.places.home.rglob("*"):
            os.utime(path, (before_s, before_s))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.registry.close()


def test_a_removed_job_leaves_what_others_name(disk: Disk) -> None:
    disk.add("a", ended_s=5.0)
    disk.add("b")
    disk.age()
    shared = set(disk.blobs.hashes()) - set(disk.own.values())
    disk.files.drop_job("a")
    assert set(disk.blobs.hashes()) == shared | {disk.own["b"]}
    assert not disk.places.checkpoints("a").exists()
    assert disk.places.checkpoints("b").exists()
    assert disk.registry.job("a") is None
    assert disk.registry.events_after("a", 0, limit=9) == []
    assert disk.registry.tracebacks("a") == []
    disk.registry.set_job_state("b", JobState.STOPPED, now_s=6.0)
    disk.files.drop_job("b")
    assert disk.blobs.hashes() == []


def test_what_was_written_a_moment_ago_stays(disk: Disk) -> None:
    disk.add("a", ended_s=5.0)
    upload = disk.blobs.put(b"for a job that is on its way")
    disk.files.drop_job("a")
    assert disk.own["a"] in disk.blobs.hashes()
    assert disk.files.garbage().blobs == ()
    disk.age()
    assert {upload, disk.own["a"]} <= set(disk.files.garbage().blobs)
    assert disk.blobs.has(upload), "to look is not to remove"
    disk.files.collect()
    assert disk.blobs.hashes() == []


def test_a_folder_of_checkpoints_that_no_job_has_is_garbage(disk: Disk) -> None:
    disk.add("a")
    CheckpointStore(disk.places.checkpoints("gone")).save(version=1, tensors={}, state={})
    assert disk.files.collect().jobs == ("gone",)
    assert disk.places.checkpoints("a").exists()


def test_entries_of_shared_sets_stay_until_they_are_rejected(disk: Disk) -> None:
    sha256 = disk.blobs.put(b'{"y":1}\n')
    row = disk.registry.add_contribution(
        set_name="weeds",
        sha256=sha256,
        node="attic",
        certificate="ab" * 32,
        entries=1,
        size_bytes=8,
        at_s=1.0,
        quota_bytes=100,
    )
    disk.age()
    assert disk.files.collect().blobs == ()
    disk.registry.settle_contributions([row], "rejected", by="ann")
    assert disk.files.collect().blobs == (sha256,)


def test_shared_contents_count_for_the_job_that_ended_last(disk: Disk) -> None:
    disk.add("late", ended_s=9.0)
    disk.add("early", ended_s=5.0)
    disk.age()
    told = disk.files.measure(quota_bytes=1, wanted={"new": 3}, more_bytes=7)
    assert list(told.checkpoints) == ["early", "late"]
    assert told.used_bytes == disk.files.used_bytes() + 7
    own = len(b"code of early")
    assert told.contents["early"] == own
    assert told.contents["late"] > own
    disk.files.remove_contents("early")
    assert not disk.blobs.has(disk.own["early"])
    assert disk.blobs.has(disk.ready.prepared.model_sha256)
    disk.files.remove_contents("late")
    assert disk.blobs.hashes() == []


def test_an_open_jobs_contents_are_never_counted(disk: Disk) -> None:
    disk.add("ended", ended_s=5.0)
    disk.add("open")
    disk.age()
    told = disk.files.measure(quota_bytes=1)
    assert told.contents == {"ended": len(b"code of ended")}
    disk.files.remove_contents("ended")
    assert disk.blobs.has(disk.own["open"])
    assert disk.blobs.has(disk.ready.prepared.model_sha256)


def test_what_was_prepared_for_no_job_goes_with_its_shards(disk: Disk) -> None:
    folder = disk.places.prepared
    shards = folder / "shards"
    shards.mkdir(parents=True)
    prepared = disk.ready.prepared
    names = [shard.sha256 for each in (prepared.train, prepared.test) for shard in each.shards]
    for name in (*names, "stray"):
        (shards / name).write_bytes(b"x" * 10)
    (folder / "key").mkdir()
    (folder / "key" / "prepared.json").write_text(json.dumps(prepared.to_plain()))
    kept = frozenset({prepared.model_sha256})
    assert prepared_cache.surplus(folder, kept) == [], "all of it is fresh"
    disk.age()
    assert prepared_cache.surplus(folder, kept) == [shards / "stray"]
    going = prepared_cache.surplus(folder, frozenset())
    assert going[0] == folder / "key"
    assert {path.name for path in going[1:]} == {*names, "stray"}
    assert sum(map(bytes_below, going)) > 10 * len(names)
    prepared_cache.remove(going)
    assert list(shards.iterdir()) == []
    assert prepared_cache.surplus(disk.places.home / "none", kept) == []


# Jobs that are kept no longer -------------------------------------------------------------------------------------


class Kept(Disk):
    """A manager's disk, and what the manager role and the journal were told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.told: list[JobsOutdated] = []
        self.noted: list[str] = []
        self.retention = JobRetention(
            self.registry,
            self.files,
            AuditLog(self.registry, manager="home"),
            KeptVersions(FolderDepot(self.places.registry.parent), self.registry, is_shared=False),
            ManagerMemory(None, self.registry, MemberRegister(self.registry)),
            books=asyncio.Lock(),
            note=lambda job, kind, reason: self.noted.append(f"{kind}: {reason}"),
            post=self.told.append,
        )

    def look(self, keep: str) -> list[str]:
        self.told.clear()
        self.retention._look(KeepJobs.parse(keep))
        return [job for event in self.told for job in event.ages_s]

    def drop(self, *jobs: str) -> None:
        asyncio.run(self.retention.drop(DropOldJobs(reasons=dict.fromkeys(jobs, "it is old"))))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.registry.close()


def test_only_ended_jobs_beyond_the_limit_are_reported(kept: Kept) -> None:
    now_s = time.time()
    for job, days in (("a", 100), ("b", 91), ("c", 89)):
        kept.add(job, ended_s=now_s - days * DAY_S)
    kept.add("open")
    assert kept.look("90d") == ["a", "b"]
    assert kept.told[0].ages_s["b"] == pytest.approx(91 * DAY_S, abs=60)
    assert kept.look("1") == ["a", "b"]
    assert kept.look("3") == []
    assert kept.look("101d") == []


def test_they_go_with_their_files_and_the_log_says_why(kept: Kept) -> None:
    for job in ("a", "b", "c"):
        kept.add(job, ended_s=5.0)
    kept.age()
    shared = set(kept.blobs.hashes()) - set(kept.own.values())
    kept.drop("a", "b", "gone")
    assert [row.job for row in kept.registry.jobs()] == ["c"]
    assert set(kept.blobs.hashes()) == shared | {kept.own["c"]}, "what another job is made of stays"
    assert not kept.places.checkpoints("a").exists()
    assert kept.places.checkpoints("c").exists()
    acts = kept.registry.acts(limit=9)
    assert [(act.kind, act.subject, act.text) for act in acts] == [
        ("remove a job", "a", "it is old"),
        ("remove a job", "b", "it is old"),
    ]
    assert kept.noted == ["job.removed: a: it is old", "job.removed: b: it is old"]
    kept.drop("c")
    assert kept.blobs.hashes() == []
