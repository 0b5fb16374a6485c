"""Checkpoints that travel: whatever is packed comes back; whatever else comes is refused, and nothing worse."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from shoal.errors import PeerViolation
from shoal.roles.actions import Save
from shoal.roles.evaluation_rows import row_of
from shoal.roles.node.checkpoint_transfer import StoredVersion, packed, rows_in, unpacked, version_of, with_rows
from shoal.scheduling.ledger import Applied
from shoal.wire.messages import Checkpoint, EvaluationView, MetricView

COUNT = st.integers(0, (1 << 62) - 1)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
NODES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in ("__metadata__", "shoal.applied")
)
DTYPES = st.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", ">f4", ">i8"])
FINITE = {"allow_nan": False, "allow_infinity": False}
ARRAYS = nps.arrays(DTYPES, nps.array_shapes(min_dims=0, min_side=0, max_dims=4, max_side=5), elements=FINITE)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBER | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)
VIEWS = st.builds(
    EvaluationView,
    version=COUNT,
    epoch=COUNT,
    accuracy=st.none() | NUMBER,
    loss=NUMBER,
    examples=COUNT,
    seconds=NUMBER,
    metrics=st.just(())
    | st.lists(
        st.builds(MetricView, name=st.sampled_from("abc"), value=st.none() | NUMBER, lower=st.booleans()),
        max_size=3,
        unique_by=lambda metric: metric.name,
    ).map(tuple),
)

PROGRESS: dict[str, Any] = {"ledger": {"epoch": 1, "batches": 9, "applied": [[0, 4]]}, "elapsed_s": 12.5}


def applied(last: int) -> st.SearchStrategy[tuple[Applied, ...]]:
    row = st.builds(Applied, epoch=COUNT, batch=COUNT, version=st.integers(0, last), node=NODES, lease=COUNT)
    return st.lists(row, max_size=6).map(tuple)


@st.composite
def saves(draw: st.DrawFn) -> Save:
    version = draw(COUNT)
    views = draw(st.lists(VIEWS, max_size=3))
    state: dict[str, Any] = draw(st.dictionaries(st.sampled_from(["term", "other"]), JSON))
    batches = draw(st.integers(1, 50))
    ends = sorted(draw(st.sets(st.integers(0, batches), max_size=6)))
    runs = [list(run) for run in zip(ends[::2], ends[1::2], strict=False)]
    state["ledger"] = {"epoch": draw(st.integers(0, 1000)), "batches": batches, "applied": runs}
    state["elapsed_s"] = draw(st.floats(0, 1e9))
    state["ending"] = draw(st.none() | st.lists(st.text("abc"), min_size=2, max_size=2))
    rows = [row_of(view) for view in views]
    return Save(
        version=version,
        tensors=draw(st.dictionaries(NAMES, ARRAYS, max_size=4)),
        state={**state, "job": "digits", "version": version, "evaluations": rows},
        applied=draw(applied(version)),
        evaluations=tuple(views),
    )


@settings(max_examples=150, deadline=None)
@given(saves(), COUNT)
def test_a_save_comes_back_as_it_was(save: Save, term: int) -> None:
    message = packed(version_of(save), job="digits", term=term)
    assert (message.job, message.term, message.version) == ("digits", term, save.version)
    version = unpacked(message)
    assert version is not None
    assert version.applied == save.applied
    assert version.evaluations == save.evaluations
    assert version.after == save.after
    assert {name: value for name, value in version.state.items() if name not in ("nodes", "after")} == save.state
    assert set(version.tensors) == {*save.tensors, "shoal.applied"}
    for name, array in save.tensors.items():
        assert version.tensors[name].dtype == array.dtype.newbyteorder("<")
        assert np.array_equal(version.tensors[name], array)


@settings(max_examples=100, deadline=None)
@given(applied(1 << 61))
def test_history_comes_back_in_its_order(rows: tuple[Applied, ...]) -> None:
    assert rows_in(*with_rows(rows)) == rows


def outcome(content: bytes, version: int) -> StoredVersion | None:
    """What a message with these bytes brings; None where it is refused. Anything else fails the test."""
    tensors = {"file": np.frombuffer(content, dtype=np.uint8)}
    try:
        return unpacked(Checkpoint(job="digits", term=1, version=version, tensors=tensors))
    except PeerViolation:
        return None


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 9))
def test_any_bytes_are_refused(content: bytes, version: int) -> None:
    assert outcome(content, version) is None


@functools.cache
def honest() -> bytes:
    view = {"version": 4, "epoch": 1, "accuracy": 0.5, "loss": 0.7, "examples": 100, "seconds": 3.5}
    rows = tuple(Applied(epoch=0, batch=batch, version=5, node="ab"[batch % 2], lease=batch) for batch in range(4))
    save = Save(
        version=5,
        tensors={"w": np.ones(3, dtype=np.float32)},
        state={"job": "digits", "version": 5, "evaluations": [view], **PROGRESS, "ending": None},
        applied=rows,
    )
    content = packed(version_of(save), job="digits", term=1).tensors["file"].tobytes()
    assert outcome(content, 5) is not None
    return content


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_read_as_something_whole(data: st.DataObject) -> None:
    content = bytearray(honest())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    version = outcome(bytes(content), 5)
    if version is None:
        return
    assert version.version == version.state["version"] == 5
    assert version.state["job"] == "digits"
    assert all(0 <= row.version <= 5 for row in version.applied)
    assert all(isinstance(view.accuracy, float | int) for view in version.evaluations)
    assert all(np.isfinite(array).all() for array in version.tensors.values())


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_file_that_was_cut_short_or_grew_is_refused(data: st.DataObject) -> None:
    content = honest()
    cut = data.draw(st.integers(0, len(content) - 1))
    assert outcome(content[:cut], 5) is None
    assert outcome(content + data.draw(st.binary(min_size=1, max_size=20)), 5) is None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_state_with_something_else_in_it_is_refused_or_whole(data: st.DataObject) -> None:
    version = unpacked(
        Checkpoint(job="digits", term=1, version=5, tensors={"file": np.frombuffer(honest(), dtype=np.uint8)})
    )
    assert version is not None
    name = data.draw(st.sampled_from(["job", "version", "nodes", "evaluations"]))
    lie = StoredVersion(version=5, tensors=version.tensors, state={**version.state, name: data.draw(JSON)})
    content = packed(lie, job="digits", term=1).tensors["file"].tobytes()
    found = outcome(content, 5)
    if found is not None:
        assert (found.state["job"], found.state["version"]) == ("digits", 5)
        assert {row.node for row in found.applied} <= set(found.state["nodes"])
