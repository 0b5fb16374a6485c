"""A question to an algorithm and its answer, as they pass between a leading node and the confined child. No processes.

Arrays lie in one piece of memory, which both have open: those of the question first, those of the answer behind. What
else there is comes as JSON. The node checks every size that the child names.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.errors import PeerViolation
from shoal.learning.algorithm import AlgorithmState, UpdateFacts, WaitingDevice
from shoal.learning.algorithm_call import (
    STATE_NAMES_MAX,
    AlgorithmAnswer,
    ChooseQuestion,
    FinishQuestion,
    MergeQuestion,
    Question,
    state_values_max,
)
from shoal.learning.layout import Layout
from shoal.trainer.channel import Message
from shoal.trainer.shared import anonymous_file, read_at, reserve, seal, write_at
from shoal.wire.limits import VALUE_BYTES

_DIMENSIONS_MAX = 8
_NAME_MAX_CHARS = 200


def write_question(question: Question, state: AlgorithmState, layout: Layout) -> tuple[Message, int]:
    """Return the question as a message, and the open memory with its arrays, which the caller closes."""
    arrays = [*_arrays_of(question), *state.values()]
    count = sum(array.size for array in arrays)
    fd = anonymous_file()
    try:
        # Pages of the answer are only taken as it is written.
        reserve(fd, max(1, VALUE_BYTES * count))
        os.ftruncate(fd, VALUE_BYTES * (count + layout.size + state_values_max(layout)))
        seal(fd, growing=False)
        offset = 0
        for array in arrays:
            write_at(fd, np.ascontiguousarray(array, dtype=np.float32), offset)
            offset += VALUE_BYTES * array.size
    except BaseException:
        os.close(fd)
        raise
    return {
        "kind": "consult",
        "hook": question.hook,
        "answer_at": count,
        "state": [[name, list(array.shape)] for name, array in state.items()],
        **_plain(question),
    }, fd


def read_question(message: Message, fd: int, layout: Layout) -> tuple[Question, AlgorithmState]:
    """Return what ``write_question`` wrote. In the child, which trusts its node."""
    question: Question
    rows = len(message.get("facts", ()))
    match message["hook"]:
        case "merge":
            facts = tuple(UpdateFacts(**fact) for fact in message["facts"])
            question = MergeQuestion(updates=_read(fd, (rows, layout.size), 0), facts=facts)
            offset = rows * layout.size
        case "finish":
            question, offset = FinishQuestion(mean=_read(fd, (layout.size,), 0)), layout.size
        case _:
            candidates = tuple(WaitingDevice(**each) for each in message["candidates"])
            count, seed, version = (int(message[name]) for name in ("count", "seed", "version"))
            question, offset = ChooseQuestion(candidates=candidates, count=count, seed=seed, version=version), 0
    state = {}
    for name, shape in message["state"]:
        state[name] = _read(fd, tuple(shape), offset)
        offset += state[name].size
    return question, state


def write_answer(answer: AlgorithmAnswer, fd: int, at: int) -> Message:
    """Write an answer behind the question. Return the rest of it as a message."""
    if answer.change is None:
        return {"kind": "consulted", "chosen": list(answer.chosen)}
    offset = at
    for array in (answer.change, *answer.state.values()):
        write_at(fd, np.ascontiguousarray(array), VALUE_BYTES * offset)
        offset += array.size
    state = [[name, list(array.shape)] for name, array in answer.state.items()]
    return {"kind": "consulted", "change": answer.change.size, "state": state}


def read_answer(message: Message, question: Question, fd: int, at: int, layout: Layout) -> AlgorithmAnswer:
    """Return the answer of a child. Raises PeerViolation if it cannot be read."""
    if isinstance(question, ChooseQuestion):
        chosen = message.get("chosen")
        if not isinstance(chosen, list) or len(chosen) > len(question.candidates):
            raise PeerViolation("the algorithm's process answered without a list of devices")
        return AlgorithmAnswer(chosen=tuple(str(name)[:_NAME_MAX_CHARS] for name in chosen))
    rows = message.get("state")
    if message.get("change") != layout.size or not isinstance(rows, list) or len(rows) > STATE_NAMES_MAX:
        raise PeerViolation("the algorithm's process answered without a change of the model")
    values_max = state_values_max(layout)
    shapes = dict(_shape(row, values_max) for row in rows)
    if len(shapes) < len(rows) or sum(map(math.prod, shapes.values())) > values_max:
        raise PeerViolation("the algorithm's process answered with a state that is too large")
    change = _read(fd, (layout.size,), at)
    offset = at + layout.size
    state = {}
    for name, shape in shapes.items():
        state[name] = _read(fd, shape, offset)
        state[name].flags.writeable = False
        offset += state[name].size
    return AlgorithmAnswer(change=change, state=state)


def _shape(row: object, values_max: int) -> tuple[str, tuple[int, ...]]:
    match row:
        case [str(name), list(shape)] if 0 < len(name) <= _NAME_MAX_CHARS and len(shape) <= _DIMENSIONS_MAX:
            # Also where another length is 0: numpy refuses shapes whose other lengths are too large.
            is_sound = all(type(length) is int and 0 <= length <= values_max for length in shape)
            if is_sound and math.prod(filter(None, shape)) <= values_max and name.isprintable():
                return name, tuple(shape)
    raise PeerViolation("the algorithm's process answered with a state whose shape cannot be read")


def _read(fd: int, shape: Sequence[int], at: int) -> np.ndarray:
    array = np.empty(shape, dtype=np.float32)
    read_at(fd, array.reshape(-1), VALUE_BYTES * at)
    return array


def _arrays_of(question: Question) -> list[np.ndarray]:
    if isinstance(question, MergeQuestion):
        return [question.updates]
    return [question.mean] if isinstance(question, FinishQuestion) else []


def _plain(question: Question) -> Mapping[str, Any]:
    if isinstance(question, MergeQuestion):
        return {"facts": [_finite(dataclasses.asdict(fact)) for fact in question.facts]}
    if isinstance(question, ChooseQuestion):
        candidates = [_finite(dataclasses.asdict(each)) for each in question.candidates]
        numbers = {"count": question.count, "seed": question.seed, "version": question.version}
        return {"candidates": candidates, **numbers}
    return {}


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields as JSON can have them: it has no NaN."""
    return {
        name: 0.0 if isinstance(value, float) and not math.isfinite(value) else value for name, value in fields.items()
    }
