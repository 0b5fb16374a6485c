"""Which version of a model is served: published, kept, rolled back, and why. Pure; knows no file and no table.

What can be published is a version that is durable. An evaluation is of the version at the end of an epoch, which is
made durable with it, so it speaks for that one and for those that come soon after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.errors import Refused
from shoal.learning.chance import at_least
from shoal.plan import Plan
from shoal.wire.messages import EvaluationView

#: No version: nothing is served, or nothing was judged.
NONE = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A version that was published: its model is kept under its hash."""

    version: int
    #: Counts what was published of a job, so that there is an order whatever clocks do.
    number: int
    epoch: int
    #: How it was judged by then; None: it was not.
    accuracy: float | None
    loss: float | None
    examples: int
    sha256: str
    size_bytes: int
    #: By the manager's clock.
    at_s: float
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """What a job serves, and whether that changes by itself."""

    version: int = NONE
    #: Why this one.
    reason: str = ""
    #: The latest evaluation that was weighed, by its version: none is weighed twice.
    judged: int = NONE
    #: Why nothing is published by itself; empty: it is.
    hold: str = ""
    #: What an evaluation must surely reach to end the hold; None: only an operator ends it.
    until_accuracy: float | None = None
    #: What came of the latest evaluation.
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Publish:
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """What is served stays."""

    reason: str


def rule_of(plan: Plan) -> str:
    """A job that has an end is trained for its last version, which needs nobody's choice, unless its plan says so."""
    return plan.publish or ("better" if plan.until.endless else "asked")


def is_sound(view: EvaluationView) -> bool:
    """A leader's figures are its own: what is no share of any examples says nothing."""
    return view.examples > 0 and 0 <= view.accuracy <= 1


def news(evaluations: Sequence[EvaluationView], serving: Serving) -> EvaluationView | None:
    """The latest evaluation, if it was not weighed yet. One of an older version is news too: a damaged disk may have
    taken a job back."""
    latest = next((view for view in reversed(evaluations) if is_sound(view)), None)
    return latest if latest is not None and latest.version != serving.judged else None


def weigh(rule: str, served: Published | None, serving: Serving, view: EvaluationView) -> Publish | Leave:
    """Whether a version that was just judged shall be served."""
    if rule == "asked":
        return Leave(f"version {view.version:,} had {told(view)}: it is published when an operator says so")
    if serving.hold:
        until = serving.until_accuracy
        if until is None or at_least(view.accuracy, view.examples) < until:
            return Leave(f"version {view.version:,} had {told(view)}, and is held back: {serving.hold}")
        return Publish(f"it surely has the {percent(until)} that were asked for")
    if served is None:
        return Publish("the first that was evaluated")
    if rule == "every":
        return Publish("the newest that was evaluated")
    if served.accuracy is None:
        return Publish(f"version {served.version:,} was not evaluated, and this one was")
    if at_least(view.accuracy, view.examples) > at_least(served.accuracy, served.examples):
        return Publish(f"better than version {served.version:,}, {percent(served.accuracy)}")
    return Leave(_no_better(view, served, served.accuracy))


def judged_at(evaluations: Sequence[EvaluationView], version: int) -> EvaluationView | None:
    """The evaluation that speaks for a version: the last one up to it, if no more versions were made since then than
    between that one and the one before. Beyond those another was due, and none came: nothing is known."""
    views = [view for view in evaluations if is_sound(view) and view.version <= version]
    if not views:
        return None
    since = views[-1].version - (views[-2].version if len(views) > 1 else 0)
    return views[-1] if version - views[-1].version <= since else None


def published(serving: Serving, version: int, reason: str) -> Serving:
    """This version is served from now on, and better ones will be."""
    return replace(serving, version=version, reason=reason, hold="", until_accuracy=None, verdict="")


def target(kept: Sequence[Published], serving: Serving, wanted: int) -> Published:
    """The version to go back to; 0: the one that was published before the one that is served. Raises Refused."""
    by_number = sorted(kept, key=lambda each: each.number)
    if not by_number:
        raise Refused("no version was published yet: there is none to go back to")
    known = ", ".join(f"{each.version:,}" for each in by_number)
    if wanted:
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


def rolled_back(serving: Serving, to: Published, *, reason: str, until_accuracy: float | None) -> Serving:
    """An earlier version is served again, and nothing is published by itself for now."""
    why = f": {reason}" if reason else ""
    ends = f"surely reaches {percent(until_accuracy)}" if until_accuracy is not None else "is published by an operator"
    return replace(
        serving,
        version=to.version,
        reason=f"rolled back from version {serving.version:,}{why}",
        hold=f"version {serving.version:,} was withdrawn{why}; until one {ends}",
        until_accuracy=until_accuracy,
        verdict="",
    )


def surplus(kept: Sequence[Published], *, served: int, keep: int) -> list[Published]:
    """Those beyond so many, the oldest first. What is served stays, however old it is."""
    others = sorted((each for each in kept if each.version != served), key=lambda each: each.number)
    room = keep - (len(others) < len(kept))
    return others[: max(0, len(others) - room)]


def told(view: EvaluationView) -> str:
    return f"{percent(view.accuracy)} of {view.examples:,} examples right"


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _no_better(view: EvaluationView, served: Published, accuracy: float) -> str:
    keeping = f"keeping version {served.version:,}"
    if view.accuracy > accuracy:
        of = f"{percent(accuracy)} of {served.examples:,} examples right"
        return f"version {view.version:,} had {told(view)}, too few to be sure against {of}: {keeping}"
    word = "worse" if view.accuracy < accuracy else "no better"
    return f"version {view.version:,} is {word}, {percent(view.accuracy)} against {percent(accuracy)}: {keeping}"
