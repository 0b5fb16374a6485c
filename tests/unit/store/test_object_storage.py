"""Blobs and checkpoints in object storage: durable before acknowledged, whole or absent, and of one cluster."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("obstore", reason="object storage needs obstore: pip install 'shoal[s3]'")

from shoal.errors import Corrupt, Misuse, PeerViolation, ShoalError
from shoal.runtime.direct_download import NotDownloaded, download
from shoal.store import object_blobs, objects
from shoal.store.base import Away
from shoal.store.blobs import BlobStore
from shoal.store.depot import ObjectDepot
from shoal.store.object_blobs import ObjectBlobs
from shoal.store.object_checkpoints import ObjectCheckpoints, newest, spare
from shoal.store.objects import ObjectFacts, Objects
from testbed.servers import object_servers
from testbed.servers.object_servers import BUCKET, ObjectServer

pytestmark = pytest.mark.timeout(300)

_PREFIXES = itertools.count(1)
TENSORS = {"flat": np.arange(64, dtype=np.float32)}


@pytest.fixture(scope="session", params=["moto", "rclone"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    if why := object_servers.missing(request.param):
        pytest.skip(why)
    with object_servers.running(request.param, tmp_path_factory.mktemp("objects") / "data") as running:
        yield running


@pytest.fixture
def bucket(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """A prefix of its own."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return Objects(f"s3://{BUCKET}/cluster-{next(_PREFIXES)}")


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_blob_is_in_the_bucket_and_a_lost_copy_is_fetched_again(bucket: Objects, tmp_path: Path) -> None:
    blobs = ObjectBlobs(bucket, "blobs", tmp_path / "here")
    data = os.urandom(11 << 20)  # more than one part
    sha256 = blobs.put(data)
    assert sha256 == sha256_of(data)
    assert blobs.put(data) == sha256
    assert blobs.make(lambda file: file.write(data)) == (sha256, len(data))
    elsewhere = ObjectBlobs(bucket, "blobs", tmp_path / "there")
    assert elsewhere.has(sha256)
    assert elsewhere.path(sha256).read_bytes() == data
    facts = elsewhere.facts(sha256)
    assert facts is not None
    assert facts.size_bytes == len(data)
    assert abs(facts.modified_s - time.time()) < 300
    elsewhere.place(sha256).write_bytes(b"damaged")
    assert elsewhere.verify(sha256), "a copy that is damaged is fetched again"
    assert elsewhere.path(sha256).read_bytes() == data
    assert elsewhere.hashes() == [sha256]
    elsewhere.remove(sha256)
    assert not blobs.has(sha256)
    assert blobs.hashes() == []
    assert not elsewhere.verify(sha256)
    with pytest.raises(Misuse, match="put it first"):
        elsewhere.path(sha256)


def test_what_a_peer_sends_is_checked_before_the_bucket_has_it(bucket: Objects, tmp_path: Path) -> None:
    blobs = ObjectBlobs(bucket, "blobs", tmp_path / "here")
    with pytest.raises(PeerViolation):
        blobs.writer("../../etc/passwd", 3)
    expected = sha256_of(b"abc")
    with blobs.writer(expected, 3) as writer, pytest.raises(PeerViolation, match="hashes to"):
        writer.take(io.BytesIO(b"abd"))
    assert blobs.hashes() == []
    with blobs.writer(expected, 3) as writer:
        writer.take(io.BytesIO(b"abc"))
    assert blobs.hashes() == [expected]


def test_a_damaged_object_is_never_given_out(bucket: Objects, tmp_path: Path) -> None:
    blobs = ObjectBlobs(bucket, "blobs", tmp_path / "here")
    sha256 = sha256_of(b"what it should be")
    other = tmp_path / "other"
    other.write_bytes(b"what it is")
    bucket.put(f"blobs/{sha256}", other)
    with pytest.raises(ShoalError, match="came damaged"):
        blobs.path(sha256)
    assert not blobs.place(sha256).exists()


