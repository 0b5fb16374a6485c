"""Published versions: keeps a shelf for each job by the deployed decisions, whenever a version becomes durable, and
checks what is served. A history that another leader's takes the place of is the hard case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shoal.learning.significance import at_least
from shoal.roles.actions import Save
from shoal.roles.evaluation_rows import view_of
from shoal.roles.manager import publishing
from shoal.roles.manager.publishing import Publish, Published, Serving
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import EvaluationView, JobSpec


@dataclass(slots=True)
class _Shelf:
    spec: JobSpec
    kept: list[Published] = field(default_factory=list)
    serving: Serving = field(default_factory=Serving)
    #: Of the versions that were ever published.
    numbers: int = 0


class ShelfOracle:
    def __init__(self, specs: Sequence[JobSpec]) -> None:
        self._shelves = {spec.job: _Shelf(spec) for spec in specs if spec.plan.publish}
        #: Versions that were published in all.
        self.published = 0

    def step(self, step: Step) -> None:
        pass

    def mark(self, mark: Mark) -> None:
        if mark.kind != "durable" or mark.facts["job"] not in self._shelves:
            return
        shelf, save = self._shelves[mark.facts["job"]], mark.facts["save"]
        views = [view_of(row) for row in save.state["evaluations"]]
        if save.version < 1:
            return
        found = publishing.on_durable(shelf.spec.plan, shelf.kept, shelf.serving, views)
        if found is not None:
            view, decision, serving = found
            if isinstance(decision, Publish):
                self._publish(shelf, save, view, serving, decision.reason, mark.at_s)
            else:
                shelf.serving = replace(serving, verdict=decision.reason)
        self._check(shelf, [view for view in views if publishing.is_sound(view)], mark.at_s)

    def _publish(
        self, shelf: _Shelf, save: Save, view: EvaluationView, serving: Serving, reason: str, at_s: float
    ) -> None:
        shelf.numbers += 1
        made = Published(
            version=save.version,
            number=shelf.numbers,
            epoch=view.epoch,
            accuracy=view.accuracy,
            loss=view.loss,
            examples=view.examples,
            sha256="",
            size_bytes=0,
            at_s=at_s,
            reason=reason,
            metrics=view.metrics,
        )
        kept = [*(each for each in shelf.kept if each.version != made.version), made]
        over = publishing.surplus(kept, served=made.version, keep=shelf.spec.plan.versions_kept)
        shelf.kept = [each for each in kept if each not in over]
        shelf.serving = publishing.after_publishing(serving, made.version, reason)
        self.published += 1

    @staticmethod
    def _check(shelf: _Shelf, views: list[EvaluationView], at_s: float) -> None:
        def hold(holds: bool, what: str) -> None:
            if not holds:
                raise Violation(f"at {at_s:.3f} s: {shelf.spec.job} {what}")

        hold(len(shelf.kept) <= shelf.spec.plan.versions_kept, f"keeps {len(shelf.kept)} published versions")
        if not views:
            return
        served, latest = next((each for each in shelf.kept if each.version == shelf.serving.version), None), views[-1]
        if served is None:
            raise Violation(
                f"at {at_s:.3f} s: {shelf.spec.job} serves nothing, and version {latest.version} was evaluated"
            )
        if shelf.spec.plan.publish == "every":
            same = (served.accuracy, served.loss) == (latest.accuracy, latest.loss)
            hold(same, f"serves {served.accuracy} of version {served.version}; its history has {latest.accuracy}")
        elif served.accuracy is not None and latest.accuracy is not None:
            ours, theirs = at_least(served.accuracy, served.examples), at_least(latest.accuracy, latest.examples)
            hold(theirs <= ours, f"serves {served.accuracy}, and {latest.accuracy} was evaluated")
