"""Notes what a manager wrote to its store, in its home, before anyone is told of it. See ``store.remembered``."""

from __future__ import annotations

import asyncio
import logging

from shoal.errors import ShoalError
from shoal.roles.actions import Keep
from shoal.runtime.member_register import MemberRegister
from shoal.store.registry import Registry
from shoal.store.remembered import EndedJob, JobSubmission, Remembered
from shoal.store.rows import JobRow
from shoal.wire.limits import REASON_MAX_CHARS

log = logging.getLogger("shoal")

#: How often a manager writes down how far it is: where several share a store, and where it is alone.
EVERY_S = 1.0
ALONE_EVERY_S = 30.0


class ManagerMemory:
    def __init__(self, remembered: Remembered | None, registry: Registry, register: MemberRegister) -> None:
        """``remembered``: None if nothing is to be noted."""
        self._remembered = remembered
        self._registry = registry
        self._register = register

    async def run(self) -> None:
        """Until cancelled: write down how far this manager is."""
        await self.on_revoked()
        while self._remembered is not None:
            await asyncio.sleep(EVERY_S if self._registry.is_shared else ALONE_EVERY_S)
            self._remembered.on_members(self._register.epoch)
            try:
                await asyncio.to_thread(self._remembered.flush)
            except (ShoalError, OSError) as error:
                log.warning("the manager cannot write down what it did: %s", error)

    async def on_revoked(self) -> None:
        """Note who is shut out. Durable when this returns."""
        if self._remembered is not None:
            await asyncio.to_thread(self._remembered.on_revoked, self._register.revoked())

    async def on_removed(self, job: str) -> None:
        if self._remembered is not None:
            await asyncio.to_thread(self._remembered.on_removed, (job,))

    def on_version(self, job: str, checkpoint: str) -> None:
        if self._remembered is not None and checkpoint:
            self._remembered.on_version(job, checkpoint)

    def on_ended(self, row: JobRow) -> None:
        """A job ended, at this manager or at another: if that one is gone when the store goes back, this one knows."""
        if self._remembered is not None:
            ended = EndedJob(
                state=str(row.state),
                reason=row.reason,
                ended_s=row.ended_s or 0.0,
                checkpoint=row.checkpoint,
                submission=_submission(row),
            )
            self._remembered.on_ended(row.job, ended)

    def on_kept(self, keep: Keep, now_s: float) -> None:
        """The record of a job was written. Runs in a thread; that a job was submitted or ended is durable when this
        returns."""
        if self._remembered is None:
            return
        if keep.state.is_ended:
            ended = EndedJob(state=str(keep.state), reason=keep.reason[:REASON_MAX_CHARS], ended_s=now_s)
            self._remembered.on_ended(keep.job, ended)
            return
        stored = self._registry.job(keep.job)
        if stored is not None:
            # Also one that was taken over: the manager before may be gone for good.
            self._remembered.on_submitted(keep.job, _submission(stored))
            self._remembered.on_term(keep.job, stored.term, stored.terms_json)


def _submission(row: JobRow) -> JobSubmission:
    return JobSubmission(name=row.name, spec_json=row.spec_json, created_s=row.created_s)
