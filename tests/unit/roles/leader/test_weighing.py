"""Updates weighed against each other: one voice a device, liars outvoted and named, a version that is still made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from leader_story import Story

from shoal.compress.sparse import Sparse
from shoal.roles.leader.weighing import (
    ClippedWeighing,
    NearestWeighing,
    Reputations,
    WeighedDown,
    in_memory,
    weighing_of,
)
from shoal.trust import Trust
from shoal.wire.messages import JobSpec, Work

SIZE = 6


def nearest(share: float = 0.2) -> NearestWeighing:
    return NearestWeighing(SIZE, share=share, room=in_memory)


def honest(rng: np.random.Generator) -> np.ndarray:
    return (1 + 0.1 * rng.standard_normal(SIZE)).astype(np.float32)


def test_a_liar_is_outvoted_and_named() -> None:
    rng, weighing = np.random.default_rng(0), nearest()
    for number in range(9):
        weighing.add(f"d{number}", honest(rng), weight=64.0, scale=1.0)
    weighing.add("liar", -10 * honest(rng), weight=64.0, scale=1.0)
    mean, down = weighing.mean()
    np.testing.assert_allclose(mean, 1.0, atol=0.15)
    assert [each.node for each in down] == ["liar"]
    assert "as far from the others as half of 10 devices" in down[0].reason
    assert (weighing.devices, weighing.weight) == (10, 640.0)
    weighing.clear()
    assert (weighing.devices, weighing.weight) == (0, 0.0)


def test_more_examples_are_no_louder() -> None:
    rng, weighing = np.random.default_rng(1), nearest()
    for number in range(4):
        weighing.add(f"d{number}", honest(rng), weight=1.0, scale=1.0)
    weighing.add("liar", -honest(rng), weight=1e6, scale=1.0)
    np.testing.assert_allclose(weighing.mean()[0], 1.0, atol=0.3)


def test_a_device_that_comes_often_has_one_voice() -> None:
    rng, weighing = np.random.default_rng(2), nearest()
    for number in range(4):
        weighing.add(f"d{number}", honest(rng), weight=1.0, scale=1.0)
    for _ in range(20):
        weighing.add("liar", np.full(SIZE, -3, dtype=np.float32), weight=1.0, scale=1.0)
    assert weighing.devices == 5
    assert [each.node for each in weighing.mean()[1]] == ["liar"]
    np.testing.assert_allclose(weighing.mean()[0], 1.0, atol=0.3)


def test_two_updates_of_a_device_are_their_mean() -> None:
    weighing = nearest()
    one, other = np.full(SIZE, 2, np.float32), np.full(SIZE, 5, np.float32)
    weighing.add("d", one, weight=1.0, scale=0.5)
    weighing.add("d", other, weight=2.0, scale=1.0)
    np.testing.assert_allclose(weighing.mean()[0], (1 + 2 * 5) / 3, rtol=1e-6)


def test_sparse_updates_are_compared_as_what_they_stand_for() -> None:
    weighing = nearest()
    for number in range(5):
        places = np.array([number % 2, 3], dtype=np.int64)
        weighing.add(f"d{number}", Sparse(SIZE, places, np.ones(2, np.float32)), weight=1.0, scale=1.0)
    mean, _ = weighing.mean()
    assert mean[3] == pytest.approx(1.0)
    assert mean[:2].sum() == pytest.approx(1.0)
    assert mean[4] == mean[5] == 0


def test_room_grows_with_devices_and_is_used_again() -> None:
    asked: list[int] = []

    def room(rows: int, size: int) -> np.ndarray:
        asked.append(rows)
        return in_memory(rows, size)

    weighing = NearestWeighing(SIZE, share=0.2, room=room)
    for _ in range(3):
        for number in range(40):
            weighing.add(f"d{number}", np.full(SIZE, number, np.float32), weight=1.0, scale=1.0)
        weighing.mean()
        weighing.clear()
    assert asked == [16, 32, 64]


def test_what_lies_far_is_cut_back_to_what_is_usual() -> None:
    clip = ClippedWeighing(1)
    for number in range(5):
        clip.add(f"d{number}", np.array([1.0], np.float32), weight=1.0, scale=1.0)
    mean, down = clip.mean()
    assert (mean.tolist(), down) == ([1.0], [])
    clip.clear()
    # The centre is 1 now, and the usual distance from zero was 1.
    for number in range(4):
        clip.add(f"d{number}", np.array([1.5], np.float32), weight=1.0, scale=1.0)
    clip.add("d4", np.array([-9.0], np.float32), weight=1.0, scale=1.0)
    mean, down = clip.mean()
    # d4 counts as 1 - 1 = 0.
    assert mean[0] == pytest.approx((4 * 1.5 + 0) / 5)
    assert [(each.node, "10 times as far as is usual" in each.reason) for each in down] == [("d4", True)]


def test_what_is_usual_is_one_voice_a_device() -> None:
    clip = ClippedWeighing(1)
    for number in range(4):
        clip.add(f"d{number}", np.array([1.0], np.float32), weight=1.0, scale=1.0)
    for _ in range(50):
        clip.add("liar", np.array([1000.0], np.float32), weight=1.0, scale=1.0)
    clip.clear()
    assert clip._radius == pytest.approx(1.0)


def test_sparse_and_dense_lie_as_far() -> None:
    def clip() -> ClippedWeighing:
        made = ClippedWeighing(SIZE)
        made._centre = np.arange(SIZE, dtype=np.float32)
        return made

    one, other = clip(), clip()
    sparse = Sparse(SIZE, np.array([1, 4], dtype=np.int64), np.array([3, -2], np.float32))
    one.add("d", sparse, weight=1.0, scale=0.5)
    other.add("d", sparse.dense(), weight=1.0, scale=0.5)
    assert one._distances["d"] == pytest.approx(other._distances["d"])


def test_a_device_is_named_at_once_and_then_ever_more_seldom() -> None:
    reputations, down = Reputations(), [WeighedDown("liar", "far away")]
    told = [bool(reputations.on_version(version, down)) for version in range(1, 10)]
    assert told == [True, True, False, True, False, False, False, True, False]
    assert reputations.now == {"liar": "weighed down in version 9, 9 times so far: far away"}
    assert reputations.on_version(10, []) == []
    assert reputations.now == {}


def test_who_believes_everyone_weighs_nothing() -> None:
    assert weighing_of(Trust.parse("identity"), SIZE) is None


# A leader ------------------------------------------------------------------------------------------------------

WORKERS = ("a", "b", "c", "d", "e")


def story(make_spec: Callable[..., JobSpec], **plan: object) -> Story:
    plan = {"trust": "robust", "worker_momentum": 0.0, "momentum": 0.0, "examples": 40} | plan
    return Story(make_spec(**plan))


def works(told: Story, *nodes: str) -> dict[str, Work]:
    return {node: told.work(node) for node in nodes}


def test_a_job_waits_until_there_are_devices_to_compare(make_spec: Callable[..., JobSpec]) -> None:
    told = story(make_spec)
    told.ready("a", "b")
    assert not told.told("a", Work)
    told.ready("c")
    assert told.told("a", Work)
    assert told.told("c", Work)


def test_a_version_is_what_most_say_and_the_liar_is_named(make_spec: Callable[..., JobSpec]) -> None:
    told = story(make_spec)
    told.ready(*WORKERS)
    lent = works(told, *WORKERS)
    for number, node in enumerate(WORKERS[:4]):
        told.update(node, lent[node], 1 + number / 100, 1 - number / 100)
    told.update("e", lent["e"], -5, -5)
    assert told.leader.version == 1
    np.testing.assert_allclose(told.model, 1.0, atol=0.15)
    (record,) = told.records("update.down-weighted")
    assert record.startswith("e is weighed down in version 1: counts")
    views = {view.node: view.reason for view in told.progress.workers}
    assert "weighed down in version 1" in views["e"]
    assert "weighed down" not in views["a"]


def test_a_buffer_is_of_different_devices(make_spec: Callable[..., JobSpec]) -> None:
    told = story(make_spec, pace="buffered", buffer=3)
    told.ready(*WORKERS)
    lent = works(told, *WORKERS)
    told.update("e", lent["e"], -5, -5)
    for _ in range(4):
        told.update("e", told.work("e"), -5, -5)
    assert told.leader.version == 0, "one device, five times"
    told.update("a", lent["a"], 1, 1)
    assert told.leader.version == 0
    told.update("b", lent["b"], 1, 1.01)
    assert told.leader.version == 1
    np.testing.assert_allclose(told.model, 1.0, atol=0.3)


def test_a_buffer_of_more_than_there_are_is_of_all(make_spec: Callable[..., JobSpec]) -> None:
    told = story(make_spec, pace="buffered", buffer=5)
    told.ready("a", "b", "c")
    lent = works(told, "a", "b", "c")
    for node in ("a", "b", "c"):
        told.update(node, lent[node], 1, 1)
    assert told.leader.version == 0
    lent["c"] = told.work("c")
    told.update("c", lent["c"], 1, 1)
    assert told.leader.version == 0
    told.update("c", told.work("c"), 1, 1)
    assert told.leader.version == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_nonsense_is_refused_as_ever(make_spec: Callable[..., JobSpec], value: float) -> None:
    told = story(make_spec)
    told.ready(*WORKERS)
    told.update("e", told.work("e"), value, 1)
    assert told.records("update.rejected")
    assert told.leader._training._weighing is not None
    assert told.leader._training._weighing.devices == 0


def test_clipping_works_at_every_update(make_spec: Callable[..., JobSpec]) -> None:
    told = story(make_spec, trust="robust(clip)", pace="async")
    told.ready(*WORKERS)
    lent = works(told, *WORKERS)
    for node in WORKERS[:4]:
        told.update(node, lent[node], 0.1, 0.1)
    before = np.array(told.model)
    told.update("e", lent["e"], -8, -8)
    assert told.records("update.down-weighted")
    assert np.linalg.norm(np.array(told.model) - before) < 0.3
