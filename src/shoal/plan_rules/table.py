"""Every rule of a plan, in the order in which a refusal names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.plan_rules.algorithms import ALGORITHM
from shoal.plan_rules.choices import DATA_AND_WORK, STEPS, TOPOLOGY_AND_PACE
from shoal.plan_rules.rule import PlanRule
from shoal.plan_rules.trust import PRIVATE, ROBUST, SEALED

if TYPE_CHECKING:
    from shoal.plan import Plan

RULES: tuple[PlanRule, ...] = (*TOPOLOGY_AND_PACE, *STEPS, *DATA_AND_WORK, *ROBUST, *SEALED, *PRIVATE, *ALGORITHM)


def broken_rules(plan: Plan, *, new_jobs_only: bool = False) -> tuple[PlanRule, ...]:
    """Return the rules that a plan breaks, in the order of the table."""
    return tuple(rule for rule in RULES if rule.new_jobs_only is new_jobs_only and rule.when(plan))
