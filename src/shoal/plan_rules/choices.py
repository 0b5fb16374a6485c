"""Rules about data, topology, pace, work and the leader's step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.learning.outer_rule import ADAPTIVE
from shoal.plan_rules.facts import is_chain, is_coded_shard, is_private, is_sealed
from shoal.plan_rules.rule import PlanRule, dashed

if TYPE_CHECKING:
    from shoal.plan import Plan

#: Keys that have an effect only with sized work.
SIZED_ONLY = (
    "budget_s",
    "budget_joules",
    "budget_battery_percent",
    "refuse_smallest",
    "refuse_alike",
    "requests_per_s",
)

#: Optimisers of ``torch.optim`` that divide by an average of squared gradients: with few steps per lease that average
#: is mostly its own bias correction.
INNER_ADAPTIVE = ("adam", "adamw", "adamax", "nadam", "radam", "rmsprop", "adadelta", "adagrad", "adafactor")
FRESH_STEPS_LEAST = 8


def _not_in_a_chain(key: str, has: Callable[[Plan], bool], why: str) -> PlanRule:
    """A chain of pairs has no manager and no leader."""
    return PlanRule(
        name=f"chain-{dashed(key)}",
        keys=("topology", key),
        when=lambda plan: is_chain(plan) and has(plan),
        why=f"a chain of pairs has {why}",
        instead=f"Leave {key} out, or set topology = 'star', 'tree' or 'shard'",
        ground="mathematics",
    )


def _not_coded_in_a_shard(key: str) -> PlanRule:
    return PlanRule(
        name=f"shard-{dashed(key)}-codec-down",
        keys=("topology", key, "codec_down"),
        when=lambda plan: bool(getattr(plan, key)) and is_coded_shard(plan),
        why="the leader takes the step of such a shard, and aggregators cannot code a step that they do not take",
        instead="Set codec_down = 'dense', or topology = 'star' or 'tree'",
        ground="limit",
    )


def _not_compared_in_a_shard(key: str, rule: str, instead: str) -> PlanRule:
    return PlanRule(
        name=f"shard-{dashed(key)}-robust-{rule}",
        keys=("trust", "topology", key),
        when=lambda plan: (
            bool(getattr(plan, key))
            and plan.topology in ("shard", "auto")
            and plan.believes.rule == rule
            and not is_sealed(plan)
        ),
        why="under robust the aggregators of a shard take the step, each of its own part of the model; with"
        f" {key} the leader would have to take it",
        instead=f"Set topology = {instead}, or leave {key} out",
        ground="limit",
    )


TOPOLOGY_AND_PACE = (
    PlanRule(
        name="shard-pace",
        keys=("topology", "pace"),
        when=lambda plan: plan.topology == "shard" and plan.pace not in ("sync", "auto"),
        why="each aggregator of a shard makes its part of a version by itself, and the parts fit only if all were made"
        " of the same updates, as they are in step",
        instead="Set pace = 'sync', or topology = 'star', 'tree' or 'auto'",
        ground="mathematics",
    ),
    PlanRule(
        name="chain-data",
        keys=("topology", "data"),
        when=lambda plan: is_chain(plan) and plan.data != "local",
        why="a chain of pairs has no manager that could hand out shared examples",
        instead="Set data = 'local', and run `shoal flock` on each device",
        ground="mathematics",
    ),
    PlanRule(
        name="chain-pace",
        keys=("topology", "pace"),
        when=lambda plan: is_chain(plan) and plan.pace != "sync",
        why="the devices of a chain merge in pairs until one of them has all updates, so all train in step",
        instead="Set pace = 'sync', and run `shoal flock` on each device",
        ground="mathematics",
    ),
    _not_in_a_chain("where", lambda plan: bool(plan.where), "no manager that could choose devices"),
    _not_in_a_chain("outer", lambda plan: plan.outer in ADAPTIVE, "no leader that could take this step"),
    _not_in_a_chain("clip_mean", lambda plan: plan.clip_mean > 0, "nobody who knows the mean of all devices"),
    _not_in_a_chain("decay_skips", lambda plan: bool(plan.decay_skips), "no leader that could take this step"),
    _not_in_a_chain("ema", lambda plan: plan.ema > 0, "no leader that could keep the mean"),
    _not_in_a_chain("sampling", lambda plan: bool(plan.sampling), "no leader that could draw devices"),
    _not_in_a_chain("weights", lambda plan: bool(plan.weights), "pairs that weigh by examples"),
    _not_in_a_chain("accept_unusual", lambda plan: plan.accept_unusual, "no leader that would refuse an update"),
    PlanRule(
        name="sampling-cohort",
        keys=("sampling", "cohort"),
        when=lambda plan: bool(plan.sampling) and not plan.cohort,
        why="every device that is ready trains for each version, so there is nothing to draw",
        instead="Set cohort to how many devices make a version, or leave sampling out",
        ground="no effect",
    ),
    PlanRule(
        name="sampling-work",
        keys=("sampling", "work"),
        when=lambda plan: bool(plan.sampling) and plan.work == "fixed",
        why="equal shares of an epoch name the device of each batch beforehand",
        instead="Set work = 'leased' or 'sized', or leave sampling out",
        ground="mathematics",
    ),
    PlanRule(
        name="sampling-data",
        keys=("sampling", "data"),
        when=lambda plan: plan.sampling == "by_examples" and plan.data != "local",
        why="devices have no examples of their own, so none has more than another",
        instead="Set sampling = 'uniform', or data = 'local'",
        ground="no effect",
    ),
    PlanRule(
        name="cohort-pace",
        keys=("cohort", "pace"),
        when=lambda plan: plan.cohort > 0 and plan.paces != ("sync",),
        why="a cohort is all devices of a version that waits for them, and only versions in step wait",
        instead="Set pace = 'sync', or cohort = 0",
        ground="no effect",
    ),
)

STEPS = (
    PlanRule(
        name="nesterov-outer",
        keys=("nesterov", "outer"),
        when=lambda plan: plan.nesterov and plan.outer != "nesterov",
        why="this outer step does not look ahead",
        instead="Leave nesterov out, or choose outer = 'nesterov'",
        ground="mathematics",
    ),
    PlanRule(
        name="outer-rate",
        keys=("outer", "outer_rate"),
        when=lambda plan: plan.outer in ADAPTIVE and plan.outer_rate >= 1,
        why="an adaptive step moves every value by about the rate in each version",
        instead="Set outer_rate to what the learning rate of that optimiser would be, such as 0.001",
        ground="mathematics",
    ),
    PlanRule(
        name="decay-skips-outer",
        keys=("decay_skips", "outer", "weight_decay"),
        when=lambda plan: bool(plan.decay_skips) and not plan.outer_rule.decays,
        why="decay_skips has no effect unless outer = 'adamw' and weight_decay is above 0",
        instead="Set both, or leave decay_skips out. Groups of an optimiser on devices are made in Task.optimizer",
        ground="no effect",
    ),
    _not_coded_in_a_shard("clip_mean"),
    _not_coded_in_a_shard("decay_skips"),
    _not_compared_in_a_shard("clip_mean", "nearest", "'star'"),
    _not_compared_in_a_shard("clip_mean", "clip", "'star' or 'tree'"),
    _not_compared_in_a_shard("decay_skips", "nearest", "'star'"),
    _not_compared_in_a_shard("decay_skips", "clip", "'star' or 'tree'"),
    PlanRule(
        name="accumulate",
        keys=("accumulate", "lease_batches"),
        when=lambda plan: plan.accumulate > plan.lease_batches,
        why="a lease has fewer batches than one step",
        instead="Set accumulate to at most lease_batches",
        ground="mathematics",
    ),
    PlanRule(
        name="inner-fresh",
        keys=("inner", "inner_state", "lease_batches", "accumulate"),
        when=lambda plan: (
            plan.inner in INNER_ADAPTIVE
            and plan.inner_state == "fresh"
            and plan.work != "sized"
            and plan.lease_steps < FRESH_STEPS_LEAST
        ),
        why="the optimiser begins again with every lease, and after {plan.lease_steps} of at least"
        f" {FRESH_STEPS_LEAST} steps its averages are mostly bias correction",
        instead=f"Set lease_batches for {FRESH_STEPS_LEAST} steps or more, or inner_state = 'kept', or let the leader"
        " do it: outer = 'adamw'",
        ground="mathematics",
    ),
    PlanRule(
        name="workers",
        keys=("workers_min", "workers_max"),
        when=lambda plan: plan.workers_min > plan.workers_max,
        why="the job would wait for more workers than it may take",
        instead="Set workers_max to at least workers_min",
        ground="mathematics",
    ),
)


def _sized_only(key: str) -> PlanRule:
    return PlanRule(
        name=f"sized-{dashed(key)}",
        keys=(key, "work"),
        when=lambda plan: plan.work != "sized" and bool(getattr(plan, key)),
        why=f"{key} has no effect unless work = 'sized'",
        instead=f"Set work = 'sized' (`--work sized`), or leave {key} out",
        ground="no effect",
    )


DATA_AND_WORK = (
    PlanRule(
        name="sized-budget",
        keys=("work", "budget_s", "budget_joules", "budget_battery_percent"),
        when=lambda plan: plan.work == "sized" and not (plan.budget_s or plan.has_energy_budget),
        why="sized work needs a budget, to which its leases are fitted",
        instead="Set budget_s, budget_joules or budget_battery_percent",
        ground="mathematics",
    ),
    *(_sized_only(key) for key in SIZED_ONLY),
    PlanRule(
        name="fixed-sealed",
        keys=("work", "trust"),
        when=lambda plan: plan.work == "fixed" and is_sealed(plan),
        why="equal shares are not done at the same time, so the last leases of an epoch belong to fewer devices than a"
        " sum has, and their sum could not be opened",
        instead="Set work = 'leased' or 'sized', or leave sealed out of trust",
        ground="mathematics",
    ),
    PlanRule(
        name="fixed-private",
        keys=("work", "trust"),
        when=lambda plan: plan.work == "fixed" and is_private(plan) and not is_sealed(plan),
        why="a device takes part as often as its privacy account allows, so it may have no right to train the rest of"
        " an equal share",
        instead="Set work = 'leased' or 'sized'",
        ground="mathematics",
    ),
    PlanRule(
        name="passes-data",
        keys=("local_epochs", "data"),
        when=lambda plan: plan.passes > 1 and plan.data != "local",
        why="an epoch of shared examples is a pass of all devices together, and until counts those",
        instead="Set data = 'local', or until = shoal.epochs(n) and leave local_epochs out",
        ground="no effect",
    ),
    PlanRule(
        name="similar-labels",
        keys=("staleness", "share_labels"),
        when=lambda plan: plan.staleness == "similar" and not plan.share_labels,
        why="this staleness compares labels, and devices report none",
        instead="Set share_labels = True, or staleness = 'exponential'",
        ground="mathematics",
    ),
    PlanRule(
        name="cache-shuffle",
        keys=("cache_mb", "shuffle"),
        when=lambda plan: plan.cache_mb > 0 and plan.shuffle != "window",
        why="cache_mb has no effect unless devices fetch shards, window by window",
        instead="Set shuffle = 'window', or leave cache_mb out",
        ground="no effect",
    ),
    PlanRule(
        name="window-data",
        keys=("shuffle", "data"),
        when=lambda plan: plan.shuffle == "window" and plan.data != "shared",
        why="windows are for sets larger than a device, and a device's own examples are all on its disk",
        instead="Set data = 'shared', or shuffle = 'full'",
        ground="no effect",
    ),
    PlanRule(
        name="labels-data",
        keys=("share_labels", "data"),
        when=lambda plan: plan.share_labels and plan.data != "local",
        why="share_labels has no effect unless devices train on examples of their own",
        instead="Set data = 'local', or leave share_labels out",
        ground="no effect",
        new_jobs_only=True,
    ),
    PlanRule(
        name="parameter-topology",
        keys=("staleness", "topology"),
        when=lambda plan: plan.staleness == "parameter" and plan.topology in ("tree", "auto"),
        why="an aggregator sums updates before the leader could weigh single values of them",
        instead="Set topology = 'star', or staleness = 'root'",
        ground="mathematics",
        new_jobs_only=True,
    ),
)
