"""Trust is earned slowly and lost at once; replicas are settled by agreement, by a check, by votes."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.offload.trust import CheckRecord, SpotChecks, settle, unseen

A, B = np.zeros(3, np.float32), np.ones(3, np.float32)


def test_checks_become_rarer_and_one_bad_result_ends_that() -> None:
    policy = SpotChecks(least=1 / 8, halved_every=10, excluded_after=2)
    standing = CheckRecord()
    seen = []
    for _ in range(50):
        seen.append(policy.chance(standing))
        standing = policy.after(standing, held=True)
    assert seen[0] == seen[9] == 1.0
    assert seen[10] == 0.5
    assert seen[20] == 0.25
    assert seen[30] == seen[49] == 1 / 8
    standing = policy.after(standing, held=False, reason="row 3")
    assert policy.chance(standing) == 1.0
    assert (standing.caught, standing.excluded, standing.reason, standing.checked) == (1, False, "row 3", 51)
    assert policy.after(standing, held=False).excluded


def test_by_default_everything_is_checked_and_a_liar_is_out() -> None:
    policy = SpotChecks()
    assert policy.chance(CheckRecord(held=10**6)) == 1.0
    assert policy.after(CheckRecord(held=7), held=False).excluded


def test_a_draw_below_the_chance_is_a_check() -> None:
    policy = SpotChecks(least=0.25, halved_every=1)
    assert policy.checks(CheckRecord(held=9), draw=0.2)
    assert not policy.checks(CheckRecord(held=9), draw=0.25)
    assert policy.checks(CheckRecord(), draw=0.999)


def test_many_lies_do_not_stay_unseen() -> None:
    assert unseen(1 / 16, lies=16) == pytest.approx(0.356, abs=1e-3)
    assert unseen(1 / 16, lies=100) == pytest.approx(0.0016, abs=1e-4)
    assert unseen(1.0, lies=1) == 0.0


def test_a_policy_that_checks_nothing_is_refused() -> None:
    with pytest.raises(Misuse):
        SpotChecks(least=0.0)


def test_votes_name_who_differs() -> None:
    settled = settle({"c": A, "a": A, "b": B})
    assert settled.value is A or (settled.value is not None and settled.value.tolist() == A.tolist())
    assert settled.liars == ("b",)
    assert settle({"a": A, "b": B}).value is None
    assert settle({"a": A, "b": A}).reason == "2 of 2 agree"
    with pytest.raises(Misuse):
        settle({})


def test_colluders_outvote_the_honest_but_not_the_check() -> None:
    replicas = {"honest": A, "liar": B, "accomplice": B}
    assert settle(replicas).liars == ("honest",)  # what votes are worth
    settled = settle(replicas, holds=lambda result: not result.any())
    assert settled.value is not None
    assert settled.value.tolist() == A.tolist()
    assert settled.liars == ("accomplice", "liar")
    nothing = settle({"liar": B, "other": 2 * B}, holds=lambda result: not result.any())
    assert nothing.value is None
    assert nothing.liars == ("liar", "other")
