"""Which blobs a peer may have: an operator any, a device those of the jobs that it has now. Uploads need room."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from shoal.errors import Refused
from shoal.identity.names import RemoteIdentity
from shoal.plan import Plan
from shoal.runtime.blob_exchange import BY_URL_BYTES, BlobExchange
from shoal.runtime.contents import Contents
from shoal.runtime.disk_quota import DiskQuota
from shoal.runtime.job_files import JobFiles
from shoal.store.blobs import BlobStore
from shoal.wire.messages import Blob, Dataset, JobSpec

pytestmark = pytest.mark.timeout(60)

ANN = RemoteIdentity(node="ann", role="operator", cluster="c")
PI = RemoteIdentity(node="pi", role="node", cluster="c")


class Bucket(BlobStore):
    """A store whose blobs can be downloaded from elsewhere."""

    def url(self, sha256: str) -> str:
        return f"https://bucket/{sha256}"


class Desk:
    def __init__(self, folder: Path, *, store: type[BlobStore] = BlobStore) -> None:
        self.blobs, self.models = store(folder / "blobs"), store(folder / "models")
        self.specs: dict[str, tuple[JobSpec, ...]] = {}
        quota = DiskQuota(cast(JobFiles, None), 0, post=print)
        self.exchange = BlobExchange(
            self.blobs,
            self.models,
            contents=Contents(self.blobs),
            quota=quota,
            specs_of=lambda node: self.specs.get(node, ()),
        )

    def finds(self, peer: RemoteIdentity, sha256: str, *, takes_url: bool = False) -> Path | Blob:
        return asyncio.run(self.exchange.find(peer, Blob(sha256=sha256, takes_url=takes_url)))


def spec_of(sha256: str) -> JobSpec:
    none = Dataset(manifest=sha256, examples=1)
    return JobSpec(job="j", name="j", entry="t:T", bundle=sha256, initial=sha256, train=none, test=none, plan=Plan())


def test_a_device_fetches_only_what_its_job_is_made_of(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    own, other = desk.blobs.put(b"own"), desk.blobs.put(b"other")
    desk.specs["pi"] = (spec_of(own),)
    assert desk.finds(PI, own) == desk.blobs.path(own)
    absent = hashlib.sha256(b"absent").hexdigest()
    refused = []
    for sha256 in (other, absent):
        with pytest.raises(Refused, match="for pi: a device fetches what the job") as raised:
            desk.finds(PI, sha256)
        refused.append(str(raised.value).replace(sha256[:12], ""))
    assert refused[0] == refused[1], "a refusal reveals whether there is such a blob"


def test_an_operator_fetches_published_models_as_well(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    model = desk.models.put(b"model")
    assert desk.finds(ANN, model) == desk.models.path(model)
    desk.specs["pi"] = (spec_of(desk.blobs.put(b"own")),)
    with pytest.raises(Refused):
        desk.finds(PI, model)


def test_a_large_blob_comes_from_the_bucket_if_the_caller_can_use_that(tmp_path: Path) -> None:
    desk = Desk(tmp_path, store=Bucket)
    small, large = desk.blobs.put(b"small"), desk.blobs.put(bytes(BY_URL_BYTES))
    url = Blob(sha256=large, size_bytes=BY_URL_BYTES, url=f"https://bucket/{large}")
    assert desk.finds(ANN, large, takes_url=True) == url
    assert desk.finds(ANN, small, takes_url=True) == desk.blobs.path(small)
    assert desk.finds(ANN, large) == desk.blobs.path(large)


def test_an_upload_is_whole_or_not_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    data = b"0123456789"
    blob = Blob(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))

    async def chunks(*, breaks: bool) -> AsyncIterator[memoryview]:
        yield memoryview(data[:4])
        if breaks:
            raise ConnectionError("cut")
        yield memoryview(data[4:])

    with pytest.raises(ConnectionError):
        asyncio.run(desk.exchange.store(blob, chunks(breaks=True)))
    assert not desk.blobs.has(blob.sha256)
    asyncio.run(desk.exchange.store(blob, chunks(breaks=False)))
    assert desk.blobs.read(blob.sha256) == data
