"""Algorithms of a researcher's own, asked by the deployed leader in the simulator."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import Misuse
from shoal.learning.algorithm import AlgorithmState, UpdateFacts, WaitingDevice
from shoal.learning.algorithm_call import MergeQuestion, answered
from shoal.learning.layout import Layout
from shoal.sim.algorithms import with_algorithm
from shoal.sim.series import SeedSeries

sys.path.insert(0, str(Path(__file__).parent))
from experiments_task import Blobs

pytestmark = pytest.mark.timeout(240)

PLAN = shoal.Plan(
    data="local",
    pace="sync",
    workers_min=6,
    cohort=3,
    sampling="uniform",
    epoch_leases=6,
    lease_batches=2,
    batch_size=16,
    learning_rate=0.1,
    momentum=0.0,
    until=shoal.epochs(3),
)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(place))
        yield place


def simulated(algorithm: shoal.Algorithm | None = None, plan: shoal.Plan = PLAN, **changes: Any) -> SeedSeries:
    chosen = {"devices": 6, "partition": "dirichlet(0.5)", "progress": False, **changes}
    return shoal.simulate(Blobs(), plan=plan, algorithm=algorithm, **chosen)


def curve(series: SeedSeries) -> list[tuple[int, float | None, float | None]]:
    return [(point.version, point.accuracy, point.loss) for point in series.outcomes[0].evaluations]


class Mean(shoal.Algorithm):
    """FedAvg, written as a merge."""

    def merge(
        self, updates: np.ndarray, facts: Sequence[UpdateFacts], state: AlgorithmState
    ) -> tuple[np.ndarray, AlgorithmState]:
        assert updates.shape[0] == len(facts) == 3
        assert all(each.loss > 0 for each in facts)
        return np.average(updates, axis=0, weights=[each.examples for each in facts]), state


class Same(shoal.Algorithm):
    def finish(
        self, mean: Mapping[str, np.ndarray], state: AlgorithmState
    ) -> tuple[Mapping[str, np.ndarray], AlgorithmState]:
        assert set(mean) == {"weight", "bias"}
        return mean, state


class Counting(shoal.Algorithm):
    """Moves one weight by the number of the version, as its own state counts it."""

    def merge(
        self, updates: np.ndarray, facts: Sequence[UpdateFacts], state: AlgorithmState
    ) -> tuple[np.ndarray, AlgorithmState]:
        count = state.get("count", np.zeros(1)) + 1
        change = np.zeros(updates.shape[1])
        change[0] = 0.1 * count[0]
        return change, {"count": count}


class First(shoal.Algorithm):
    def __init__(self) -> None:
        self.asked: list[tuple[list[WaitingDevice], int]] = []

    def choose(self, candidates: Sequence[WaitingDevice], count: int, rng: np.random.Generator) -> Sequence[str]:
        self.asked.append((list(candidates), count))
        return sorted(each.node for each in candidates)[:count]


@pytest.fixture(scope="module")
def plain(home: Path) -> SeedSeries:
    return simulated()


@pytest.mark.full
def test_a_mean_that_is_written_as_an_algorithm_is_the_mean(plain: SeedSeries) -> None:
    for algorithm in (Mean(), Same()):
        found = simulated(algorithm)
        for (version, accuracy, loss), (other, accurate, lost) in zip(curve(found), curve(plain), strict=True):
            assert (version, accuracy) == (other, accurate)
            assert loss == pytest.approx(lost, abs=1e-5)
        assert found.to_plain()["algorithm"].startswith(type(algorithm).__name__)
        assert found.to_plain()["hash"] != plain.to_plain()["hash"]


def test_who_is_chosen_trains() -> None:
    algorithm = First()
    found = simulated(algorithm, dataclasses.replace(PLAN, sampling=""))
    assert found.outcomes[0].took_part == 3
    candidates, count = algorithm.asked[0]
    assert count == 3
    assert len(candidates) == 6
    assert all(each.examples and each.loss is None and each.trained_from is None for each in candidates)
    candidates, _ = algorithm.asked[-1]
    told = {each.node: each for each in candidates}
    assert told["w1"].loss is not None
    assert told["w1"].lease_s is not None
    assert told["w6"].loss is None


@pytest.mark.full
def test_state_moves_with_the_version_through_a_crash_of_the_leader() -> None:
    plan = dataclasses.replace(PLAN, checkpoint_every_s=0.05, until=shoal.epochs(5))
    calm = simulated(Counting(), plan)
    crashed = simulated(Counting(), plan, faults="crash(home, at=round(6), restart_s=5)")
    assert crashed.outcomes[0].state == "finished"
    # The model is 1 + 2 + ... after as many versions, whoever led.
    for series in (calm, crashed):
        version, _, loss = curve(series)[-1]
        assert version == 10
        assert loss == curve(calm)[-1][2]


class Wrong(shoal.Algorithm):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def merge(self, updates: np.ndarray, facts: Sequence[UpdateFacts], state: AlgorithmState) -> Any:
        return self.answer() if callable(self.answer) else self.answer


LAYOUT = Layout.of([("weight", (3, 4), "parameter"), ("bias", (3,), "parameter")])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (np.zeros(15), "no pair of a change and a state"),
        ((np.zeros(7), {}), r"a change of shape \(7,\): the model has 15 values"),
        ((np.full(15, np.nan), {}), "not finite"),
        (("x", {}), "not an array of numbers"),
        ((np.zeros(15), {"a": np.full(2, np.inf)}), "not finite"),
        ((np.zeros(15), {"a": np.zeros(100_000)}), "larger than 4 models"),
        ((np.zeros(15), {1: np.zeros(1)}), "names are texts"),
        (lambda: 1 / 0, "Wrong.merge raised ZeroDivisionError"),
    ],
)
def test_a_wrong_answer_is_refused_with_the_reason(answer: Any, reason: str) -> None:
    updates, facts = np.ones((1, 15), dtype=np.float32), (UpdateFacts(node="w1", examples=4, loss=0.5),)
    with pytest.raises(Misuse, match=reason):
        answered(Wrong(answer), LAYOUT, MergeQuestion(updates=updates, facts=facts), {})
    assert updates.all()


class Both(Mean, Same):
    pass


@pytest.mark.parametrize(
    ("algorithm", "changes", "reason"),
    [
        (shoal.Algorithm(), {}, "has none of the methods"),
        (Both(), {}, "put what finish does into merge"),
        (Mean(), {"trust": "sealed", "cohort": 8, "workers_min": 8, "epoch_leases": 8}, "nobody may"),
        (Same(), {"trust": "private(1, 1e-5)", "clip_update": 1.0}, "nobody may"),
        (First(), {"sampling": "", "trust": "private(1, 1e-5)", "clip_update": 1.0}, "nobody may"),
        (Mean(), {"trust": "robust"}, "leave one of them out"),
        (Mean(), {"topology": "tree"}, "set topology = 'star'"),
        (Same(), {"topology": "shard"}, "set topology = 'star' or 'tree'"),
        (Mean(), {"pace": "buffered", "buffer": 3, "cohort": 0, "sampling": ""}, "set pace = 'sync'"),
        (First(), {}, "leave sampling out"),
        (First(), {"sampling": "", "cohort": 0}, "set cohort"),
    ],
)
def test_an_algorithm_that_does_not_suit_the_plan_is_refused(
    algorithm: shoal.Algorithm, changes: dict[str, Any], reason: str
) -> None:
    plan = dataclasses.replace(PLAN, **changes)
    with pytest.raises(Misuse) as refused:
        with_algorithm(plan, algorithm)
    assert reason.lower() in str(refused.value).lower()


def test_a_refusal_comes_before_anything_is_trained() -> None:
    with pytest.raises(Misuse, match="Leave sampling out"):
        simulated(First())
