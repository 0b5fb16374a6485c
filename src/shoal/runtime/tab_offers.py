"""What a visitor is told before a browser joins: who asks, what for, and what each job downloads."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.data.raw_columns import columns_to_plain
from shoal.errors import PeerViolation, ShoalError
from shoal.store.blobs import BlobStore
from shoal.trainer.portable.graphs_file import declared_columns
from shoal.trainer.prepared_job import own_layout
from shoal.trainer.shards import Manifest
from shoal.wire.messages import Dataset, JobSpec, Progress

#: Files of graphs and of first models of which what is told stays in memory. They are named by their hashes, so they
#: never change.
_FILES_KEPT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnRowsOffer:
    """The rows that a job asks of each device, and the parts of its plan that decide which figures leave."""

    #: As the file of the graphs has them: names, types, shapes and classes.
    columns: list[dict[str, Any]]
    #: Whether a device reports how many of its rows each class has.
    shares_labels: bool
    #: The promise of a private job to each device. All are 0 if the job makes none.
    epsilon: float
    delta: float
    participations: int
    #: Whether a part of the model is each device's own, and stays there.
    keeps_part: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TabOffer:
    """A job that tabs may work for."""

    job: str
    name: str
    #: The operator who signed it.
    operator: str
    #: Graphs, first model and examples.
    once_bytes: int
    #: A model down and an update up.
    update_bytes: int
    #: How much of that a minute takes at the pace that the job has now, or 0 if it has none yet.
    minute_bytes: int
    #: None if the job trains on shared examples.
    own: OwnRowsOffer | None


def tab_offers(jobs: Iterable[tuple[JobSpec, Progress | None]], blobs: BlobStore) -> tuple[TabOffer, ...]:
    """Return what tabs may work for, of these jobs. Reads the disk."""
    return tuple(_offer(spec, progress, blobs) for spec, progress in jobs if spec.suits_tabs)


def _offer(spec: JobSpec, progress: Progress | None, blobs: BlobStore) -> TabOffer:
    model = _size(blobs, spec.initial)
    examples = sum(_set_bytes(blobs, dataset) for dataset in (spec.train, spec.test))
    round_s = progress.round_s if progress is not None else 0.0
    return TabOffer(
        job=spec.job,
        name=spec.name or spec.job,
        operator=_signer(spec),
        once_bytes=_size(blobs, spec.graphs) + model + examples,
        update_bytes=2 * model,
        minute_bytes=round(2 * model * 60 / round_s) if round_s > 0 else 0,
        own=_own_rows(spec, blobs) if spec.plan.data == "local" else None,
    )


def _own_rows(spec: JobSpec, blobs: BlobStore) -> OwnRowsOffer:
    plan, columns, keeps_part = spec.plan, [], False
    # A file that cannot be read fails on the device, with its reason.
    with contextlib.suppress(ShoalError, OSError):
        columns = _columns(Path(blobs.path(spec.graphs)))
    with contextlib.suppress(ShoalError, OSError):
        keeps_part = _keeps_part(Path(blobs.path(spec.initial)))
    privacy = plan.privacy
    return OwnRowsOffer(
        columns=columns,
        shares_labels=bool(plan.share_labels),
        epsilon=privacy.epsilon if privacy else 0.0,
        delta=privacy.delta if privacy else 0.0,
        participations=privacy.participations if privacy else 0,
        keeps_part=keeps_part,
    )


@functools.lru_cache(maxsize=_FILES_KEPT)
def _columns(path: Path) -> list[dict[str, Any]]:
    return columns_to_plain(declared_columns(path))


@functools.lru_cache(maxsize=_FILES_KEPT)
def _keeps_part(path: Path) -> bool:
    return own_layout(path) is not None


def _set_bytes(blobs: BlobStore, dataset: Dataset) -> int:
    if not dataset.manifest:
        return 0
    with contextlib.suppress(ShoalError):
        return sum(shard.bytes for shard in Manifest.from_json(blobs.read(dataset.manifest)).shards)
    return 0


def _size(blobs: BlobStore, sha256: str) -> int:
    with contextlib.suppress(ShoalError, OSError):
        return Path(blobs.path(sha256)).stat().st_size
    return 0


def _signer(spec: JobSpec) -> str:
    from shoal.identity import certificates

    try:
        return certificates.issued(spec.signer_pem.encode()).peer.node
    except (PeerViolation, ValueError):
        return ""
