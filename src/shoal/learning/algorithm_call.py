"""One call of an algorithm: the question, the answer, and what an answer must be.

The simulator calls an algorithm in its own process, a leading device in a confined child. What a child answers is
checked again by the device: the child runs somebody else's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from shoal.errors import Misuse
from shoal.learning.algorithm import Algorithm, AlgorithmState, UpdateFacts, WaitingDevice, hooks_of
from shoal.learning.layout import Layout

#: A model's worth of values times this is the most that an algorithm may keep. Small models may have more.
STATE_MODELS = 4
STATE_VALUES_LEAST = 4096
STATE_NAMES_MAX = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeQuestion:
    #: A row per device, in the order of ``facts``.
    updates: np.ndarray = field(repr=False, compare=False)
    facts: tuple[UpdateFacts, ...]

    hook = "merge"


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishQuestion:
    #: The weighted mean of a version, as one vector.
    mean: np.ndarray = field(repr=False, compare=False)

    hook = "finish"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChooseQuestion:
    candidates: tuple[WaitingDevice, ...]
    count: int
    #: The plan's seed and the version seed the algorithm's chance.
    seed: int
    version: int

    hook = "choose"


Question: TypeAlias = MergeQuestion | FinishQuestion | ChooseQuestion


@dataclass(frozen=True, kw_only=True, slots=True)
class AlgorithmAnswer:
    """What an algorithm returned, as float32 and not written to later."""

    #: The change of the model as one vector, or None after ``choose``.
    change: np.ndarray | None = field(default=None, repr=False, compare=False)
    state: AlgorithmState = field(default_factory=dict, repr=False, compare=False)
    chosen: tuple[str, ...] = ()


def answered(algorithm: Algorithm, layout: Layout, question: Question, state: AlgorithmState) -> AlgorithmAnswer:
    """Call the algorithm with copies. Raises Misuse, with what is wrong, unless its answer can be used."""
    title = f"{type(algorithm).__name__}.{question.hook}"
    if question.hook not in hooks_of(algorithm):
        raise Misuse(f"{type(algorithm).__name__} has no {question.hook}, for which its plan names it")
    if isinstance(question, ChooseQuestion):
        rng = np.random.default_rng((question.seed, question.version))
        names = _called(title, algorithm.choose, list(question.candidates), question.count, rng)
        try:
            answer = AlgorithmAnswer(chosen=tuple(map(str, names)))
        except TypeError:
            raise Misuse(f"{title} returned no list of names") from None
    else:
        kept = {name: array.copy() for name, array in state.items()}
        if isinstance(question, MergeQuestion):
            returned = _called(title, algorithm.merge, question.updates.copy(), list(question.facts), kept)
        else:
            returned = _called(title, algorithm.finish, layout.views(question.mean.copy()), kept)
        if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
            raise Misuse(f"{title} returned no pair of a change and a state")
        whole = isinstance(question, MergeQuestion)
        change = _array(returned[0], title, "a change") if whole else _joined(returned[0], layout, title)
        answer = AlgorithmAnswer(change=change, state=_state(returned[1], title))
    if (problem := problem_of(answer, question, layout)) is not None:
        raise Misuse(f"{title} returned {problem}")
    return answer


def problem_of(answer: AlgorithmAnswer, question: Question, layout: Layout) -> str | None:
    """Return what is wrong with an answer, or None if a leader can use it."""
    if isinstance(question, ChooseQuestion):
        names = answer.chosen
        if len(set(names)) < len(names) or not {each.node for each in question.candidates}.issuperset(names):
            return "a device twice, or one that was not a candidate"
        return f"{len(names)} devices instead of {question.count}" if len(names) != question.count else None
    change, kept = answer.change, answer.state
    if change is None or change.shape != (layout.size,):
        shape = None if change is None else change.shape
        return f"a change of shape {shape}: the model has {layout.size:,} values"
    if not np.isfinite(change).all():
        return "a change with values that are not finite"
    if len(kept) > STATE_NAMES_MAX:
        return f"a state of {len(kept)} arrays: the most is {STATE_NAMES_MAX}"
    if sum(array.size for array in kept.values()) > state_values_max(layout):
        return f"a state larger than {STATE_MODELS} models"
    for name, array in kept.items():
        if not np.isfinite(array).all():
            return f"a state {name!r} with values that are not finite"
    return None


def state_values_max(layout: Layout) -> int:
    return max(STATE_MODELS * layout.size, STATE_VALUES_LEAST)


def _called(title: str, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception as error:
        raise Misuse(f"{title} raised {type(error).__name__}: {error}") from error


def _joined(changes: object, layout: Layout, title: str) -> np.ndarray:
    """Return the changes of some tensors as one vector."""
    change = np.zeros(layout.size, dtype=np.float32)
    views = layout.views(change)
    if not isinstance(changes, Mapping) or not changes.keys() <= views.keys():
        raise Misuse(f"{title} returned changes of other tensors than {', '.join(list(views)[:8])}")
    for name, given in changes.items():
        array, view = _array(given, title, f"a change of {name}"), views[name]
        if array.size != view.size:
            raise Misuse(f"{title} returned {array.size} values for {name}, which has {view.size}")
        view[...] = array.reshape(view.shape)
    return change


def _state(state: Mapping[Any, Any], title: str) -> AlgorithmState:
    kept: dict[str, np.ndarray] = {}
    for name, value in state.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise Misuse(f"{title} returned a state with the name {name!r}: names are texts that can be printed")
        kept[name] = _array(value, title, f"a state {name!r}")
        kept[name].flags.writeable = False
    return kept


def _array(value: Any, title: str, what: str) -> np.ndarray:
    """Return a copy as float32."""
    try:
        return np.array(value, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise Misuse(f"{title} returned {what} that is not an array of numbers") from error
