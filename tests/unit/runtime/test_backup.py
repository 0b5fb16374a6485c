"""A cluster in one file: whole, closed to others, refused when damaged, and safe to go on from."""

import asyncio
import io
import json
import stat
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import Corrupt, Misuse
from shoal.identity.identity import certificate_sha256
from shoal.identity.names import RemoteIdentity
from shoal.net.access import ShutOut
from shoal.plan import Plan
from shoal.roles.manager.going_back import TERMS_PASSED_OVER
from shoal.runtime import backup_file
from shoal.runtime.backup import back_up, restore
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.own_cluster import open_cluster
from shoal.runtime.paths import Paths
from shoal.states import JobState
from shoal.store.blobs import BlobStore
from shoal.store.checkpoints import CheckpointStore
from shoal.store.registry import Registry
from shoal.trainer.package import listing_of, spec_of
from shoal.wire.encoding import to_json
from testbed.echo_job import echo_job

pytestmark = pytest.mark.timeout(120)

JOB, ENDED = "mnist-1", "mnist-0"


def _cluster(folder: Path) -> Path:
    """A home with an open job, an ended one, their blobs and checkpoints, and a blob that nobody names."""
    home, scratch = folder / "home", folder / "scratch"
    scratch.mkdir()
    places = Paths(home)
    open_cluster(places, name="attic")
    ready = echo_job(scratch, values=8, batches=4)
    blobs = BlobStore(places.blobs)
    blobs.put(ready.bundle)
    blobs.put(Path(ready.prepared.model))
    for manifest in (ready.prepared.train, ready.prepared.test):
        blobs.put(listing_of(manifest))
        for path in ready.prepared.paths(manifest):
            blobs.put(Path(path))
    blobs.put(b"named by no job")
    with Registry(places.registry) as registry:
        for job in (ENDED, JOB):
            spec = spec_of(ready, Plan(), job=job)
            registry.add_job(job=job, name=job, spec_json=json.dumps(to_json(spec)), now_s=1.0)
            registry.next_term(job)
            store = CheckpointStore(places.checkpoints(job))
            for version in (3, 7):
                store.save(version=version, tensors={"flat": np.full(8, version, np.float32)}, state={"v": version})
        registry.set_job_state(ENDED, JobState.FINISHED, now_s=2.0)
        registry.set_job_state(JOB, JobState.RUNNING, now_s=2.0, leader="pi")
        registry.add_token(secret="a" * 32, role="node", uses=3, now_s=1.0)
        registry.upsert_node(node="pi", role="node", facts_json="{}", state="enrolled", now_s=1.0)
    return home


def test_a_restored_cluster_has_what_jobs_name_and_nothing_else(tmp_path: Path) -> None:
    home, file, other = _cluster(tmp_path), tmp_path / "copy.tar", tmp_path / "other"
    made = back_up(home, file)
    assert made.durable == {JOB: 7, ENDED: 7}
    assert made.missing == ()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list((home / "cluster").glob(".backup-*"))
    restored = restore(file, other)
    assert (restored.cluster, restored.jobs, restored.durable) == ("attic", 2, made.durable)
    before, after = Paths(home), Paths(other)
    for job in (JOB, ENDED):
        loaded = CheckpointStore(after.checkpoints(job)).load()
        assert loaded is not None
        assert (loaded.version, loaded.which, list(loaded.tensors["flat"])) == (7, "newest", [7.0] * 8)
    old, new = set(BlobStore(before.blobs).hashes()), set(BlobStore(after.blobs).hashes())
    assert len(old - new) == 1, "the blob that no job names stays behind"
    assert not new - old
    assert open_cluster(after, name="x")[0].fingerprint == open_cluster(before, name="x")[0].fingerprint
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in other.rglob("*")} == {0}


def test_entries_of_shared_sets_are_in_a_backup(tmp_path: Path) -> None:
    home, file, other = _cluster(tmp_path), tmp_path / "copy.tar", tmp_path / "other"
    sha256 = BlobStore(Paths(home).blobs).put(b'{"y":1}\n')
    with Registry(Paths(home).registry) as registry:
        given = registry.add_contribution(
            set_name="weeds",
            sha256=sha256,
            node="pi",
            certificate="ab" * 32,
            entries=1,
            size_bytes=8,
            at_s=1.0,
            quota_bytes=100,
        )
    back_up(home, file)
    restore(file, other)
    assert BlobStore(Paths(other).blobs).verify(sha256)
    with Registry(Paths(other).registry) as registry:
        assert registry.contributions(limit=9) == [given]


def test_a_restored_registry_gives_no_term_and_no_secret_twice(tmp_path: Path) -> None:
    home, file, other = _cluster(tmp_path), tmp_path / "copy.tar", tmp_path / "other"
    back_up(home, file)
    restore(file, other)
    with Registry(Paths(other).registry) as registry:
        job, ended = registry.job(JOB), registry.job(ENDED)
        assert job is not None
        assert ended is not None
        # The manager that was lost gave out term 2, and perhaps a few more.
        assert (job.term, job.leader, job.state) == (1 + TERMS_PASSED_OVER, "", JobState.RUNNING)
        assert (ended.term, ended.state) == (1, JobState.FINISHED)
        assert registry.tokens() == []


