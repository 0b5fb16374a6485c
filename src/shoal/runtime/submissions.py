"""New jobs: one is queued if its signer may submit it, its parts were uploaded, and the disk was measured for it."""

from __future__ import annotations

import asyncio
import time

from shoal.errors import PeerViolation, Refused
from shoal.identity.chain import beside
from shoal.identity.identity import Identity, certificate_sha256
from shoal.identity.names import RemoteIdentity
from shoal.identity.signing import check
from shoal.runtime.contents import Contents
from shoal.runtime.disk_quota import DiskQuota
from shoal.runtime.ended_jobs import EndedJobs
from shoal.runtime.job_files import JobFiles
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.questions import Questions
from shoal.store.blobs import BlobStore
from shoal.wire.messages import JobSpec, Message, Submit


class Submissions:
    def __init__(
        self,
        identity: Identity,
        register: MemberRegister,
        blobs: BlobStore,
        *,
        contents: Contents,
        files: JobFiles,
        ended: EndedJobs,
        quota: DiskQuota,
        books: asyncio.Lock,
        questions: Questions,
    ) -> None:
        """``books``: held while files go that no job names."""
        self._identity = identity
        self._register = register
        self._blobs = blobs
        self._contents = contents
        self._files = files
        self._ended = ended
        self._quota = quota
        self._books = books
        self._questions = questions

    async def take(self, submit: Submit, *, by: str) -> Message:
        await self._check_signature(submit.spec)
        # Until the job is on the books, nothing that it names may go.
        async with self._books:
            known = await asyncio.to_thread(self._ended.why_not_new, submit.spec)
            if known is not None:
                return known
            await asyncio.to_thread(self._check_blobs, submit.spec)
            need = await asyncio.to_thread(self._files.checkpoints_take, submit.spec)
            await self._quota.measure(wanted={submit.spec.job: need})
            return await self._questions.ask(submit, by=by)

    async def _check_signature(self, spec: JobSpec) -> None:
        """Raise unless devices would run the job: they check its signature as well."""
        own = self._identity
        try:
            signer = await asyncio.to_thread(check, spec, ca_pem=own.ca_pem, cluster=own.cluster, now_s=time.time())
            shown = certificate_sha256(spec.signer_pem.encode())
            named = RemoteIdentity(
                node=signer,
                role="operator",
                cluster=own.cluster,
                certificate=shown,
                authorities=beside(shown, [spec.signer_pem.encode()]),
            )
            if self._register.role_now(named) != "operator":
                raise PeerViolation("the job's signer is waiting to be approved", peer=signer)
        except PeerViolation as error:
            raise Refused(f"the job was not taken: {error}") from error

    def _check_blobs(self, spec: JobSpec) -> None:
        """Raise if a blob that the job names was not uploaded."""
        base = (("frozen base", part) for part in spec.base)
        graphs = (("graphs", spec.graphs),) if spec.graphs else ()
        named = (("code", spec.bundle), ("first model", spec.initial), ("data", spec.train.manifest), *base, *graphs)
        shards = sorted(self._contents.all_of(spec) - {sha256 for _, sha256 in named} - {spec.test.manifest})
        for what, sha256 in (*named, *(("data", shard) for shard in shards)):
            if not self._blobs.has(sha256):
                raise Refused(f"the job's {what} ({sha256[:12]}…) was not uploaded: submit it with `shoal train`")
