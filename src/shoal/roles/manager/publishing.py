"""Which version of a model is served: published, kept, rolled back, and why. Pure; knows no file and no table.

Only a durable version can be published. An evaluation is of the version at the end of an epoch, which is made durable
with it, so it speaks for that version and for versions that come soon after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.errors import Refused
from shoal.learning.metrics import ACCURACY
from shoal.learning.significance import at_least
from shoal.plan import Plan
from shoal.roles.evaluation_rows import figures_text
from shoal.wire.messages import EvaluationView, MetricView, Progress, plain_views

#: How the reason begins for which a version is served that an operator chose.
BY_OPERATOR = "an operator published it"
ROLLED_BACK = "rolled back"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A version that was published: its model is kept under its hash."""

    version: int
    #: Counts the published versions of a job, so that there is an order whatever clocks do.
    number: int
    epoch: int
    #: Its evaluation by then; None: it had none.
    accuracy: float | None
    loss: float | None
    examples: int
    sha256: str
    size_bytes: int
    #: By the manager's clock.
    at_s: float
    reason: str
    metrics: tuple[MetricView, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """The version that a job serves, and whether the next better one replaces it by itself."""

    #: None: no version is served yet.
    version: int | None = None
    #: Why this version.
    reason: str | None = None
    #: The version of the latest evaluation that was weighed: none is weighed twice.
    judged: int | None = None
    #: Why no version is published by itself; None: better ones are.
    hold: str | None = None
    #: The accuracy that an evaluation must surely reach to end the hold; None: only an operator ends it.
    until_accuracy: float | None = None
    #: The decision about the latest evaluation.
    verdict: str | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    reason: str


@dataclass(frozen=True, slots=True)
class KeepServed:
    """The version that is served stays."""

    reason: str


def rule_of(plan: Plan) -> str:
    """When versions are published. A job that has an end is trained for its last version: an operator publishes, unless
    the plan says otherwise."""
    return plan.publish or ("better" if plan.until.endless else "asked")


def is_sound(view: EvaluationView) -> bool:
    """Whether an evaluation says what can be true. A leader's figures are its own: an accuracy must be a share of
    examples."""
    return view.examples > 0 and bool(view.metrics) and (view.accuracy is None or 0 <= view.accuracy <= 1)


def measure(judged: EvaluationView | Published | Progress, judged_by: str = "") -> MetricView | None:
    """The metric by which versions are compared: the one that the plan names, else accuracy, else loss, else the first;
    None: there is none that has a figure."""
    metrics = judged.metrics or plain_views(accuracy=judged.accuracy, loss=judged.loss)
    known = {metric.name: metric for metric in metrics if metric.value is not None}
    if judged_by:
        return known.get(judged_by)
    return known.get("accuracy") or known.get("loss") or next(iter(known.values()), None)


def news(
    evaluations: Sequence[EvaluationView], serving: Serving, served: Published | None = None
) -> EvaluationView | None:
    """Return the latest evaluation if it was not weighed yet, or None. An evaluation of an older version is news too: a
    damaged disk may have taken a job back. So is one that has the number of the last that was published, and other
    figures: after a cut, the history of another leader may have been kept, and its versions have the same numbers."""
    latest = next((view for view in reversed(evaluations) if is_sound(view)), None)
    if latest is None:
        return None
    # Only where the last decision was to publish by itself: what an operator chose stays until the next evaluation.
    by_operator = (serving.reason or "").startswith((BY_OPERATOR, ROLLED_BACK))
    was_published = serving.verdict is None and serving.hold is None and not by_operator and served is not None
    is_other = was_published and served is not None and not _are_alike(served, latest)
    return latest if latest.version != serving.judged or is_other else None


def _are_alike(served: Published, view: EvaluationView) -> bool:
    """Whether a version was published by this evaluation, as far as figures tell. Older rows have no other metrics."""
    plain = (served.accuracy, served.loss, served.examples) == (view.accuracy, view.loss, view.examples)
    return plain and (not served.metrics or served.metrics == view.metrics)


def weigh(
    rule: str, served: Published | None, serving: Serving, view: EvaluationView, judged_by: str = ""
) -> Publish | KeepServed:
    """Whether a version that was just evaluated shall be served. An accuracy has to be better by more than chance
    explains; nothing is known of the spread of other metrics, so they are compared as they are."""
    had = f"version {view.version:,} had {describe(view, judged_by)}"
    if rule == "asked":
        return KeepServed(f"{had}: it is published when an operator says so")
    if serving.hold is not None:
        until, accuracy = serving.until_accuracy, view.accuracy
        if until is None or accuracy is None or at_least(accuracy, view.examples) < until:
            return KeepServed(f"{had}, and is held back: {serving.hold}")
        return Publish(f"it surely has the {percent(until)} that were asked for")
    if served is None:
        return Publish("the first that was evaluated")
    if rule == "every":
        return Publish("the newest that was evaluated")
    new = measure(view, judged_by)
    if new is None or new.value is None:
        known = ", ".join(metric.name for metric in view.metrics) or "no metric"
        return KeepServed(f"version {view.version:,} has no {judged_by}, by which versions are judged; it has {known}")
    old = measure(served, new.name)
    if old is None or old.value is None:
        by = f" by {new.name}" if served.metrics else ""
        return Publish(f"version {served.version:,} was not evaluated{by}, and this one was")
    if new.name == ACCURACY:
        if at_least(new.value, view.examples) > at_least(old.value, served.examples):
            return Publish(f"better than version {served.version:,}, {percent(old.value)}")
        return KeepServed(_no_better(view, new.value, served, old.value))
    if new.value < old.value if new.lower else new.value > old.value:
        return Publish(f"better than version {served.version:,}, {new.name} {old.value:.4g}")
    word = "no better" if new.value == old.value else "worse"
    against = f"{new.name} {new.value:.4g} against {old.value:.4g}"
    return KeepServed(f"version {view.version:,} is {word}, {against}: keeping version {served.version:,}")


def on_durable(
    plan: Plan, kept: Sequence[Published], serving: Serving, evaluations: Sequence[EvaluationView]
) -> tuple[EvaluationView, Publish | KeepServed, Serving] | None:
    """Decide about a version that became durable with these evaluations. Return the evaluation that was weighed, the
    decision, and what is served with that noted; or None if there is nothing to weigh."""
    served = next((each for each in kept if each.version == serving.version), None)
    view = news(evaluations, serving, served)
    if view is None:
        return None
    decision = weigh(rule_of(plan), served, serving, view, plan.judged_by)
    return view, decision, replace(serving, judged=view.version)


def judged_at(evaluations: Sequence[EvaluationView], version: int) -> EvaluationView | None:
    """The evaluation that speaks for a version: the last one up to it, if at most as many versions were made since as
    between the last two. Beyond those another evaluation was due and did not come: nothing is known."""
    views = [view for view in evaluations if is_sound(view) and view.version <= version]
    if not views:
        return None
    since = views[-1].version - (views[-2].version if len(views) > 1 else 0)
    return views[-1] if version - views[-1].version <= since else None


def after_publishing(serving: Serving, version: int, reason: str) -> Serving:
    """This version is served from now on, and better ones replace it."""
    return replace(serving, version=version, reason=reason, hold=None, until_accuracy=None, verdict=None)


def target(kept: Sequence[Published], serving: Serving, wanted: int | None) -> Published:
    """The version to go back to; None: the version that was published before the served one. Raises Refused."""
    by_number = sorted(kept, key=lambda each: each.number)
    if not by_number:
        raise Refused("no version was published yet: there is none to go back to")
    known = ", ".join(f"{each.version:,}" for each in by_number)
    if wanted is not None:
        found = next((each for each in by_number if each.version == wanted), None)
        if found is None:
            raise Refused(f"version {wanted:,} is not among the published ones that are kept: {known}")
    else:
        now = next((each.number for each in by_number if each.version == serving.version), 0)
        found = next((each for each in reversed(by_number) if each.number < now), None)
        if found is None:
            raise Refused(f"version {serving.version:,} is the first that is kept: name another, of {known}")
    if found.version == serving.version:
        raise Refused(f"version {found.version:,} is served already")
    return found


def after_rollback(
    serving: Serving, to: Published, *, reason: str | None = None, until_accuracy: float | None = None
) -> Serving:
    """An earlier version is served again, and no version is published by itself for now."""
    assert serving.version is not None, "a version is served as soon as one is kept"
    why = f": {reason}" if reason is not None else ""
    ends = f"surely reaches {percent(until_accuracy)}" if until_accuracy is not None else "is published by an operator"
    return replace(
        serving,
        version=to.version,
        reason=f"{ROLLED_BACK} from version {serving.version:,}{why}",
        hold=f"version {serving.version:,} was withdrawn{why}; until one {ends}",
        until_accuracy=until_accuracy,
        verdict=None,
    )


def surplus(kept: Sequence[Published], *, served: int, keep: int) -> list[Published]:
    """Published versions beyond the number to keep, the oldest first. The served one stays, however old it is."""
    others = sorted((each for each in kept if each.version != served), key=lambda each: each.number)
    room = keep - (len(others) < len(kept))
    return others[: max(0, len(others) - room)]


def describe(view: EvaluationView, judged_by: str = "") -> str:
    """Its accuracy, or the metric by which it is judged, or all it has."""
    metric = measure(view, judged_by)
    if metric is None or metric.value is None:
        return f"{figures_text(view.metrics)} on {view.examples:,} examples"
    if metric.name == ACCURACY:
        return f"{percent(metric.value)} of {view.examples:,} examples right"
    return f"{metric.name} {metric.value:.4g} on {view.examples:,} examples"


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _no_better(view: EvaluationView, share: float, served: Published, accuracy: float) -> str:
    keeping = f"keeping version {served.version:,}"
    if share > accuracy:
        of = f"{percent(accuracy)} of {served.examples:,} examples right"
        return f"version {view.version:,} had {describe(view, ACCURACY)}, too few to be sure against {of}: {keeping}"
    word = "worse" if share < accuracy else "no better"
    return f"version {view.version:,} is {word}, {percent(share)} against {percent(accuracy)}: {keeping}"
