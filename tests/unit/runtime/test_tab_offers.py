"""What a visitor is told of a job before a browser downloads any of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from shoal.identity.identity import Authority
from shoal.identity.signing import sign
from shoal.plan import Plan
from shoal.runtime.tab_offers import tab_offers
from shoal.store.blobs import BlobStore
from shoal.wire.messages import Dataset, JobSpec, Progress


def stored(blobs: BlobStore, *sizes: int) -> Dataset:
    shards = [{"sha256": f"{number:064x}", "examples": 10, "bytes": size} for number, size in enumerate(sizes)]
    manifest = json.dumps({"examples": 10 * len(sizes), "shards": shards}).encode()
    return Dataset(manifest=blobs.put(manifest), examples=10 * len(sizes))


def test_an_offer_names_the_operator_and_what_the_job_moves(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    spec = JobSpec(
        job="j",
        name="clouds",
        entry="t:T",
        bundle=blobs.put(b"code"),
        initial=blobs.put(bytes(1_000)),
        train=stored(blobs, 70_000, 5_000),
        test=stored(blobs, 3_000),
        plan=Plan(),
        graphs=blobs.put(bytes(200)),
    )
    signed = sign(spec, Authority.create(tmp_path / "ca", "pond").identity(node="ann", role="operator"))
    (offer,) = tab_offers([(signed, None)], blobs)
    assert (offer.job, offer.name, offer.operator) == ("j", "clouds", "ann")
    assert (offer.once_bytes, offer.update_bytes, offer.minute_bytes) == (79_200, 2_000, 0)
    progress = Progress(job="j", term=1, state="training", round_s=1.5)
    (offer,) = tab_offers([(signed, progress)], blobs)
    assert offer.minute_bytes == 80_000
    # No tab can work for a job without graphs; files that are gone count nothing.
    assert tab_offers([(dataclasses.replace(signed, graphs=""), None)], blobs) == ()
    (offer,) = tab_offers([(dataclasses.replace(spec, initial="f" * 64), None)], blobs)
    assert (offer.operator, offer.once_bytes) == ("", 78_200)
