"""The message format of a checkpoint: one file's bytes with the model, the state, and the history since the last one.

A leader does not rely on its device's disk: the manager's node keeps every version that must not be lost. Pure
functions.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import Corrupt, Misuse, PeerViolation
from shoal.roles.actions import Save
from shoal.roles.evaluation_rows import view_of
from shoal.roles.leader.training_state import OURS
from shoal.scheduling.ledger import Applied, Ledger
from shoal.wire import tensors as tensor_files
from shoal.wire.limits import BATCHES_MAX, SECONDS_MAX
from shoal.wire.messages import Checkpoint, EvaluationView, Tensors, is_id

_FILE = "file"
_FORMAT_KEY, _FORMAT = "shoal", "checkpoint on its way 1"
_ROWS, _NAMES, _AFTER = f"{OURS}applied", "nodes", "after"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredVersion:
    """An unpacked checkpoint, which a store keeps and a leader resumes from."""

    version: int
    tensors: Tensors
    state: dict[str, Any]

    @property
    def applied(self) -> tuple[Applied, ...]:
        return rows_in(self.tensors, self.state)

    @property
    def after(self) -> int:
        """The version after which its rows begin. A store drops rows of later versions that are not among them.

        A checkpoint that a leader resumes from has no rows, and the store drops none.
        """
        return int(self.state.get(_AFTER, self.version))

    @property
    def evaluations(self) -> tuple[EvaluationView, ...]:
        return tuple(view_of(row) for row in self.state["evaluations"])


def version_of(save: Save) -> StoredVersion:
    """Return the checkpoint of a save, with its history inside."""
    rows, names = with_rows(save.applied)
    state = {**save.state, **names, _AFTER: save.after}
    return StoredVersion(version=save.version, tensors={**save.tensors, **rows}, state=state)


def packed(version: StoredVersion | None, *, job: str, term: int, number: int = 0) -> Checkpoint:
    """Return the message that carries a version to another node. None means that there is no version yet.

    ``number`` counts a leader's saves.
    """
    if version is None:
        return Checkpoint(job=job, term=term, version=-1)
    file = io.BytesIO()
    notes = {_FORMAT_KEY: _FORMAT, "version": str(version.version), "state": json.dumps(version.state)}
    tensor_files.write(file, version.tensors, notes)
    content = np.frombuffer(file.getbuffer(), dtype=np.uint8)
    return Checkpoint(job=job, term=term, version=version.version, number=number, tensors={_FILE: content})


def unpacked(checkpoint: Checkpoint) -> StoredVersion | None:
    """Return a copy of the version in a message, or None if there is no version yet. Raises PeerViolation if a part is
    missing or wrong."""
    if checkpoint.version < 0:
        return None
    content = checkpoint.tensors.get(_FILE)
    if content is None or content.dtype != np.uint8 or content.ndim != 1:
        raise PeerViolation("checkpoint: its file is missing or is not a vector of bytes")
    try:
        tensors, notes = tensor_files.read(content.tobytes())
        if notes.get(_FORMAT_KEY) != _FORMAT or notes.get("version") != str(checkpoint.version):
            raise PeerViolation(f"checkpoint: its file is not one of version {checkpoint.version}")
        state = json.loads(notes["state"])
        version = StoredVersion(version=checkpoint.version, tensors=tensors, state=state)
        _check(version, checkpoint)
    except (Corrupt, ValueError, LookupError, TypeError, RecursionError) as error:
        raise PeerViolation(f"checkpoint: its file cannot be read: {error}") from error
    return version


def _check(version: StoredVersion, checkpoint: Checkpoint) -> None:
    state = version.state
    if state["job"] != checkpoint.job or state["version"] != checkpoint.version:
        raise PeerViolation("checkpoint: the job or the version in its file differs from those of the message")
    for name, array in version.tensors.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise PeerViolation(f"checkpoint: tensor {name[:80]} has values that are not finite")
    after = state.get(_AFTER, checkpoint.version)
    if type(after) is not int or not -1 <= after <= checkpoint.version:
        raise PeerViolation(f"checkpoint: after is {after!r}; it must be from -1 to {checkpoint.version}")
    _check_rows(version.tensors[_ROWS], state[_NAMES], after=after, last=checkpoint.version)
    _check_progress(state)
    _check_gaps(state, last=checkpoint.version)
    for view in version.evaluations:
        counts = (view.version, view.epoch, view.examples)
        measures = (view.seconds, *(each.value for each in view.metrics if each.value is not None))
        if not all(type(count) is int for count in counts) or not all(
            type(value) in (int, float) for value in measures
        ):
            raise PeerViolation("checkpoint: an evaluation has a value that is not a number")


def _check_progress(state: Mapping[str, Any]) -> None:
    """Check the state that a leader restores besides the model: the manager must not keep a version that no leader can
    resume from."""
    ledger, ending, elapsed_s = state["ledger"], state["ending"], state["elapsed_s"]
    if not isinstance(ledger["batches"], int) or not 0 < ledger["batches"] <= BATCHES_MAX:
        raise PeerViolation(f"checkpoint: ledger.batches is {ledger['batches']!r}; it must be 1 to {BATCHES_MAX}")
    try:
        Ledger.restore(ledger)
    except Misuse as error:
        raise PeerViolation(f"checkpoint: the ledger is invalid: {error}") from error
    if type(elapsed_s) not in (int, float) or not 0 <= elapsed_s <= SECONDS_MAX:
        raise PeerViolation(f"checkpoint: elapsed_s is {elapsed_s!r}; it must be from 0 to {SECONDS_MAX}")
    steps = state.get("outer_steps", 0)
    if type(steps) is not int or not 0 <= steps <= state["version"]:
        raise PeerViolation(f"checkpoint: outer_steps is {steps!r}; it must be from 0 to the version")
    weight = state.get("mean_weight", 0.0)
    if type(weight) not in (int, float) or not 0 <= weight < math.inf:
        raise PeerViolation(f"checkpoint: mean_weight is {weight!r}; it must be a number from 0")
    if ending is not None and not (isinstance(ending, list) and list(map(type, ending)) == [str, str]):
        raise PeerViolation(f"checkpoint: ending is {ending!r:.80}; it must be None or two texts")


def _check_gaps(state: Mapping[str, Any], *, last: int) -> None:
    gaps = state.get("went_back", [])
    if not isinstance(gaps, list) or not all(
        isinstance(gap, list) and list(map(type, gap)) == [int, int] for gap in gaps
    ):
        raise PeerViolation("checkpoint: went_back must be a list of pairs of versions")
    if not all(0 <= kept < again <= last for kept, again in gaps):
        raise PeerViolation(f"checkpoint: each pair of went_back must rise, within 0 to {last}")


def _check_rows(rows: np.ndarray, names: object, *, after: int, last: int) -> None:
    if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != 5:
        raise PeerViolation("checkpoint: the history must be rows of five integers")
    if not isinstance(names, list) or not all(isinstance(name, str) and is_id(name) for name in names):
        raise PeerViolation("checkpoint: the history's list of nodes has an entry that is not a node's name")
    if not len(rows):
        return
    if rows.min() < 0 or rows[:, 3].max() >= len(names):
        raise PeerViolation("checkpoint: the history has a number below 0 or a node that is not listed")
    if rows[:, 2].max() > last or rows[:, 2].min() <= after:
        raise PeerViolation(f"checkpoint: the history has a version outside {after + 1} to {last}")


# History inside a checkpoint ------------------------------------------------------------------------


def with_rows(applied: Sequence[Applied]) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Return rows of history as they are inside a checkpoint: numbers as a tensor, names next to the state."""
    names = sorted({row.node for row in applied})
    places = {name: place for place, name in enumerate(names)}
    rows = [[r.epoch, r.batch, r.version, places[r.node], r.lease] for r in applied]
    return {_ROWS: np.array(rows, dtype=np.int64).reshape(-1, 5)}, {_NAMES: names}


def rows_in(tensors: Tensors, state: Mapping[str, Any]) -> tuple[Applied, ...]:
    names = state[_NAMES]
    return tuple(
        Applied(epoch=epoch, batch=batch, version=at, node=names[place], lease=lease)
        for epoch, batch, at, place, lease in tensors[_ROWS].tolist()
    )
