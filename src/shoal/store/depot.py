"""The depot: where a cluster's files are. A folder holds them, or object storage does and the folder holds copies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.store.blobs import BlobStore
from shoal.store.checkpoints import CheckpointStore
from shoal.store.files import bytes_below

if TYPE_CHECKING:
    from shoal.store.objects import Objects


class Depot(Protocol):
    """Uploaded blobs, published models, and the checkpoints of each job."""

    @property
    def blobs(self) -> BlobStore: ...

    @property
    def models(self) -> BlobStore: ...

    def checkpoints(self, job: str) -> CheckpointStore: ...

    def jobs(self) -> list[str]:
        """Jobs that have checkpoints here."""
        ...

    def checkpoint_bytes(self, job: str) -> int: ...

    def remove_checkpoints(self, job: str) -> None: ...


class FolderDepot:
    def __init__(self, folder: Path) -> None:
        self.blobs = BlobStore(folder / "blobs")
        self.models = BlobStore(folder / "published")
        self._checkpoints = folder / "checkpoints"

    def checkpoints(self, job: str) -> CheckpointStore:
        return CheckpointStore(self._checkpoints / job)

    def jobs(self) -> list[str]:
        return sorted(path.name for path in self._checkpoints.iterdir()) if self._checkpoints.is_dir() else []

    def checkpoint_bytes(self, job: str) -> int:
        return bytes_below(self._checkpoints / job)

    def remove_checkpoints(self, job: str) -> None:
        shutil.rmtree(self._checkpoints / job, ignore_errors=True)


class ObjectDepot:
    def __init__(self, objects: Objects, folder: Path, *, downloads: str = "manager") -> None:
        from shoal.store.object_blobs import ObjectBlobs

        self._objects = objects
        self._folder = folder
        self.blobs = ObjectBlobs(objects, "blobs", folder / "blobs", downloads=downloads)
        self.models = ObjectBlobs(objects, "published", folder / "published")

    def checkpoints(self, job: str) -> CheckpointStore:
        from shoal.store.object_checkpoints import ObjectCheckpoints

        return ObjectCheckpoints(self._objects, f"checkpoints/{job}", self._folder / "checkpoints" / job)

    def jobs(self) -> list[str]:
        return sorted({name.split("/")[1] for name in self._objects.list("checkpoints")})

    def checkpoint_bytes(self, job: str) -> int:
        return sum(facts.size_bytes for facts in self._objects.list(f"checkpoints/{job}").values())

    def remove_checkpoints(self, job: str) -> None:
        self.checkpoints(job).remove()
