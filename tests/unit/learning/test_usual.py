"""How large an update may be: by those before it, by the model, and by the first ones of others."""

from __future__ import annotations

import json

import pytest

from shoal.learning.usual import ENOUGH, FIRST_DEVICES, MULTIPLE, PUT_OFF_MAX, REACH_LEAST, WINDOW, Usual


def known(size: float, *, steps: int = 1, count: int = ENOUGH) -> Usual:
    usual = Usual()
    for _ in range(count):
        usual.accepted(size, steps=steps)
    return usual


def is_early(usual: Usual, node: str, norm: float, *, devices: int = 3, model_norm: float = 0.0) -> bool | None:
    unusual = usual.judge(node, norm, steps=1, model_norm=model_norm, devices=devices)
    return None if unusual is None else unusual.is_early


def test_an_update_is_held_to_a_multiple_of_the_median() -> None:
    usual = known(1.0)
    assert is_early(usual, "a", MULTIPLE) is None
    assert is_early(usual, "a", 1.01 * MULTIPLE) is False
    unusual = usual.judge("a", 9e5, steps=1, model_norm=8.0, devices=3)
    assert unusual is not None
    assert unusual.reason == "an update of norm 9e+05, 9e+05 times what is usual; at most 100 is merged"


def test_some_large_ones_do_not_raise_what_is_usual() -> None:
    usual = known(1.0, count=WINDOW)
    for _ in range(WINDOW // 2 - 1):
        usual.accepted(MULTIPLE, steps=1)
    assert is_early(usual, "a", 2 * MULTIPLE) is False


def test_it_follows_a_training_whose_updates_grow() -> None:
    # Ten times as large every twenty updates: the median lags by half a window, 32 of them.
    usual, norm = known(1e-3, count=WINDOW), 1e-3
    for _ in range(10 * WINDOW):
        norm *= 10 ** (1 / 20)
        assert is_early(usual, "a", norm, model_norm=1.0) is None
        usual.accepted(norm, steps=1)


def test_a_converged_model_does_not_make_a_hard_batch_a_lie() -> None:
    # A tenth of the model's norm: measured outliers among tiny updates are below that, and none of them did harm.
    usual = known(1e-6)
    assert is_early(usual, "a", 5.0, model_norm=50.0) is None
    assert is_early(usual, "a", 5.1, model_norm=50.0) is False
    assert is_early(usual, "a", REACH_LEAST / 10, model_norm=0.0) is None


def test_a_longer_lease_may_bring_a_longer_update() -> None:
    usual = known(1.0, steps=4)
    # One step is usually half as long as four.
    assert usual.judge("a", MULTIPLE / 2, steps=1, model_norm=0.0, devices=2) is None
    assert usual.judge("a", 0.51 * MULTIPLE, steps=1, model_norm=0.0, devices=2) is not None
    assert usual.judge("a", 2 * MULTIPLE, steps=16, model_norm=0.0, devices=2) is None


def test_the_first_update_is_held_to_the_model_until_others_are_heard() -> None:
    usual = Usual()
    assert is_early(usual, "evil", 9e5, model_norm=8.0) is True
    assert is_early(usual, "a", 0.1, model_norm=8.0) is None
    assert is_early(usual, "b", 0.1, model_norm=8.0) is None
    # Three devices are heard: the median is an honest one's, and what one sends again is compared with that.
    assert is_early(usual, "evil", 5.0, model_norm=8.0) is None
    assert is_early(usual, "evil", 11.0, model_norm=8.0) is False


def test_where_all_first_updates_are_large_that_is_usual() -> None:
    usual = Usual()
    answers = [is_early(usual, node, norm) for node, norm in (("a", 900.0), ("b", 1100.0), ("c", 1000.0))]
    assert answers == [True, True, None]
    assert is_early(usual, "a", 900.0) is None


@pytest.mark.parametrize("devices", [1, 2])
def test_few_devices_are_put_off_and_then_decide(devices: int) -> None:
    assert devices < FIRST_DEVICES
    usual = Usual()
    answers = [is_early(usual, f"d{turn % devices}", 1000.0, devices=devices) for turn in range(PUT_OFF_MAX + 1)]
    assert answers == [True] * PUT_OFF_MAX + [None]


def test_what_is_told_to_aggregators_is_no_less_than_any_lease_may_bring() -> None:
    usual = known(2.0, steps=4)
    assert usual.limit(model_norm=0.0) == 2.0 * MULTIPLE
    usual.accepted(1.0, steps=16)
    assert usual.limit(model_norm=0.0) == pytest.approx(1.0 * MULTIPLE * 4)
    assert usual.limit(model_norm=1e5) == 1e4
    assert Usual().limit(model_norm=1.0) == float("inf")


def test_a_new_leader_knows_what_is_usual() -> None:
    usual = known(0.3, steps=2)
    again = Usual.restored(json.loads(json.dumps(usual.snapshot())))
    assert again.snapshot() == usual.snapshot()
    assert is_early(again, "evil", 1e3) is False
    for nonsense in (None, [], {"recent": "x", "steps": -1}, {"recent": [None, -1, float("inf")], "steps": 2.5}):
        assert Usual.restored(nonsense).limit(model_norm=1.0) == float("inf")
