"""One device lies about its updates, in every pace, shape and codec, while everything else goes wrong: no lie is ever
in a model that is saved. The audit works each of them out on paper, and would see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dst.case import case
from dst.fuzz import CheckedRun
from shoal.learning.usual import Usual
from shoal.roles.actions import Evaluate, Train
from shoal.roles.events import EvaluationDone, Trained
from shoal.sim.driver.worker_driver import SimWorkerDriver
from shoal.sim.invariants import Invariants, Violation

SEEDS = range(40)
AT_ONCE = 8

LIAR = "w1"

#: How much longer than it is an update is said to be.
TIMES = 1e5

#: Leases of a term after which it lies: before, it may be the only one who was ever heard.
HONEST_LEASES = 40


@contextmanager
def lying() -> Iterator[list[int]]:
    """The leases that were lied about. Of a world with a liar nobody says that everyone in it is honest."""
    lies: list[int] = []
    result, begin = SimWorkerDriver._result, Invariants.__init__

    def lie(
        self: SimWorkerDriver, action: Train | Evaluate, model: np.ndarray, seconds: float, *learned: Any
    ) -> Trained | EvaluationDone:
        done = result(self, action, model, seconds, *learned)
        if self._around.process.node != LIAR or not isinstance(done, Trained) or action.lease <= HONEST_LEASES:
            return done
        lies.append(action.lease)
        return replace(done, tensors={"delta": done.tensors["delta"] * np.float32(TIMES)})

    def begun(self: Invariants, *given: object, **said: object) -> None:
        begin(self, *given, **{**said, "is_honest": False})  # type: ignore[arg-type]

    with patch.object(SimWorkerDriver, "_result", lie), patch.object(Invariants, "__init__", begun):
        yield lies


def played(seed: int) -> str:
    """Play a seed with a liar in it, and return what is wrong. A job whose only device lies may fail, or wait for
    others: nothing is wrong with that."""
    try:
        CheckedRun(case("plain", seed)).run()
    except Violation as violation:
        return "" if violation.args[0].startswith("at inf s: ") else str(violation)
    return ""


@pytest.mark.parametrize(
    "first",
    [
        *SEEDS[: 2 * AT_ONCE : AT_ONCE],
        *(pytest.param(first, marks=pytest.mark.full) for first in SEEDS[2 * AT_ONCE :: AT_ONCE]),
    ],
)
def test_no_lie_is_ever_saved(first: int) -> None:
    told = 0
    for seed in range(first, first + AT_ONCE):
        with lying() as lies:
            assert played(seed) == "", f"seed {seed}, {len(lies)} lies"
            told += len(lies)
    assert told > 0


def test_a_leader_that_believes_anything_is_caught() -> None:
    believes = patch.object(Usual, "judge", lambda *_, **__: None)
    tells_nobody = patch.object(Usual, "limit", lambda *_, **__: np.inf)
    with believes, tells_nobody, lying():
        assert any(played(seed) for seed in range(12))
