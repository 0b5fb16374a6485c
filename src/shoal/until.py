"""When a job ends: epochs, seconds, accuracy, any metric at a figure, or a metric that stopped moving. Pure values."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.errors import Misuse

#: Metrics are shown in tables and in one line of status.
METRIC_NAME_MAX_CHARS = 64

#: Conditions of one kind that a job may end by.
CONDITIONS_MAX = 16

#: A leader carries 1,000 evaluations along, so that it can look back this far after a restart too.
PATIENCE_MAX = 500


def is_metric_name(text: object) -> bool:
    """Whether a metric may be called so: 1 to 64 characters that can be printed, no space around them."""
    return (
        isinstance(text, str)
        and 0 < len(text) <= METRIC_NAME_MAX_CHARS
        and text.isprintable()
        and text == text.strip()
        and not any("\ud800" <= letter <= "\udfff" for letter in text)
    )


def check_metric_name(text: object) -> None:
    if not is_metric_name(text):
        shown = repr(text)[:80]
        raise Misuse(f"a metric has a name of 1 to {METRIC_NAME_MAX_CHARS} printable characters, not {shown}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """A metric reaches a figure: from below (``at_least``) or from above (``at_most``)."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        check_metric_name(self.metric)
        given = [figure for figure in (self.at_least, self.at_most) if figure is not None]
        if len(given) != 1 or type(given[0]) not in (int, float) or not math.isfinite(given[0]):
            raise Misuse(f"a goal is one figure: write shoal.metric({self.metric!r}) >= 0.9, or <=")

    def is_met(self, figure: float) -> bool:
        return figure >= self.at_least if self.at_least is not None else figure <= (self.at_most or 0.0)

    def __str__(self) -> str:
        sign, figure = (">=", self.at_least) if self.at_least is not None else ("<=", self.at_most)
        return f"{self.metric} {sign} {figure:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plateau:
    """A metric was not better than before by more than ``min_change`` in so many evaluations in a row."""

    metric: str
    patience: int = 5
    min_change: float = 0.0

    def __post_init__(self) -> None:
        check_metric_name(self.metric)
        if type(self.patience) is not int or not 1 <= self.patience <= PATIENCE_MAX:
            raise Misuse(f"patience is from 1 to {PATIENCE_MAX} evaluations, not {self.patience}")
        if type(self.min_change) not in (int, float) or not 0 <= self.min_change < math.inf:
            raise Misuse(f"min_change is a number from 0, not {self.min_change}")

    def __str__(self) -> str:
        change = f", {self.min_change:g}" if self.min_change else ""
        return f"plateau({self.metric}, {self.patience}{change})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Until:
    """When a job ends: at an accuracy or another metric's goal, on a plateau, after a number of epochs, or after a
    time; whichever comes first. Or never."""

    accuracy: float | None = None
    epochs: int | None = None
    seconds: float | None = None
    #: It goes on until it is stopped.
    endless: bool = False
    goals: tuple[Goal, ...] = ()
    plateaus: tuple[Plateau, ...] = ()

    def __post_init__(self) -> None:
        if self.accuracy is not None and not 0 < self.accuracy <= 1:
            raise Misuse(f"accuracy is a share between 0 and 1, not {self.accuracy}: write 0.98 for 98 %")
        if self.epochs is not None and self.epochs < 1:
            raise Misuse(f"a job runs at least one epoch, not {self.epochs}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise Misuse(f"a job runs for a positive time, not {self.seconds} s")
        for conditions, kind in ((self.goals, Goal), (self.plateaus, Plateau)):
            if not isinstance(conditions, tuple) or not all(isinstance(each, kind) for each in conditions):
                raise Misuse(f"until takes {kind.__name__} values: use shoal.metric and shoal.plateau")
            if len(conditions) > CONDITIONS_MAX:
                raise Misuse(f"a job ends by at most {CONDITIONS_MAX} conditions of a kind, not {len(conditions)}")

    def __or__(self, other: Until) -> Until:
        """Combine two limits: the job ends when either is met."""
        if not isinstance(other, Until):
            return NotImplemented
        return Until(
            accuracy=self.accuracy or other.accuracy,
            epochs=self.epochs or other.epochs,
            seconds=self.seconds or other.seconds,
            endless=self.endless or other.endless,
            goals=tuple(dict.fromkeys((*self.goals, *other.goals))),
            plateaus=tuple(dict.fromkeys((*self.plateaus, *other.plateaus))),
        )

    def __ror__(self, other: object) -> Until:
        # ``metric("f1") >= 0.9 | plateau("loss")`` is read as ``0.9 | plateau("loss")`` first.
        raise Misuse('put each condition in parentheses: (shoal.metric("f1") >= 0.9) | shoal.plateau("loss")')

    @property
    def is_set(self) -> bool:
        limits = (self.accuracy, self.epochs, self.seconds)
        return self.endless or bool(self.goals or self.plateaus) or any(value is not None for value in limits)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that it asks for, besides accuracy."""
        names = [*(goal.metric for goal in self.goals), *(plateau.metric for plateau in self.plateaus)]
        return tuple(dict.fromkeys(names))


def accuracy(share: float) -> Until:
    """Train until this share of held-out examples is right."""
    return Until(accuracy=share)


def epochs(count: int) -> Until:
    """Train until every example was used this many times."""
    return Until(epochs=count)


def seconds(limit_s: float) -> Until:
    """Train for this long."""
    return Until(seconds=limit_s)


def endless() -> Until:
    """Go on until someone stops it."""
    return Until(endless=True)


class metric:  # noqa: N801
    """A metric by its name, to be compared: ``shoal.metric("f1") >= 0.9``."""

    def __init__(self, name: str) -> None:
        check_metric_name(name)
        self._name = name

    def __ge__(self, figure: float) -> Until:
        return Until(goals=(Goal(metric=self._name, at_least=_figure(figure)),))

    def __le__(self, figure: float) -> Until:
        return Until(goals=(Goal(metric=self._name, at_most=_figure(figure)),))

    def __gt__(self, figure: object) -> Until:
        raise Misuse(f'compare with >= or <=: shoal.metric("{self._name}") >= 0.9')

    def __lt__(self, figure: object) -> Until:
        return self.__gt__(figure)

    def __bool__(self) -> bool:
        raise Misuse(f'compare it with a figure: shoal.metric("{self._name}") >= 0.9')


def plateau(name: str, patience: int = 5, min_change: float = 0.0) -> Until:
    """Train until this metric was not better, by more than ``min_change``, in ``patience`` evaluations in a row."""
    return Until(plateaus=(Plateau(metric=name, patience=patience, min_change=min_change),))


def _figure(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misuse(
            f"a metric is compared with a number, not {type(value).__name__}: put each condition in parentheses,"
            ' (shoal.metric("f1") >= 0.9) | shoal.plateau("loss")'
        )
    return float(value)


_GOAL = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=)\s*(?P<figure>\S+)\s*")
_PLATEAU = re.compile(
    r"\s*plateau\(\s*(?P<name>[^,()]+?)\s*(?:,\s*(?P<patience>[^,()]+?)\s*)?(?:,\s*(?P<change>[^,()]+?)\s*)?\)\s*"
)


def parse_until(text: str) -> Until:
    """Read a condition as it is typed: ``f1>=0.9``, ``mae<=2``, ``plateau(loss,5)`` or ``plateau(loss,5,0.01)``."""
    try:
        if (found := _PLATEAU.fullmatch(text)) is not None:
            return plateau(found["name"], int(found["patience"] or 5), float(found["change"] or 0.0))
        if (found := _GOAL.fullmatch(text)) is not None:
            named, figure = metric(found["name"]), float(found["figure"])
            return named >= figure if found["sign"] == ">=" else named <= figure
    except ValueError:
        pass
    raise Misuse(f"an end is written f1>=0.9, mae<=2 or plateau(loss,5); {text[:80]!r} is not")


def until_from(plain: Mapping[str, Any]) -> Until:
    """An end from JSON values, such as a plan's plain form has."""
    unknown = sorted(set(plain) - {field.name for field in dataclasses.fields(Until)})
    if unknown:
        known = ", ".join(field.name for field in dataclasses.fields(Until))
        raise Misuse(f"a job does not end by {', '.join(map(repr, unknown))}; there is: {known}")
    values = dict(plain)
    for name, kind in (("goals", Goal), ("plateaus", Plateau)):
        if name in values:
            values[name] = tuple(each if isinstance(each, kind) else _condition(kind, each) for each in values[name])
    return Until(**values)


def _condition(kind: type[Goal] | type[Plateau], plain: Any) -> Goal | Plateau:
    names = {field.name for field in dataclasses.fields(kind)}
    if not isinstance(plain, Mapping) or "metric" not in plain or not set(plain) <= names:
        raise Misuse(f"a {kind.__name__.lower()} has {', '.join(sorted(names))}; {plain!r:.80} is none")
    return kind(**plain)
