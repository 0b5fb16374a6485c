"""Publishes versions of models and takes them back: files and rows, in an order that a crash cannot break.

What is decided is decided by `roles.publishing`. A model is durable before a row names it, and the row is gone before
the model is: so whatever is served can be fetched, and a crash leaves at most a file that nobody names, which goes at
the next start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from shoal.errors import Refused
from shoal.plan import Plan
from shoal.roles.leader.training_state import OURS
from shoal.roles.manager import publishing
from shoal.roles.manager.publishing import Published, Serving
from shoal.roles.node.checkpoint_transfer import StoredVersion
from shoal.runtime.job_files import FRESH_S
from shoal.store.blobs import BlobStore
from shoal.store.registry import Registry
from shoal.wire import tensors as tensor_files
from shoal.wire.messages import Blob, EvaluationView, PublishedView, ServedView, Tensors, VersionList, clip

#: Told of each decision: the job, what kind it is, and why.
Note = Callable[[str, str, str], None]


class Publisher:
    """Safe to call from several threads; every call may wait for the disk."""

    def __init__(
        self, registry: Registry, models: BlobStore, note: Note, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._registry = registry
        self._models = models
        self._note = note
        self._clock = clock
        #: What is served is read, decided on and written as one thing.
        self._lock = threading.Lock()
        named = registry.published_hashes()
        for sha256 in models.hashes():
            if sha256 not in named and not (registry.is_shared and self._is_fresh(sha256)):
                models.remove(sha256)

    def _is_fresh(self, sha256: str) -> bool:
        """Another manager may be about to publish it."""
        found = self._models.facts(sha256)
        return found is not None and self._clock() - found.modified_s < FRESH_S

    # By itself ------------------------------------------------------------------------------------------

    def weigh(self, job: str, plan: Plan, version: StoredVersion) -> None:
        """A version is durable: publish it if it brings an evaluation that says so. Doing it twice is doing it once."""
        if not plan.publish and not plan.until.endless:
            # Nobody waits for a verdict: what is fetched of it is its newest version.
            return
        with self._lock:
            kept, serving = self._registry.shelf(job)
            found = publishing.on_durable(plan, kept, serving, version.evaluations)
            if found is None or version.version < 1:
                return
            view, decision, serving = found
            if isinstance(decision, publishing.Publish):
                self._publish(job, plan, version, view, serving, decision.reason)
            else:
                self._registry.serve(job, replace(serving, verdict=decision.reason))

    # By an operator -------------------------------------------------------------------------------------

    def publish(self, job: str, plan: Plan, version: StoredVersion, *, reason: str = "") -> str:
        """Serve this version from now on, however good it is; says what was done."""
        if version.version < 1:
            raise Refused(f"job {job} has learned nothing yet: there is no version to publish")
        with self._lock:
            serving = self._registry.serving(job)
            view = publishing.judged_at(version.evaluations, version.version)
            why = publishing.BY_OPERATOR + (f": {reason}" if reason else "")
            self._publish(job, plan, version, view, serving, why)
        judged = publishing.describe(view, plan.judged_by) if view is not None else "not evaluated"
        return f"version {version.version:,} is served, {judged}"

    def roll_back(self, job: str, to: int, *, reason: str = "", until_accuracy: float | None = None) -> str:
        with self._lock:
            kept, serving = self._registry.shelf(job)
            found = publishing.target(kept, serving, to or None)
            if not self._models.verify(found.sha256):
                raise Refused(f"the model of version {found.version:,} is damaged on this disk: take another")
            serving = publishing.after_rollback(serving, found, reason=reason or None, until_accuracy=until_accuracy)
            self._registry.serve(job, serving)
        self._note(job, "version.reinstated", f"version {found.version:,}: {serving.hold}")
        return f"version {found.version:,} is served again; {serving.hold}"

    # What is served: nobody who asks waits for a model that is being written ----------------------------------

    def served(self, job: str) -> ServedView | None:
        return _served_view(*self._registry.shelf(job))

    def versions(self, job: str) -> VersionList:
        kept, serving = self._registry.shelf(job)
        return VersionList(job=job, versions=tuple(map(_view_of, kept)), served=_served_view(kept, serving))

    def model(self, job: str, version: int = 0) -> Blob | None:
        """A published model, or (0) the one that is served; None: none is."""
        kept, serving = self._registry.shelf(job)
        wanted = version or serving.version
        if wanted is None:
            return None
        found = next((each for each in kept if each.version == wanted), None)
        if found is None:
            known = ", ".join(f"{each.version:,}" for each in kept) or "none"
            raise Refused(f"version {wanted:,} of {job} is not among the published ones that are kept: {known}")
        return Blob(sha256=found.sha256, size_bytes=found.size_bytes)

    # Below here the lock is held --------------------------------------------------------------------------

    def _publish(
        self, job: str, plan: Plan, version: StoredVersion, view: EvaluationView | None, serving: Serving, reason: str
    ) -> None:
        sha256, size_bytes = put_model(self._models, job, version.version, version.tensors)
        before = self._registry.published(job)
        made = Published(
            version=version.version,
            number=1 + max((each.number for each in before), default=0),
            epoch=int(version.state["ledger"]["epoch"]) if view is None else view.epoch,
            accuracy=None if view is None else view.accuracy,
            loss=None if view is None else view.loss,
            examples=0 if view is None else view.examples,
            sha256=sha256,
            size_bytes=size_bytes,
            at_s=self._clock(),
            reason=reason,
            metrics=() if view is None else view.metrics,
        )
        kept = [*(each for each in before if each.version != made.version), made]
        over = publishing.surplus(kept, served=made.version, keep=plan.versions_kept)
        serving = publishing.after_publishing(serving, made.version, reason)
        self._registry.publish(job, made, serving, drop=[each.version for each in over])
        named = self._registry.published_hashes()
        for old in {each.sha256 for each in before} - named:
            self._models.remove(old)
        judged = f", {publishing.describe(view, plan.judged_by)}" if view is not None else ""
        self._note(job, "version.published", f"version {made.version:,}{judged}: {reason}")


def put_model(blobs: BlobStore, job: str, version: int, tensors: Tensors) -> tuple[str, int]:
    """Store a checkpoint's model as a file of its own, without Shoal's bookkeeping; its hash and size."""
    model = {name: array for name, array in tensors.items() if not name.startswith(OURS)}
    notes = {"job": job, "version": str(version)}
    return blobs.make(lambda file: tensor_files.write(file, model, notes))


def _served_of(kept: Sequence[Published], serving: Serving) -> Published | None:
    return next((each for each in kept if each.version == serving.version), None)


def _served_view(kept: Sequence[Published], serving: Serving) -> ServedView | None:
    served = _served_of(kept, serving)
    if served is None:
        return None
    return ServedView(
        version=served.version,
        sha256=served.sha256,
        accuracy=served.accuracy,
        examples=served.examples,
        reason=clip(serving.reason or ""),
        hold=clip(serving.hold or ""),
        verdict=clip(serving.verdict or ""),
        metrics=served.metrics,
    )


def _view_of(each: Published) -> PublishedView:
    return PublishedView(
        version=each.version,
        number=each.number,
        epoch=each.epoch,
        accuracy=each.accuracy,
        loss=each.loss,
        examples=each.examples,
        sha256=each.sha256,
        size_bytes=each.size_bytes,
        at_s=each.at_s,
        reason=clip(each.reason),
        metrics=each.metrics,
    )
