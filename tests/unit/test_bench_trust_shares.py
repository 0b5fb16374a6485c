"""The audit of noise in shares: it finds a leak where there is one, and none where the account says so."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.trust import load
from benchmarks.trust_private import Handwriting
from benchmarks.trust_shares import DELTA, EPSILON, audit, bound_of, cost


def test_what_guesses_are_worth() -> None:
    rng = np.random.default_rng(5)
    no, same, yes = rng.normal(0, 1, 400), rng.normal(0, 1, 400), rng.normal(9, 1, 400)
    # Right 400 times of 400: with 97.5 % confidence as often as 0.025^(1/400) says, 0.9908, and wrong as seldom.
    assert bound_of(no, yes, level=4.5) == pytest.approx(np.log((0.9908 - DELTA) / 0.0092), rel=0.01)
    assert bound_of(no, same, level=0.0) < 0.3
    # One guess of four is wrong: ln 3 is what there is, and a little less is certain.
    quarter = np.r_[np.zeros(100), np.ones(300)]
    assert 0.8 < bound_of(1 - quarter, quarter, level=0.5) < np.log(3)


def test_noise_of_devices_costs_a_little_more_than_a_leaders() -> None:
    told = cost(2000)
    assert 1.0 < told["shares_to_leader_noise"] < 1.1
    assert told["shares_whole_to_smallest"] == pytest.approx((50 / 30) ** 0.5)


@pytest.mark.timeout(600)
def test_an_auditor_of_real_trainings_stays_below_the_account() -> None:
    """Trainings with and without one writer. Without noise the auditor is sure of more than the plan states."""
    folder = Path(os.environ.get("SHOAL_DATA", "/nowhere")) / "mnist"
    if not folder.exists():
        pytest.skip("MNIST is not in SHOAL_DATA")
    digits = load(folder)
    told = audit(Handwriting(digits.images, digits.labels, digits.writers), trainings=60)
    assert told["audit_stated"] == EPSILON
    assert told["audit_epsilon"] <= EPSILON < told["audit_without_noise"]
