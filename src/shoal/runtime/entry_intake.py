"""Shared sets at the manager: takes members' files of entries, and carries out what an operator decides about them.

A file is durable before its row is, and its row before the member hears of it. A crash in between leaves a file that
nobody names, which `shoal gc` removes; the member sends it again, and it counts once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

from shoal.data.entries import count_entries
from shoal.errors import PeerViolation, Refused
from shoal.identity.names import RemoteIdentity
from shoal.runtime.disk_quota import DiskQuota
from shoal.runtime.member_register import MemberRegister
from shoal.store.blobs import BlobStore
from shoal.store.contribution_rows import APPROVED, PENDING, REJECTED, ContributionRow
from shoal.store.registry import Registry
from shoal.wire.limits import CONTRIBUTION_MAX_BYTES, PAYLOAD_GRACE_S, PAYLOAD_LEAST_BYTES_PER_S
from shoal.wire.messages import (
    AskContributions,
    Contribute,
    ContributionList,
    ContributionView,
    Done,
    SettleContributions,
)

#: Contributions on one page.
SHOWN = 500
#: Memory for files that are on their way.
COMING_MAX_BYTES = 4 * CONTRIBUTION_MAX_BYTES


class EntryIntake:
    def __init__(
        self,
        registry: Registry,
        blobs: BlobStore,
        register: MemberRegister,
        *,
        cluster: str,
        quota_bytes: int,
        disk: DiskQuota,
        books: asyncio.Lock,
        note: Callable[[str, str, str], object],
    ) -> None:
        """``quota_bytes``: what each member may add, or 0 if members may add nothing. ``books``: held while files go
        that nothing names. ``note``: records an event of a job, by its kind and its reason."""
        self._registry = registry
        self._blobs = blobs
        self._register = register
        self._cluster = cluster
        self._quota_bytes = quota_bytes
        self._disk = disk
        self._books = books
        self._note = note
        #: Member -> bytes of its files that are on their way.
        self._coming: Counter[str] = Counter()
        #: Held from the question whether a file fits until it counts as on its way.
        self._counts = asyncio.Lock()

    async def take(self, peer: RemoteIdentity, given: Contribute, chunks: AsyncIterator[memoryview]) -> Done:
        """Keep a member's file of entries until an operator decides. Everything that can be refused is refused before
        its bytes arrive."""
        if not self._quota_bytes:
            raise Refused("this cluster takes no entries of members: its manager is started without --contribute-mb")
        if (known := await asyncio.to_thread(self._registry.contribution, given.set, given.sha256)) is not None:
            return _received(known)
        async with self._counts:
            await self._count(peer.node, given.size_bytes)
        try:
            await self._disk.admit(given.size_bytes)
            async with asyncio.timeout(PAYLOAD_GRACE_S + given.size_bytes / PAYLOAD_LEAST_BYTES_PER_S):
                data = await _received_in(given, chunks)
            # The file took its time: its sender may be shut out by now.
            self._register.role_now(peer)
            entries = await self._keep(given, data)
            self._register.role_now(peer)
            async with self._books:
                row = await asyncio.to_thread(self._add, peer, given, entries)
        except TimeoutError:
            raise Refused("the file took too long to arrive: try again over a faster link") from None
        finally:
            self._coming[peer.node] -= given.size_bytes
            if not self._coming[peer.node]:
                del self._coming[peer.node]
        self._note("", "entries.contributed", f"{peer.node} gave {entries:,} entries for {given.set}")
        return _received(row)

    async def _count(self, node: str, size_bytes: int) -> None:
        """Count a file as on its way, or raise Refused. Files that are on their way count against the quota: what is
        refused only after it was written takes the disk until garbage is collected."""
        coming_bytes = self._coming[node] + size_bytes
        await asyncio.to_thread(self._registry.check_quota, node, coming_bytes, quota_bytes=self._quota_bytes)
        # Nobody takes all of the memory that members share.
        if coming_bytes > CONTRIBUTION_MAX_BYTES:
            raise Refused("the manager still receives other files of this device: send one after another")
        if self._coming.total() + size_bytes > COMING_MAX_BYTES:
            raise Refused("the manager receives as many entries as it can at a time: try again in a minute")
        self._coming[node] += size_bytes

    async def _keep(self, given: Contribute, data: bytes) -> int:
        """Write the file durably, and return how many entries it has."""
        # Before it is stored: what cannot be read as entries takes no disk.
        entries = await asyncio.to_thread(count_entries, data)
        await asyncio.to_thread(self._write, given, data)
        return entries

    def _write(self, given: Contribute, data: bytes) -> None:
        with self._blobs.writer(given.sha256, given.size_bytes) as writer:
            writer.feed(data)
            writer.commit()

    def _add(self, peer: RemoteIdentity, given: Contribute, entries: int) -> ContributionRow:
        if not self._blobs.has(given.sha256):
            raise Refused("the file was removed while it was received: send it again")
        return self._registry.add_contribution(
            set_name=given.set,
            sha256=given.sha256,
            node=peer.node,
            certificate=peer.certificate,
            entries=entries,
            size_bytes=given.size_bytes,
            at_s=time.time(),
            quota_bytes=self._quota_bytes,
        )

    def page(self, asked: AskContributions) -> ContributionList:
        rows = self._registry.contributions(asked.set, after=asked.after, limit=SHOWN + 1)
        views = tuple(_view(row) for row in rows[:SHOWN])
        return ContributionList(contributions=views, next_number=views[-1].number if len(rows) > SHOWN else 0)

    def settle(self, command: SettleContributions, *, by: str) -> Done:
        """Approve or reject files. Nothing is changed if one of them cannot be."""
        rows = [self._decidable(command, sha256) for sha256 in dict.fromkeys(command.sha256s)]
        state = APPROVED if command.approve else REJECTED
        self._registry.settle_contributions([row for row in rows if row.state != state], state, by=by)
        entries = sum(row.entries for row in rows)
        return Done(reason=f"{entries:,} entries in {len(rows)} files of {command.set} are {state}")

    def _decidable(self, command: SettleContributions, sha256: str) -> ContributionRow:
        row = self._registry.contribution(command.set, sha256)
        if row is None:
            raise Refused(
                f"set {command.set} has no file {sha256[:12]}…: `shoal contributions {command.set}` lists them"
            )
        if not command.approve:
            return row
        if row.state == REJECTED:
            raise Refused(f"{sha256[:12]}… was rejected by {row.decided_by}, and a rejection is final")
        if row.state == PENDING:
            self._check_standing(row)
        return row

    def _check_standing(self, row: ContributionRow) -> None:
        """Refuse entries whose contributor was shut out since: nobody answers for them."""
        giver = RemoteIdentity(node=row.node, role="node", cluster=self._cluster, certificate=row.certificate)
        try:
            self._register.role_now(giver)
        except PeerViolation as error:
            raise Refused(
                f"{row.sha256[:12]}… came from {row.node}, which is no member any more: {error.reason}"
            ) from None


async def _received_in(given: Contribute, chunks: AsyncIterator[memoryview]) -> bytes:
    data = bytearray()
    async for chunk in chunks:
        if len(data) + len(chunk) > given.size_bytes:
            raise PeerViolation(f"a file of {given.size_bytes} bytes was announced, and more came")
        data += chunk
    return bytes(data)


def _received(row: ContributionRow) -> Done:
    if row.state == REJECTED:
        raise Refused(f"an operator rejected this file for {row.set_name}")
    waits = "wait for an operator's approval" if row.state == PENDING else "are approved"
    return Done(reason=f"{row.entries:,} entries for {row.set_name} {waits}")


def _view(row: ContributionRow) -> ContributionView:
    return ContributionView(
        number=row.number,
        set=row.set_name,
        sha256=row.sha256,
        node=row.node,
        certificate=row.certificate,
        entries=row.entries,
        size_bytes=row.size_bytes,
        at_s=row.at_s,
        state=row.state,
        by=row.decided_by,
    )
