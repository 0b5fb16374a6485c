"""What a visitor is told before a browser joins: who asks, what for, and what each job downloads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import PeerViolation, ShoalError
from shoal.store.blobs import BlobStore
from shoal.trainer.shards import Manifest
from shoal.wire.messages import Dataset, JobSpec, Progress


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
    )


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
