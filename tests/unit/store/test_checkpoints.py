"""Checkpoints: the newest that proves itself, else the one before, and why."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from shoal.errors import Corrupt, Misuse
from shoal.store.checkpoints import CheckpointStore, LoadedCheckpoint, SavedCheckpoint
from shoal.wire.limits import TENSOR_FILE_HEADER_MAX_BYTES


def save(store: CheckpointStore, version: int, mark: int = 0) -> SavedCheckpoint:
    tensors = {"model": np.full(16, version, np.float32), "velocity": np.full(16, mark, np.float32)}
    return store.save(version=version, tensors=tensors, state={"version": version, "mark": mark})


def loaded(store: CheckpointStore) -> LoadedCheckpoint:
    found = store.load()
    assert found is not None
    assert found.state["version"] == found.version
    assert np.all(found.tensors["model"] == found.version)
    assert np.all(found.tensors["velocity"] == found.state["mark"])
    return found


def flip(path: Path, at: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_an_empty_store_loads_nothing(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "job").load() is None


def test_a_saved_version_comes_back_after_a_restart(tmp_path: Path) -> None:
    saved = save(CheckpointStore(tmp_path), 7)
    found = loaded(CheckpointStore(tmp_path))
    assert (found.version, found.which, found.skipped) == (7, "newest", ())
    assert (found.path, found.sha256) == (saved.path, saved.sha256)


def test_a_file_proves_itself_by_its_name_and_any_tool_opens_it(tmp_path: Path) -> None:
    saved = save(CheckpointStore(tmp_path), 7)
    raw = saved.path.read_bytes()
    assert saved.path.name == f"000000000007-{hashlib.sha256(raw).hexdigest()}.safetensors"
    assert saved.size_bytes == len(raw)
    with safetensors.safe_open(saved.path, "np") as file:
        assert file.metadata()["state"] == '{"version":7,"mark":0}'
        assert np.all(file.get_tensor("model") == 7)


def test_the_last_and_the_one_before_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved = [save(store, version) for version in range(1, 6)]
    assert names(tmp_path) == [saved[3].path.name, saved[4].path.name]


def test_tensors_outlive_the_file_they_came_from(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    found = loaded(store)
    for version in (2, 3, 4):
        save(store, version)
    assert not found.path.exists()
    assert np.all(found.tensors["model"] == 1)


def test_every_flipped_byte_is_detected(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    before, newest = save(store, 1), save(store, 2)
    raw = newest.path.read_bytes()
    for at in range(len(raw)):
        newest.path.write_bytes(raw)
        flip(newest.path, at, bit=at % 8)
        found = loaded(store)
        assert (found.version, found.which, found.path) == (1, "the one before", before.path)
        assert [name for name, _ in found.skipped] == [newest.path.name]
        assert "not to what its name says" in found.skipped[0][1]


def test_every_truncation_is_detected(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    newest = save(store, 2)
    raw = newest.path.read_bytes()
    for length in range(len(raw)):
        newest.path.write_bytes(raw[:length])
        assert loaded(store).version == 1


def test_a_damaged_file_is_set_aside_and_never_preferred_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 10)
    damaged = save(store, 50)
    flip(damaged.path, 100)
    assert loaded(store).version == 10
    assert damaged.path.with_name(damaged.path.name + ".corrupt").exists()

    again = CheckpointStore(tmp_path)
    save(again, 11)
    found = loaded(again)
    assert (found.version, found.which) == (11, "newest")


def test_only_a_few_damaged_files_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    for version in range(2, 7):
        flip(save(store, version).path, 100)
        assert loaded(store).version == 1
    assert len(list(tmp_path.glob("*.corrupt"))) == 2


def test_where_nothing_is_usable_it_says_so_and_touches_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for version in (1, 2):
        flip(save(store, version).path, 100)
    before = names(tmp_path)
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"no checkpoint .* is usable"):
            store.load()
    assert names(tmp_path) == before


def test_the_same_version_may_be_saved_twice(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    before = save(store, 4)
    first = save(store, 5, mark=1)
    assert save(store, 5, mark=1).path == first.path
    second = save(store, 5, mark=2)
    assert names(tmp_path) == sorted([before.path.name, second.path.name])
    assert loaded(store).state["mark"] == 2


def test_the_last_save_wins_over_a_higher_version(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 9)
    save(store, 10)
    save(CheckpointStore(tmp_path), 3)
    assert loaded(CheckpointStore(tmp_path)).version == 3


def test_a_save_that_was_overtaken_does_not_undo_the_later_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 4)
    save(store, 6)
    with pytest.raises(Misuse, match="version 5 comes after version 6, which stays"):
        save(store, 5)
    assert loaded(store).version == 6
    save(store, 5)  # after a load it is a decision
    assert loaded(store).version == 5


def test_a_second_reader_always_finds_a_whole_and_later_one(tmp_path: Path) -> None:
    """Pulling a model opens the store of a job that goes on saving."""
    store = CheckpointStore(tmp_path)
    save(store, 1)
    stop = threading.Event()

    def go_on() -> None:
        for version in range(2, 2000):
            if stop.is_set():
                return
            save(store, version)

    with ThreadPoolExecutor(1) as pool:
        saving = pool.submit(go_on)
        try:
            seen = [loaded(CheckpointStore(tmp_path)) for _ in range(150)]
        finally:
            stop.set()
        saving.result()
    versions = [found.version for found in seen]
    assert versions == sorted(versions)
    assert versions[-1] > versions[0]
    assert all(found.which == "newest" for found in seen)


def test_versions_order_as_numbers(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for version in (999_999_999_999, 1_000_000_000_000):
        save(store, version)
    assert loaded(store).version == 1_000_000_000_000


def test_torn_and_foreign_files_are_ignored(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path), 1)
    (tmp_path / ".shoal-torn.tmp").write_bytes(b"half a checkpoint")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f"000000000009-{'0' * 64}.safetensors.part").write_bytes(b"")
    (tmp_path / f"9-{'0' * 64}.safetensors").write_bytes(b"")
    found = loaded(CheckpointStore(tmp_path))
    assert (found.version, found.skipped) == (1, ())
    assert ".shoal-torn.tmp" not in names(tmp_path)
    assert "notes.txt" in names(tmp_path)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "not the checkpoint 1"),
        ({"shoal": "checkpoint 1", "version": "8", "state": "{}"}, "of version 9"),
        ({"shoal": "checkpoint 1", "version": "9", "state": "["}, "not JSON"),
        ({"shoal": "checkpoint 1", "version": "9", "state": "[" * 100_000}, "not JSON"),
        ({"shoal": "checkpoint 1", "version": "9", "state": "[1]"}, "not a JSON object"),
    ],
)
def test_a_true_hash_of_the_wrong_contents_is_not_enough(tmp_path: Path, metadata: dict[str, str], reason: str) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    raw = safetensors.numpy.save({"model": np.zeros(1)}, metadata)
    (tmp_path / f"000000000009-{hashlib.sha256(raw).hexdigest()}.safetensors").write_bytes(raw)
    found = loaded(store)
    assert found.version == 1
    assert reason in found.skipped[0][1]


@pytest.mark.parametrize(
    "state",
    [{"a": float("nan")}, {"a": object()}, {"a": b"bytes"}, {"a": "x" * TENSOR_FILE_HEADER_MAX_BYTES}],
    ids=["nan", "object", "bytes", "too long"],
)
def test_a_state_that_would_not_come_back_is_refused_and_harms_nothing(
    tmp_path: Path, state: dict[str, object]
) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    before = names(tmp_path)
    with pytest.raises(Misuse):
        store.save(version=2, tensors={}, state=state)
    assert names(tmp_path) == before


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(Misuse):
        CheckpointStore(tmp_path, keep=0)
    for version in (-1, 10**18):
        with pytest.raises(Misuse):
            CheckpointStore(tmp_path).save(version=version, tensors={}, state={})


def test_of_checkpoints_that_are_not_older_the_acknowledged_one_alone_counts(tmp_path: Path) -> None:
    """Managers that share a depot: one that was deposed wrote versions that nobody acknowledged."""
    store = CheckpointStore(tmp_path, keep=9)
    saved = {
        version: store.save(version=version, tensors={"flat": np.zeros(4, np.float32)}, state={}, thins=False)
        for version in (1, 2, 3)
    }
    other = CheckpointStore(tmp_path, keep=9)
    other.save(version=2, tensors={"flat": np.ones(4, np.float32)}, state={}, thins=False)
    assert store.newest_version() == 3
    loaded = store.load(named=saved[2].path.name)
    assert loaded is not None
    assert (loaded.version, loaded.sha256) == (2, saved[2].sha256)
    assert store.load(named="") is None, "none was acknowledged"
    # What was acknowledged is damaged: the one before it counts, and no other of its version.
    saved[2].path.write_bytes(b"damaged")
    loaded = store.load(named=saved[2].path.name)
    assert loaded is not None
    assert (loaded.version, loaded.which) == (1, "the one before")
    with pytest.raises(Corrupt, match="was acknowledged and is not in"):
        CheckpointStore(tmp_path / "elsewhere").load(named=saved[2].path.name)
    store.thin_out(saved[1])
    assert [path.name for path in tmp_path.glob("*.safetensors")] == [saved[1].path.name]
