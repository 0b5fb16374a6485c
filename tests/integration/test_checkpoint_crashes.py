"""Kills, power cuts, damage and full disks, hundreds of them: what was acknowledged is there, or the one before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from kit import small_disk

from shoal.store.checkpoints import CheckpointStore, LoadedCheckpoint
from shoal.store.files import DiskFull, make_directory
from testbed.crashes.checkpoints import (
    KINDS,
    Mark,
    Memory,
    Tally,
    live,
    mark_of,
    peek,
    power_cuts,
    save,
)
from testbed.crashes.disk import CrashDisk, Stopped

SEED = 20250704
SHARES = {"kills": 60, "steps": 130, "power_cuts": 300, "damages": 150, "full_disks": 150}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_promised_is_lost(kind: str) -> None:
    metrics = KINDS[kind](SHARES[kind], SEED)
    assert metrics.crashes == SHARES[kind]
    assert metrics.lost == []
    assert metrics.wrong == []


@pytest.mark.parametrize("deaf_to", ["file", "directory"])
def test_a_flush_that_is_left_out_is_found(deaf_to: str) -> None:
    """The model can fail: a disk that ignores one kind of flush is a program that forgot it."""
    metrics = power_cuts(60, SEED, deaf_to=deaf_to)
    assert len(metrics.lost) > 5


@pytest.fixture
def disk(tmp_path: Path) -> CrashDisk:
    (tmp_path / "disk").mkdir()
    return CrashDisk(tmp_path / "disk", np.random.default_rng(SEED))


def lives(disk: CrashDisk, stop_at: int, act: Callable[[], object]) -> bool:
    """Whether a process that dies at this request got through."""
    disk.stop_at(stop_at)
    try:
        with disk.attached():
            act()
    except Stopped:
        return False
    return True


def test_every_request_of_a_start_and_two_saves_may_be_the_last(tmp_path: Path) -> None:
    """Not by chance: a kill at each, after which power is cut at once, or once the next process has saved."""
    for then in ("cut", "start and cut"):
        for stop_at in range(1, 100):
            root = tmp_path / f"{then} {stop_at}"
            root.mkdir()
            disk = CrashDisk(root, np.random.default_rng(stop_at))
            metrics = Tally()
            memory = Memory(metrics, f"{then}, {stop_at}")
            directory = root / "home" / "job"

            def start_and_save(directory: Path = directory, memory: Memory = memory) -> None:
                store = CheckpointStore(directory)
                memory.settle(memory.check(store.load))
                for again in (False, False, True):
                    mark = memory.begin(again=again)
                    save(store, mark)
                    memory.settle(mark)

            survived = lives(disk, stop_at, start_and_save)
            if then == "start and cut":
                assert lives(disk, 0, start_and_save)
            disk.cut_power()
            peek(memory, directory, tmp_path / "copy")
            assert (metrics.lost, metrics.wrong) == ([], [])
            if survived:
                break
        else:
            pytest.fail("no life was long enough to reach its end")


def test_a_directory_left_by_a_killed_process_is_made_durable_by_the_next(disk: CrashDisk, tmp_path: Path) -> None:
    directory = tmp_path / "disk" / "a" / "b" / "c"
    for stop_at in range(1, 20):
        if lives(disk, stop_at, lambda: make_directory(directory)):
            break
        # Killed in between, the next one finds some of them there; afterwards no power cut may take any.
        assert lives(disk, 0, lambda: make_directory(directory))
        for _ in range(5):
            disk.cut_power()
            assert directory.is_dir()
        for path in (directory, *list(directory.parents)[:2]):
            path.rmdir()
        disk = CrashDisk(tmp_path / "disk", np.random.default_rng(stop_at))
    else:
        pytest.fail("making directories never came to its end")


def test_a_directory_of_others_need_not_be_flushed(tmp_path: Path) -> None:
    """/proc stands for a parent that cannot be flushed, such as the read-only root below a mounted disk."""
    make_directory(Path("/proc/self"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "file")


def damage_newest(directory: Path) -> None:
    newest = max(directory.glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])


def test_a_full_disk_does_not_keep_a_damaged_file_from_being_passed_over(tmp_path: Path) -> None:
    told = 0
    for full_from in range(1, 20):
        root = tmp_path / str(full_from)
        root.mkdir()
        before = Mark(version=10, number=1)
        store = CheckpointStore(root / "job")
        save(store, before)
        save(store, Mark(version=20, number=2))
        damage_newest(root / "job")
        disk = CrashDisk(root, np.random.default_rng(full_from))
        disk.full_from(full_from)
        with disk.attached():
            try:
                loaded: LoadedCheckpoint | None = CheckpointStore(root / "job").load()
            except DiskFull:
                loaded = None
            requests = disk.asked
            told += loaded is not None
            disk.full_from(0)
            store = CheckpointStore(root / "job")
            again = store.load()
            assert again is not None
            assert mark_of(again) == before
            if loaded is not None:
                assert mark_of(loaded) == before
                assert (loaded.which, len(loaded.skipped)) == ("the one before", 1)
            # Past the damaged version, which must not be taken for the one before.
            save(store, Mark(version=60, number=3))
        damage_newest(root / "job")
        after = CheckpointStore(root / "job").load()
        assert after is not None
        assert mark_of(after) == before
        if requests < full_from:
            break
    else:
        pytest.fail("a load never came to its end")
    assert told > 1, "the load got through only where there was room to the end"


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, size="512k", inodes=100) as disk:
        yield disk


def test_a_real_disk_that_fills_up_anywhere_in_a_save(small_disk: Path) -> None:
    """With room for none, a part and all of a checkpoint, page by page."""
    metrics, chance = Tally(), np.random.default_rng(SEED)
    memory = Memory(metrics, "a small disk")
    directory = small_disk / "job"
    failed = 0
    for pages in range(12):
        live(directory, memory, chance)
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            room = os.statvfs(small_disk)
            file.write(bytes(max(0, (room.f_bavail - pages) * room.f_bsize)))
        store = CheckpointStore(directory)
        memory.settle(memory.check(store.load))
        mark = memory.begin(again=False)
        try:
            save(store, mark)
        except DiskFull:
            failed += 1
        else:
            memory.settle(mark)
        assert not any(directory.glob(".*.tmp"))
        memory.settle(memory.check(CheckpointStore(directory).load))
        ballast.unlink()
    # A checkpoint here is 24 kB and its header: six or seven pages.
    assert 4 <= failed <= 9
    assert (metrics.lost, metrics.wrong) == ([], [])
