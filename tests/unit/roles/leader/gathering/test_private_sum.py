"""A leader of a private job: updates cut and counted alike, noise that is never drawn again, nobody asked too often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from leader_story import Story

from shoal.compress.sparse import Sparse
from shoal.errors import Misuse
from shoal.learning.blt import coefficients
from shoal.learning.privacy import Privacy
from shoal.plan import epochs
from shoal.roles.leader.gathering.private_sum import PrivateSum, no_chance
from shoal.wire.messages import DeviceState, JobSpec, Ready, UpdateRefused, Work

Make = Callable[..., JobSpec]
SIZE = 2
PRIVACY = Privacy(epsilon=8.0, delta=1e-5, clip=2.0, devices=4, participations=3, apart=2, versions=6)


class Chance:
    """Normals of a seed, and how often they were drawn."""

    def __init__(self, seed: int = 7) -> None:
        self._generator = np.random.default_rng(seed)
        self.drawn: list[np.ndarray] = []

    def __call__(self, size: int) -> np.ndarray:
        self.drawn.append(self._generator.standard_normal(size, dtype=np.float32))
        return self.drawn[-1]


def quiet(size: int) -> np.ndarray:
    return np.zeros(size, np.float32)


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_each_device_counts_as_one_and_the_sum_is_divided_by_what_the_plan_says() -> None:
    private = PrivateSum(SIZE, PRIVACY, quiet)
    private.add("a", vector(1, 0), weight=640, scale=1.0)
    private.add("b", vector(0, 1), weight=1, scale=0.5)
    # It is longer than it may be: its device lies, or is broken.
    private.add("c", vector(0, 200), weight=1, scale=7.0)
    private.add("d", Sparse(2, np.array([0], np.int64), vector(10)), weight=1, scale=1.0)
    mean, down = private.mean()
    np.testing.assert_allclose(mean, [(1 + 2) / 4, (0.5 + 2) / 4], rtol=1e-5)
    assert (down, private.devices, private.weight) == ([], 4, 643.0)
    private.clear()
    private.add("a", vector(1, 0), weight=1, scale=1.0)
    # One came, and the sum is divided by four all the same: how many came is not told by how far the model moves.
    np.testing.assert_allclose(private.mean()[0], [0.25, 0.0])


def test_a_device_is_in_a_version_once() -> None:
    private = PrivateSum(SIZE, PRIVACY, quiet)
    private.add("a", vector(1, 0), weight=1, scale=1.0)
    with pytest.raises(Misuse, match="its account would not hold"):
        private.add("a", vector(1, 0), weight=1, scale=1.0)


def test_a_sum_of_aggregators_is_of_devices_that_count_as_one_each() -> None:
    private = PrivateSum(SIZE, PRIVACY, quiet)
    private.take(vector(0.5, 0.5), ["a", "b"], weight=64)
    private.add("c", vector(0, 1), weight=32, scale=1.0)
    np.testing.assert_allclose(private.mean()[0], [1 / 4, 2 / 4], rtol=1e-6)
    assert (private.devices, private.weight) == (3, 96.0)
    for again in (
        lambda: private.take(vector(0, 0), ["d", "b"], weight=1),
        lambda: private.take(vector(0, 0), ["c"], weight=1),
    ):
        with pytest.raises(Misuse, match="its account would not hold"):
            again()
    private.clear()
    # No mean of updates that were cut is as long: its aggregator lies.
    private.take(vector(0, 200), ["a", "b"], weight=1)
    np.testing.assert_allclose(private.mean()[0], [0, 2 * 2 / 4], rtol=1e-6)


def test_noise_is_that_of_a_chain_as_long_as_the_plan() -> None:
    chance = Chance()
    private, seen = PrivateSum(SIZE, PRIVACY, chance), []
    for _ in range(PRIVACY.versions):
        private.add("a", vector(0, 0), weight=1, scale=1.0)
        seen.append(private.mean()[0])
        private.clear()
    column = coefficients(PRIVACY.versions)
    lower = np.array([[column[row - at] if row >= at else 0 for at in range(6)] for row in range(6)])
    wanted = np.linalg.solve(lower, np.array(chance.drawn, np.float64)) * PRIVACY.deviation / PRIVACY.devices
    np.testing.assert_allclose(np.array(seen), wanted, atol=1e-5)
    assert private.is_over
    assert len({tuple(each) for each in chance.drawn}) == 6


def test_a_leader_without_chance_leads_no_private_job() -> None:
    private = PrivateSum(SIZE, PRIVACY, no_chance)
    private.add("a", vector(1, 0), weight=1, scale=1.0)
    with pytest.raises(Misuse, match="no chance"):
        private.mean()


# A leader -----------------------------------------------------------------------------------------------------------


def story(make_spec: Make, **plan: Any) -> Story:
    given = {"trust": "private(8, 1e-5)", "data": "local", "cohort": 2, "clip_update": 2.0, "until": epochs(3)}
    given |= {"epoch_leases": 8, "participations": 3, "apart": 2, "workers_min": 4}
    term, normals = plan.pop("term", 1), plan.pop("normals", quiet)
    return Story(make_spec(**{**given, **plan}), term=term, normals=normals)


ALL = ("a", "b", "c", "d")


def account(left: int, *, version: int | None = None, came: int = 0, spent: float = 0.0) -> DeviceState:
    given = {"participations": came, "participations_left": left, "spent": spent, "spent_version": version}
    return DeviceState(examples=100, **given)  # type: ignore[arg-type]


def comes(told: Story, *nodes: str, left: int = 3, **said: Any) -> None:
    """They are ready; what is heard is what all of them were told."""
    heard = []
    for node in nodes:
        heard += told.says(node, Ready(job="digits", state=account(left, **said)))
    told.actions = heard


def test_a_device_comes_again_when_its_versions_are_over(make_spec: Make) -> None:
    told = story(make_spec)
    comes(told, "a", "b", "c", "d")
    works = {node: told.work(node) for node in ("a", "b")}
    assert not told.told("c", Work)
    told.update("a", works["a"], 1, 1, state=account(2, version=0, came=1, spent=0.5))
    told.update("b", works["b"], 1, 1, state=account(2, version=0, came=1, spent=0.4))
    assert told.leader.version == 1
    assert told.model == [1.0, 1.0]
    # Those that came for version 1 come for version 3 at the earliest.
    works = {node: told.work(node) for node in ("c", "d")}
    told.update("c", works["c"], 1, 1, state=account(2, version=1, came=1))
    told.update("d", works["d"], 1, 1, state=account(2, version=1, came=1))
    assert [told.work(node).version for node in ("a", "b")] == [2, 2]
    progress = told.progress
    assert progress.participations_worst == 1
    assert 0 < progress.epsilon_worst < progress.epsilon < 8
    assert progress.train_loss is None


def test_a_refused_update_is_a_participation_too(make_spec: Make) -> None:
    told = story(make_spec)
    comes(told, *ALL)
    told.update("a", told.work("a"), np.nan, 1, state=account(2, version=0, came=1))
    assert told.told("a", UpdateRefused)
    assert told.told("c", Work)
    told.says("a", Ready(job="digits", state=account(2, version=0, came=1)))
    told.lost("c")
    told.lost("d")
    told.says("d", Ready(job="digits", state=account(3)))
    assert not told.told("a", Work)


def test_a_device_that_is_spent_is_not_asked_and_a_job_of_such_devices_is_over(make_spec: Make) -> None:
    told = story(make_spec)
    comes(told, *ALL, left=0, came=3)
    assert not told.told("a", Work)
    assert "each of the 4 devices here has taken part as often" in told.records("end.decided")[0]


def test_what_a_device_said_to_the_leader_before_holds_in_its_term_alone(make_spec: Make) -> None:
    told = story(make_spec)
    comes(told, "a", version=5)
    comes(told, "b", "c", "d")
    assert told.told("b", Work)
    assert not told.told("a", Work)


def test_versions_in_which_nobody_may_take_part_are_passed_over(make_spec: Make) -> None:
    chance = Chance()
    told = story(make_spec, normals=chance)
    # Their updates of version 3 left, and never came: the version after that which they may be in is the sixth.
    comes(told, *ALL, version=3)
    assert told.work("a").version == 5
    assert told.model == [0.0, 0.0]
    assert len(told.records("version.skipped")) == len(chance.drawn) == 5
    told.update("a", told.work("a"), 1, 1, state=account(2, version=5))
    assert told.leader.version == 5


def test_a_device_that_is_alone_and_was_refused_comes_again(make_spec: Make) -> None:
    told = story(make_spec, workers_min=1, apart=1, participations=9)
    comes(told, "a")
    told.update("a", told.work("a"), np.nan, 1, state=account(5, version=0))
    assert told.work("a").version == 1


def test_a_leader_makes_no_version_that_has_no_noise(make_spec: Make) -> None:
    # A version is for two devices and one comes: there are twice as many versions, and noise for two an epoch.
    told = story(make_spec, epoch_leases=4, until=epochs(1), apart=1, participations=9, workers_min=1)
    comes(told, "a")
    for _ in range(2):
        told.update("a", told.work("a"), 1, 1, state=account(5))
    assert told.leader.version == 2
    assert "the plan's noise is for 2 versions" in told.records("end.decided")[0]


def test_going_back_draws_noise_and_drops_it_and_a_new_leader_begins_a_chain(make_spec: Make) -> None:
    chance = Chance()
    told = story(make_spec, normals=chance)
    comes(told, *ALL)
    works = {node: told.work(node) for node in ("a", "b")}
    for node, work in works.items():
        told.update(node, work, 1, 1, state=account(2, version=0))
    training = told.leader._training
    assert (training.version, training.noised, len(chance.drawn)) == (1, 1, 1)
    training.go_back()
    assert (training.version, training.noised, len(chance.drawn)) == (2, 2, 2)
    again = story(make_spec, term=2)
    again.leader.restore(tensors=told.leader._snapshot()[0], state=told.leader._snapshot()[1])
    assert (again.leader.version, again.leader._training.noised) == (2, 0)
    assert again.progress.epsilon == pytest.approx(8.0), "chains before it count in full"


def test_the_worst_device_is_remembered_by_the_next_leader(make_spec: Make) -> None:
    told = story(make_spec)
    comes(told, "a", "b", spent=0.7, came=2, left=1)
    assert told.progress.participations_worst == 2
    tensors, state = told.leader._snapshot()
    assert state["spent"] == [0.7, 2]
    again = story(make_spec, term=2)
    again.leader.restore(tensors=tensors, state=state)
    assert again.progress.participations_worst == 2
    assert "spent" not in Story(make_spec()).leader._snapshot()[1]
    # What no honest account comes to is not shown.
    comes(told, "c", spent=1e9, came=2, left=1)
    assert told.progress.epsilon_worst < 8
