"""A copy of a cluster in one file, made while its manager runs, and a cluster made of such a file.

What is copied when decides what the copy is worth. Checkpoints come first, the registry after them: a checkpoint holds
the history that belongs to it and cuts a longer one back, but a history with a gap cannot be mended. Blobs come last: a
blob is durable before the registry names it. All are links in a folder of their own until the file is written, so that
nothing disappears meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Corrupt, Misuse, ShoalError
from shoal.identity.identity import Authority
from shoal.runtime import backup_file
from shoal.runtime.backup_file import Listing
from shoal.runtime.contents import Contents
from shoal.runtime.paths import Paths
from shoal.runtime.stored_jobs import spec_from
from shoal.store.blobs import BlobStore
from shoal.store.depot import FolderDepot, ObjectDepot
from shoal.store.files import make_directory, sync_directory, telling_disk_full, write_atomically
from shoal.store.mending import Mended, mend
from shoal.store.opening import elsewhere
from shoal.store.registry import Registry
from shoal.store.registry_copy import NamedFiles, copy_registry, fence_restored, read_named
from shoal.store.remembered import Remembered
from shoal.version import __version__

#: A job may end, or a model may be replaced, while files are linked. Then they are linked once more.
_ATTEMPTS = 20

_BACKUP_PREFIX, _RESTORE_PREFIX = ".backup-", ".restore-"

#: A folder with one of these names was left by a process that was killed, if it is older than this.
_STALE_S = 86400.0

#: A checkpoint's name begins with its version, in so many digits.
_VERSION_CHARS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupSummary:
    """What a backup holds."""

    cluster: str
    made_s: float
    #: The release that made it.
    version: str
    files: int
    size_bytes: int
    jobs: int
    #: Job -> its newest version in the backup.
    durable: dict[str, int]
    #: Parts of ended jobs that were not on the disk.
    missing: tuple[str, ...] = ()


def back_up(home: Path, file: Path) -> BackupSummary:
    """Write everything that makes a cluster into one file that its owner alone can read."""
    places = Paths(home)
    if where := elsewhere(places.registry.parent):
        raise Misuse(
            f"the state of this cluster is in {where}: back it up with its own tools, and {places.authority} beside it"
        )
    if not places.registry.is_file():
        raise Misuse(f"no cluster is managed from {home}: name the --home of a manager")
    cluster = Authority.load(places.authority).cluster
    with _stage(places.registry.parent, _BACKUP_PREFIX) as stage:
        named, missing = _gather(places, stage)
        files = backup_file.list_files(stage)
        listing = Listing(cluster=cluster, made_s=time.time(), version=__version__, files=files)
        write_atomically(file, lambda out: backup_file.write(out, stage, listing))
    return _summary(listing, jobs=len(named.jobs), missing=missing)


def restore(file: Path, home: Path) -> BackupSummary:
    """Make the cluster of a backup, in a home that has none. The home has all of it or nothing."""
    cluster = home / "cluster"
    if cluster.exists():
        raise Misuse(f"{cluster} holds a cluster already: move it away, or give --home another directory")
    make_directory(home)
    with telling_disk_full(home), _stage(home, _RESTORE_PREFIX) as stage:
        listing = backup_file.read(file, stage)
        # The parts prove themselves before the cluster appears.
        authority = Authority.load(stage / "cluster" / "authority")
        if authority.cluster != listing.cluster:
            raise Corrupt(f"{file} names cluster {listing.cluster} and holds the keys of another: use another backup")
        registry = stage / "cluster" / "registry.sqlite"
        with Registry(registry) as opened:  # brings an older schema up to date
            jobs = len(opened.jobs())
        fence_restored(registry)
        _make_durable(stage)
        if (stage / "operator").exists():
            shutil.rmtree(home / "operator", ignore_errors=True)
            os.replace(stage / "operator", home / "operator")
        # Last: where this is, a manager starts.
        os.replace(stage / "cluster", cluster)
        sync_directory(home)
    return _summary(listing, jobs=jobs)


def mend_restored(store: str, home: Path) -> Mended:
    """Make a PostgreSQL that was restored from a dump or a snapshot one that managers may go on from, with what the
    manager of this home remembers, if there is one. Managers that run start over."""
    from shoal.store.postgres import PostgresDatabase

    folder = home / "cluster"
    with contextlib.ExitStack() as ending:
        database = PostgresDatabase(store)
        ending.callback(database.close)
        # Jobs that it adds are nobody's: a manager takes them over.
        registry = Registry(database, holder=f"restore/{os.getpid()}")
        where = registry.fact("depot")
        if not where:
            raise Misuse("this database holds no cluster: restore it first, and name it as `shoal up --store` does")
        if where.startswith("s3://"):
            from shoal.store.objects import Objects

            newest = ObjectDepot(Objects(where), ending.enter_context(_scratch())).newest_checkpoints()
        else:
            newest = FolderDepot(folder).newest_checkpoints() if folder.is_dir() else {}
        remembers = Paths(home).remembered
        remembered = Remembered(remembers if remembers.is_dir() else ending.enter_context(_scratch()))
        signs = ["an operator restored it"]
        return mend(database, registry, remembered, signs=signs, newest=newest, is_restored=True)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shoal-restore-") as folder:
        yield Path(folder)


def _summary(listing: Listing, *, jobs: int, missing: tuple[str, ...] = ()) -> BackupSummary:
    return BackupSummary(
        cluster=listing.cluster,
        made_s=listing.made_s,
        version=listing.version,
        files=len(listing.files),
        size_bytes=listing.size_bytes,
        jobs=jobs,
        durable=listing.durable,
        missing=missing,
    )


# What belongs to it -----------------------------------------------------------------------------------------


def _gather(places: Paths, stage: Path) -> tuple[NamedFiles, tuple[str, ...]]:
    """Link or copy what a cluster is made of. The jobs that it has, and what ended ones lack."""
    for folder in (places.authority, places.manager, places.operator):
        for file in sorted(folder.glob("*.json")):
            _take(places.home, stage, file, copy=True)
    copy = stage / "cluster" / "registry.sqlite"
    for _ in range(_ATTEMPTS):
        seen = _link_checkpoints(places, stage)
        copy.unlink(missing_ok=True)
        copy_registry(places.registry, copy)
        named = read_named(copy)
        try:
            missing = _link_blobs(places, stage, named)
        except FileNotFoundError:
            continue  # a published model was replaced between the two
        if all(_still_fits(places, each.job, seen.get(each.job, ""), is_open=each.is_open) for each in named.jobs):
            return named, missing
    raise ShoalError("jobs end and models are published faster than they are copied: try again in a while")


def _link_checkpoints(places: Paths, stage: Path) -> dict[str, str]:
    """Link the newest checkpoint of each job, and the one before. Job -> the newest one's name."""
    newest: dict[str, str] = {}
    root = places.checkpoints("")
    shutil.rmtree(stage / root.relative_to(places.home), ignore_errors=True)
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        # Newest first: if it is replaced meanwhile, a newer one stands in its place.
        for file in sorted(folder.glob("*.safetensors"), reverse=True):
            with contextlib.suppress(FileNotFoundError):
                _take(places.home, stage, file)
                newest.setdefault(folder.name, file.name)
    return newest


