"""Whole-or-absent files with the rights of an ordinary file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from shoal.store.files import AtomicFile
from shoal.store.readable import let_others_read, write_readable


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_file_has_the_rights_that_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    ordinary, path = tmp_path / "ordinary", tmp_path / "model"
    ordinary.write_bytes(b"old")
    write_readable(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode == ordinary.stat().st_mode
    assert os.umask(umask) == umask, "it is put back"


def test_a_file_that_fails_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_readable(path, lambda file: file.write(b"old"))

    def half(file: BinaryIO) -> None:
        file.write(b"ne")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_readable(path, half)
    assert [each.name for each in tmp_path.iterdir()] == ["model"]
    assert path.read_bytes() == b"old"


def test_an_open_file_keeps_its_bytes_and_its_hash(tmp_path: Path) -> None:
    pending = AtomicFile(tmp_path)
    pending.file.write(b"abc")
    let_others_read(pending.file)
    pending.commit(tmp_path / pending.sha256)
    assert next(tmp_path.iterdir()).read_bytes() == b"abc"
