"""A rule of a plan: a row that says when it is broken, why, and what to set instead; and the refusal that shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.plan import Plan

#: Why there is a rule. ``mathematics``: what is asked contradicts itself, or its result would be wrong. ``safety``: it
#: would reveal what the plan hides, or let faulty devices decide. ``no effect``: a key would be ignored, and a person
#: who set it would think it held. ``limit``: parts of Shoal are made in a way that excludes it, and ``why`` says how.
Ground = Literal["mathematics", "safety", "no effect", "limit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRule:
    """One row: keys whose values do not go together."""

    name: str
    #: The keys that the rule relates. A refusal names each with its value.
    keys: tuple[str, ...]
    when: Callable[[Plan], bool]
    #: Texts may show a figure of the plan: ``{plan.opened_least}``.
    why: str
    instead: str
    ground: Ground
    #: Earlier releases accepted such plans. One that is stored, or comes from such a release, is read all the same.
    new_jobs_only: bool = False

    def text(self, plan: Plan) -> str:
        """Return the refusal of this plan: the values, why they do not go together, and what to set instead."""
        first, *others = (f"{key} = {_shown(plan, key)}" for key in self.keys)
        values = f"{first} with {' and '.join(others)}" if others else first
        return f"{values}: {f'{self.why}. {self.instead}'.format(plan=plan)}"


class PlanRefused(Misuse):
    """A plan breaks rules. Its text has a line for each of them."""

    def __init__(self, plan: Plan, rules: Sequence[PlanRule]) -> None:
        super().__init__(plan, rules)
        self._plan = plan
        self.rules = tuple(rules)

    def __str__(self) -> str:
        # Written only where it is read: whoever tries thousands of plans reads few.
        return told(self._plan, self.rules)


def told(plan: Plan, rules: Sequence[PlanRule]) -> str:
    """Return the refusal of a plan that breaks these rules."""
    lines = [rule.text(plan) for rule in rules]
    if len(lines) == 1:
        return lines[0]
    return "\n".join([f"this plan breaks {len(lines)} rules:", *(f"- {line}" for line in lines)])


def _shown(plan: Plan, key: str) -> str:
    # What a plan leaves out, it derives from other keys.
    derived: dict[str, object] = {"codec_down": plan.down, "worker_momentum": plan.device_momentum}
    value = derived.get(key, getattr(plan, key))
    return f"{value:g}" if isinstance(value, float) else repr(value)


def dashed(key: str) -> str:
    """Return a key as part of the name of a rule."""
    return key.replace("_", "-")
