"""What a visitor is told of a job before a browser downloads any of it."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np

import shoal
from shoal.data.raw_columns import columns_to_plain
from shoal.identity.identity import Authority
from shoal.identity.signing import sign
from shoal.plan import Plan
from shoal.runtime.tab_offers import tab_offers
from shoal.store.blobs import BlobStore
from shoal.trainer.portable.graphs_file import Graphs, Proof
from shoal.trainer.prepared_job import LAYOUT_NOTE, OWN_NOTE
from shoal.wire import tensors
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
    assert offer.own is None


def test_an_offer_says_which_rows_a_job_wants_and_what_its_plan_promises(tmp_path: Path) -> None:
    blobs, file = BlobStore(tmp_path / "blobs"), io.BytesIO()
    columns = {"x": shoal.column("uint8", (8, 8)), "y": shoal.column("int64", classes=("cat", "dog"))}
    proof = Proof(columns={}, rate=0.1, weight_decay=0.0, seed=1, loss=1.0, stride=1, change=np.zeros(3, np.float32))
    Graphs(
        train=b"t", evaluate=b"e", states=0, rate=0.1, weight_decay=0.0, draws=(), evaluation_draws=(), metrics=(),
        proof=proof, columns=columns,
    ).write(file)  # fmt: skip
    promised = Plan(
        data="local", trust="private(8, 1e-5)", cohort=5, workers_min=5, clip_update=1.0, participations=7,
        epoch_leases=50, until=shoal.epochs(3),
    )  # fmt: skip
    spec = JobSpec(
        job="j",
        name="signs",
        entry="t:T",
        bundle=blobs.put(b"code"),
        initial=blobs.put(bytes(1_000)),
        train=Dataset(manifest="", examples=0),
        test=Dataset(manifest="", examples=0),
        plan=Plan(data="local", share_labels=True),
        graphs=blobs.put(file.getvalue()),
    )
    (offer,) = tab_offers([(spec, None)], blobs)
    assert offer.own is not None
    assert offer.own.columns == columns_to_plain(columns)
    assert (offer.own.shares_labels, offer.own.epsilon, offer.own.participations) == (True, 0.0, 0)
    (offer,) = tab_offers([(dataclasses.replace(spec, plan=promised), None)], blobs)
    assert offer.own is not None
    assert (offer.own.shares_labels, offer.own.epsilon, offer.own.delta) == (False, 8.0, 1e-5)
    assert offer.own.participations == 7
    assert not offer.own.keeps_part
    # Of a model with a part that stays on each device, the page can say so.
    model, layout = io.BytesIO(), json.dumps([["head.weight", [2], "parameter"]])
    tensors.write(model, {"body.weight": np.zeros(3, np.float32)}, {LAYOUT_NOTE: "[]", OWN_NOTE: layout})
    (offer,) = tab_offers([(dataclasses.replace(spec, initial=blobs.put(model.getvalue())), None)], blobs)
    assert offer.own is not None
    assert offer.own.keeps_part
    # A file that is not what it should be is for the device to refuse.
    (offer,) = tab_offers([(dataclasses.replace(spec, graphs=blobs.put(b"no graphs")), None)], blobs)
    assert offer.own is not None
    assert offer.own.columns == []
