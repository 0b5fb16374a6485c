"""A task's own plan with what a person typed laid over it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from shoal.plan import Plan
from shoal.trainer.package import job_id, laid_over, plan_from
from shoal.wire.encoding import to_json


def laid(own: Plan, **typed: Any) -> Plan:
    return plan_from(laid_over(to_json(own), typed))


def test_what_is_typed_counts_and_the_rest_is_the_tasks() -> None:
    plan = laid(Plan(batch_size=8, momentum=0.5, outer_rate=0.7), batch_size=16)
    assert (plan.batch_size, plan.momentum, plan.outer_rate) == (16, 0.5, 0.7)


@pytest.mark.parametrize(
    ("own", "typed", "told"),
    [
        (Plan(), {"outer": "adamw"}, ("adamw", 1e-3, 0.9)),
        (Plan(outer="adamw"), {"outer": "sgd"}, ("sgd", 1.0, 0.9)),
        (Plan(outer="nesterov"), {"outer": "adagrad"}, ("adagrad", 1e-3, 0.0)),
        (Plan(outer="adagrad"), {"outer": "nesterov"}, ("nesterov", 1.0, 0.9)),
        (Plan(outer="adam", pace="async"), {"outer": "yogi"}, ("yogi", 1e-3, 0.0)),
        # A number that the task's plan says on purpose stays.
        (Plan(outer="adam", outer_rate=0.02, momentum=0.8), {"outer": "yogi"}, ("yogi", 0.02, 0.8)),
        (Plan(), {"outer": "adam", "outer_rate": 0.03, "momentum": 0.7}, ("adam", 0.03, 0.7)),
        (Plan(outer="nesterov", outer_rate=0.7), {"outer": "sgd"}, ("sgd", 0.7, 0.9)),
    ],
)
def test_another_outer_step_brings_the_numbers_that_suit_it(
    own: Plan, typed: dict[str, Any], told: tuple[str, float, float]
) -> None:
    plan = laid(own, **typed)
    assert (plan.outer, plan.outer_rate, plan.momentum) == told


def test_the_id_of_a_job_is_its_name_as_people_type_it_and_a_few_letters() -> None:
    assert re.fullmatch(r"my-task-[0-9a-f]{4}", job_id("My Task!"))
    assert re.fullmatch(r"job-[0-9a-f]{8}", job_id("!", letters=8))
