"""A file that follows the version that a job serves: look, fetch, replace. Does not open connections.

The manager decides which version that is (`roles.publishing`); the caller says which node to ask and how often. Where
none was published, and with ``newest``, it is the newest durable one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.cli.exits import NoCluster
from shoal.cli.render.format import number_text, share_text
from shoal.errors import Corrupt, Misuse, Refused, Unreachable
from shoal.roles.manager.publishing import judged_at
from shoal.wire import tensors

if TYPE_CHECKING:
    from shoal.wire.messages import EvaluationView, JobView, ServedView, Status


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowLine:
    """The report of one look; ``--json`` prints it under these names."""

    job: str
    file: str
    #: ``pulled``, ``went_back`` (to an older one, which is served again), ``kept``, ``waiting`` (for a manager that
    #: does not answer) or ``ended``.
    did: str
    #: The version in the file now, and its evaluation.
    version: int | None
    accuracy: float | None
    examples: int | None
    reason: str
    #: Metric -> its figure.
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def text(self) -> str:
        if self.did not in ("pulled", "went_back"):
            return self.reason
        judged = "not judged"
        if self.examples and self.accuracy is not None:
            judged = f"{share_text(self.accuracy)} of {self.examples:,} examples right"
        elif self.examples and self.metrics:
            figures = ", ".join(f"{name} {number_text(figure)}" for name, figure in self.metrics.items())
            judged = f"{figures} on {self.examples:,} examples"
        return f"version {self.version:,}, {judged}: {self.reason}"


class ModelSource(Protocol):
    """The part of an operator's connection that this module uses."""

    async def status(self, job: str = "", after_event: int = 0) -> Status: ...

    async def pull_model(self, job: str, path: Path, *, newest: bool = False) -> None: ...


async def keep(
    kept: KeptFile, connect: Callable[[], AbstractAsyncContextManager[ModelSource]], *, every_s: float
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
            if view.state.is_ended:
                kept.ended(view)
                return view
        await asyncio.sleep(every_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldFile:
    """What the file holds."""

    version: int
    sha256: str
    #: The version's evaluation, or None if it was not evaluated.
    accuracy: float | None = None
    examples: int | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(slots=True)
class KeptFile:
    """A file that holds a version of a job's model, or none yet."""

    job: str
    path: Path
    newest: bool
    tell: Callable[[FollowLine], None]
    held: HeldFile | None = None
    _began: bool = False
    _told: str = field(default="", repr=False)

    @property
    def stands(self) -> str:
        return f"holds version {self.held.version:,}" if self.held else "was not written"

    async def look(self, cluster: ModelSource) -> JobView:
        """Ask how the job stands, and fetch what it serves if the file holds something else."""
        told = await cluster.status(self.job)
        view = next((each for each in told.jobs if each.job == self.job), None)
        if view is None:
            raise Misuse(f"the cluster no longer knows job {self.job}: see `shoal jobs`")
        if not self._began:
            # What an earlier run left in the file is not fetched again.
            self._began = True
            self.held = held_in(self.path, told, job=self.job)
        if self.newest or view.served is None:
            await self._follow_newest(cluster, view)
        elif self.held is None or self.held.sha256 != view.served.sha256:
            await self._follow_served(cluster, view.served)
        else:
            self._say("kept", view.served.verdict)
        return view

    async def _follow_newest(self, cluster: ModelSource, view: JobView) -> None:
        durable = view.progress.durable_version if view.progress else 0
        unpublished = "" if self.newest else ", and none is published yet"
        if durable < 1:
            self._say("kept", "there is no durable version yet")
        elif self.held is None:
            await self._pull(cluster, "pulled", f"the first one here{unpublished}", newest=True)
        elif durable > self.held.version:
            await self._pull(cluster, "pulled", f"newer than version {self.held.version:,}{unpublished}", newest=True)

    async def _follow_served(self, cluster: ModelSource, served: ServedView) -> None:
        if self.held is not None and self.held.version > served.version:
            reason = f"version {self.held.version:,} is not served any more: {served.reason}"
            await self._pull(cluster, "went_back", reason, newest=False)
        else:
            await self._pull(cluster, "pulled", served.reason, newest=False)

    async def _pull(self, cluster: ModelSource, did: str, reason: str, *, newest: bool) -> None:
        draft = self.path.with_name(f".{self.path.name}.new-{os.getpid()}")
        try:
            try:
                await cluster.pull_model(self.job, draft, newest=newest)
            except Refused as error:
                # So many newer versions may have been made that this one is gone. There will be another.
                self._say("kept", f"the model was not given: {error}")
                return
            # It may be newer than the version asked about, so its own evaluation is read.
            held = held_in(draft, await cluster.status(self.job), job=self.job)
            if held is None:
                raise Misuse(f"{self.path}: what came is not a model of job {self.job}")
            draft.replace(self.path)
            self.held = held
            self._say(did, reason)
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
        self.tell(
            FollowLine(
                job=self.job,
                file=str(self.path),
                did=did,
                version=self.held.version if self.held else None,
                accuracy=self.held.accuracy if self.held else None,
                examples=self.held.examples if self.held else None,
                reason=reason,
                metrics=self.held.metrics if self.held else {},
            )
        )


def held_in(path: Path, told: Status, *, job: str) -> HeldFile | None:
    """Return the version in a file and its evaluation, or None if it holds no model of this job."""
    version = version_in(path, job=job)
    if version is None:
        return None
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    served = next((view.served for view in told.jobs if view.job == job), None)
    if served is not None and served.sha256 == sha256:
        return _held(version, sha256, served)
    judged = judged_at(told.evaluations, version)
    if judged is None:
        return HeldFile(version=version, sha256=sha256)
    return _held(version, sha256, judged)


def _held(version: int, sha256: str, judged: ServedView | EvaluationView) -> HeldFile:
    return HeldFile(
        version=version,
        sha256=sha256,
        accuracy=judged.accuracy,
        examples=judged.examples or None,
        metrics={metric.name: metric.value for metric in judged.metrics},
    )


def version_in(path: Path, *, job: str) -> int | None:
    """Return the version of this job's model in a file, or None if there is no file or it is another job's.

    Raises for a file that is not a model: it must not be replaced.
    """
    if not path.exists():
        return None
    try:
        _, metadata = tensors.read(path, mmap=True)
    except Corrupt as error:
        raise Misuse(f"{path} exists and is not a model ({error}): remove it, or name another file") from None
    version = metadata.get("version", "")
    return int(version) if metadata.get("job") == job and version.isascii() and version.isdigit() else None
