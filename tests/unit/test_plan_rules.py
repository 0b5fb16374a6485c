"""The rules of a plan as a table: each can be broken, and a refusal names all that are."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.plan import Plan, Until, epochs, seconds
from shoal.plan_rules.rule import PlanRefused
from shoal.plan_rules.table import RULES

LOCAL: dict[str, Any] = {"data": "local", "workers_min": 8, "epoch_leases": 80}
CHAIN: dict[str, Any] = {"topology": "chain", "data": "local"}
SHARD_BF16: dict[str, Any] = {"topology": "shard", "codec_down": "bf16"}
SKIPS: dict[str, Any] = {"decay_skips": "vectors", "outer": "adamw", "weight_decay": 0.1}
SEALED: dict[str, Any] = {**LOCAL, "trust": "sealed"}
PRIVATE: dict[str, Any] = {**LOCAL, "trust": "private(8)", "clip_update": 0.5, "cohort": 8, "until": epochs(2)}
SHARES: dict[str, Any] = {
    **PRIVATE,
    "trust": "sealed + private(8)",
    "workers_min": 50,
    "epoch_leases": 500,
    "cohort": 50,
}

#: For each rule a plan that breaks this rule and no other.
BREAKS: dict[str, dict[str, Any]] = {
    "shard-pace": {"topology": "shard", "pace": "async"},
    "chain-data": {"topology": "chain"},
    "chain-pace": {**CHAIN, "pace": "async"},
    "chain-where": {**CHAIN, "where": "room = 3"},
    "chain-outer": {**CHAIN, "outer": "adam"},
    "chain-clip-mean": {**CHAIN, "clip_mean": 1.0},
    "chain-ema": {**CHAIN, "ema": 0.9},
    "chain-sampling": {**CHAIN, "sampling": "uniform", "cohort": 4},
    "chain-weights": {**CHAIN, "weights": "device"},
    "chain-accept-unusual": {**CHAIN, "accept_unusual": True},
    "sampling-cohort": {"sampling": "uniform"},
    "algorithm-chain": {**CHAIN, "algorithm": "rules:Median"},
    "algorithm-sealed": {**SEALED, "algorithm": "rules:Median"},
    "algorithm-pace": {"pace": "async", "algorithm": "rules:Median"},
    "algorithm-twice": {"algorithm": "rules:Median merge finish"},
    "algorithm-robust": {"trust": "robust", "algorithm": "rules:Median merge"},
    "merge-topology": {"topology": "tree", "algorithm": "rules:Median merge"},
    "finish-topology": {"topology": "shard", "algorithm": "rules:Median finish"},
    "choose-cohort": {"algorithm": "rules:Median choose"},
    "choose-sampling": {"algorithm": "rules:Median choose", "cohort": 4, "sampling": "uniform"},
    "choose-work": {"algorithm": "rules:Median choose", "cohort": 4, "work": "fixed"},
    "sampling-work": {"sampling": "uniform", "cohort": 4, "work": "fixed"},
    "sampling-data": {"sampling": "by_examples", "cohort": 4},
    "passes-data": {"local_epochs": 2},
    "unusual-trust": {**SEALED, "accept_unusual": True},
    "private-weights": {**PRIVATE, "weights": "device"},
    "private-by-examples": {**PRIVATE, "sampling": "by_examples"},
    "cohort-pace": {"cohort": 4, "pace": "async"},
    "nesterov-outer": {"nesterov": True, "outer": "adam"},
    "outer-rate": {"outer": "adam", "outer_rate": 1.0},
    "decay-skips-outer": {"decay_skips": "vectors"},
    "shard-clip-mean-codec-down": {**SHARD_BF16, "clip_mean": 1.0},
    "shard-decay-skips-codec-down": {**SHARD_BF16, **SKIPS},
    "shard-clip-mean-robust-nearest": {"topology": "shard", "trust": "robust", "clip_mean": 1.0},
    "shard-clip-mean-robust-clip": {"topology": "auto", "trust": "robust(clip)", "clip_mean": 1.0},
    "shard-decay-skips-robust-nearest": {"topology": "shard", "trust": "robust", **SKIPS},
    "shard-decay-skips-robust-clip": {"topology": "shard", "trust": "robust(clip)", **SKIPS},
    "accumulate": {"accumulate": 2},
    "inner-fresh": {"inner": "adamw", "lease_batches": 7},
    "workers": {"workers_min": 3, "workers_max": 2},
    "sized-budget": {"work": "sized", "data": "local"},
    "sized-budget-s": {"budget_s": 1.0},
    "sized-budget-joules": {"budget_joules": 1.0},
    "sized-budget-battery-percent": {"budget_battery_percent": 1.0},
    "sized-refuse-smallest": {"refuse_smallest": 1.0},
    "sized-refuse-alike": {"refuse_alike": 1.0},
    "sized-requests-per-s": {"requests_per_s": 1.0},
    "fixed-sealed": {**SEALED, "work": "fixed"},
    "fixed-private": {**PRIVATE, "work": "fixed"},
    "similar-labels": {"staleness": "similar"},
    "cache-shuffle": {"cache_mb": 5},
    "window-data": {"shuffle": "window", "data": "local"},
    "labels-data": {"share_labels": True},
    "parameter-topology": {"staleness": "parameter", "topology": "tree"},
    "robust-chain": {**CHAIN, "trust": "robust"},
    "nearest-tree": {"trust": "robust", "topology": "tree"},
    "nearest-async": {"trust": "robust", "pace": "async"},
    "nearest-buffer": {"trust": "robust", "pace": "buffered", "buffer": 2},
    "nearest-cohort": {"trust": "robust", "cohort": 2},
    "nearest-workers": {"trust": "robust", "workers_max": 2},
    "robust-momentum": {"trust": "robust", "momentum": 0.9},
    "worker-momentum-trust": {"worker_momentum": 0.5},
    "sealed-nearest": {**SEALED, "trust": "robust + sealed"},
    "sealed-private-robust": {**PRIVATE, "trust": "robust(clip) + sealed + private(8)"},
    "sealed-clip": {**SEALED, "trust": "robust(clip) + sealed"},
    "sealed-data": {**SEALED, "data": "shared"},
    "sealed-chain": {**SEALED, "topology": "chain"},
    "sealed-shard-codec-down": {**SEALED, **SHARD_BF16},
    "sealed-async": {**SEALED, "pace": "async"},
    "sealed-buffered": {**SEALED, "pace": "buffered"},
    "sealed-codec": {**SEALED, "codec": "bf16"},
    "sealed-top": {**SEALED, "codec": "top1%"},
    "led-topology": {**SEALED, "codec": "led5%+ef", "topology": "tree"},
    "sealed-labels": {**SEALED, "share_labels": True},
    "sealed-cohort": {**SEALED, "cohort": 4},
    "sealed-workers": {**SEALED, "workers_min": 7},
    "sealed-leases": {**SEALED, "epoch_leases": 5},
    "sealed-most": {**SEALED, "trust": "sealed(257)", "workers_min": 257, "epoch_leases": 300},
    "sealed-few-honest": {**SEALED, "trust": "sealed(4, 50%, 10%)"},
    "led-trust": {"codec": "led5%+ef"},
    "codec-down-sealed": {"codec_down": "led5%+ef"},
    "sealed-worker-momentum": {
        **SEALED,
        "trust": "robust(clip) + sealed",
        "clip_update": 0.5,
        "worker_momentum": 0.5,
    },
    "private-clip-update": {"clip_update": 0.5},
    "private-participations": {"participations": 3},
    "private-apart": {"apart": 2},
    "private-data": {**PRIVATE, "data": "shared"},
    "private-robust": {**PRIVATE, "trust": "robust(clip) + private(8)"},
    "private-chain": {**PRIVATE, "topology": "chain"},
    "private-shard-codec-down": {**PRIVATE, **SHARD_BF16},
    "private-async": {**PRIVATE, "topology": "tree", "pace": "async", "cohort": 0},
    "private-labels": {**PRIVATE, "share_labels": True},
    "private-cohort": {**PRIVATE, "cohort": 0},
    "private-until": {**PRIVATE, "until": seconds(60)},
    "private-clip": {**PRIVATE, "clip_update": 0.0},
    "private-versions": {**PRIVATE, "epoch_leases": 1_000_000, "participations": 3},
    "private-often": {**PRIVATE, "epoch_leases": 80_000, "until": Until(epochs=1), "apart": 1},
    "private-rest": {**PRIVATE, "apart": 200, "workers_min": 50},
    "shares-apart": {**SHARES, "apart": 3, "workers_min": 150},
    "shares-codec": {**SHARES, "codec": "int16"},
    "shares-collude": {**SHARES, "trust": "sealed(8, 49%, 50%) + private(8)", "cohort": 20},
    "shares-noise": {**SHARES, "trust": "sealed + private(0.01)"},
}
#: Rules that only a plan breaks which breaks another too.
WITH_ANOTHER: dict[str, dict[str, Any]] = {
    "chain-decay-skips": {**CHAIN, **SKIPS},
}


def broken_by(values: dict[str, Any]) -> set[str]:
    try:
        plan = Plan(**values)
    except PlanRefused as refused:
        return {rule.name for rule in refused.rules}
    return {rule.name for rule in RULES if rule.new_jobs_only and rule.when(plan)}


@pytest.mark.parametrize("name", BREAKS)
def test_each_rule_is_broken_by_a_plan_that_breaks_no_other(name: str) -> None:
    assert broken_by(BREAKS[name]) == {name}


def test_every_rule_can_be_broken() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert {*BREAKS, *WITH_ANOTHER} == set(names)
    for name, values in WITH_ANOTHER.items():
        assert name in broken_by(values)


def test_a_refusal_names_every_rule_that_is_broken_with_its_values_reason_and_remedy() -> None:
    with pytest.raises(PlanRefused) as refused:
        Plan(topology="shard", pace="async", cohort=4, shuffle="window", data="local", ema=0.9)
    head, *lines = str(refused.value).splitlines()
    assert head == "this plan breaks 3 rules:"
    assert [line.partition(": ")[0] for line in lines] == [
        "- topology = 'shard' with pace = 'async'",
        "- cohort = 4 with pace = 'async'",
        "- shuffle = 'window' with data = 'local'",
    ]
    assert all(". Set " in line for line in lines)


def test_a_refusal_of_one_rule_is_one_line() -> None:
    with pytest.raises(PlanRefused) as refused:
        Plan(accumulate=3)
    assert str(refused.value) == (
        "accumulate = 3 with lease_batches = 1: a lease has fewer batches than one step. Set accumulate to at most"
        " lease_batches"
    )


def test_a_rule_for_new_jobs_only_lets_a_stored_plan_be_read() -> None:
    plan = Plan(share_labels=True, staleness="parameter", topology="tree")
    assert plan.why_not_new is not None
    assert plan.why_not_new.startswith("this plan breaks 2 rules:\n- share_labels = True with data = 'shared'")
    assert Plan().why_not_new is None
