"""A question and its answer between a leading node and its algorithm's process, which may lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.learning.algorithm import UpdateFacts, WaitingDevice
from shoal.learning.algorithm_call import AlgorithmAnswer, ChooseQuestion, MergeQuestion
from shoal.learning.layout import Layout
from shoal.trainer.algorithm_wire import read_answer, read_question, write_answer, write_question

LAYOUT = Layout.of([("weight", (2, 3), "parameter")])
MERGE = MergeQuestion(
    updates=np.arange(12, dtype=np.float32).reshape(2, 6),
    facts=(UpdateFacts(node="a", examples=1, loss=0.5), UpdateFacts(node="b", examples=2, loss=float("nan"))),
)
STATE = {"made": np.ones((2, 2), np.float32), "number": np.float32(3).reshape(())}


@pytest.fixture
def asked() -> Iterator[tuple[dict[str, Any], int]]:
    message, fd = write_question(MERGE, STATE, LAYOUT)
    yield message, fd
    os.close(fd)


def test_a_question_and_its_answer_come_as_they_were(asked: tuple[dict[str, Any], int]) -> None:
    message, fd = asked
    question, state = read_question(message, fd, LAYOUT)
    assert isinstance(question, MergeQuestion)
    np.testing.assert_array_equal(question.updates, MERGE.updates)
    assert [fact.loss for fact in question.facts] == [0.5, 0.0], "JSON has no NaN"
    assert {name: array.tolist() for name, array in state.items()} == {"made": [[1, 1], [1, 1]], "number": 3}
    made = AlgorithmAnswer(change=np.arange(6, dtype=np.float32), state={"made": np.full((3,), 7, np.float32)})
    told = write_answer(made, fd, message["answer_at"])
    found = read_answer(told, MERGE, fd, message["answer_at"], LAYOUT)
    assert found.change is not None
    assert found.change.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.state["made"].tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    "told",
    [
        {"change": 5, "state": []},
        {"change": 6},
        {"change": 6, "state": [["a"]]},
        {"change": 6, "state": [["a", [-1]]]},
        {"change": 6, "state": [["a", [5000]]]},
        {"change": 6, "state": [["a", [1 << 39, 0, 1 << 39]]]},
        {"change": 6, "state": [["a", [0, 4096, 4096]]]},
        {"change": 6, "state": [["a", [1.0]]]},
        {"change": 6, "state": [["", [1]]]},
        {"change": 6, "state": [["\ud800", [1]]]},
        {"change": 6, "state": [["a", [1]], ["a", [1]]]},
        {"change": 6, "state": [["a", [3000]], ["b", [3000]]]},
        {"change": 6, "state": [[str(number), [1]] for number in range(300)]},
    ],
)
def test_a_process_that_lies_about_its_answer_is_refused(
    asked: tuple[dict[str, Any], int], told: dict[str, Any]
) -> None:
    message, fd = asked
    with pytest.raises(PeerViolation):
        read_answer({"kind": "consulted", **told}, MERGE, fd, message["answer_at"], LAYOUT)


def test_nobody_can_cut_the_memory_short(asked: tuple[dict[str, Any], int]) -> None:
    _, fd = asked
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)


@pytest.mark.parametrize("chosen", [None, "a", ["a"] * 3])
def test_a_process_that_chooses_nobody_is_refused(chosen: Any) -> None:
    question = ChooseQuestion(candidates=(WaitingDevice(node="a"), WaitingDevice(node="b")), count=1, seed=0, version=0)
    message, fd = write_question(question, {}, LAYOUT)
    try:
        assert read_question(message, fd, LAYOUT)[0] == question
        with pytest.raises(PeerViolation):
            read_answer({"kind": "consulted", "chosen": chosen}, question, fd, message["answer_at"], LAYOUT)
    finally:
        os.close(fd)
