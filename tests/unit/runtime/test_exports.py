"""Models that were given out do not fill the disk, and those that may be on their way stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.runtime.exports import Exports
from shoal.store.blobs import BlobStore


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def test_the_oldest_of_a_job_goes(blobs: BlobStore) -> None:
    exports = Exports(blobs, keep=2)
    other = blobs.put(b"another job's")
    exports.gave("b", other)
    given = [blobs.put(text) for text in (b"1", b"2", b"3")]
    for sha256 in given:
        exports.gave("a", sha256)
    assert [blobs.has(sha256) for sha256 in (*given, other)] == [False, True, True, True]


def test_one_that_is_given_again_counts_as_new(blobs: BlobStore) -> None:
    exports = Exports(blobs, keep=2)
    first, second, third = (blobs.put(text) for text in (b"1", b"2", b"3"))
    for sha256 in (first, second, first, first, third):
        exports.gave("a", sha256)
    assert [blobs.has(sha256) for sha256 in (first, second, third)] == [True, False, True]
    # It may be stored and given once more.
    exports.gave("a", blobs.put(b"2"))
    assert [blobs.has(sha256) for sha256 in (first, second, third)] == [False, True, True]


def test_who_reads_one_reads_on(blobs: BlobStore) -> None:
    exports = Exports(blobs, keep=1)
    first = blobs.put(b"whole")
    with blobs.path(first).open("rb") as file:
        exports.gave("a", first)
        exports.gave("a", blobs.put(b"next"))
        assert not blobs.has(first)
        assert file.read() == b"whole"
