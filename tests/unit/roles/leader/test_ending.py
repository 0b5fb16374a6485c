"""How a job ends: what was decided first counts, then its metrics, then its epochs; its time at any moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from shoal.roles.leader.ending import Ending
from shoal.roles.leader.training_state import TrainingState
from shoal.roles.machine import Machine
from shoal.until import Until
from shoal.wire.messages import EvaluationView


@dataclass
class Ledger:
    epoch: int = 0


@dataclass
class Training:
    """As much of the training as an ending reads."""

    elapsed_s: float = 0.0
    is_evaluated: bool = False
    evaluations: list[EvaluationView] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def latest(self) -> EvaluationView | None:
        return self.evaluations[-1] if self.evaluations else None

    def judged(self, accuracy: float | None) -> None:
        view = EvaluationView(version=1, epoch=1, accuracy=accuracy, loss=0.5, examples=9, seconds=1.0)
        self.evaluations.append(view)
        self.is_evaluated = True


def ending(until: Until) -> tuple[Ending, Training, list[tuple[str, str]]]:
    machine, training = Machine(), Training()
    noted: list[tuple[str, str]] = []
    machine.record = lambda kind, reason, **_: noted.append((kind, reason))  # type: ignore[method-assign]
    return Ending(machine, until, cast(TrainingState, training)), training, noted


def test_a_job_continues_until_its_epochs_are_done() -> None:
    end, training, _ = ending(Until(epochs=2))
    assert end.after_epoch() is None
    training.ledger.epoch = 2
    assert end.after_epoch() == ("finished", "2 of 2 epochs")
    assert end.decided is None, "the leader may have to wait for other things"


def test_a_goal_that_is_reached_counts_before_epochs() -> None:
    end, training, _ = ending(Until(epochs=1, accuracy=0.9))
    training.ledger.epoch = 1
    training.judged(0.95)
    assert end.after_epoch() == ("finished", "reached 95.00%, the goal was 90.00%")
    training.is_evaluated = False
    assert end.after_epoch() == ("finished", "1 of 1 epochs"), "that was another version"


def test_a_goal_that_no_evaluation_has_is_reported_once() -> None:
    end, training, noted = ending(Until(accuracy=0.9))
    training.judged(None)
    assert end.after_epoch() is None
    assert end.after_epoch() is None
    [(kind, reason)] = noted
    assert kind == "goal.unmeasured"
    assert reason.startswith("the job is to end by accuracy")


def test_the_time_of_a_job_is_over_at_any_moment() -> None:
    end, training, _ = ending(Until(epochs=9, seconds=60.0))
    training.elapsed_s = 59.9
    assert end.by_time() is None
    training.elapsed_s = 60.0
    over = ("finished", "the time limit of 60 s is over")
    assert end.by_time() == over
    assert end.after_epoch() == over, "what was decided is not decided again"
    endless, training, _ = ending(Until(epochs=9))
    training.elapsed_s = 1e9
    assert endless.by_time() is None


@pytest.mark.parametrize("decided", [None, ("stopped", "by ann")])
def test_what_was_decided_survives_a_restart(decided: tuple[str, str] | None) -> None:
    before, _, _ = ending(Until(epochs=9))
    before.decided = decided
    after, _, _ = ending(Until(epochs=9))
    after.restore(before.snapshot())
    assert after.decided == decided
    assert after.or_failed("no worker is left") == (decided or ("failed", "no worker is left"))