def _still_fits(places: Paths, job: str, linked: str, *, is_open: bool) -> bool:
    """Whether the checkpoint that was linked belongs to the history that the registry has by now.

    A job that ended meanwhile may have a last version that was not linked. One that went back to an older version has
    another history, and shows it by a newest checkpoint of a lower version.
    """
    newest = _newest(places, job)
    return newest[:_VERSION_CHARS] >= linked[:_VERSION_CHARS] if is_open else newest == linked


def _newest(places: Paths, job: str) -> str:
    return max((file.name for file in places.checkpoints(job).glob("*.safetensors")), default="")


def _link_blobs(places: Paths, stage: Path, named: NamedFiles) -> tuple[str, ...]:
    """Link what the jobs are made of. FileNotFoundError: a published model is not there."""
    blobs, models = BlobStore(places.blobs), BlobStore(places.published)
    contents = Contents(blobs)
    missing: list[str] = []
    for each in named.jobs:
        for sha256 in sorted(contents.all_of(spec_from(each.spec_json))):
            try:
                _take(places.home, stage, blobs.place(sha256))
            except FileNotFoundError:
                if each.is_open:
                    raise Corrupt(
                        f"job {each.job} cannot be backed up: blob {sha256} is not in {places.blobs}. Stop the job"
                        " (`shoal jobs stop`), or restore the blob from an older backup"
                    ) from None
                missing.append(f"{each.job}: blob {sha256[:12]}…")
    for sha256 in sorted(named.contributed):
        try:
            _take(places.home, stage, blobs.place(sha256))
        except FileNotFoundError:
            missing.append(f"shared sets: file {sha256[:12]}…")
    for sha256 in sorted(named.published):
        _take(places.home, stage, models.place(sha256))
    return tuple(missing)


def _take(home: Path, stage: Path, file: Path, *, copy: bool = False) -> None:
    target = stage / file.relative_to(home)
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if not copy:
        try:
            os.link(file, target)
            return
        except FileNotFoundError:
            raise
        except OSError:
            pass  # a file system without links
    shutil.copyfile(file, target)


@contextlib.contextmanager
def _stage(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder beside what it is about, gone at the end; those that a killed process left go too."""
    for old in parent.glob(f"{prefix}*"):
        if time.time() - old.stat().st_mtime > _STALE_S:
            shutil.rmtree(old, ignore_errors=True)
    try:
        stage = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        raise Misuse(f"{parent} cannot be written ({error.strerror}): run this as the user of the manager") from None
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _make_durable(stage: Path) -> None:
    for folder in (stage, *(path for path in stage.rglob("*") if path.is_dir())):
        folder.chmod(0o700)
        sync_directory(folder)