def test_a_member_that_renewed_after_the_copy_is_let_in_until_it_renews_again(tmp_path: Path) -> None:
    home, file, other = _cluster(tmp_path), tmp_path / "copy.tar", tmp_path / "other"
    authority, _ = open_cluster(Paths(home), name="attic")

    def issue() -> tuple[RemoteIdentity, bytes]:
        pem = authority.identity(node="pi", role="node").certificate_pem
        peer = RemoteIdentity(node="pi", role="node", cluster="attic", certificate=certificate_sha256(pem))
        return peer, pem

    (replaced, first), (known, second), (unknown, _), (latest, third) = (issue() for _ in range(4))
    with Registry(Paths(home).registry) as registry:
        register = MemberRegister(registry)
        for peer, pem in ((replaced, first), (known, second)):
            register.record(pem, now_s=time.time())
            asyncio.run(register.let_in(peer, "control"))
        with pytest.raises(ShutOut):
            register.check_key(unknown, "control")
        back_up(home, file)
    restore(file, other)
    with Registry(Paths(other).registry) as registry:
        register = MemberRegister(registry)
        for peer in (known, unknown):
            register.check_key(peer, "control")
            asyncio.run(register.let_in(peer, "control"))
            assert register.role_now(peer) == "node"
        # A key that was replaced before the copy stays void.
        with pytest.raises(ShutOut):
            register.check_key(replaced, "control")
        register.record(third, now_s=time.time(), replaces=unknown.certificate)
        asyncio.run(register.let_in(latest, "control"))
        with pytest.raises(ShutOut):
            register.check_key(unknown, "control")
        with pytest.raises(ShutOut):
            register.check_key(known, "control")
        register.check_key(latest, "control")


def test_a_member_that_was_revoked_before_the_copy_stays_out(tmp_path: Path) -> None:
    home, file, other = _cluster(tmp_path), tmp_path / "copy.tar", tmp_path / "other"
    with Registry(Paths(home).registry) as registry:
        registry.revoke_node("pi", now_s=5.0, reason="stolen")
    back_up(home, file)
    restore(file, other)
    with Registry(Paths(other).registry) as registry:
        thief = RemoteIdentity(node="pi", role="node", cluster="attic", certificate="0" * 64)
        with pytest.raises(ShutOut, match="stolen"):
            MemberRegister(registry).role_now(thief)


def test_a_cluster_is_never_restored_over_another(tmp_path: Path) -> None:
    home, file = _cluster(tmp_path), tmp_path / "copy.tar"
    back_up(home, file)
    with pytest.raises(Misuse, match="holds a cluster already"):
        restore(file, home)


def test_a_part_that_an_open_job_needs_must_be_there(tmp_path: Path) -> None:
    home = _cluster(tmp_path)
    with Registry(Paths(home).registry) as registry:
        bundle = json.loads(registry.jobs()[0].spec_json)["bundle"]
    BlobStore(Paths(home).blobs).remove(bundle)
    with pytest.raises(Corrupt, match=f"job {JOB} cannot be backed up"):
        back_up(home, tmp_path / "copy.tar")
    with Registry(Paths(home).registry) as registry:
        registry.set_job_state(JOB, JobState.FAILED, now_s=3.0)
    assert [text.split(":")[0] for text in back_up(home, tmp_path / "copy.tar").missing] == [ENDED, JOB]


def test_bytes_that_changed_on_the_disk_are_found_when_they_are_copied(tmp_path: Path) -> None:
    home = _cluster(tmp_path)
    newest = sorted(Paths(home).checkpoints(JOB).iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    with pytest.raises(Corrupt, match="damaged on this disk"):
        back_up(home, tmp_path / "copy.tar")
    assert not (tmp_path / "copy.tar").exists()


@pytest.mark.parametrize("spoil", ["cut", "flip", "empty", "text"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(tmp_path: Path, spoil: str) -> None:
    home, file, other = _cluster(tmp_path), tmp_path / "copy.tar", tmp_path / "other"
    back_up(home, file)
    whole = file.read_bytes()
    at = whole.rindex(np.full(8, 7, np.float32).tobytes())
    spoilt = {
        "cut": whole[: len(whole) // 2],
        "flip": whole[:at] + b"\x01" + whole[at + 1 :],
        "empty": b"",
        "text": b"hello\n" * 1000,
    }[spoil]
    file.write_bytes(spoilt)
    with pytest.raises(Corrupt, match="no whole backup"):
        restore(file, other)
    assert list(other.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/passwd", "cluster/authority/../../x.json", "cluster/lock", "node/identity.json"]
)
def test_a_backup_writes_no_other_files_than_a_clusters(tmp_path: Path, name: str) -> None:
    file = tmp_path / "evil.tar"
    listed = [{"name": name, "size_bytes": 1, "sha256": "0" * 64}]
    text = json.dumps({"format": backup_file.FORMAT, "cluster": "x", "made_s": 1, "version": "", "files": listed})
    with tarfile.open(file, "w") as tar:
        for each, data in ((backup_file.MANIFEST, text.encode()), (name, b"x")):
            header = tarfile.TarInfo(each)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    with pytest.raises(Corrupt, match="no whole backup"):
        restore(file, tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def test_a_file_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    home, file, other = _cluster(tmp_path), tmp_path / "copy.tar", tmp_path / "other"
    back_up(home, file)
    with tarfile.open(file, "a") as tar:
        header = tarfile.TarInfo("cluster/authority/extra.json")
        header.size = 2
        tar.addfile(header, io.BytesIO(b"{}"))
    with pytest.raises(Corrupt, match="is not as listed"):
        restore(file, other)
