"""Plans: sensible by default, checked when made, clear when refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import shoal.plan as plans
from shoal.deprecated import DeprecatedWarning
from shoal.errors import Misuse
from shoal.learning.outer_rule import OUTER_KINDS
from shoal.plan import CHOICES, Plan, Until, parse_workers
from shoal.plan_rules.choices import SIZED_ONLY
from shoal.sim.jobs import bare_spec


def test_a_plan_works_as_it_comes() -> None:
    plan = Plan()
    assert (plan.batch_size, plan.momentum, plan.until) == (64, 0.9, Until(epochs=3))
    for choice, answers in CHOICES.items():
        assert getattr(plan, choice) in answers


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_shoal_does_not_have_is_named_with_those_it_has(choice: str) -> None:
    with pytest.raises(Misuse, match=f"{choice} = 'magic' is not a choice.*there is: {CHOICES[choice][0]}"):
        Plan(**{choice: "magic"})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"workers_min": 0}, "workers_min is at least 1, not 0"),
        ({"workers_min": 3, "workers_max": 2}, "wait for more workers than it may take. Set workers_max"),
        ({"batch_size": 0}, "batch_size is at least 1, not 0"),
        ({"buffer": 0}, "buffer is at least 1, not 0"),
        ({"work": "blocks"}, "no longer has work = 'blocks': set work = 'leased'"),
        ({"staleness": "linear"}, "staleness = 'linear' is not a choice.*there is: none, inverse, root, exponential"),
        ({"lease_batches": 0}, "lease_batches is from 1 to 4096, not 0"),
        ({"local_epochs": 10**6, "data": "local"}, "local_epochs is from 0 to 10000 passes, not 1000000"),
        ({"local_epochs": 2.5, "data": "local"}, "local_epochs is a whole number, not 2.5"),
        ({"local_epochs": math.nan, "data": "local"}, "local_epochs is from 0"),
        ({"cohort": 2.5}, "cohort is a whole number, not 2.5"),
        ({"evaluate_every_epochs": 0}, "evaluate_every_epochs is at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is positive"),
        ({"momentum": 1.0}, r"momentum is in \[0, 1\)"),
        ({"momentum": -0.1}, r"momentum is in \[0, 1\)"),
        ({"momentum": math.nan}, r"momentum is in \[0, 1\)"),
        ({"weight_decay": -1.0}, "weight_decay is a number from 0"),
        ({"lease_s": -1.0}, "lease_s is a number from 0"),
        ({"checkpoint_every_s": -1.0}, "checkpoint_every_s is a number from 0"),
        ({"until": Until()}, "a job needs an end"),
        ({"shuffle": "some"}, "shuffle = 'some' is not a choice.*there is: full, window"),
        ({"cache_mb": 5}, "cache_mb = 5 with shuffle = 'full'.*Set shuffle = 'window', or leave cache_mb out"),
        ({"cache_mb": -1, "shuffle": "window"}, "cache_mb is a number from 0"),
        ({"shuffle": "window", "data": "local"}, "shuffle = 'window' with data = 'local'.*Set data = 'shared'"),
    ],
)
def test_numbers_that_cannot_work_are_refused(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(Misuse, match=told):
        Plan(**wrong)  # type: ignore[arg-type]


def test_momentum_is_what_suits_the_pace_unless_it_is_said() -> None:
    told = {pace: Plan(pace=pace).momentum for pace in CHOICES["pace"]}
    assert told == {"sync": 0.9, "buffered": 0.9, "async": 0.0, "auto": 0.9}
    assert Plan(pace="async", momentum=0.9).momentum == 0.9
    # A plan that is made has its momentum: changing the pace later does not change it.
    assert replace(Plan(), pace="async").momentum == 0.9


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay", "lease_s", "checkpoint_every_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_is_finite(name: str, value: float) -> None:
    with pytest.raises(Misuse, match=name):
        Plan(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_time_limit_is_finite(value: float) -> None:
    with pytest.raises(Misuse):
        Until(seconds=value)


@pytest.mark.parametrize("share", [0.0, 1.01, -0.5, 98.0, math.nan])
def test_an_accuracy_is_a_share(share: float) -> None:
    with pytest.raises(Misuse, match=r"write 0\.98 for 98 %"):
        plans.accuracy(share)


def test_an_end_is_positive() -> None:
    with pytest.raises(Misuse, match="at least one epoch, not 0"):
        plans.epochs(0)
    with pytest.raises(Misuse, match="a positive time"):
        plans.seconds(0)


def test_two_ends_make_one_that_ends_at_either() -> None:
    both = plans.accuracy(0.9) | plans.epochs(5)
    assert both == Until(accuracy=0.9, epochs=5)
    assert both | plans.seconds(60) == Until(accuracy=0.9, epochs=5, seconds=60)
    assert plans.epochs(2) | plans.epochs(5) == Until(epochs=2), "the first that was said holds"
    assert not Until().is_set
    assert both.is_set


@pytest.mark.parametrize(("text", "pair"), [("2:8", (2, 8)), ("4", (4, 4)), ("3:", (3, 3))])
def test_workers_are_written_min_max(text: str, pair: tuple[int, int]) -> None:
    assert parse_workers(text) == pair


@pytest.mark.parametrize("text", ["", "many", "2:x", ":3", "1:2:3"])
def test_workers_written_otherwise_are_refused(text: str) -> None:
    with pytest.raises(Misuse, match="such as 2:8"):
        parse_workers(text)


@pytest.mark.parametrize("name", SIZED_ONLY)
def test_what_only_sized_work_heeds_is_not_said_in_vain(name: str) -> None:
    with pytest.raises(Misuse, match=rf"{name} = 2 with work = 'leased'.*has no effect.*Set work = 'sized'"):
        Plan(data="local", **{name: 2.0})  # type: ignore[arg-type]
    assert Plan(data="local", work="sized", **{"budget_s": 1.0, name: 2.0})  # type: ignore[arg-type]


def test_a_budget_may_be_a_share_of_the_battery_and_nothing_else() -> None:
    # FLeet's figure (§3.3).
    assert Plan(data="local", work="sized", budget_battery_percent=0.075).has_energy_budget
    with pytest.raises(Misuse, match="budget_s, budget_joules or budget_battery_percent"):
        Plan(data="local", work="sized")
    for wrong in (-0.1, 100.5, math.nan, math.inf):
        with pytest.raises(Misuse, match="from 0 to 100 percent"):
            Plan(data="local", work="sized", budget_s=1.0, budget_battery_percent=wrong)


def test_which_versions_are_served_is_one_of_a_few_rules() -> None:
    with pytest.raises(Misuse, match="publish = 'never' is not a choice"):
        Plan(publish="never")
    with pytest.raises(Misuse, match="versions_kept is from 1 to 100 complete models, not 0"):
        Plan(versions_kept=0)


def test_the_outer_step_has_numbers_that_suit_it_unless_they_are_said() -> None:
    told = {outer: (Plan(outer=outer).momentum, Plan(outer=outer).outer_rate) for outer in OUTER_KINDS}
    assert told == {
        "sgd": (0.9, 1.0),
        "nesterov": (0.9, 1.0),
        "adam": (0.9, 1e-3),
        "adamw": (0.9, 1e-3),
        "yogi": (0.9, 1e-3),
        "adagrad": (0.0, 1e-3),
    }
    assert Plan(outer="adam", outer_rate=0.02, momentum=0.5).outer_rule.rate == 0.02
    assert (Plan().outer, Plan().outer_beta2, Plan().outer_epsilon) == ("sgd", 0.999, 1e-8)


def test_nesterov_may_be_said_in_two_ways() -> None:
    with pytest.warns(DeprecatedWarning, match="write outer = 'nesterov'"):
        assert Plan(nesterov=True) == Plan(outer="nesterov")
    assert Plan(outer="nesterov").nesterov
    with pytest.warns(DeprecatedWarning):
        assert replace(Plan(), nesterov=True).outer == "nesterov"
    with pytest.raises(Misuse, match=r"outer = 'adam': this outer step does not look ahead. Leave nesterov out"):
        Plan(outer="adam", nesterov=True)


def test_only_adamw_decays_weights_at_the_leader() -> None:
    for outer in OUTER_KINDS:
        plan = Plan(outer=outer, weight_decay=0.1)
        there, here = plan.worker_weight_decay, plan.outer_rule.weight_decay
        assert (there, here) == ((0.0, 0.1) if outer == "adamw" else (0.1, 0.0))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"outer": "lion"}, "outer = 'lion' is not a choice.*there is: sgd, nesterov, adam, adamw, yogi, adagrad"),
        ({"outer_rate": 0.0}, "outer_rate is positive"),
        ({"outer_rate": math.inf}, "outer_rate is positive"),
        ({"outer_beta2": 1.0}, r"outer_beta2 is in \[0, 1\)"),
        ({"outer_beta2": math.nan}, r"outer_beta2 is in \[0, 1\)"),
        ({"outer_epsilon": 0.0}, "outer_epsilon is positive"),
        ({"outer": "yogi", "outer_rate": 1.0}, "moves every value by about the rate.*such as 0.001"),
        (
            {"outer": "adam", "topology": "chain", "data": "local"},
            "outer = 'adam': a chain of pairs has no leader that could take this step",
        ),
        ({"schedule": "sawtooth 5"}, "schedule = 'sawtooth 5' is not a schedule that Shoal knows; write warmup N"),
    ],
)
def test_an_outer_step_that_cannot_work_is_refused(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(Misuse, match=told):
        Plan(**wrong)  # type: ignore[arg-type]


def test_a_schedule_is_of_the_rate_that_decides_how_far_a_version_goes() -> None:
    plain = Plan(learning_rate=0.1)
    assert (plain.rate_at(3), plain.outer_rate_at(3)) == (0.0, 0.0)
    leased = Plan(learning_rate=0.1, schedule="warmup 4")
    assert (leased.rate_at(1), leased.outer_rate_at(1)) == (0.05, 0.0)
    stepped = Plan(learning_rate=0.1, outer="adamw", outer_rate=0.02, schedule="warmup 4")
    assert (stepped.rate_at(1), stepped.outer_rate_at(1)) == (0.0, 0.01)


ADAMW = {"outer": "adamw", "weight_decay": 0.1}
LOCAL = {"data": "local", "workers_min": 8, "epoch_leases": 80}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"clip_mean": -1.0}, "clip_mean is a number from 0, not -1.0"),
        ({"clip_mean": math.inf}, "clip_mean is a number from 0, not inf"),
        ({"clip_mean": 1.0, "topology": "chain", "data": "local"}, "nobody who knows the mean of all devices"),
        (
            {"clip_mean": 1.0, "topology": "shard", "codec": "top1%+ef"},
            "'shard' with clip_mean = 1 and codec_down = 'top5%'",
        ),
        ({"clip_mean": 1.0, "topology": "auto", "codec": "bf16"}, "Set codec_down = 'dense'"),
        ({"clip_mean": 1.0, "topology": "shard", "trust": "robust"}, "Set topology = 'star', or leave clip_mean out$"),
        ({"clip_mean": 1.0, "topology": "auto", "trust": "robust(clip)"}, "Set topology = 'star' or 'tree'"),
        ({"decay_skips": "vectors"}, "has no effect unless outer = 'adamw'"),
        ({"decay_skips": "vectors", "outer": "adamw"}, "weight_decay is above 0"),
        ({"decay_skips": "[", **ADAMW}, "write 'vectors' for biases and norms"),
        (
            {"decay_skips": "vectors", **ADAMW, "topology": "shard", "codec": "bf16"},
            "'shard' with decay_skips = 'vectors' and codec_down = 'bf16'",
        ),
    ],
)
def test_what_the_leader_cannot_clip_or_skip_is_refused(values: dict[str, object], told: str) -> None:
    with pytest.raises(Misuse, match=told):
        Plan(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"pace": "async"},
        {"pace": "buffered", "topology": "tree"},
        {"topology": "tree", "codec": "top1%+ef"},
        {"topology": "shard", "codec": "top1%+ef", "codec_down": "dense"},
        {"trust": "robust"},
        {"trust": "robust(clip)", "topology": "tree"},
        {"trust": "sealed", **LOCAL},
        {"trust": "sealed", "topology": "shard", **LOCAL},
        {"trust": "private(8, 1e-5)", "cohort": 8, "clip_update": 0.5, **LOCAL},
        {"trust": "robust(clip) + sealed", "topology": "shard", "clip_update": 0.5, **LOCAL},
    ],
)
def test_the_leader_clips_and_skips_with_all_else(values: dict[str, object]) -> None:
    plan = Plan(clip_mean=1.0, decay_skips="vectors", **ADAMW, **values)  # type: ignore[arg-type]
    assert plan.is_stepped_by_leader


def test_a_last_window_of_fewer_batches_is_a_step() -> None:
    assert Plan(accumulate=3, lease_batches=8).accumulate == 3
    assert Plan(inner="adamw", accumulate=3, lease_batches=22).lease_batches == 22
    with pytest.raises(Misuse, match="after 7 of at least 8 steps"):
        Plan(inner="adamw", accumulate=3, lease_batches=21)


@pytest.mark.parametrize("ema", [-0.1, 1.0, 1.5, float("nan")])
def test_a_mean_of_versions_keeps_a_part_of_itself(ema: float) -> None:
    with pytest.raises(Misuse, match=r"set it to a number between 0 and 1, such as 0\.999, or leave it out"):
        Plan(ema=ema)


def test_a_chain_has_nobody_who_could_keep_a_mean_of_versions() -> None:
    with pytest.raises(Misuse, match=r"a chain of pairs has no leader that could keep the mean\. Leave ema out"):
        Plan(ema=0.9, topology="chain", data="local")


def test_a_mean_of_versions_is_not_evaluated_by_devices_new_examples() -> None:
    plan = Plan(ema=0.9, data="local")
    refused = bare_spec("job", plan, examples=0).why_not_new
    assert refused is not None
    assert "Give the task examples('test'), or leave ema out" in refused
    assert bare_spec("job", plan, examples=0, test_examples=10).why_not_new is None
    assert bare_spec("job", Plan(ema=0.9), examples=10).why_not_new is None


@pytest.mark.parametrize(
    "key",
    [
        {"sampling": "uniform", "cohort": 4},
        {"weights": "device"},
        {"accept_unusual": True},
        {"algorithm": "rules:Median"},
    ],
)
def test_agents_that_do_not_know_a_key_get_no_job_with_it(key: dict[str, object]) -> None:
    assert Plan(**key).needs_new_agents  # type: ignore[arg-type]
    assert not Plan().needs_new_agents
