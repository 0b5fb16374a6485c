"""How a checkpoint travels, and what is not believed of one that came."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.roles.actions import Save
from shoal.roles.node.checkpoint_transfer import StoredVersion, packed, rows_in, unpacked, version_of, with_rows
from shoal.scheduling.ledger import Applied
from shoal.wire import tensors as tensor_files
from shoal.wire.messages import Checkpoint, EvaluationView

ROWS = (
    Applied(epoch=0, batch=3, version=4, node="b", lease=9),
    Applied(epoch=1, batch=0, version=5, node="a", lease=10),
)
PROGRESS: dict[str, Any] = {"ledger": {"epoch": 1, "batches": 9, "applied": [[0, 4]]}, "elapsed_s": 12.5}
VIEW = {"version": 4, "epoch": 1, "accuracy": 0.5, "loss": 0.7, "examples": 100, "seconds": 3.5}


def save() -> Save:
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "shoal.velocity": np.zeros(6, dtype=np.float32)}
    state: dict[str, Any] = {"job": "digits", "version": 5, "evaluations": [VIEW], "ending": None, **PROGRESS}
    return Save(version=5, tensors=tensors, state=state, applied=ROWS)


def message() -> Checkpoint:
    return packed(version_of(save()), job="digits", term=3)


def test_a_checkpoint_arrives_as_it_was_sent() -> None:
    sent = message()
    assert (sent.job, sent.term, sent.version) == ("digits", 3, 5)
    version = unpacked(sent)
    assert version is not None
    assert version.version == 5
    assert version.tensors["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert version.applied == ROWS
    assert version.evaluations == (EvaluationView(**VIEW),)
    assert version.state["ending"] is None


def test_there_may_be_none_yet() -> None:
    none = packed(None, job="digits", term=1)
    assert (none.version, dict(none.tensors)) == (-1, {})
    assert unpacked(none) is None


def test_a_version_that_arrived_can_be_sent_on() -> None:
    again = unpacked(packed(unpacked(message()), job="digits", term=9))
    assert again is not None
    assert again.applied == ROWS
    assert again.state == version_of(save()).state


def test_what_arrived_does_not_change_with_what_brought_it() -> None:
    content = np.array(message().tensors["file"])
    version = unpacked(Checkpoint(job="digits", term=3, version=5, tensors={"file": content}))
    content[:] = 0
    assert version is not None
    assert version.tensors["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_no_history_is_a_history() -> None:
    tensors, names = with_rows(())
    assert rows_in(tensors, names) == ()
    assert tensors["shoal.applied"].shape == (0, 5)


def test_a_checkpoint_without_its_file_is_refused() -> None:
    whole = message().tensors["file"]
    for tensors in (
        {},
        {"other": whole},
        {"file": whole.astype(np.int64)},
        {"file": whole.reshape(1, -1)},
        {"file": whole[:-1]},
        {"file": whole[:0]},
        {"file": np.concatenate([whole, whole])},
    ):
        with pytest.raises(PeerViolation):
            unpacked(Checkpoint(job="digits", term=3, version=5, tensors=tensors))


@pytest.mark.parametrize("says", [{"job": "other"}, {"version": 4}, {"version": 6}])
def test_it_is_of_the_job_and_version_that_it_says(says: dict[str, Any]) -> None:
    whole = {"job": "digits", "term": 3, "version": 5, "tensors": message().tensors}
    with pytest.raises(PeerViolation):
        unpacked(Checkpoint(**whole | says))


# Lies ------------------------------------------------------------------------------------------------------


def forged(
    *,
    state: Any = None,
    tensors: dict[str, np.ndarray] | None = None,
    notes: dict[str, str] | None = None,
    without: str = "",
) -> Checkpoint:
    """A checkpoint of version 5 in which these things are otherwise."""
    version = version_of(save())
    said: dict[str, Any] = {**version.state, **state} if isinstance(state, dict) else version.state
    said = {name: value for name, value in said.items() if name != without}
    text = json.dumps(said) if state is None or isinstance(state, dict) else state
    held = {name: array for name, array in {**version.tensors, **(tensors or {})}.items() if name != without}
    file = io.BytesIO()
    tensor_files.write(file, held, {"shoal": "checkpoint on its way 1", "version": "5", "state": text} | (notes or {}))
    content = np.frombuffer(file.getvalue(), dtype=np.uint8)
    return Checkpoint(job="digits", term=3, version=5, tensors={"file": content})


def rows(*values: list[int], dtype: Any = np.int64) -> dict[str, np.ndarray]:
    return {"shoal.applied": np.array(values, dtype=dtype).reshape(len(values), -1)}


def test_the_forger_can_be_honest() -> None:
    version = unpacked(forged())
    assert version is not None
    assert version.applied == ROWS


@pytest.mark.parametrize(
    "lie",
    [
        {"notes": {"shoal": "checkpoint 1"}},
        {"notes": {"version": "6"}},
        {"notes": {"version": "five"}},
        {"state": "{"},
        {"state": "[" * 100_000},
        {"state": "9" * 10_000},
        {"state": "null"},
        {"state": "[]"},
        {"state": '"digits"'},
        {"state": {"job": "other"}},
        {"state": {"version": 6}},
        {"state": {"version": "5"}},
        {"without": "job"},
        {"without": "version"},
        {"without": "nodes"},
        {"without": "evaluations"},
        {"without": "shoal.applied"},
    ],
    ids=str,
)
def test_lies_about_what_it_is_are_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(PeerViolation):
        unpacked(forged(**lie))


@pytest.mark.parametrize(
    "lie",
    [
        {"tensors": rows([0, 0, 6, 0, 1])},
        {"tensors": rows([0, 0, 5, 2, 1])},
        {"tensors": rows([0, 0, 5, 1 << 60, 1])},
        {"tensors": rows([0, 0, 5, -1, 1])},
        {"tensors": rows([0, 0, 5, 0])},
        {"tensors": rows([0, 0, 5, 0, 1, 1])},
        {"tensors": rows([0, 0, 5, 0, 1], dtype=np.float32)},
        {"tensors": rows([0, 0, 5, 0, (1 << 64) - 1], dtype=np.uint64)},
        {"tensors": {"shoal.applied": np.zeros((), dtype=np.int64)}},
        {"tensors": {"shoal.applied": np.zeros(5, dtype=np.int64)}},
        {"tensors": {"shoal.applied": np.zeros((0, 5), dtype=np.bool_)}},
        {"state": {"nodes": None}},
        {"state": {"nodes": []}},
        {"state": {"nodes": "ab"}},
        {"state": {"nodes": [1, 2]}},
        {"state": {"nodes": {"0": "a"}}},
        {"state": {"nodes": ["a", "../b"]}},
    ],
    ids=str,
)
def test_lies_about_history_are_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(PeerViolation):
        unpacked(forged(**lie))


@pytest.mark.parametrize(
    "evaluations",
    [
        None,
        7,
        [7],
        [[]],
        [{}],
        [{**VIEW, "more": 1}],
        [{**VIEW, "accuracy": float("nan")}],
        [{**VIEW, "accuracy": "0.9"}],
        [{**VIEW, "version": 1 << 70}],
        [{**VIEW, "version": None}],
        [{**VIEW, "version": 4.5}],
        [{**VIEW, "loss": []}],
    ],
    ids=str,
)
def test_lies_about_evaluations_are_refused(evaluations: Any) -> None:
    with pytest.raises(PeerViolation):
        unpacked(forged(state={"evaluations": evaluations}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_model_that_is_not_finite_is_refused(value: float, dtype: Any) -> None:
    with pytest.raises(PeerViolation, match="tensor w has values that are not finite"):
        unpacked(forged(tensors={"w": np.array([0, value], dtype=dtype)}))


def test_a_version_says_what_it_holds() -> None:
    tensors, names = with_rows(ROWS)
    version = StoredVersion(version=5, tensors=tensors, state={**names, "evaluations": [VIEW]})
    assert version.applied == ROWS
    assert [view.accuracy for view in version.evaluations] == [0.5]


@pytest.mark.parametrize(
    "lie",
    [
        {"ledger": {"epoch": 1, "batches": 9, "applied": [[0, 4], [2, 6]]}},
        {"ledger": {"epoch": 1, "batches": 1 << 40, "applied": []}},
        {"ledger": {"epoch": 1, "batches": 0, "applied": []}},
        {"ledger": []},
        {"elapsed_s": -1.0},
        {"elapsed_s": "soon"},
        {"ending": "finished"},
        {"ending": ["finished", 1]},
    ],
)
def test_what_nobody_could_go_on_from_is_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(PeerViolation):
        unpacked(forged(state=lie))