def test_copies_are_bounded_and_those_in_use_stay(
    bucket: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = ObjectBlobs(bucket, "blobs", tmp_path / "here", cache_max_bytes=250)
    first, second, third = (blobs.put(bytes([number]) * 100) for number in range(3))
    assert all(blobs.place(each).exists() for each in (first, second, third)), "all were used a moment ago"
    monkeypatch.setattr(object_blobs, "_IN_USE_S", 0.0)
    os.utime(blobs.place(second), (1.0, 1.0))
    fourth = blobs.put(b"\3" * 100)
    assert not blobs.place(second).exists()
    assert blobs.place(fourth).exists()
    assert blobs.path(second).read_bytes() == b"\1" * 100
    assert sum(path.stat().st_size for path in (tmp_path / "here").glob("??/*")) <= 300


def test_replaced_checkpoints_stay_for_a_day_one_an_hour() -> None:
    names = {version: f"{version:012d}-{version:064x}.safetensors" for version in range(200)}
    # Four an hour, over more than two days.
    kept = {names[version]: ObjectFacts(size_bytes=1, modified_s=1000.0 + 900.0 * version) for version in range(196)}
    spares = {int(name[:12]) for name in spare(kept, 195)}
    assert len(spares) == 24
    assert min(spares) == 195 - 96, "a day ago"
    assert all(later - earlier == 4 for earlier, later in itertools.pairwise(sorted(spares)[1:]))
    # Once they are removed the same ones stay with the next save.
    left = {name: facts for name, facts in kept.items() if int(name[:12]) in {*spares, 194, 195}}
    left[names[196]] = ObjectFacts(size_bytes=1, modified_s=1000.0 + 900.0 * 196)
    assert {int(name[:12]) for name in spare(left, 196)} <= {*spares, 195}
    # A higher version belongs to a history that was given up.
    assert names[195] not in spare(kept, 190)


def test_a_checkpoint_that_is_missing_gives_way_to_the_newest_that_is_left(bucket: Objects, tmp_path: Path) -> None:
    store = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "one")
    saved = [store.save(version=version, tensors=TENSORS, state={"n": version}) for version in range(1, 5)]
    last = saved[-1].path.name
    # Removed there, and the copy is still here: it is put back.
    bucket.remove(f"checkpoints/j/{last}")
    loaded = store.load(named=last)
    assert loaded is not None
    assert (loaded.version, loaded.skipped) == (4, ())
    assert bucket.facts(f"checkpoints/j/{last}") is not None
    # Nowhere any more.
    bucket.remove(f"checkpoints/j/{last}")
    loaded = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "two").load(named=last)
    assert loaded is not None
    assert (loaded.version, loaded.which, loaded.skipped) == (3, "the one before", ((last, "it is missing"),))
    # The database went back, to a version that is long gone: the newest counts.
    long_gone = f"{2:012d}-{7:064x}.safetensors"
    loaded = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "three").load(named=long_gone)
    assert loaded is not None
    assert (loaded.version, loaded.which, loaded.skipped) == (3, "newest", ((long_gone, "it is missing"),))
    store.remove()
    with pytest.raises(Corrupt, match="nor is any other"):
        ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "four").load(named=last)


def test_copies_that_are_lost_take_nothing_from_the_bucket(bucket: Objects, tmp_path: Path) -> None:
    """Between a save and its acknowledgement the copies go: the bucket had removed the newest checkpoints too."""
    store = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "one")
    for version in range(1, 5):
        store.save(version=version, tensors=TENSORS, state={})
    saved = store.save(version=5, tensors=TENSORS, state={}, thins=False)
    for copy in (tmp_path / "one").iterdir():
        copy.unlink()
    store.thin_out(saved)
    left = {int(name.split("/")[-1][:12]) for name in bucket.list("checkpoints/j")}
    assert {4, 5} <= left
    assert len(left) < 5, "and the first of this hour, or of two"
    loaded = store.load(named=saved.path.name)
    assert loaded is not None
    assert (loaded.version, loaded.skipped) == (5, ())


