"""Rules about an algorithm of the researcher's own: what its methods see decides which plans it suits.

The methods are known once the job is submitted (``learning.algorithm.AlgorithmName``); until then only the rules that
hold for any method are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.learning.algorithm_name import AlgorithmName
from shoal.plan_rules.facts import is_chain, is_private, is_sealed
from shoal.plan_rules.rule import PlanRule

if TYPE_CHECKING:
    from shoal.plan import Plan


def _has(plan: Plan, *hooks: str) -> bool:
    return bool(plan.algorithm) and not AlgorithmName.parse(plan.algorithm).hooks.isdisjoint(hooks)


ALGORITHM = (
    PlanRule(
        name="algorithm-chain",
        keys=("topology", "algorithm"),
        when=lambda plan: bool(plan.algorithm) and is_chain(plan),
        why="a chain of pairs has no leader that could ask an algorithm",
        instead="Set topology = 'star', or leave algorithm out",
        ground="mathematics",
    ),
    PlanRule(
        name="algorithm-sealed",
        keys=("trust", "algorithm"),
        when=lambda plan: bool(plan.algorithm) and (is_sealed(plan) or is_private(plan)),
        why="an algorithm sees updates, their mean, or who trained and when, and under this trust nobody may",
        instead="Set trust = 'identity', or leave algorithm out",
        ground="safety",
    ),
    PlanRule(
        name="algorithm-pace",
        keys=("pace", "algorithm"),
        when=lambda plan: bool(plan.algorithm) and plan.paces != ("sync",),
        why="an algorithm is asked once per version, of updates that belong together",
        instead="Set pace = 'sync', or leave algorithm out",
        ground="limit",
    ),
    PlanRule(
        name="algorithm-twice",
        keys=("algorithm",),
        when=lambda plan: _has(plan, "merge") and _has(plan, "finish"),
        why="merge and finish both make the change of a version",
        instead="Put what finish does into merge, which sees more",
        ground="mathematics",
    ),
    PlanRule(
        name="algorithm-robust",
        keys=("trust", "algorithm"),
        when=lambda plan: _has(plan, "merge", "finish") and plan.believes.rule is not None,
        why="a robust rule and the algorithm both make a version",
        instead="Leave one of them out: set trust = 'identity', or leave algorithm out",
        ground="mathematics",
    ),
    PlanRule(
        name="merge-topology",
        keys=("topology", "algorithm"),
        when=lambda plan: _has(plan, "merge") and plan.topology != "star" and not is_chain(plan),
        why="merge sees every update of a version, and elsewhere no node has them all",
        instead="Set topology = 'star', or write finish, which sees the mean",
        ground="mathematics",
    ),
    PlanRule(
        name="finish-topology",
        keys=("topology", "algorithm"),
        when=lambda plan: _has(plan, "finish") and plan.topology in ("shard", "auto"),
        why="finish sees the mean of a version, and in a shard no node has it",
        instead="Set topology = 'star' or 'tree'",
        ground="mathematics",
    ),
    PlanRule(
        name="choose-cohort",
        keys=("algorithm", "cohort"),
        when=lambda plan: _has(plan, "choose") and not plan.cohort,
        why="choose says which devices train for a version, and in this plan all do",
        instead="Set cohort to how many devices make a version",
        ground="no effect",
    ),
    PlanRule(
        name="choose-sampling",
        keys=("algorithm", "sampling"),
        when=lambda plan: _has(plan, "choose") and bool(plan.sampling),
        why="choose and sampling both choose devices",
        instead="Leave sampling out",
        ground="mathematics",
    ),
    PlanRule(
        name="choose-work",
        keys=("algorithm", "work"),
        when=lambda plan: _has(plan, "choose") and plan.work == "fixed",
        why="equal shares of an epoch name the device of each batch beforehand",
        instead="Set work = 'leased' or 'sized'",
        ground="mathematics",
    ),
)
