"""A disk that is really full: a 1 MB file system of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit import small_disk

from shoal.store.blobs import BlobStore
from shoal.store.checkpoints import CheckpointStore
from shoal.store.files import DiskFull
from shoal.store.registry import Registry


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, size="1m", inodes=200) as disk:
        yield disk


def test_a_full_disk_costs_no_earlier_checkpoint(small_disk: Path) -> None:
    directory = small_disk / "job"
    store = CheckpointStore(directory)
    for version in (1, 2):
        store.save(version=version, tensors={"m": np.full(75_000, version, np.float32)}, state={})
    before = sorted(os.listdir(directory))

    for tensors in ({"m": np.zeros(125_000, np.float32)}, {"m": np.zeros(10_000_000, np.float32)}):
        with pytest.raises(DiskFull, match=r"version 3 .* is not saved, earlier checkpoints are intact") as caught:
            store.save(version=3, tensors=tensors, state={})
        assert f"the disk that holds {directory} is full" in str(caught.value)
        assert "free space on it" in str(caught.value)
        assert sorted(os.listdir(directory)) == before

    found = store.load()
    assert found is not None
    assert (found.version, found.which) == (2, "newest")
    store.save(version=3, tensors={"m": np.zeros(75_000, np.float32)}, state={})


def test_what_may_be_deleted_is_named(small_disk: Path) -> None:
    store = CheckpointStore(small_disk)
    store.save(version=1, tensors={"m": np.zeros(75_000, np.float32)}, state={})
    second = store.save(version=2, tensors={"m": np.ones(75_000, np.float32)}, state={})
    second.path.write_bytes(second.path.read_bytes()[:-1])
    found = store.load()
    assert found is not None
    assert found.version == 1
    with pytest.raises(DiskFull, match=r"1 \*\.corrupt file\(s\) in .* can be deleted"):
        store.save(version=2, tensors={"m": np.zeros(200_000, np.float32)}, state={})


def test_a_full_disk_refuses_a_blob_and_takes_a_smaller_one(small_disk: Path) -> None:
    store = BlobStore(small_disk)
    with pytest.raises(DiskFull):
        store.put(bytes(2 << 20))
    with pytest.raises(DiskFull, match="a file of 2 MB does not fit"):
        # Before a byte of it is asked for.
        store.writer("0" * 64, 2 << 20)
    # Two that fit one by one, and not both.
    data = bytes(700_000)
    hashed = hashlib.sha256(data).hexdigest()
    with store.writer(hashed, len(data)) as first, store.writer(hashed, len(data)) as second:
        first.feed(data)
        with pytest.raises(DiskFull):
            second.feed(data)
    assert os.listdir(small_disk) == []
    assert store.verify(store.put(bytes(1000)))


def test_a_registry_on_a_full_disk_still_reads_and_recovers(small_disk: Path) -> None:
    with Registry(small_disk / "registry.db") as registry:
        registry.add_job(job="j1", name="a", spec_json="{}", now_s=1.0)
        with pytest.raises(DiskFull, match=r"registry\.db is full"):
            registry.save_progress("j1", "x" * (2 << 20))
        job = registry.job("j1")
        assert job is not None
        assert job.progress_json == "{}"
        registry.save_progress("j1", '{"epoch":1}')
