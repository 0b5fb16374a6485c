"""Which version of a model a file should hold: fetch the newest, or keep what is there, and why. Pure; knows no file.

What can be fetched is the newest durable version alone. An evaluation is of the version at the end of an epoch, which
was made durable with it, so it speaks for that one and for those that come soon after. ``seen`` is the version of the
latest evaluation that was known at the last look: None at the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli.chance import at_least
from shoal.cli.drift import is_sound
from shoal.cli.words import share_text

if TYPE_CHECKING:
    from shoal.wire.messages import EvaluationView


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What the file holds."""

    version: int
    #: The evaluation that speaks for it; None: none does.
    judged: EvaluationView | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """The newest durable version is to be fetched."""

    reason: str


@dataclass(frozen=True, slots=True)
class Keep:
    """The file stays as it is. Without a reason: nothing new was seen."""

    reason: str = ""


def decide(
    held: Held | None,
    *,
    durable: int,
    evaluations: Sequence[EvaluationView],
    seen: int | None = None,
    newest: bool = False,
) -> Pull | Keep:
    """What to do, given the newest durable version and all evaluations, oldest first."""
    if durable < 1:
        return Keep("there is no durable version yet")
    if held is None:
        return Pull("the first one here")
    if durable <= held.version:
        return Keep()
    if newest:
        return Pull(f"newer than version {held.version:,}")
    if held.judged is None:
        # Nothing speaks for it. A job that evaluates nothing at all is followed so to its newest.
        return Pull(f"newer than version {held.version:,}, which was not evaluated")
    latest = next((view for view in reversed(evaluations) if is_sound(view)), None)
    if latest is None or latest.version <= held.version:
        return Keep()
    if not is_better(latest, held.judged):
        return Keep(_no_better(latest, held))
    if judged_at(evaluations, durable, seen=seen) is not latest:
        return Keep(
            f"version {latest.version:,} was better, {_told(latest)}, and version {durable:,} is what there is by now: "
            f"keeping version {held.version:,} until that is evaluated"
        )
    return Pull(f"better than version {held.version:,}, {share_text(held.judged.accuracy)}")


def settle(
    held: Held | None,
    *,
    version: int,
    evaluations: Sequence[EvaluationView],
    seen: int | None = None,
    newest: bool = False,
) -> Held | Keep:
    """What the file holds if it is given the version that came; or that it is not, since others came meanwhile."""
    arrived = Held(version=version, judged=judged_at(evaluations, version, seen=seen))
    if held is None or newest or held.judged is None:
        return arrived
    if arrived.judged is None:
        return Keep(f"version {version:,} came, which was not evaluated: keeping version {held.version:,}")
    return arrived if is_better(arrived.judged, held.judged) else Keep(_no_better(arrived.judged, held))


def judged_at(evaluations: Sequence[EvaluationView], version: int, *, seen: int | None = None) -> EvaluationView | None:
    """The evaluation that speaks for a version: the last one up to it, if it is news, which is as near as one gets.

    Or if no more versions were made since then than between that one and the one before. Beyond those another was due,
    and none came: nothing is known.
    """
    views = [view for view in evaluations if is_sound(view) and view.version <= version]
    if not views:
        return None
    since = views[-1].version - (views[-2].version if len(views) > 1 else 0)
    is_news = seen is not None and views[-1].version > seen
    return views[-1] if is_news or version - views[-1].version <= since else None


def is_better(view: EvaluationView, than: EvaluationView) -> bool:
    """By what each is at least: a lucky score over few examples would never be reached again."""
    return at_least(view.accuracy, view.examples) > at_least(than.accuracy, than.examples)


def _no_better(latest: EvaluationView, held: Held) -> str:
    assert held.judged is not None
    old, keeping = held.judged, f"keeping version {held.version:,}"
    if latest.accuracy > old.accuracy:
        return f"version {latest.version:,} had {_told(latest)}, too few to be sure against {_told(old)}: {keeping}"
    word = "worse" if latest.accuracy < old.accuracy else "no better"
    figures = f"{share_text(latest.accuracy)} against {share_text(old.accuracy)}"
    return f"version {latest.version:,} is {word}, {figures}: {keeping}"


def _told(view: EvaluationView) -> str:
    return f"{share_text(view.accuracy)} of {view.examples:,} examples right"
