"""A file that is kept at the best version of a job so far: look, decide, fetch, replace. Knows no transport.

What to fetch is decided by `best`; whom to ask and how often is the caller's to say.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.cli.best import Held, Keep, decide, judged_at, settle
from shoal.cli.exits import NoCluster
from shoal.cli.words import share_text
from shoal.errors import Corrupt, Misuse, Refused, Unreachable
from shoal.wire import tensors

if TYPE_CHECKING:
    from shoal.wire.messages import JobView, Status

_ENDED = ("finished", "failed", "stopped")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What is told of one look: with ``--json``, under these names."""

    job: str
    file: str
    #: ``pulled``, ``kept``, ``waiting`` (for a manager that does not answer) or ``ended``.
    did: str
    #: What the file holds now, and how it was judged.
    version: int | None
    accuracy: float | None
    examples: int | None
    reason: str

    @property
    def text(self) -> str:
        if self.did != "pulled":
            return self.reason
        judged = f"{share_text(self.accuracy)} of {self.examples:,} examples right" if self.examples else "not judged"
        return f"version {self.version:,}, {judged}: {self.reason}"


class Cluster(Protocol):
    """What is asked of a cluster here."""

    async def status(self, job: str = "", after_event: int = 0) -> Status: ...

    async def pull_model(self, job: str, path: Path) -> None: ...


async def keep(
    kept: KeptFile, connect: Callable[[], AbstractAsyncContextManager[Cluster]], *, every_s: float
) -> JobView:
    """Look again and again, until the job has ended. A manager that is away is waited for."""
    while True:
        try:
            async with connect() as cluster:
                view = await kept.look(cluster)
        except NoCluster:
            raise
        except Unreachable as error:
            kept.silent(str(error))
        else:
            if view.state in _ENDED:
                kept.ended(view)
                return view
        await asyncio.sleep(every_s)


@dataclass(slots=True)
class KeptFile:
    """A file that holds a version of a job's model, or none yet."""

    job: str
    path: Path
    newest: bool
    tell: Callable[[Line], None]
    held: Held | None = None
    _began: bool = False
    _seen: int | None = None
    _told: str = field(default="", repr=False)

    @property
    def stands(self) -> str:
        return f"holds version {self.held.version:,}" if self.held else "was not written"

    async def look(self, cluster: Cluster) -> JobView:
        """Ask how the job stands, and fetch its newest version if that is due."""
        told = await cluster.status(self.job)
        view = next((each for each in told.jobs if each.job == self.job), None)
        if view is None:
            raise Misuse(f"the cluster no longer knows job {self.job}: see `shoal jobs`")
        self._begin(told)
        decision = decide(
            self.held,
            durable=view.progress.durable_version if view.progress else 0,
            evaluations=told.evaluations,
            seen=self._seen,
            newest=self.newest,
        )
        if isinstance(decision, Keep):
            self._say("kept", decision.reason)
        elif not await self._pull(cluster, decision.reason):
            # What was news stays so for the next look.
            return view
        self._seen = max((each.version for each in told.evaluations), default=0)
        return view

    def _begin(self, told: Status) -> None:
        """What an earlier run left in the file is not fetched again, nor replaced by something worse."""
        if not self._began:
            self._began = True
            version = version_in(self.path, job=self.job)
            if version is not None:
                self.held = Held(version=version, judged=judged_at(told.evaluations, version))

    async def _pull(self, cluster: Cluster, reason: str) -> bool:
        """Whether a model came, be it kept or not."""
        draft = self.path.with_name(f".{self.path.name}.new-{os.getpid()}")
        try:
            try:
                await cluster.pull_model(self.job, draft)
            except Refused as error:
                # Others may have asked for so many newer ones that this one is gone: there will be another.
                self._say("kept", f"the model was not given: {error}")
                return False
            version = version_in(draft, job=self.job)
            if version is None:
                raise Misuse(f"{self.path}: what came is not a model of job {self.job}")
            # It may be newer than what was asked about: it is judged by what is known of itself.
            told = await cluster.status(self.job)
            outcome = settle(
                self.held, version=version, evaluations=told.evaluations, seen=self._seen, newest=self.newest
            )
            if isinstance(outcome, Held):
                draft.replace(self.path)
                self.held = outcome
                self._say("pulled", reason)
            else:
                self._say("kept", outcome.reason)
            return True
        finally:
            draft.unlink(missing_ok=True)

    def silent(self, reason: str) -> None:
        self._say("waiting", f"the manager does not answer ({reason}): {self.path} {self.stands}. Asking again")

    def ended(self, view: JobView) -> None:
        self._say("ended", f"{view.state}: {view.reason or 'the job is over'}. {self.path} {self.stands}")

    def _say(self, did: str, reason: str) -> None:
        """Every turn once: most looks find what the last one found."""
        if not reason or f"{did} {reason}" == self._told:
            return
        self._told = f"{did} {reason}"
        judged = self.held.judged if self.held else None
        self.tell(
            Line(
                job=self.job,
                file=str(self.path),
                did=did,
                version=self.held.version if self.held else None,
                accuracy=judged.accuracy if judged else None,
                examples=judged.examples if judged else None,
                reason=reason,
            )
        )


def version_in(path: Path, *, job: str) -> int | None:
    """The version of this job's model that a file holds; None: there is no file, or it is another job's.

    What is no model at all is not ours to replace.
    """
    if not path.exists():
        return None
    try:
        _, metadata = tensors.read(path, mmap=True)
    except Corrupt as error:
        raise Misuse(f"{path} is there, and is no model ({error}): remove it, or name another file") from None
    version = metadata.get("version", "")
    return int(version) if metadata.get("job") == job and version.isascii() and version.isdigit() else None
