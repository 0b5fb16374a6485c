"""Atomic files: whole or absent, no leftovers, and a full disk that says so."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from shoal.store.files import AtomicFile, DiskFull, make_directory, remove_stale, write_atomically


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old and longer")
    write_atomically(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("failure", [RuntimeError("boom"), KeyboardInterrupt(), OSError(errno.EIO, "io")])
def test_a_failed_write_leaves_everything_as_it_was(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail(file: BinaryIO) -> None:
        file.write(b"half" * 10_000)
        raise failure

    with pytest.raises(type(failure)):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_where_and_what_to_do(tmp_path: Path, code: int) -> None:
    def fail(file: BinaryIO) -> None:
        raise OSError(code, os.strerror(code))

    with pytest.raises(DiskFull, match=r"is full \(.* MB free of .* MB\): free space on it") as caught:
        write_atomically(tmp_path / "a", fail)
    assert str(tmp_path) in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_name_that_cannot_be_taken_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "a", lambda file: None)
    assert os.listdir(tmp_path) == ["a"]


def test_hash_and_size_follow_the_stream(tmp_path: Path) -> None:
    pending = AtomicFile(tmp_path)
    for piece in (b"a", b"", b"b" * 100_000, memoryview(b"c" * 7)):
        pending.file.write(piece)
    whole = b"a" + b"b" * 100_000 + b"c" * 7
    pending.commit(tmp_path / pending.sha256)
    pending.abort()
    assert pending.size_bytes == len(whole)
    assert (tmp_path / hashlib.sha256(whole).hexdigest()).read_bytes() == whole


def test_stale_files_go_and_files_being_written_stay(tmp_path: Path) -> None:
    (tmp_path / ".shoal-dead.tmp").write_bytes(b"torn")
    (tmp_path / "somebody.tmp").write_bytes(b"not ours")
    pending = AtomicFile(tmp_path)
    pending.file.write(b"whole")

    remove_stale(tmp_path)

    pending.commit(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert sorted(os.listdir(tmp_path)) == ["a", "somebody.tmp"]


def test_directories_are_made_with_their_parents_and_may_exist(tmp_path: Path) -> None:
    for _ in range(2):
        make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
