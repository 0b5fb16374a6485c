"""Blobs: stored under their hash, checked on the way in, never outside their directory."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from shoal.errors import Corrupt, Misuse, PeerViolation
from shoal.store import blobs
from shoal.store.blobs import BlobStore
from shoal.store.files import DiskFull
from shoal.wire.limits import BLOB_MAX_BYTES, BLOB_READ_MAX_BYTES, CHUNK_BYTES

DATA = b"shoal" * 1000
HASH = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def files(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("data", [b"", b"x", DATA, os.urandom(CHUNK_BYTES * 2 + 1)], ids=len)
def test_bytes_and_files_are_stored_under_their_hash(store: BlobStore, tmp_path: Path, data: bytes) -> None:
    source = tmp_path / "source"
    source.write_bytes(data)
    expected = hashlib.sha256(data).hexdigest()
    assert store.put(data) == store.put(source) == expected
    assert store.path(expected).read_bytes() == data
    assert files(tmp_path) == [f"blobs/{expected[:2]}/{expected}", "source"]


def test_a_file_is_copied_into_an_empty_store(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    assert store.put(source) == HASH
    source.write_bytes(b"changed")
    assert store.verify(HASH)


def test_what_is_absent_is_said_to_be(store: BlobStore) -> None:
    assert not store.has(HASH)
    assert not store.verify(HASH)
    with pytest.raises(Misuse, match="fetch or put it first"):
        store.path(HASH)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../" * 22,
        "/etc/passwd",
        f"{HASH[:-3]}/..",
        HASH.upper(),
        HASH[:-1],
        HASH + "0",
        HASH + "\n",
        "٣" * 64,
    ],
)
def test_a_name_that_is_no_hash_is_refused(store: BlobStore, name: str) -> None:
    for use in (store.has, store.path, store.verify, lambda name: store.writer(name, 1)):
        with pytest.raises(PeerViolation):
            use(name)


def test_an_upload_in_pieces_is_stored(store: BlobStore) -> None:
    with store.writer(HASH, len(DATA)) as writer:
        writer.feed(DATA[:1])
        writer.feed(memoryview(DATA)[1:])
        assert not store.has(HASH)
        writer.commit()
    assert store.path(HASH).read_bytes() == DATA


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([DATA[:-1]], "ended after 4999"),
        ([], "ended after 0"),
        ([DATA, b"x"], "has more"),
        ([DATA[:-1] + b"?"], "hashes to"),
    ],
    ids=["short", "empty", "long", "altered"],
)
def test_an_upload_that_is_not_what_was_announced_leaves_nothing(
    store: BlobStore, tmp_path: Path, pieces: list[bytes], reason: str
) -> None:
    writer = store.writer(HASH, len(DATA))

    def upload() -> None:
        for piece in pieces:
            writer.feed(piece)
        writer.commit()

    with pytest.raises(PeerViolation, match=reason):
        upload()
    assert files(tmp_path) == []


def test_an_upload_that_is_dropped_leaves_nothing(store: BlobStore, tmp_path: Path) -> None:
    with store.writer(HASH, len(DATA)) as writer:
        writer.feed(DATA)
        assert files(tmp_path) != []
    assert files(tmp_path) == []


@pytest.mark.parametrize("size_bytes", [-1, BLOB_MAX_BYTES + 1, 1 << 70])
def test_an_absurd_size_is_refused_before_anything_is_stored(store: BlobStore, tmp_path: Path, size_bytes: int) -> None:
    with pytest.raises(PeerViolation):
        store.writer(HASH, size_bytes)
    assert files(tmp_path) == []


def test_a_file_beyond_the_limit_is_our_own_mistake(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "sparse"
    with source.open("wb") as file:
        file.truncate(BLOB_MAX_BYTES + 1)
    with pytest.raises(Misuse, match="split it"):
        store.put(source)


def test_a_blob_that_does_not_fit_on_the_disk_is_refused_before_its_first_chunk(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "free_bytes_at", lambda _: (3 << 30) - 1)
    with pytest.raises(DiskFull, match="does not fit"):
        store.writer(HASH, 3 << 30)
    assert files(tmp_path) == []
    store.writer(HASH, 2 << 30).abort()


def test_a_large_blob_is_not_read_into_memory(store: BlobStore) -> None:
    store.put(DATA)
    assert store.read(HASH) == DATA
    with store.path(HASH).open("wb") as file:
        file.truncate(BLOB_READ_MAX_BYTES + 1)
    with pytest.raises(Corrupt, match="not read into memory"):
        store.read(HASH)


def test_the_same_blob_may_be_put_from_many_threads(store: BlobStore, tmp_path: Path) -> None:
    def upload(_: int) -> None:
        with store.writer(HASH, len(DATA)) as writer:
            writer.feed(DATA)
            writer.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upload, range(16)))
        assert set(pool.map(lambda _: store.put(DATA), range(16))) == {HASH}
    assert files(tmp_path) == [f"blobs/{HASH[:2]}/{HASH}"]
    assert store.verify(HASH)


def test_a_blob_that_rotted_is_dropped_and_can_be_stored_again(store: BlobStore) -> None:
    store.put(DATA)
    store.path(HASH).write_bytes(DATA[:-1] + b"?")
    assert not store.verify(HASH)
    assert not store.has(HASH)
    store.put(DATA)
    assert store.verify(HASH)


def test_a_store_cleans_up_after_a_crash_but_not_after_the_living(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    (tmp_path / ".shoal-dead.tmp").write_bytes(b"torn")
    with store.writer(HASH, len(DATA)) as writer:
        writer.feed(DATA)
        BlobStore(tmp_path)
        assert not (tmp_path / ".shoal-dead.tmp").exists()
        writer.commit()
    assert store.verify(HASH)


def test_a_blob_may_be_written_before_its_hash_is_known(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    sha256, size_bytes = store.make(lambda file: file.write(b"whole"))
    assert (sha256, size_bytes) == (hashlib.sha256(b"whole").hexdigest(), 5)
    assert store.path(sha256).read_bytes() == b"whole"
    assert store.make(lambda file: file.write(b"whole")) == (sha256, 5)
    assert store.hashes() == [sha256]

    def broken(file: BinaryIO) -> None:
        file.write(b"half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.make(broken)
    assert store.hashes() == [sha256]
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


@pytest.mark.parametrize("is_near", [True, False])
def test_a_file_is_adopted_by_its_hash_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_near: bool) -> None:
    def far(*_: object) -> None:
        raise OSError("another file system")

    if not is_near:
        monkeypatch.setattr("os.link", far)
    store = BlobStore(tmp_path / "store")
    given = tmp_path / "given"
    given.write_bytes(b"examples")
    sha256 = hashlib.sha256(b"examples").hexdigest()
    assert store.adopt(given, sha256)
    assert store.path(sha256).read_bytes() == b"examples"
    assert store.path(sha256).samefile(given) == is_near
    assert store.adopt(given, sha256), "twice is once"
    given.unlink()
    assert store.verify(sha256), "it outlives the file that was given"
    other = tmp_path / "other"
    other.write_bytes(b"lies")
    wrong = hashlib.sha256(b"truth").hexdigest()
    assert not store.adopt(other, wrong)
    assert not store.has(wrong)
    assert other.read_bytes() == b"lies", "it is not ours to remove"