def test_what_this_manager_saved_stays_before_what_another_one_left() -> None:
    facts = ObjectFacts(size_bytes=1, modified_s=1.0)
    names = [f"{version:012d}-{version:064x}.safetensors" for version in range(5)]
    left = f"{3:012d}-{99:064x}.safetensors"
    kept = {**dict.fromkeys(names, facts), left: ObjectFacts(size_bytes=1, modified_s=2.0)}
    assert newest(kept, names[4], {names[4], names[3]}, keep=2) == {names[4], names[3]}
    assert newest(kept, names[4], set(), keep=2) == {names[4], left}
    assert newest(kept, names[2], set(), keep=2) == {names[2], names[1]}, "newer ones belong to a past that is over"


def test_a_checkpoint_outlives_the_folder(bucket: Objects, tmp_path: Path) -> None:
    store = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "one")
    assert store.load() is None
    assert store.newest_version() == -1
    for version in range(1, 5):
        store.save(version=version, tensors=TENSORS, state={"n": version})
    # The two newest, and the first of this hour.
    kept = sorted(int(name.split("/")[-1][:12]) for name in bucket.list("checkpoints/j"))
    assert kept in ([1, 3, 4], [1, 2, 3, 4]), "an hour may have passed"
    assert len(list((tmp_path / "one").iterdir())) == 2, "its own folder has the two newest"
    other = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "two")
    assert other.newest_version() == 4
    loaded = other.load()
    assert loaded is not None
    assert (loaded.version, loaded.state, loaded.which) == (4, {"n": 4}, "newest")
    np.testing.assert_array_equal(loaded.tensors["flat"], TENSORS["flat"])
    # A copy that went bad on the disk is no reason to go back a version.
    loaded.path.write_bytes(b"bad")
    again = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "two").load()
    assert again is not None
    assert (again.version, again.which) == (4, "newest")
    other.remove()
    assert bucket.list("checkpoints/j") == {}


def test_an_object_that_went_bad_costs_one_version(bucket: Objects, tmp_path: Path) -> None:
    store = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "one")
    for version in (1, 2):
        store.save(version=version, tensors=TENSORS, state={})
    last = max(bucket.list("checkpoints/j"))
    bad = tmp_path / "bad"
    bad.write_bytes(b"bad")
    bucket.put(last, bad)
    loaded = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "two").load()
    assert loaded is not None
    assert (loaded.version, loaded.which) == (1, "the one before")


