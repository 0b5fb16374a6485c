"""Opens the stores that a manager was told to use, and remembers which: a cluster without its members is no cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import Corrupt, Misuse
from shoal.store.base import Database
from shoal.store.depot import Depot, FolderDepot, ObjectDepot
from shoal.store.files import drawn_once, write_atomically
from shoal.store.measured import MeasuredDatabase
from shoal.store.registry import Registry
from shoal.store.sqlite import SqliteDatabase
from shoal.store.usage import StoreUsage

_MARK = "stores.json"
_POSTGRES = ("postgresql://", "postgres://")

#: A manager that would end a seat waits no longer for the other's transaction: its own seat is to be renewed.
_SEAT_BUSY_S = 1.0


_ASYNCHRONOUS = (
    "PostgreSQL replicates asynchronously: a failover may lose what was acknowledged, and managers then write again"
    " what they remember. Set synchronous_standby_names to lose nothing"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stores:
    database: Database
    depot: Depot
    #: If managers share the database: a connection for their seats, which does not wait for this manager's writes
    #: (``store.seat``). None if there is one manager.
    seats: Database | None = None
    #: What people should know about these stores.
    warnings: tuple[str, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Other managers may use the database and the depot too."""
        return self.seats is not None

    def close(self) -> None:
        self.database.close()
        if self.seats is not None:
            self.seats.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreUsages:
    """How the stores of a manager answered since its process started, also before it started over."""

    database: StoreUsage = field(default_factory=StoreUsage)
    bucket: StoreUsage = field(default_factory=StoreUsage)


def open_stores(
    folder: Path,
    *,
    owner: str,
    store: str = "",
    blobs: str = "",
    downloads: str = "manager",
    usages: StoreUsages | None = None,
) -> Stores:
    """Open the database and the depot of the cluster in this folder. Empty addresses mean a SQLite file in the folder,
    and the folder itself.

    ``owner`` names the cluster: another cluster's database or bucket is refused. ``downloads`` is where devices
    download blobs that are in a bucket (``store.object_blobs``). ``usages`` counts calls.
    """
    usages = usages or StoreUsages()
    depot: Depot
    database: Database
    seats: Database | None
    warnings: list[str] = []
    if store and not store.startswith(_POSTGRES):
        raise Misuse("--store is postgresql://USER@HOST/DATABASE; without it the registry is a file of this home")
    if downloads not in ("manager", "bucket") and not downloads.startswith("https://"):
        raise Misuse("--downloads is manager, bucket, or the https:// address of a CDN in front of the bucket's prefix")
    if downloads != "manager" and not blobs:
        raise Misuse(f"--downloads {downloads}: the files are in this home. Keep them in a bucket with --blobs")
    _check_same(folder, is_postgres=bool(store), blobs=blobs)
    if blobs:
        from shoal.store.objects import Objects

        objects = Objects(blobs, usage=usages.bucket)
        objects.claim(owner)
        depot = ObjectDepot(objects, folder, downloads=downloads)
    else:
        depot = FolderDepot(folder)
    if store:
        from shoal.store.postgres import PostgresDatabase

        # A home that has used it before must not make an empty cluster in the middle of a restore.
        is_known = bool(_told(folder).get("store"))
        database = server = PostgresDatabase(store, is_known=is_known)
        try:
            _settle(Registry(database), owner=owner, depot=blobs or _own_name(folder))
            if server.replicates_asynchronously():
                warnings.append(_ASYNCHRONOUS)
            seats = PostgresDatabase(store, busy_timeout_s=_SEAT_BUSY_S)
        except BaseException:
            database.close()
            raise
    else:
        database, seats = SqliteDatabase(folder / "registry.sqlite"), None
    _mark(folder, is_postgres=bool(store), blobs=blobs)
    return Stores(
        database=MeasuredDatabase(database, usages.database),
        depot=depot,
        # A wait for another manager's lock, of at most a second, counts as well: it is how the database answers.
        seats=MeasuredDatabase(seats, usages.database) if seats is not None else None,
        warnings=tuple(warnings),
    )


def _settle(registry: Registry, *, owner: str, depot: str) -> None:
    if registry.settle("cluster", owner) != owner:
        raise Misuse("this database belongs to another cluster: name another one, or use that cluster's --home")
    if (known := registry.settle("depot", depot)) != depot:
        where = known if known.startswith("s3://") else "the home of another manager"
        raise Misuse(
            f"this cluster's models and data are in {where}: managers share them with one and the same --blobs"
        )


def _own_name(folder: Path) -> str:
    """A name for the files of this home, drawn once: no other home has them."""
    return drawn_once(folder / "depot", prefix="folder ")


def elsewhere(folder: Path) -> str:
    """Where the state of this folder's cluster is, if it is not in the folder; for people."""
    told = _told(folder)
    return " and ".join(filter(None, ("PostgreSQL" if told.get("store") else "", told.get("blobs", ""))))


def _told(folder: Path) -> dict[str, str]:
    """Return the options that this cluster was started with before. They have no addresses, because the database may
    move and its user's name is private."""
    try:
        told = json.loads((folder / _MARK).read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        raise Corrupt(f"{folder / _MARK} is damaged: it says whether --store and --blobs are used here") from None
    return {str(name): str(value) for name, value in told.items()} if isinstance(told, dict) else {}


def _check_same(folder: Path, *, is_postgres: bool, blobs: str) -> None:
    told = _told(folder)
    if told.get("store") and not is_postgres:
        raise Misuse("this cluster's members and jobs are in PostgreSQL: start it with the same --store as before")
    if is_postgres and not told.get("store") and (folder / "registry.sqlite").exists():
        raise Misuse(
            f"this cluster's members and jobs are in {folder}: start it without --store, or use another --home"
        )
    if told.get("blobs", "") not in ("", blobs):
        raise Misuse(f"this cluster's models and data are in {told['blobs']}: start it with --blobs {told['blobs']}")
    if blobs and not told.get("blobs") and any((folder / "blobs").glob("??/*")):
        raise Misuse(f"this cluster's models and data are in {folder}: start it without --blobs, or use another --home")


def _mark(folder: Path, *, is_postgres: bool, blobs: str) -> None:
    now = {"store": "postgresql" if is_postgres else "", "blobs": blobs}
    if (is_postgres or blobs) and _told(folder) != now:
        text = json.dumps(now).encode()
        write_atomically(folder / _MARK, lambda file: file.write(text))