def test_what_the_bucket_never_had_is_no_checkpoint(
    bucket: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash after the file and before the upload: nobody was told of that version."""
    store = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "one")
    store.save(version=1, tensors=TENSORS, state={})
    put = Objects.put

    def refuse(self: Objects, name: str, path: Path) -> None:
        raise Away("gone")

    monkeypatch.setattr(Objects, "put", refuse)
    with pytest.raises(Away):
        store.save(version=2, tensors=TENSORS, state={})
    monkeypatch.setattr(Objects, "put", put)
    # As a process that was killed leaves it.
    saved = super(ObjectCheckpoints, store)._write(3, TENSORS, {"shoal": "checkpoint 1", "version": "3", "state": "{}"})
    assert saved.path.exists()
    loaded = ObjectCheckpoints(bucket, "checkpoints/j", tmp_path / "one").load()
    assert loaded is not None
    assert loaded.version == 1
    assert not saved.path.exists()


def test_a_bucket_belongs_to_one_cluster(bucket: Objects) -> None:
    bucket.claim("ours")
    bucket.claim("ours")
    with pytest.raises(Misuse, match="another cluster"):
        bucket.claim("theirs")


def test_of_many_that_create_one_name_one_does(bucket: Objects, server: ObjectServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: bucket.create("fence", b"%d" % number), range(8)))
    if not server.fences:
        pytest.skip("this server ignores If-None-Match")
    assert sum(made) == 1
    assert bucket.read("fence") == b"%d" % made.index(True)


def test_a_range_of_an_object(bucket: Objects, server: ObjectServer, tmp_path: Path) -> None:
    if not server.has_ranges:
        pytest.skip("this server answers a range with the whole object")
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 100)
    bucket.put("whole", file)
    assert bucket.read("whole", start=300, size_bytes=5) == bytes(range(44, 49))
    assert bucket.read("nothing", start=0, size_bytes=5) is None


def test_the_depot_knows_its_jobs(bucket: Objects, tmp_path: Path) -> None:
    depot = ObjectDepot(bucket, tmp_path)
    assert depot.jobs() == []
    for job in ("a", "b"):
        depot.checkpoints(job).save(version=1, tensors=TENSORS, state={})
    assert depot.jobs() == ["a", "b"]
    assert depot.checkpoint_bytes("a") > 64 * 4
    depot.remove_checkpoints("a")
    assert depot.jobs() == ["b"]
    assert depot.blobs.put(b"x") != ""
    assert depot.models.hashes() == []


def test_an_object_larger_than_expected_is_not_read(bucket: Objects, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    bucket.put("large", file)
    with pytest.raises(ShoalError, match="the maximum is 99"):
        bucket.fetch("large", io.BytesIO(), most_bytes=99)


@pytest.mark.parametrize("url", ["s3:/bucket", "https://bucket", "s3://", "s3://UPPER", "s3://b/../c?d", "file:///x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Misuse, match="no such address"):
        Objects(url)


def test_a_server_that_is_stopped_is_away_and_no_secret_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := object_servers.missing("rclone"):
        pytest.skip(why)
    monkeypatch.setattr(objects, "_RETRIES", 1)
    with object_servers.running("rclone", tmp_path / "data") as own:
        for name, value in own.environment.items():
            monkeypatch.setenv(name, value)
        bucket = Objects(f"s3://{BUCKET}")
        bucket.claim("ours")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-of-tests")
        with pytest.raises(ShoalError, match="refuses these credentials") as refused:
            Objects(f"s3://{BUCKET}").claim("ours")
        os.kill(own.process.pid, signal.SIGKILL)
        own.process.wait(timeout=30)
        with pytest.raises(Away) as away:
            bucket.create("x", b"y")
    for caught in (refused, away):
        assert "secret-of" not in repr(caught.value)


def test_a_signed_url_gives_the_blob_and_a_changed_one_does_not(
    bucket: Objects, server: ObjectServer, tmp_path: Path
) -> None:
    data = os.urandom(3 << 20)
    blobs = ObjectBlobs(bucket, "blobs", tmp_path / "here", downloads="bucket")
    sha256 = blobs.put(data)
    url = blobs.url(sha256)
    assert object_servers.SECRET not in url
    kept = BlobStore(tmp_path / "device")
    with kept.writer(sha256, len(data)) as writer:
        download(url, writer, size_bytes=len(data), stop=threading.Event(), loopback_http=True)
        writer.commit()
    assert kept.path(sha256).read_bytes() == data
    if server.kind == "rclone":  # moto checks no signatures
        other = blobs.put(b"another blob" * 100_000)
        changed = url.replace(sha256, other)
        with kept.writer(other, 1_200_000) as writer, pytest.raises(NotDownloaded, match="answered 403"):
            download(changed, writer, size_bytes=1_200_000, stop=threading.Event(), loopback_http=True)
    assert ObjectBlobs(bucket, "blobs", tmp_path / "here").url(sha256) == ""
    behind_cdn = ObjectBlobs(bucket, "blobs", tmp_path / "here", downloads="https://cdn.example/shoal/")
    assert behind_cdn.url(sha256) == f"https://cdn.example/shoal/blobs/{sha256}"
